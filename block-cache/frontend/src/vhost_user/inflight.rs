//! Requests in flight, in memory that outlives this process. The monitor keeps the memory and hands
//! it to the next process, which executes the unanswered requests again.
//!
//! The layout is that of vhost-user's "inflight I/O tracking" for split rings. Each queue has a
//! header of 16 bytes, and 16 bytes for each descriptor. An extension of Forebay follows the last
//! queue: the identity of the volume.

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

/// Offsets in a queue's header: version, entries, the head that was answered last, and the used
/// index after it.
const VERSION: usize = 8;
const ENTRIES: usize = 10;
const LAST: usize = 12;
const USED: usize = 14;
const HEADER_BYTES: usize = 16;
/// Offsets in a descriptor: whether it is the head of a request in flight, and its order.
const TAKEN: usize = 8;
const ENTRY_BYTES: usize = 16;
/// Length of the volume's identity after the queues.
const NOTE_BYTES: usize = 8;

/// Memory of a disk's requests in flight.
pub(super) struct Inflight {
    memory: MmapRegion,
    queues: u16,
    entries: u16,
}

impl Inflight {
    /// Creates the memory for this number of queues and entries. Returns its description for the
    /// monitor, and its file.
    ///
    /// # Errors
    /// The reason, as text.
    pub(super) fn make(
        asked: &VhostUserInflight,
        succession: &Succession,
    ) -> Result<(VhostUserInflight, File), String> {
        let (queues, entries) = (asked.num_queues, asked.queue_size);
        let bytes = bytes(queues, entries)? as u64;
        let made = shm::nameless(c"forebay-inflight", bytes).map_err(|error| error.report())?;
        let description = VhostUserInflight::new(bytes, 0, queues, entries);
        let copy = made.try_clone().map_err(|error| error.to_string())?;
        let own = Self::map(&description, copy)?;
        let noted = own.store(succession.note, own.note_at());
        noted.map_err(|error| error.to_string())?;
        Ok((description, made))
    }

    /// Maps the memory that this process or an earlier one gave to the monitor.
    ///
    /// # Errors
    /// The reason, as text, also if its requests cannot continue here.
    pub(super) fn adopt(
        description: &VhostUserInflight,
        file: File,
        succession: &Succession,
    ) -> Result<Self, String> {
        let inflight = Self::map(description, file)?;
        let note: Result<u64, _> = inflight.load(inflight.note_at());
        let note = note.map_err(|error| error.to_string())?;
        if note != succession.note {
            return Err(
                "the virtual machine had another disk, or ACKNOWLEDGED WRITES MAY BE MISSING on \
                 this volume: restart the machine"
                    .to_owned(),
            );
        }
        Ok(inflight)
    }

    fn map(description: &VhostUserInflight, file: File) -> Result<Self, String> {
        let (queues, entries) = (description.num_queues, description.queue_size);
        let bytes = bytes(queues, entries)?;
        let there = shm::nameless_bytes(&file).map_err(|error| error.report())?;
        if description.mmap_offset != 0
            || description.mmap_size != bytes as u64
            || there != bytes as u64
        {
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
            "requests in flight of {queues} queues with {entries} entries; the limits are {QUEUES} \
             and {MAX_QUEUE_SIZE}"
        ));
    }
    Ok(stride(entries) * usize::from(queues) + NOTE_BYTES)
}

/// Requests in flight of one queue. Invalid content, written by the memory's other owner, harms
/// only the guest.
pub(super) struct Tracker {
    inflight: Arc<Inflight>,
    at: usize,
    /// Number of requests taken so far.
    taken: u64,
}

impl Tracker {
    /// Returns the tracker of a queue with this number of entries, whose used index is `used`. Also
    /// returns the heads to execute again, the oldest first.
    ///
    /// # Errors
    /// If the memory has no room for such a queue.
    pub(super) fn of(
        inflight: &Arc<Inflight>,
        queue: u16,
        (size, used): (u16, u16),
    ) -> Result<(Self, Option<Vec<u16>>), String> {
        if queue >= inflight.queues || size > inflight.entries {
            return Err(format!(
                "queue {queue} of {size} entries; its requests in flight have memory for {} queues \
                 of {}",
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

    /// Returns the heads in flight, or `None` if the list was never used.
    fn recover(&mut self, size: u16, used: u16) -> Result<Option<Vec<u16>>, OutOfRange> {
        let (memory, at) = (&self.inflight, self.at);
        if memory.load::<u16>(at + VERSION)? == 0 {
            memory.store(self.inflight.entries, at + ENTRIES)?;
            memory.store(used, at + USED)?;
            memory.store(1_u16, at + VERSION)?;
            return Ok(None);
        }
        // The process ended after it had answered a request and before it recorded that.
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

    /// A head is out of the ring's range only if the guest has written it there.
    fn known(&self, head: u16) -> bool {
        head < self.inflight.entries
    }

    fn clear(&self, head: u16, used: u16) -> Result<(), OutOfRange> {
        if self.known(head) {
            self.inflight.store(0_u8, self.entry(head))?;
        }
        self.inflight.store(used, self.at + USED)
    }

    /// Records that a request was taken from the ring.
    pub(super) fn take(&mut self, head: u16) {
        if self.known(head) {
            let at = self.entry(head);
            self.taken = self.taken.wrapping_add(1);
            // The offsets are within the mapping, and aligned.
            let _ = self.inflight.store(self.taken, at + TAKEN);
            let _ = self.inflight.store(1_u8, at);
        }
    }

    /// Records that a request is about to be answered.
    pub(super) fn answering(&self, head: u16) {
        let _ = self.inflight.store(head, self.at + LAST);
    }

    /// Records that a request was answered, with used index `used`.
    pub(super) fn answered(&self, head: u16, used: u16) {
        let _ = self.clear(head, used);
    }
}

#[cfg(test)]
mod tests;
