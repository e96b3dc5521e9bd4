//! Content of a simulated device: as a reader sees it, as it would survive power loss, and the
//! writes in between.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::Buf;

use super::rng::Rng;
use super::store::{IntegerMap, Store};

/// A block of a write that has not reached the device's cache yet.
const NOT_YET: u64 = 0;
/// A block of a write that will never take effect (a failed write, a discard that keeps old data).
const NEVER: u64 = u64::MAX;

/// Data that a write puts into its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Bytes(Rc<Vec<u8>>),
    Zeroes,
}

/// A write (or write-zeroes, or discard) that is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) id: u64,
    first_block: u64,
    fua: bool,
    data: Data,
    /// For each block when it took effect, on the media's clock; or `NOT_YET` or `NEVER`.
    applied: Vec<u64>,
    acknowledged_at: Option<u64>,
}

/// Which blocks of a write a decision concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    All,
    /// Each block with a chance of this many in eight.
    Some(u64),
}

impl Part {
    fn draw(self, rng: &Rng) -> bool {
        match self {
            Self::All => true,
            Self::Some(eighths) => rng.chance(eighths, 8),
        }
    }
}

/// One device's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Media {
    block_bytes: usize,
    volatile: bool,
    live: Store,
    durable: Store,
    /// Time at which the durable content of a block took effect. No older write replaces it.
    durable_at: IntegerMap<u64>,
    pending: Vec<Write>,
    /// Flushes in flight, as the time at which they were submitted.
    flushes: Vec<u64>,
    /// Counts every event, so that events are ordered.
    clock: u64,
}

impl Media {
    pub(super) fn new(block_bytes: usize, volatile: bool) -> Self {
        Self {
            block_bytes,
            volatile,
            live: Store::default(),
            durable: Store::default(),
            durable_at: IntegerMap::default(),
            pending: Vec::new(),
            flushes: Vec::new(),
            clock: NOT_YET,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn read(&self, offset: u64, buf: &Buf) {
        self.live.read_to_buf(offset, buf);
    }

    /// Reads the content that power loss cannot take.
    pub(super) fn read_durable(&self, offset: u64, buf: &Buf) {
        self.durable.read_to_buf(offset, buf);
    }

    /// A write arrives; nothing of it has taken effect.
    pub(super) fn submit_write(&mut self, id: u64, offset: u64, len: u64, fua: bool, data: Data) {
        let blocks = (len / self.block_bytes as u64) as usize;
        self.pending.push(Write {
            id,
            first_block: offset / self.block_bytes as u64,
            fua,
            data,
            applied: vec![NOT_YET; blocks],
            acknowledged_at: None,
        });
    }

    /// Blocks that are drawn now will never take effect.
    pub(super) fn cripple(&mut self, id: u64, part: Part, rng: &Rng) {
        let index = self.find(id);
        for at in &mut self.pending[index].applied {
            if *at == NOT_YET && part.draw(rng) {
                *at = NEVER;
            }
        }
    }

    fn find(&self, id: u64) -> usize {
        self.pending
            .binary_search_by_key(&id, |write| write.id)
            .expect("a write is pending until it is durable")
    }

    /// Blocks of a write reach the device's cache, where readers see them.
    pub(super) fn apply(&mut self, id: u64, part: Part, rng: &Rng) {
        let index = self.find(id);
        self.apply_at(index, part, rng);
    }

    fn apply_at(&mut self, index: usize, part: Part, rng: &Rng) {
        let now = self.tick();
        let write = &mut self.pending[index];
        let mut run = Run::default();
        for (block, at) in write.applied.iter_mut().enumerate() {
            if *at == NOT_YET && part.draw(rng) {
                *at = now;
                run.add(block);
            } else {
                run.put(
                    &mut self.live,
                    write.first_block,
                    &write.data,
                    self.block_bytes,
                );
            }
        }
        run.put(
            &mut self.live,
            write.first_block,
            &write.data,
            self.block_bytes,
        );
    }

    /// Acknowledges a write to the caller. Data that must be durable by then is made so.
    pub(super) fn acknowledge(&mut self, id: u64) {
        let now = self.tick();
        let index = self.find(id);
        self.pending[index].acknowledged_at = Some(now);
        if self.pending[index].fua || !self.volatile {
            self.persist(index, Part::All, &Rng::new(0));
            self.pending.remove(index);
            self.forget_times();
        }
    }

    /// Reports a write's failure to the caller. Its effects must still be flushed, whatever the
    /// write asked for. On a device without a volatile cache they are on media.
    pub(super) fn fail(&mut self, id: u64) {
        let now = self.tick();
        let index = self.find(id);
        self.pending[index].acknowledged_at = Some(now);
        if !self.volatile {
            self.persist(index, Part::All, &Rng::new(0));
            self.pending.remove(index);
            self.forget_times();
        }
    }

    /// As [`Media::fail`], but the effects are durable now, or readers see them and they never will
    /// be.
    pub(super) fn fail_and_show(&mut self, id: u64, rng: &Rng) {
        let index = self.find(id);
        let density = Part::Some([0, 0, 4, 8][rng.index(4)]);
        self.persist(index, density, rng);
        self.pending.remove(index);
        self.forget_times();
    }

    /// A flush arrives; the returned time names it.
    pub(super) fn submit_flush(&mut self) -> u64 {
        let now = self.tick();
        self.flushes.push(now);
        now
    }

    /// Everything acknowledged before the flush arrived is durable now.
    pub(super) fn finish_flush(&mut self, flush: u64) {
        self.flushes.retain(|&other| other != flush);
        for index in 0..self.pending.len() {
            if self.pending[index]
                .acknowledged_at
                .is_some_and(|at| at < flush)
            {
                self.persist(index, Part::All, &Rng::new(0));
            }
        }
        self.pending
            .retain(|write| write.acknowledged_at.is_none_or(|at| at >= flush));
        self.forget_times();
    }

    /// Fails a flush. Some of the writes that it covered may be durable. Later flushes do not cover
    /// the rest. With `lose_now` readers lose them at once.
    pub(super) fn fail_flush(&mut self, flush: u64, lose_now: bool, rng: &Rng) {
        self.flushes.retain(|&other| other != flush);
        let (covered, remaining): (Vec<Write>, Vec<Write>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|write| write.acknowledged_at.is_some_and(|at| at < flush));
        self.pending = covered;
        let density = Part::Some(rng.below(9));
        for index in 0..self.pending.len() {
            self.persist(index, density, rng);
        }
        let covered = std::mem::replace(&mut self.pending, remaining);
        if lose_now {
            for write in &covered {
                for block in 0..write.applied.len() as u64 {
                    self.show_durable(write.first_block + block);
                }
            }
        }
    }

    /// Shows readers the durable contents of a block, with pending writes on top.
    fn show_durable(&mut self, number: u64) {
        let bytes = self.block_bytes;
        self.live
            .copy_range(&self.durable, number * bytes as u64, bytes);
        let mut newest = self.durable_at.get(&number).copied().unwrap_or(NOT_YET);
        for write in &self.pending {
            let Some(block) = number.checked_sub(write.first_block) else {
                continue;
            };
            match write.applied.get(block as usize) {
                Some(&at) if at != NEVER && at > newest => {
                    newest = at;
                    let mut run = Run::default();
                    run.add(block as usize);
                    run.put(&mut self.live, write.first_block, &write.data, bytes);
                }
                _ => (),
            }
        }
    }

    /// Makes the blocks of a write that took effect durable, unless newer data is.
    fn persist(&mut self, index: usize, part: Part, rng: &Rng) {
        let write = &self.pending[index];
        let mut run = Run::default();
        for (block, &at) in write.applied.iter().enumerate() {
            let survives = at != NOT_YET && at != NEVER && part.draw(rng) && {
                let number = write.first_block + block as u64;
                let durable_at = self.durable_at.entry(number).or_insert(NOT_YET);
                let is_newer = *durable_at < at;
                *durable_at = at.max(*durable_at);
                is_newer
            };
            if survives {
                run.add(block);
            } else {
                run.put(
                    &mut self.durable,
                    write.first_block,
                    &write.data,
                    self.block_bytes,
                );
            }
        }
        run.put(
            &mut self.durable,
            write.first_block,
            &write.data,
            self.block_bytes,
        );
    }

    fn forget_times(&mut self) {
        if self.pending.is_empty() {
            self.durable_at.clear();
        }
    }

    /// The writes that power loss may take, by id.
    pub(super) fn unflushed(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending.iter().map(|write| write.id)
    }

    /// Power is lost: of each pending write the part that `keep` says is durable, nothing else.
    pub(super) fn lose_power(&mut self, rng: &Rng, keep: impl Fn(u64) -> Option<Part>) {
        for index in 0..self.pending.len() {
            let Some(part) = keep(self.pending[index].id) else {
                continue;
            };
            self.apply_at(index, Part::All, rng);
            self.persist(index, part, rng);
        }
        self.pending.clear();
        self.flushes.clear();
        self.durable_at.clear();
        self.live = self.durable.clone();
        // No remaining state has a time, so that only the remaining state distinguishes two
        // outcomes.
        self.clock = NOT_YET;
    }

    /// Ends the process that used the device. The device finishes operations in flight, or not.
    pub(super) fn lose_process(&mut self, rng: &Rng) {
        let now = self.tick();
        for index in 0..self.pending.len() {
            if self.pending[index].acknowledged_at.is_some() {
                continue;
            }
            let arrived = rng.below(3);
            match arrived {
                0 => (),
                1 => self.apply_at(index, Part::Some(rng.below(9)), rng),
                _ => self.apply_at(index, Part::All, rng),
            }
            let write = &mut self.pending[index];
            for at in &mut write.applied {
                if *at == NOT_YET {
                    *at = NEVER;
                }
            }
            write.acknowledged_at = Some(now);
            if !self.volatile || (self.pending[index].fua && arrived == 2) {
                self.persist(index, Part::All, rng);
            }
        }
        if !self.volatile {
            self.pending.clear();
        }
        for flush in std::mem::take(&mut self.flushes) {
            if rng.chance(1, 2) {
                self.finish_flush(flush);
            }
        }
        self.forget_times();
    }

    /// Flips bits in the durable content and in the content that readers see.
    pub(super) fn rot(&mut self, offset: u64, len: u64, flips: u32, rng: &Rng) {
        for _ in 0..flips {
            let byte = offset + rng.below(len);
            let bit = rng.below(8) as u32;
            self.live.flip_bit(byte, bit);
            self.durable.flip_bit(byte, bit);
        }
    }
}

/// Blocks of a write, one after the other, that take effect at once.
#[derive(Default)]
struct Run(Range<usize>);

impl Run {
    /// Adds the block behind the others, or the first.
    fn add(&mut self, block: usize) {
        if self.0.is_empty() {
            self.0.start = block;
        }
        self.0.end = block + 1;
    }

    /// Puts them into a store. Behind that there are none.
    fn put(&mut self, store: &mut Store, first_block: u64, data: &Data, block_bytes: usize) {
        let blocks = std::mem::take(&mut self.0);
        if blocks.is_empty() {
            return;
        }
        let bytes = blocks.start * block_bytes..blocks.end * block_bytes;
        let offset = first_block * block_bytes as u64 + bytes.start as u64;
        match data {
            Data::Bytes(all) => store.write(offset, &all[bytes]),
            Data::Zeroes => store.zero(offset, bytes.len()),
        }
    }
}
