//! The process journal: block records in memory that outlives the process (a shared-memory file).
//!
//! With `durability = "flush"` a write is acknowledged before its record is in the log; the record
//! waits here, at the cost of one 64-byte store. If the process dies, the next one finds it. If the
//! machine loses power, the memory is gone, and with it only what no FLUSH had covered. The journal
//! names the boot of the machine and the cache, so that a left-over of another is never believed.
//!
//! It is tied to one opening of the cache on its devices as well ([`Tie`]), so that a copy of the cache
//! does not take it for its own.
//!
//! Each entry carries the log's `next` at the time: replayed in that place among the log's records, a
//! later record of the same slot wins over it and an earlier one loses.

mod tie;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Buf, Error, ErrorKind, Result};

use crate::Seed;
use crate::record::{BlockRecord, Body, Position, RECORD_BYTES, decode, encode};
use tie::{AT_NEXT, AT_TIE, encode_place};
pub use tie::{HEAD_BYTES, Head, Relation, Tie};

const MAGIC: u64 = u64::from_le_bytes(*b"FBJRNL01");
const AT_MAGIC: usize = 0;
const AT_UUID: usize = 8;
const AT_BOOT: usize = 24;
const AT_HEAD: usize = 64;
const AT_TAIL: usize = 128;
const AT_POISON: usize = 192;
/// How far the log is durable: 48 bits, as long as a record's number, and above them a checksum of those.
const AT_REACHED: usize = 256;
const REACHED_BITS: u32 = 48;
const ENTRIES: usize = 4096;

/// *Poisoned*: the entries may be of acknowledged writes.
const ACKNOWLEDGED: u64 = 1;
/// *Poisoned*: no entry is of an acknowledged write.
const IN_FLIGHT: u64 = 2;

/// Smallest useful journal, bytes.
pub const JOURNAL_MIN_BYTES: usize = 64 << 10;

/// The journal of an open cache.
#[derive(Debug)]
pub struct Journal {
    buf: Buf,
    seed: Seed,
    capacity: u64,
    head: u64,
    tail: u64,
}

/// What a dead process left.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Records with the log position in front of which each belongs, oldest first.
    pub entries: Vec<(u64, BlockRecord)>,
    /// A flush had failed: the data of these entries may be lost, and they must be reported so.
    pub poisoned: bool,
    /// Nothing of that was acknowledged: the entries say where a process was writing that acknowledges what is durable.
    pub in_flight: bool,
    /// Entries that do not verify, and one for what says how far the log was durable: what they said is lost.
    pub damaged: u64,
    /// The log's records before this one were durable; zero if no batch was, or an earlier version kept the journal.
    pub reached: u64,
    /// The opening that it belongs to.
    pub tie: Tie,
}

fn atomic(buf: &Buf, at: usize) -> &AtomicU64 {
    debug_assert!(at.is_multiple_of(8) && at + 8 <= buf.len());
    // SAFETY: in bounds and aligned (buffers are page-aligned); the memory lives as long as `buf`,
    // and this process reaches these words only through atomics.
    unsafe { AtomicU64::from_ptr(buf.as_ptr().add(at).cast()) }
}

/// `next` with its checksum, which is never zero: one store of eight bytes.
fn sealed(seed: Seed, next: u64) -> u64 {
    let sum = seed.checksum(&next.to_le_bytes());
    let sum = u64::from((sum ^ sum >> 16) & 0xffff).max(1);
    sum << REACHED_BITS | next
}

fn entry_offset(capacity: u64, index: u64) -> usize {
    ENTRIES + usize::try_from(index % capacity).expect("fits memory") * RECORD_BYTES
}

const fn capacity_of(buf: &Buf) -> u64 {
    (buf.len().saturating_sub(ENTRIES) / RECORD_BYTES) as u64
}

impl Journal {
    /// Starts an empty journal in `buf`, over whatever it held, that is tied to no opening.
    ///
    /// # Errors
    /// `InvalidInput` if it is smaller than [`JOURNAL_MIN_BYTES`].
    pub fn create(buf: Buf, uuid: &[u8; 16], boot_id: &[u8; 16]) -> Result<Self> {
        Self::create_tied(buf, uuid, boot_id, &Tie::default(), "")
    }

    /// As [`Journal::create`], tied to an opening of the cache on the device at `place`.
    ///
    /// # Errors
    /// As [`Journal::create`].
    pub fn create_tied(
        buf: Buf,
        uuid: &[u8; 16],
        boot_id: &[u8; 16],
        tie: &Tie,
        place: &str,
    ) -> Result<Self> {
        if buf.len() < JOURNAL_MIN_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a process journal of {} bytes is too small: use at least {JOURNAL_MIN_BYTES}",
                    buf.len()
                ),
            ));
        }
        atomic(&buf, AT_MAGIC).store(0, Ordering::SeqCst);
        buf.copy_from(AT_UUID, uuid);
        buf.copy_from(AT_BOOT, boot_id);
        for at in [AT_HEAD, AT_TAIL, AT_POISON, AT_REACHED, AT_NEXT] {
            atomic(&buf, at).store(0, Ordering::SeqCst);
        }
        buf.copy_from(AT_TIE, &tie.encode(Seed::new(uuid)));
        let (at, place) = encode_place(place);
        buf.copy_from(at, &place);
        atomic(&buf, AT_MAGIC).store(MAGIC, Ordering::SeqCst);
        Ok(Self {
            seed: Seed::new(uuid),
            capacity: capacity_of(&buf),
            buf,
            head: 0,
            tail: 0,
        })
    }

    /// Reads what an earlier process of this boot left for this cache. None if there is no such
    /// journal.
    #[must_use]
    pub fn recover(buf: &Buf, uuid: &[u8; 16], boot_id: &[u8; 16]) -> Option<Recovered> {
        if buf.len() < JOURNAL_MIN_BYTES || atomic(buf, AT_MAGIC).load(Ordering::SeqCst) != MAGIC {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        buf.copy_to(0, &mut head);
        let tie = Head::read(&head)
            .filter(|head| head.uuid == *uuid && head.boot_id == *boot_id)?
            .tie;
        let (seed, capacity) = (Seed::new(uuid), capacity_of(buf));
        let head = atomic(buf, AT_HEAD).load(Ordering::SeqCst);
        let tail = atomic(buf, AT_TAIL).load(Ordering::SeqCst);
        if head.checked_sub(tail).is_none_or(|used| used > capacity) {
            return None;
        }
        let poison = atomic(buf, AT_POISON).load(Ordering::SeqCst);
        let mut recovered = Recovered {
            entries: Vec::new(),
            poisoned: poison != 0,
            in_flight: poison == IN_FLIGHT,
            damaged: u64::from(tie.is_damaged),
            reached: 0,
            tie,
        };
        let word = atomic(buf, AT_REACHED).load(Ordering::SeqCst);
        let reached = word & ((1 << REACHED_BITS) - 1);
        if word == sealed(seed, reached) {
            recovered.reached = reached;
        } else if word != 0 {
            recovered.damaged += 1;
        }
        for index in tail..head {
            let mut bytes = [0; RECORD_BYTES];
            buf.copy_to(entry_offset(capacity, index), &mut bytes);
            match decode(&bytes, seed) {
                Some((position, Body::Block(block))) => {
                    recovered.entries.push((position.lsn, block));
                }
                // The head moves only after its entry is whole, so this is damage.
                _ => recovered.damaged += 1,
            }
        }
        Some(recovered)
    }

    /// Entries that can be added before some are trimmed.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.capacity - (self.head - self.tail)
    }

    /// Number of entries ever added: what [`Journal::trim`] takes.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Adds a record that belongs in front of the log's record `stamp`.
    ///
    /// # Panics
    /// If there is no room: the caller asks [`Journal::room`] first.
    pub fn append(&mut self, stamp: u64, block: BlockRecord) {
        assert!(self.room() > 0, "the process journal is full");
        let mut bytes = [0; RECORD_BYTES];
        let position = Position {
            lsn: stamp,
            tail: 0,
            units_back: 0,
        };
        encode(&mut bytes, self.seed, position, &Body::Block(block));
        self.buf
            .copy_from(entry_offset(self.capacity, self.head), &bytes);
        self.head += 1;
        atomic(&self.buf, AT_HEAD).store(self.head, Ordering::Release);
    }

    /// Entries before `to` stand in the durable log now.
    pub fn trim(&mut self, to: u64) {
        debug_assert!(self.tail <= to && to <= self.head);
        self.tail = to;
        atomic(&self.buf, AT_TAIL).store(to, Ordering::Release);
    }

    /// The log's records before `next` are durable now.
    pub fn reached(&self, next: u64) {
        debug_assert!(next < 1 << REACHED_BITS);
        atomic(&self.buf, AT_REACHED).store(sealed(self.seed, next), Ordering::Release);
    }

    /// Announces the generation of the next opening, before the superblock says it. The entries stay.
    pub fn announce(buf: &Buf, uuid: &[u8; 16], generation: u64) {
        debug_assert!(generation < 1 << REACHED_BITS);
        let word = sealed(Seed::new(uuid), generation);
        atomic(buf, AT_NEXT).store(word, Ordering::SeqCst);
    }

    /// A flush of what an earlier process of this boot left failed: whoever recovers its journal must
    /// report the entries as lost.
    pub fn poison_remains(buf: &Buf, uuid: &[u8; 16], boot_id: &[u8; 16]) {
        if Self::recover(buf, uuid, boot_id).is_some_and(|found| !found.poisoned) {
            atomic(buf, AT_POISON).store(ACKNOWLEDGED, Ordering::Release);
        }
    }

    /// A flush failed: whoever recovers this must report its entries as lost, or, with `in_flight`, as what was being
    /// written and never acknowledged.
    pub fn poison(&mut self, in_flight: bool) {
        let word = if in_flight { IN_FLIGHT } else { ACKNOWLEDGED };
        atomic(&self.buf, AT_POISON).store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(slot: u32) -> BlockRecord {
        BlockRecord {
            volume: 1,
            class: 0,
            block: u64::from(slot) * 3,
            slot,
            valid: 1,
            dirty: 1,
            bad: 0,
            sums: 0,
        }
    }

    #[test]
    fn what_was_not_trimmed_is_found_by_the_next_process_only() {
        let (uuid, boot) = ([1; 16], [2; 16]);
        let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
        assert!(Journal::recover(&memory, &uuid, &boot).is_none());
        let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
        for round in 0..5_000_u32 {
            journal.append(u64::from(round), record(round));
            if journal.room() < 10 {
                journal.trim(journal.head() - 5);
            }
        }
        journal.trim(journal.head() - 3);
        journal.reached(4_990);
        drop(journal);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        let expected: Vec<_> = (4_997..5_000).map(|at| (at.into(), record(at))).collect();
        assert_eq!(found.entries, expected);
        assert!(!found.poisoned);
        assert_eq!(found.reached, 4_990);
        assert!(
            Journal::recover(&memory, &uuid, &[3; 16]).is_none(),
            "another boot"
        );
        assert!(
            Journal::recover(&memory, &[3; 16], &boot).is_none(),
            "another cache"
        );
    }

    #[test]
    fn damage_and_failed_flushes_are_told() {
        let (uuid, boot) = ([1; 16], [2; 16]);
        let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
        let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
        journal.append(1, record(1));
        journal.append(2, record(2));
        memory.copy_from(ENTRIES + 20, &[0xff]);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert_eq!(found.entries.len(), 1);
        assert_eq!((found.damaged, found.poisoned), (1, false));
        for byte in 0..44 {
            let tie = Tie {
                generation: 3,
                ..Tie::default()
            };
            let tied = Journal::create_tied(memory.clone(), &uuid, &boot, &tie, "/dev/x");
            tied.expect("large enough").append(77, record(1));
            let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
            assert_eq!((found.damaged, found.tie), (0, tie));
            let mut there = [0];
            memory.copy_to(AT_TIE + byte, &mut there);
            memory.copy_from(AT_TIE + byte, &[there[0] ^ 1]);
            let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
            assert!(found.tie.is_damaged && found.damaged == 1, "byte {byte}");
        }
        for bit in 0..64 {
            let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
            journal.reached(77);
            journal.append(77, record(1));
            let word = atomic(&memory, AT_REACHED);
            word.store(word.load(Ordering::SeqCst) ^ 1 << bit, Ordering::SeqCst);
            let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
            assert_eq!((found.damaged, found.reached), (1, 0), "bit {bit}");
            assert_eq!(found.entries.len(), 1);
        }
        let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
        for in_flight in [true, false] {
            journal.poison(in_flight);
            let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
            assert_eq!((found.poisoned, found.in_flight), (true, in_flight));
        }
        // What a journal says already is not said worse.
        journal.poison(true);
        Journal::poison_remains(&memory, &uuid, &boot);
        assert!(
            Journal::recover(&memory, &uuid, &boot)
                .expect("ours")
                .in_flight
        );
    }
}
