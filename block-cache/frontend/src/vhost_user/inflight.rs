//! Requests in flight, in memory that outlives this process: the monitor keeps it, and hands it to the next process, which
//! does again what this one had not answered.
//!
//! The layout is that of vhost-user's "inflight I/O tracking" for split rings: for each queue a header of 16 bytes and
//! 16 bytes for each descriptor. Behind the last queue is our own: what the volume is told apart by.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_io::shm;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::mmap::MmapRegion;
use vm_memory::volatile_memory::Error as OutOfRange;
use vm_memory::{AtomicAccess, Bytes as _, FileOffset, VolatileMemory as _};

use super::export::{MAX_QUEUE_SIZE, QUEUES};
use crate::succession::Succession;

/// Of a queue's header: version, entries, the head that was answered last, and the index of the used ring then.
const VERSION: usize = 8;
const ENTRIES: usize = 10;
const LAST: usize = 12;
const USED: usize = 14;
const HEADER_BYTES: usize = 16;
/// Of a descriptor: whether it is the head of a request in flight, and when it was taken.
const TAKEN: usize = 8;
const ENTRY_BYTES: usize = 16;
/// Behind the queues: the volume's note.
const NOTE_BYTES: usize = 8;

/// The memory of a disk's requests in flight.
pub(super) struct Inflight {
    memory: MmapRegion,
    queues: u16,
    entries: u16,
}

impl Inflight {
    /// Memory for so many queues of so many entries; what the monitor is told of it, and its file.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn make(
        asked: &VhostUserInflight,
        succession: &Succession,
    ) -> Result<(VhostUserInflight, File), String> {
        let (queues, entries) = (asked.num_queues, asked.queue_size);
        let bytes = bytes(queues, entries)? as u64;
        let made = shm::nameless(c"forebay-inflight", bytes).map_err(|error| error.report())?;
        let told = VhostUserInflight::new(bytes, 0, queues, entries);
        let copy = made.try_clone().map_err(|error| error.to_string())?;
        let own = Self::map(&told, copy)?;
        let noted = own.store(succession.note, own.note_at());
        noted.map_err(|error| error.to_string())?;
        Ok((told, made))
    }

    /// The memory that the monitor was given by this process, or by one before it.
    ///
    /// # Errors
    /// What is wrong with it, in words; or why its requests cannot go on here.
    pub(super) fn adopt(
        told: &VhostUserInflight,
        file: File,
        succession: &Succession,
    ) -> Result<Self, String> {
        let inflight = Self::map(told, file)?;
        let note: Result<u64, _> = inflight.load(inflight.note_at());
        let note = note.map_err(|error| error.to_string())?;
        if note != succession.note {
            return Err("the virtual machine has run on another disk than this volume, or writes that were acknowledged to it may be missing here: restart it".to_owned());
        }
        Ok(inflight)
    }

    fn map(told: &VhostUserInflight, file: File) -> Result<Self, String> {
        let (queues, entries) = (told.num_queues, told.queue_size);
        let bytes = bytes(queues, entries)?;
        let there = shm::nameless_bytes(&file).map_err(|error| error.report())?;
        if told.mmap_offset != 0 || told.mmap_size != bytes as u64 || there != bytes as u64 {
            return Err(
                "its memory of requests in flight is not what this daemon makes".to_owned(),
            );
        }
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), bytes);
        Ok(Self {
            memory: memory.map_err(|error| format!("mapping {bytes} bytes: {error}"))?,
            queues,
            entries,
        })
    }

    fn note_at(&self) -> usize {
        stride(self.entries) * usize::from(self.queues)
    }

    fn load<T: AtomicAccess>(&self, at: usize) -> Result<T, OutOfRange> {
        self.memory.as_volatile_slice().load(at, Ordering::Acquire)
    }

    fn store<T: AtomicAccess>(&self, value: T, at: usize) -> Result<(), OutOfRange> {
        (self.memory.as_volatile_slice()).store(value, at, Ordering::Release)
    }
}

const fn stride(entries: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * entries as usize).next_multiple_of(64)
}

fn bytes(queues: u16, entries: u16) -> Result<usize, String> {
    if !(1..=QUEUES).contains(&queues) || !(1..=MAX_QUEUE_SIZE).contains(&entries) {
        return Err(format!(
            "requests in flight of {queues} queues with {entries} entries; {QUEUES} and {MAX_QUEUE_SIZE} are the most"
        ));
    }
    Ok(stride(entries) * usize::from(queues) + NOTE_BYTES)
}

/// The requests in flight of one queue. What the memory's other owner has written there is the guest's loss alone.
pub(super) struct Tracker {
    inflight: Arc<Inflight>,
    at: usize,
    /// Requests that were taken so far.
    taken: u64,
}

impl Tracker {
    /// Of a queue with so many entries, whose used ring has come to `used`; and the heads that are to be done again, the
    /// oldest first.
    ///
    /// # Errors
    /// If there is no memory for such a queue.
    pub(super) fn of(
        inflight: &Arc<Inflight>,
        queue: u16,
        (size, used): (u16, u16),
    ) -> Result<(Self, Option<Vec<u16>>), String> {
        if queue >= inflight.queues || size > inflight.entries {
            return Err(format!(
                "queue {queue} of {size} entries; its requests in flight have memory for {} queues of {}",
                inflight.queues, inflight.entries
            ));
        }
        let mut tracker = Self {
            at: stride(inflight.entries) * usize::from(queue),
            inflight: Arc::clone(inflight),
            taken: 0,
        };
        let heads = tracker.recover(size, used);
        heads
            .map(|heads| (tracker, heads))
            .map_err(|error| error.to_string())
    }

    /// None if nobody has noted anything here yet.
    fn recover(&mut self, size: u16, used: u16) -> Result<Option<Vec<u16>>, OutOfRange> {
        let (memory, at) = (&self.inflight, self.at);
        if memory.load::<u16>(at + VERSION)? == 0 {
            memory.store(self.inflight.entries, at + ENTRIES)?;
            memory.store(used, at + USED)?;
            memory.store(1_u16, at + VERSION)?;
            return Ok(None);
        }
        // The process ended between the answer to a request and the note of it.
        if memory.load::<u16>(at + USED)? != used {
            self.clear(memory.load(at + LAST)?, used)?;
        }
        let mut heads = Vec::new();
        for head in 0..size {
            if memory.load::<u8>(self.entry(head))? == 1 {
                heads.push((memory.load::<u64>(self.entry(head) + TAKEN)?, head));
            }
        }
        heads.sort_unstable();
        let newest = heads.last().map_or(0, |(taken, _)| *taken);
        self.taken = newest.wrapping_add(1);
        Ok(Some(heads.into_iter().map(|(_, head)| head).collect()))
    }

    fn entry(&self, head: u16) -> usize {
        self.at + HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    /// A head is out of the range of a ring only if the guest has put it there.
    fn known(&self, head: u16) -> bool {
        head < self.inflight.entries
    }

    fn clear(&self, head: u16, used: u16) -> Result<(), OutOfRange> {
        if self.known(head) {
            self.inflight.store(0_u8, self.entry(head))?;
        }
        self.inflight.store(used, self.at + USED)
    }

    /// A request is taken out of the ring.
    pub(super) fn take(&mut self, head: u16) {
        if self.known(head) {
            let at = self.entry(head);
            self.taken = self.taken.wrapping_add(1);
            // The places are within what is mapped, and aligned.
            let _ = self.inflight.store(self.taken, at + TAKEN);
            let _ = self.inflight.store(1_u8, at);
        }
    }

    /// A request is about to be answered.
    pub(super) fn answering(&self, head: u16) {
        let _ = self.inflight.store(head, self.at + LAST);
    }

    /// It is answered, and the used ring has come to `used`.
    pub(super) fn answered(&self, head: u16, used: u16) {
        let _ = self.clear(head, used);
    }
}

#[cfg(test)]
mod tests;
