//! One arena: the steps of a read, a write and a zeroing, and their order.

use std::sync::{Mutex, MutexGuard};

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::pmem::{LINE_BYTES, Pmem};

use crate::fault::{Fault, Faults};
use crate::lanes::{Free, Lane};
use crate::layout::{
    FLOG_PAIR_BYTES, Flog, InfoBlock, MAP_ENTRY_BYTES, MapEntry, State, next_sequence,
};

/// Map entries of a cache line: they share a lock, so that a line has one writer.
const ENTRIES_OF_LINE: u32 = (LINE_BYTES / MAP_ENTRY_BYTES) as u32;

/// An open arena. Offsets are from the medium's start.
pub(crate) struct Arena {
    pub(crate) index: u32,
    pub(crate) info: InfoBlock,
    data_at: u64,
    map_at: u64,
    flog_at: u64,
    /// Offset of the second entry of a flog pair from the first, bytes.
    second_entry: u64,
    /// Free blocks of lanes that this process does not use.
    pub(crate) spare: Box<[Free]>,
    map_locks: Box<[MapLock]>,
}

#[derive(Default)]
#[repr(align(64))]
struct MapLock(Mutex<()>);

impl Arena {
    /// Creates an arena at `start`, whose flog was not read yet.
    pub(crate) fn new(index: u32, start: u64, info: InfoBlock, second_entry: u64) -> Self {
        let locks = (0..info.free_blocks).map(|_| MapLock::default());
        Self {
            index,
            data_at: start + info.data_offset,
            map_at: start + info.map_offset,
            flog_at: start + info.flog_offset,
            second_entry,
            spare: Box::default(),
            map_locks: locks.collect(),
            info,
        }
    }

    /// Returns the number of blocks that clients see.
    pub(crate) const fn blocks(&self) -> u32 {
        self.info.blocks
    }

    fn data_at(&self, block: u32) -> u64 {
        self.data_at + u64::from(block) * u64::from(self.info.internal_block_bytes)
    }

    fn map_at(&self, premap: u32) -> u64 {
        self.map_at + u64::from(premap) * MAP_ENTRY_BYTES
    }

    /// Returns the offset of an entry of a lane's flog pair.
    pub(crate) fn flog_at(&self, lane: usize, entry: usize) -> u64 {
        self.flog_at + lane as u64 * FLOG_PAIR_BYTES + entry as u64 * self.second_entry
    }

    /// Locks the map's cache line of a block: it has no other writer until the guard is dropped.
    fn lock(&self, premap: u32) -> MutexGuard<'_, ()> {
        let lock = (premap / ENTRIES_OF_LINE) as usize % self.map_locks.len();
        let line = self.map_locks[lock].0.lock();
        line.expect("no change of this line of the map panicked")
    }

    /// Returns the map entry of a block, with its internal block.
    pub(crate) fn entry<P: Pmem>(&self, memory: &P, premap: u32) -> Result<MapEntry> {
        let entry = MapEntry::from_raw(memory.load_u32(self.map_at(premap))).resolve(premap);
        if entry.block() >= self.info.internal_blocks {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "arena {}: the map entry of block {premap} is {entry:?}, and there are {} \
                     internal blocks\n\
                     help: restore the block from a copy",
                    self.index, self.info.internal_blocks
                ),
            ));
        }
        Ok(entry)
    }

    /// Changes an entry durably. The caller has its lock, or has the arena exclusively.
    pub(crate) fn set_entry<P: Pmem>(&self, memory: &P, premap: u32, entry: MapEntry) {
        memory.store_u32(self.map_at(premap), entry.raw());
        memory.flush(self.map_at(premap), MAP_ENTRY_BYTES);
        memory.fence();
    }

    pub(crate) fn read<P: Pmem>(
        &self,
        memory: &P,
        lane: &mut Lane<'_>,
        premap: u32,
        target: &Buf,
    ) -> Result<()> {
        loop {
            let entry = self.entry(memory, premap)?;
            match entry.state() {
                State::Initial | State::Zero => {
                    target.fill(0);
                    return Ok(());
                }
                State::Error => return Err(unreadable()),
                State::Normal => (),
            }
            let pin = lane.pin(self.index, entry.block());
            if self.entry(memory, premap)? != entry {
                // A write freed the block before the pin was seen.
                continue;
            }
            let Err(error) = self.read_internal(memory, entry.block(), target) else {
                return Ok(());
            };
            drop(pin);
            self.mark_unreadable(memory, premap, entry);
            return Err(error);
        }
    }

    /// Reads an internal block, which the caller has pinned.
    pub(crate) fn read_internal<P: Pmem>(
        &self,
        memory: &P,
        block: u32,
        target: &Buf,
    ) -> Result<()> {
        memory.read(self.data_at(block), target)
    }

    /// Records a media error, so that every later read fails like this one, until a write.
    fn mark_unreadable<P: Pmem>(&self, memory: &P, premap: u32, found: MapEntry) {
        let _line = self.lock(premap);
        if self.entry(memory, premap).is_ok_and(|now| now == found) {
            self.set_entry(memory, premap, MapEntry::new(State::Error, found.block()));
        }
    }

    /// Three fences; docs/internals/format/btt.md argues each.
    pub(crate) fn write<P: Pmem>(
        &self,
        memory: &P,
        lane: &mut Lane<'_>,
        premap: u32,
        source: &Buf,
        faults: Faults,
    ) -> Result<()> {
        let number = lane.index();
        let free = *lane.free(self.index);
        if !faults.has(Fault::ReuseUnderReader) {
            lane.wait_for_readers(self.index, free.block);
        }
        memory.stream(self.data_at(free.block), source);

        // Held until the new entry is durable. Otherwise a second write to this block could find
        // the old entry in the map, or log this one as old. A crash could still restore the old
        // entry.
        let line = self.lock(premap);
        let old = self.entry(memory, premap)?;
        let new = MapEntry::new(State::Normal, free.block);
        let flog = Flog {
            block: premap,
            old,
            new,
            sequence: free.sequence,
        };
        if faults.has(Fault::MapBeforeFlog) {
            self.set_entry(memory, premap, new);
        }
        let at = self.flog_at(number, free.entry);
        let [first, published] = flog.words();
        memory.store_u64(at, first);
        if faults.has(Fault::SequenceAtOnce) {
            memory.store_u64(at + 8, published);
        }
        memory.flush(at, 8);
        // Fences the data and the first half of the flog entry, which is still the older one of its
        // pair.
        memory.fence();
        memory.store_u64(at + 8, published);
        memory.flush(at + 8, 8);
        // The write has happened: from here on the next opening completes it.
        memory.fence();
        self.set_entry(memory, premap, new);
        drop(line);

        *lane.free(self.index) = Free {
            block: old.block(),
            entry: 1 - free.entry,
            sequence: next_sequence(free.sequence),
        };
        Ok(())
    }

    /// Zeroes at most `count` blocks from this one on, within one cache line of the map. Returns
    /// their number.
    pub(crate) fn zero<P: Pmem>(&self, memory: &P, premap: u32, count: u64) -> Result<u64> {
        let line_end = (premap / ENTRIES_OF_LINE + 1) * ENTRIES_OF_LINE;
        let end = line_end.min(self.blocks());
        let end = match u32::try_from(count) {
            Ok(count) => end.min(premap.saturating_add(count)),
            Err(_) => end,
        };
        let _line = self.lock(premap);
        for block in premap..end {
            let entry = self.entry(memory, block)?;
            if entry.state() != State::Zero {
                let entry = MapEntry::new(State::Zero, entry.block());
                memory.store_u32(self.map_at(block), entry.raw());
            }
        }
        memory.flush(
            self.map_at(premap),
            u64::from(end - premap) * MAP_ENTRY_BYTES,
        );
        memory.fence();
        Ok(u64::from(end - premap))
    }
}

fn unreadable() -> Error {
    Error::new(
        ErrorKind::Io,
        "an earlier read of this block failed\nhelp: write it, or restore it from a copy",
    )
}
