//! The writes of each 4 KiB block of the volume, and a check that it still has them.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bench::Outcome;
use crate::bench::client::Client;

pub(super) const REQUEST_BYTES: usize = 4096;

/// One block that the load writes.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Its last promised write: acknowledged, and flushed after that if an acknowledgement promises
    /// nothing. Zero for none.
    promised: u32,
    /// Its last acknowledged write.
    acknowledged: u32,
    /// Its last write.
    sent: u32,
}

/// The blocks, one in each cache block, in the order in which the load writes them.
pub(super) struct Blocks {
    offsets: Vec<u64>,
    blocks: Vec<Block>,
    writes: u32,
    /// Whether an acknowledgement is a promise by itself.
    sync: bool,
}

/// The actions of one pass over some blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Writes in flight.
    pub(super) depth: usize,
    /// Writes between two flushes.
    pub(super) flush_every: Option<usize>,
}

impl Blocks {
    /// Returns `count` blocks, each at a random place within its own cache block, in random order.
    pub(super) fn new(count: u64, cache_block_bytes: u64, sync: bool) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let within = cache_block_bytes / REQUEST_BYTES as u64;
        let mut offsets: Vec<u64> = (0..count)
            .map(|block| block * cache_block_bytes + random.below(within) * REQUEST_BYTES as u64)
            .collect();
        for at in (1..offsets.len()).rev() {
            let other = random.below(at as u64 + 1) as usize;
            offsets.swap(at, other);
        }
        let blocks = vec![Block::default(); offsets.len()];
        Self {
            offsets,
            blocks,
            writes: 0,
            sync,
        }
    }

    /// Writes the blocks of `range` once. Returns the number of flushes.
    pub(super) fn write(
        &mut self,
        client: &mut Client,
        range: Range<usize>,
        pass: Pass,
    ) -> Outcome<u64> {
        let mut flushes = 0;
        let burst = pass.flush_every.unwrap_or(range.len());
        let mut from = range.start;
        while from < range.end {
            let to = (from + burst).min(range.end);
            let mut in_flight = VecDeque::new();
            for at in from..to {
                if in_flight.len() == pass.depth {
                    self.acknowledge(client, &mut in_flight)?;
                }
                self.send(client, at)?;
                in_flight.push_back(at);
            }
            while !in_flight.is_empty() {
                self.acknowledge(client, &mut in_flight)?;
            }
            if pass.flush_every.is_some() {
                client.flush()?;
                flushes += 1;
                for block in &mut self.blocks[from..to] {
                    block.promised = block.acknowledged;
                }
            }
            from = to;
        }
        Ok(flushes)
    }

    fn send(&mut self, client: &mut Client, at: usize) -> Outcome<()> {
        self.writes += 1;
        self.blocks[at].sent = self.writes;
        let data = content(self.offsets[at], self.writes);
        client.write(at as u64, self.offsets[at], &data)
    }

    fn acknowledge(&mut self, client: &mut Client, in_flight: &mut VecDeque<usize>) -> Outcome<()> {
        let at = client.answer()? as usize;
        let place = in_flight.iter().position(|one| *one == at);
        in_flight.remove(place.ok_or("an answer without a request")?);
        let block = &mut self.blocks[at];
        block.acknowledged = block.sent;
        if self.sync {
            block.promised = block.sent;
        }
        Ok(())
    }

    /// Reads all of `range`. Returns the number of lost blocks, which hold neither the last
    /// promised write nor a newer one.
    pub(super) fn verify(&self, client: &mut Client, range: Range<usize>) -> Outcome<u64> {
        let mut lost = 0;
        let mut data = vec![0; REQUEST_BYTES];
        for at in range {
            let (offset, block) = (self.offsets[at], self.blocks[at]);
            client.read(offset, &mut data)?;
            let held = stamp(&data, offset);
            if !held.is_some_and(|write| block.promised <= write && write <= block.sent) {
                eprintln!("LOST: {offset} holds write {held:?} in place of {block:?}");
                lost += 1;
            }
        }
        Ok(lost)
    }
}

/// Returns the content of write number `write` at `offset`: both numbers, repeated.
fn content(offset: u64, write: u32) -> Vec<u8> {
    let word = (offset / REQUEST_BYTES as u64) << 32 | u64::from(write);
    word.to_le_bytes().repeat(REQUEST_BYTES / 8)
}

/// Returns the write of `data`, zero for zeroes. `None` for data that was never written there.
fn stamp(data: &[u8], offset: u64) -> Option<u32> {
    let word = u64::from_le_bytes(data[..8].try_into().ok()?);
    let write = u32::try_from(word & u64::from(u32::MAX)).ok()?;
    let whole = match word {
        0 => data.iter().all(|byte| *byte == 0),
        _ => data == content(offset, write),
    };
    whole.then_some(write)
}

/// SplitMix64: the same load in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_lies_in_a_cache_block_of_its_own() {
        let blocks = Blocks::new(100, 32 << 10, false);
        let mut seen: Vec<u64> = blocks.offsets.iter().map(|offset| offset >> 15).collect();
        assert!(!seen.is_sorted(), "in random order");
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(blocks.offsets.iter().any(|offset| offset % (32 << 10) != 0));
    }

    #[test]
    fn data_that_was_not_written_there_has_no_stamp() {
        assert_eq!(stamp(&content(8192, 7), 8192), Some(7));
        assert_eq!(stamp(&content(8192, 7), 4096), None, "of another place");
        assert_eq!(stamp(&vec![0; REQUEST_BYTES], 4096), Some(0));
        let mut torn = content(8192, 7);
        torn[4000] ^= 1;
        assert_eq!(stamp(&torn, 8192), None);
    }
}
