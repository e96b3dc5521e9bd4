//! The map in memory: slots, the index over them, recency, free slots.
//!
//! It holds what the log holds, as of the order in which changes were given to the log. Whoever acts
//! on media on the strength of a change waits until the log has it durably (see `commit`).

use forebay_metadata::record::BlockRecord;
use forebay_policy::{BlockIndex, BlockKey, DirtyQueue, LruList, SlotId};

/// No record in the ring.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// A slot holds a block, or is being given one.
pub(crate) const LIVE: u16 = 1;
/// On the queue for the next round of the committer.
pub(crate) const PENDING: u16 = 2;
/// Waits for a flush of the backing device before its clean granules are recorded.
pub(crate) const DEFERRED: u16 = 4;
/// Dirty in place under its region's mark: the record does not say so.
pub(crate) const UNRECORDED: u16 = 8;
/// Written to since the cleaner last started on it.
pub(crate) const REWRITTEN: u16 = 16;
/// The cleaner is writing it back.
pub(crate) const CLEANING: u16 = 32;
/// A record of it may stand in the log or in the process journal.
pub(crate) const TRACED: u16 = 64;
/// On the dirty queue.
pub(crate) const QUEUED: u16 = 128;
/// Turned clean since its last record.
pub(crate) const CLEANED: u16 = 256;
/// Its death is queued: nothing may log it any more.
pub(crate) const DYING: u16 = 1024;
/// Written to since the last flush of the data device began.
pub(crate) const UNFLUSHED: u16 = 512;
/// On the queue of records that nobody waits for.
pub(crate) const LATER: u16 = 2048;

/// What is known of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) key: BlockKey,
    pub(crate) valid: u64,
    pub(crate) dirty: u64,
    /// Place in the ring of the record that counts.
    pub(crate) record_at: u32,
    pub(crate) flags: u16,
}

impl Slot {
    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The record of what only this slot has: clean granules are worth nothing after a crash that their
    /// record did not survive.
    pub(crate) fn dirty_record(&self, slot: SlotId) -> BlockRecord {
        BlockRecord {
            volume: self.key.volume(),
            block: self.key.block(),
            slot,
            valid: self.dirty,
            dirty: self.dirty,
        }
    }
}

/// A slot in memory, but for its maps of granules: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: BlockKey,
    record_at: u32,
    flags: u16,
}

impl Entry {
    const FREE: Self = Self {
        key: BlockKey::new(0, 0),
        record_at: NO_RECORD,
        flags: 0,
    };
}

/// The valid and dirty maps of all slots, as wide as a block has granules.
#[derive(Debug)]
struct Granules {
    bytes: Vec<u8>,
    /// Bytes of one map: 1, 2, 4 or 8.
    width: usize,
}

impl Granules {
    fn new(slots: usize, granules: u32) -> Self {
        let width = granules.div_ceil(8).next_power_of_two() as usize;
        Self {
            bytes: vec![0; slots * 2 * width],
            width,
        }
    }

    /// Valid and dirty.
    #[inline]
    fn get(&self, slot: SlotId) -> (u64, u64) {
        let at = slot as usize * 2 * self.width;
        let maps = &self.bytes[at..at + 2 * self.width];
        if let [valid, dirty] = maps {
            return (u64::from(*valid), u64::from(*dirty));
        }
        let (valid, dirty) = maps.split_at(self.width);
        let wide = |map: &[u8]| {
            let mut bytes = [0; 8];
            bytes[..map.len()].copy_from_slice(map);
            u64::from_le_bytes(bytes)
        };
        (wide(valid), wide(dirty))
    }

    fn set(&mut self, slot: SlotId, valid: u64, dirty: u64) {
        let (at, width) = (slot as usize * 2 * self.width, self.width);
        debug_assert!(width == 8 || (valid | dirty) >> (8 * width) == 0);
        self.bytes[at..at + width].copy_from_slice(&valid.to_le_bytes()[..width]);
        self.bytes[at + width..at + 2 * width].copy_from_slice(&dirty.to_le_bytes()[..width]);
    }
}

/// How much of a volume is cached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) blocks: u64,
    pub(crate) dirty_granules: u64,
}

/// Slots and how they are found.
#[derive(Debug)]
pub(crate) struct Map {
    slots: Vec<Entry>,
    granules: Granules,
    /// By the volume's number.
    shares: Vec<Share>,
    index: BlockIndex,
    lru: LruList,
    dirty_queue: DirtyQueue,
    dirty_slots: u64,
}

impl Map {
    /// A map of blocks of so many granules. No slot is free before [`Map::rebuild_free`].
    pub(crate) fn new(slots: u32, granules: u32) -> Self {
        let count = slots as usize;
        Self {
            slots: vec![Entry::FREE; count],
            granules: Granules::new(count, granules),
            shares: Vec::new(),
            index: BlockIndex::new(count),
            lru: LruList::new(count),
            dirty_queue: DirtyQueue::new(count),
            dirty_slots: 0,
        }
    }

    #[inline]
    pub(crate) fn slot(&self, slot: SlotId) -> Slot {
        let Entry {
            key,
            record_at,
            flags,
        } = self.slots[slot as usize];
        let (valid, dirty) = self.granules.get(slot);
        Slot {
            key,
            valid,
            dirty,
            record_at,
            flags,
        }
    }

    /// How much of a volume is cached.
    pub(crate) fn share(&self, volume: u16) -> Share {
        self.shares
            .get(usize::from(volume))
            .copied()
            .unwrap_or_default()
    }

    fn share_mut(&mut self, volume: u16) -> &mut Share {
        let number = usize::from(volume);
        if number >= self.shares.len() {
            self.shares.resize(number + 1, Share::default());
        }
        &mut self.shares[number]
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn cached(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.lru.free_len()
    }

    pub(crate) const fn dirty_slots(&self) -> u64 {
        self.dirty_slots
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Entry>()
            + self.granules.bytes.capacity()
            + self.index.memory_bytes()
            + self.slots.len() * 8
            + self.slots.len() * 4
    }

    #[inline]
    pub(crate) fn find(&self, key: BlockKey) -> Option<SlotId> {
        let slots = &self.slots;
        self.index.get(key, |slot| slots[slot as usize].key)
    }

    pub(crate) fn touch(&mut self, slot: SlotId) {
        self.lru.touch(slot);
    }

    /// Gives `key` a free slot that holds nothing yet.
    pub(crate) fn allocate(&mut self, key: BlockKey) -> Option<SlotId> {
        let slot = self.lru.take_free()?;
        self.place(slot, key);
        Some(slot)
    }

    /// Gives `key` this free slot, which the caller took off the free list.
    fn place(&mut self, slot: SlotId, key: BlockKey) {
        let queued = self.slots[slot as usize].flags & QUEUED;
        self.slots[slot as usize] = Entry {
            key,
            flags: LIVE | queued,
            ..Entry::FREE
        };
        self.share_mut(key.volume()).blocks += 1;
        let slots = &self.slots;
        self.index
            .insert(key, slot, |slot| slots[slot as usize].key);
        self.lru.insert(slot);
    }

    /// At recovery: `slot` holds this. The free list is made afterwards by `rebuild_free`.
    pub(crate) fn restore(&mut self, slot: SlotId, key: BlockKey, valid: u64, dirty: u64) {
        self.place(slot, key);
        self.set(slot, valid, dirty);
        self.add_flags(slot, TRACED);
    }

    /// At recovery: every slot that holds nothing and is not `held` is free.
    pub(crate) fn rebuild_free(&mut self, held: &std::collections::HashSet<SlotId>) {
        while self.lru.take_free().is_some() {}
        for slot in (0..self.slots.len()).rev() {
            let slot = u32::try_from(slot).expect("at most 2^31 slots");
            if !self.slot(slot).has(LIVE) && !held.contains(&slot) {
                self.lru.release(slot);
            }
        }
    }

    /// At recovery: the death of a slot that was held back is durable.
    pub(crate) fn release(&mut self, slot: SlotId) {
        debug_assert!(!self.slot(slot).has(LIVE));
        self.lru.release(slot);
    }

    /// Takes a block out. Its slot is free at once: the caller made its death durable, or it never
    /// left a trace.
    pub(crate) fn remove(&mut self, slot: SlotId) {
        self.set(slot, 0, 0);
        let slots = &self.slots;
        let key = slots[slot as usize].key;
        let removed = self.index.remove(key, |slot| slots[slot as usize].key);
        debug_assert_eq!(removed, Some(slot));
        self.lru.remove(slot);
        // A stale entry on the dirty queue is skipped when it comes up; the flag stays with it.
        let queued = self.slots[slot as usize].flags & QUEUED;
        self.slots[slot as usize] = Entry {
            flags: queued,
            ..Entry::FREE
        };
        self.share_mut(key.volume()).blocks -= 1;
        self.lru.release(slot);
    }

    /// Sets what a slot holds and which of it is dirty.
    pub(crate) fn set(&mut self, slot: SlotId, valid: u64, dirty: u64) {
        debug_assert_eq!(dirty & !valid, 0, "dirty granules are valid");
        let before = self.granules.get(slot).1;
        self.granules.set(slot, valid, dirty);
        if before != dirty {
            self.dirty_slots += u64::from(before == 0);
            self.dirty_slots -= u64::from(dirty == 0);
            let share = self.share_mut(self.slots[slot as usize].key.volume());
            share.dirty_granules += u64::from(dirty.count_ones());
            share.dirty_granules -= u64::from(before.count_ones());
        }
        if dirty != 0 {
            self.queue_dirty(slot);
        }
    }

    fn queue_dirty(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot as usize];
        if entry.flags & QUEUED == 0 {
            entry.flags |= QUEUED;
            self.dirty_queue.push(slot);
        }
    }

    pub(crate) fn add_flags(&mut self, slot: SlotId, flags: u16) {
        self.slots[slot as usize].flags |= flags;
    }

    pub(crate) fn clear_flags(&mut self, slot: SlotId, flags: u16) {
        self.slots[slot as usize].flags &= !flags;
    }

    /// A slot's death is about to be logged: nothing may log the slot behind it.
    pub(crate) fn kill(&mut self, slot: SlotId) {
        self.clear_flags(slot, PENDING | LATER | DEFERRED);
        self.add_flags(slot, DYING);
        self.set_record(slot, NO_RECORD);
    }

    pub(crate) fn set_record(&mut self, slot: SlotId, record_at: u32) {
        self.slots[slot as usize].record_at = record_at;
    }

    /// Takes the slot that has been dirty longest off the queue. It may be clean or free by now.
    pub(crate) fn pop_dirty(&mut self) -> Option<SlotId> {
        let slot = self.dirty_queue.pop()?;
        self.clear_flags(slot, QUEUED);
        Some(slot)
    }

    /// Puts a slot that is still dirty back on the queue, at the young end.
    pub(crate) fn requeue_dirty(&mut self, slot: SlotId) {
        if self.granules.get(slot).1 != 0 {
            self.queue_dirty(slot);
        }
    }

    pub(crate) fn queued_dirty(&self) -> usize {
        self.dirty_queue.len()
    }

    /// Slots from the least recently used on.
    pub(crate) fn coldest(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.lru.coldest()
    }

    /// Slots that hold a block of `volume`.
    pub(crate) fn of_volume(&self, volume: u16) -> impl Iterator<Item = SlotId> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(move |(_, slot)| slot.flags & LIVE != 0 && slot.key.volume() == volume)
            .map(|(number, _)| u32::try_from(number).expect("at most 2^31 slots"))
    }
}

const _: () = assert!(size_of::<Entry>() == 16);
