//! The process journal: block records in memory that outlives the process (a shared-memory file).
//!
//! With `durability = "flush"` a write is acknowledged before its record is in the log. The record
//! waits here, at the cost of one 64-byte store. If the process dies, the next one finds it. If the
//! machine loses power, the memory is gone, and with it only writes that no FLUSH covered. The
//! journal names the boot of the machine and the cache, so a journal of another one is never used.
//!
//! The journal is also tied to one opening of the cache on its devices ([`Tie`]), so that no copy
//! of the cache uses it.
//!
//! Each entry has the log's `next` at its time. Replay puts it at that position among the log's
//! records. A later record of the same slot wins over it, and an earlier one loses.

mod tie;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Buf, Error, ErrorKind, Result};

use crate::Seed;
use crate::record::{BlockRecord, Body, Position, RECORD_BYTES, decode, encode};
use tie::{AT_NEXT, AT_TIE, encode_place};
pub use tie::{HEAD_BYTES, Head, Relation, Tie};

const MAGIC: u64 = u64::from_le_bytes(*b"FBJRNL02");
/// The magic of versions whose words at [`AT_HEAD`], [`AT_TAIL`] and [`AT_POISON`] have no
/// complement.
const MAGIC_BARE: u64 = u64::from_le_bytes(*b"FBJRNL01");
const AT_MAGIC: usize = 0;
const AT_UUID: usize = 8;
const AT_BOOT: usize = 24;
const AT_HEAD: usize = 64;
const AT_TAIL: usize = 128;
const AT_POISON: usize = 192;
/// Distance from a word to its complement.
const COMPLEMENT: usize = 8;
/// How far the log is durable: 48 bits, as long as a record's number, and above them a checksum of
/// those.
const AT_REACHED: usize = 256;
const REACHED_BITS: u32 = 48;
/// Number of entries of the ring, sealed as [`AT_REACHED`] is. A file that was cut has fewer. Zero
/// in a journal of an earlier version.
const AT_CAPACITY: usize = 448;
const ENTRIES: usize = 4096;

/// *Poisoned*: the entries may be of acknowledged writes.
const ACKNOWLEDGED: u64 = 1;
/// *Poisoned*: no entry is of an acknowledged write.
const IN_FLIGHT: u64 = 2;
/// *Poisoned*, by a flush of an earlier process's data. No entry names overwrites in place.
const REMAINS: u64 = 3;

/// Returns whether the first eight bytes of a file are those of a journal, of this version or an
/// earlier one.
#[must_use]
pub fn is_magic(bytes: &[u8]) -> bool {
    let known = [MAGIC, MAGIC_BARE].map(u64::to_le_bytes);
    known.iter().any(|magic| magic[..] == *bytes)
}

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

/// Journal of a dead process.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Records with the log position in front of which each belongs, oldest first.
    pub entries: Vec<(u64, BlockRecord)>,
    /// A flush had failed: the data of these entries may be lost, and they must be reported so.
    pub poisoned: bool,
    /// Nothing of that was acknowledged: the entries say where a process was writing that
    /// acknowledges what is durable.
    pub in_flight: bool,
    /// Whether the failed flush may have covered blocks that no entry names. The journal had no
    /// room for their entries, or is damaged, or their process had ended.
    pub is_partial: bool,
    /// Number of entries that do not verify, plus one for each word of the header that does not.
    /// Their content is lost.
    pub damaged: u64,
    /// Length of the journal when it was made, if it is shorter now, bytes. The entries beyond its
    /// end count as damaged.
    pub cut_from_bytes: Option<u64>,
    /// Log position before which all records were durable. Zero if no batch was, or if an earlier
    /// version wrote the journal.
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

/// Stores a word behind its complement. The process may die between the two stores.
fn store_word(buf: &Buf, at: usize, word: u64) {
    atomic(buf, at + COMPLEMENT).store(!word, Ordering::Release);
    atomic(buf, at).store(word, Ordering::Release);
}

/// The words of the header that say which entries count.
struct Words {
    head: u64,
    tail: u64,
    poison: u64,
    /// Number of words that are damaged. If there is one, no entry counts.
    damaged: u64,
}

impl Words {
    fn read(buf: &Buf, capacity: u64) -> Option<Self> {
        let load = |at: usize| atomic(buf, at).load(Ordering::SeqCst);
        let pair = |at: usize| (load(at), !load(at + COMPLEMENT));
        let words = Self {
            head: load(AT_HEAD),
            tail: load(AT_TAIL),
            poison: load(AT_POISON),
            damaged: 0,
        };
        let is_possible = |head: u64, tail: u64| {
            let used = head.checked_sub(tail);
            used.is_some_and(|used| used <= capacity)
        };
        if load(AT_MAGIC) == MAGIC_BARE {
            return is_possible(words.head, words.tail).then_some(words);
        }
        let ((head, head_next), (tail, tail_next)) = (pair(AT_HEAD), pair(AT_TAIL));
        let (poison, poison_next) = pair(AT_POISON);
        // The complement is stored first. A head moves by one entry, which is whole by then.
        let head_is_sound = head_next == head || head_next == head.wrapping_add(1);
        let tail_is_sound = (tail..=head_next).contains(&tail_next);
        // Poisoned counts as soon as one of the two says so.
        let poison_is_sound = [0, IN_FLIGHT, ACKNOWLEDGED, REMAINS].contains(&poison_next)
            && (poison == poison_next || poison == 0);
        let sound = [head_is_sound, tail_is_sound, poison_is_sound];
        let damaged = sound.iter().filter(|sound| !**sound).count() as u64;
        let is_damaged = damaged > 0 || !is_possible(head_next, tail);
        Some(Self {
            head: if is_damaged { 0 } else { head_next },
            tail: if is_damaged { 0 } else { tail },
            poison: if poison_is_sound { poison_next } else { poison },
            damaged: damaged.max(u64::from(is_damaged)),
        })
    }
}

fn entry_offset(capacity: u64, index: u64) -> usize {
    ENTRIES + usize::try_from(index % capacity).expect("fits memory") * RECORD_BYTES
}

const fn capacity_of(buf: &Buf) -> u64 {
    (buf.len().saturating_sub(ENTRIES) / RECORD_BYTES) as u64
}

impl Journal {
    /// Starts an empty journal in `buf`, over its former content, that is tied to no opening.
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
                    "a process journal of {} bytes is too small\n\
                     help: use at least {JOURNAL_MIN_BYTES}",
                    buf.len()
                ),
            ));
        }
        atomic(&buf, AT_MAGIC).store(0, Ordering::SeqCst);
        buf.copy_from(AT_UUID, uuid);
        buf.copy_from(AT_BOOT, boot_id);
        for at in [AT_HEAD, AT_TAIL, AT_POISON] {
            store_word(&buf, at, 0);
        }
        let none = sealed(Seed::new(uuid), 0);
        for at in [AT_REACHED, AT_NEXT] {
            atomic(&buf, at).store(none, Ordering::SeqCst);
        }
        let capacity = sealed(Seed::new(uuid), capacity_of(&buf));
        atomic(&buf, AT_CAPACITY).store(capacity, Ordering::SeqCst);
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
        if buf.len() < JOURNAL_MIN_BYTES {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        buf.copy_to(0, &mut head);
        let tie = Head::read(&head)
            .filter(|head| head.uuid == *uuid && head.boot_id == *boot_id)?
            .tie;
        let (seed, present) = (Seed::new(uuid), capacity_of(buf));
        let word = atomic(buf, AT_CAPACITY).load(Ordering::SeqCst);
        let noted = word & ((1 << REACHED_BITS) - 1);
        let (capacity, capacity_damaged) = match word {
            0 => (present, false),
            _ if noted > 0 && word == sealed(seed, noted) => (noted, false),
            _ => (present, true),
        };
        let Words {
            head,
            tail,
            poison,
            damaged,
        } = Words::read(buf, capacity)?;
        let mut recovered = Recovered {
            entries: Vec::new(),
            poisoned: poison != 0,
            in_flight: poison == IN_FLIGHT,
            is_partial: false,
            damaged: u64::from(tie.is_damaged) + u64::from(capacity_damaged) + damaged,
            cut_from_bytes: (present < capacity)
                .then(|| ENTRIES as u64 + capacity * RECORD_BYTES as u64),
            reached: 0,
            tie,
        };
        let word = atomic(buf, AT_REACHED).load(Ordering::SeqCst);
        let reached = word & ((1 << REACHED_BITS) - 1);
        if word == sealed(seed, reached) {
            recovered.reached = reached;
        } else if word != 0 || atomic(buf, AT_MAGIC).load(Ordering::SeqCst) == MAGIC {
            recovered.damaged += 1;
        }
        for index in tail..head {
            let mut bytes = [0; RECORD_BYTES];
            if index % capacity >= present {
                recovered.damaged += 1;
                continue;
            }
            buf.copy_to(entry_offset(capacity, index), &mut bytes);
            match decode(&bytes, seed) {
                Some((position, Body::Block(block))) => {
                    recovered.entries.push((position.lsn, block));
                }
                // The head moves only after its entry is whole, so this is damage.
                _ => recovered.damaged += 1,
            }
        }
        let is_full = head - tail == capacity;
        recovered.is_partial = match poison {
            0 => false,
            REMAINS => true,
            _ => is_full || recovered.damaged > 0,
        };
        Some(recovered)
    }

    /// Entries that can be added before some are trimmed.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.capacity - (self.head - self.tail)
    }

    /// Returns the number of entries ever added, for [`Journal::trim`].
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
        store_word(&self.buf, AT_HEAD, self.head);
    }

    /// Entries before `to` stand in the durable log now.
    pub fn trim(&mut self, to: u64) {
        debug_assert!(self.tail <= to && to <= self.head);
        self.tail = to;
        store_word(&self.buf, AT_TAIL, to);
    }

    /// The log's records before `next` are durable now.
    pub fn reached(&self, next: u64) {
        debug_assert!(next < 1 << REACHED_BITS);
        atomic(&self.buf, AT_REACHED).store(sealed(self.seed, next), Ordering::Release);
    }

    /// Announces the generation of the next opening, before the superblock says it. The entries
    /// stay.
    pub fn announce(buf: &Buf, uuid: &[u8; 16], generation: u64) {
        debug_assert!(generation < 1 << REACHED_BITS);
        let word = sealed(Seed::new(uuid), generation);
        atomic(buf, AT_NEXT).store(word, Ordering::SeqCst);
    }

    /// Records that a flush of an earlier process's data failed in this boot. A process that
    /// recovers that journal must report the entries as lost.
    pub fn poison_remains(buf: &Buf, uuid: &[u8; 16], boot_id: &[u8; 16]) {
        if Self::recover(buf, uuid, boot_id).is_some_and(|found| !found.poisoned) {
            store_word(buf, AT_POISON, REMAINS);
        }
    }

    /// Records that a flush failed. A process that recovers this journal must report its entries as
    /// lost. With `in_flight` it must report them as being written and never acknowledged.
    pub fn poison(&mut self, in_flight: bool) {
        let word = if in_flight { IN_FLIGHT } else { ACKNOWLEDGED };
        store_word(&self.buf, AT_POISON, word);
    }
}

#[cfg(test)]
mod tests;
