//! The map in memory: cached blocks, their index, their places, recency, and free places.
//!
//! A *slot* is a block's number in memory. Slots are numbered densely, so that few large blocks
//! take little memory. A slot's *place* is the position of its data, in units from the start of the
//! data. Records name places.
//!
//! The map has the same content as the log, in the order in which changes were given to the log.
//! Before an operation on media relies on a change, it must wait until the log has that change
//! durably (see `commit`).

mod dirty_order;
pub(crate) mod flags;
mod granules;
pub(crate) mod marks;
mod presence;
pub(crate) mod restore;
mod slot;
mod zone_holds;

use std::ops::Range;

use forebay_metadata::record::BlockRecord;
use forebay_policy::{
    BlockId, BlockKey, BlockTable, DirtyOrder, Evictability, Span, TwoLevel, TwoSegments,
    VictimSelector, Victims,
};

pub(crate) use flags::*;
use presence::Presence;
pub(crate) use slot::{Candidate, Share, Slot};
use zone_holds::ZoneHolds;

use crate::geometry::{Block, Geometry, Spread};
use crate::map::granules::Granules;

/// No record in the ring.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// Blocks and how they are found.
#[derive(Debug)]
pub(crate) struct Map {
    geometry: Geometry,
    table: BlockTable,
    /// Place in the ring of the live record, by slot.
    records: Vec<u32>,
    /// Flags, by slot.
    flags: Vec<Flags>,
    granules: Granules,
    presence: Presence,
    /// Cached share of a volume, by its number.
    shares: Vec<Share>,
    /// Blocks that the cleaner will visit, by the volume's number.
    dirty_orders: Vec<DirtyOrder>,
    dirty_blocks: u64,
    dirty_units: u64,
    /// Dirty blocks, and writes that may make some, by zone.
    zones: ZoneHolds,
}

impl Map {
    /// An empty map.
    pub(crate) fn new(geometry: Geometry, units: u32) -> Self {
        let count = units as usize;
        Self {
            geometry,
            table: BlockTable::with_units(geometry.sizes(), units),
            records: Vec::with_capacity(count),
            flags: Vec::with_capacity(count),
            granules: Granules::new(units, geometry.granules(0)),
            presence: Presence::new(units),
            shares: Vec::new(),
            dirty_orders: Vec::new(),
            dirty_blocks: 0,
            dirty_units: 0,
            zones: ZoneHolds::default(),
        }
    }

    #[inline]
    pub(crate) fn slot(&self, slot: BlockId) -> Slot {
        let (volume, region, span) = self.table.address(slot);
        let block = self.geometry.block_in(region, span);
        let place = self.table.place(slot);
        let (valid, dirty) = self.granules.get(place, self.geometry.granules(span.class));
        Slot {
            key: block.key(volume),
            class: span.class,
            valid,
            dirty,
            record_at: self.records[slot as usize],
            flags: self.flags[slot as usize],
        }
    }

    /// The valid and dirty maps of a slot that holds a block of this class.
    #[inline]
    pub(crate) fn maps(&self, slot: BlockId, class: u8) -> (u64, u64) {
        let granules = self.geometry.granules(class);
        self.granules.get(self.table.place(slot), granules)
    }

    /// Returns the place of a slot's data, in units.
    #[inline]
    pub(crate) fn place(&self, slot: BlockId) -> u32 {
        self.table.place(slot)
    }

    /// The block that begins at a place.
    pub(crate) fn at_place(&self, place: u32) -> Option<BlockId> {
        self.table.block_at(place)
    }

    /// A record of a slot with these granules, without their checksums.
    pub(crate) fn record(&self, slot: BlockId, valid: u64, dirty: u64) -> BlockRecord {
        let entry = self.slot(slot);
        BlockRecord {
            volume: entry.key.volume(),
            class: entry.class,
            block: entry.key.block(),
            slot: self.table.place(slot),
            valid,
            dirty,
            bad: 0,
            sums: 0,
        }
    }

    /// Returns the cached share of a volume.
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

    /// Units of the cache.
    pub(crate) fn units(&self) -> u32 {
        self.table.units()
    }

    /// Slots that were ever given out; all are below this.
    pub(crate) fn numbers(&self) -> BlockId {
        u32::try_from(self.flags.len()).expect("at most one a unit")
    }

    /// Blocks that are cached.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Units that nothing lies in.
    pub(crate) fn free_units(&self) -> u32 {
        self.table.free_units()
    }

    /// The blocks, as replacement sees them.
    pub(crate) const fn table(&self) -> &BlockTable {
        &self.table
    }

    pub(crate) const fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }

    pub(crate) const fn dirty_units(&self) -> u64 {
        self.dirty_units
    }

    /// Bytes of memory that the cached blocks take, and took when there were most.
    pub(crate) fn memory_bytes(&self) -> usize {
        let slot = size_of::<u32>() + size_of::<Flags>();
        self.table.memory_bytes()
            + self.flags.len() * slot
            + self
                .dirty_orders
                .iter()
                .map(DirtyOrder::memory_bytes)
                .sum::<usize>()
            + self.zones.memory_bytes()
            + self.granules.memory_bytes()
            + self.presence.memory_bytes()
    }

    /// The block that a unit of a volume lies in.
    #[inline]
    pub(crate) fn find(&self, key: BlockKey) -> Option<BlockId> {
        let region = self.geometry.region_of(key.block());
        let unit = Block {
            unit: key.block(),
            class: 0,
        };
        let wanted = self.geometry.span(unit).mask();
        self.overlapping(key.volume(), region, wanted)
            .next()
            .map(|(slot, _)| slot)
    }

    /// The blocks of a region that some of these units lie in.
    #[inline]
    pub(crate) fn overlapping(
        &self,
        volume: u16,
        region: u64,
        units: u64,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        self.table
            .find_near(volume, region, units)
            .filter(move |(_, span)| span.mask() & units != 0)
    }

    /// Looks for the first of these regions that has a block: the region, and whether it has one.
    /// Without one, all before it have none: when no looks are left, others have their turn.
    pub(crate) fn next_cached(
        &self,
        volume: u16,
        regions: Range<u64>,
        looks: &mut u32,
    ) -> (u64, bool) {
        let mut at = regions.start;
        if self.share(volume).blocks == 0 {
            return (regions.end, false);
        }
        while at < regions.end && *looks > 0 {
            at = self.presence.skip(volume, at, regions.end, looks);
            if at == regions.end || *looks == 0 {
                break;
            }
            if self.table.find(volume, at).next().is_some() {
                return (at, true);
            }
            at += 1;
            *looks -= 1;
        }
        (at, false)
    }

    /// Whether it takes fewer looks to go over all slots than over these regions, of which there
    /// are not many millions.
    pub(crate) fn is_scanned(&self, volume: u16, regions: &Range<u64>) -> bool {
        self.presence.looks(volume, regions) > u64::from(self.numbers())
    }

    /// Adds the regions of blocks that lie in `regions`, of these slots.
    pub(crate) fn scan(
        &self,
        volume: u16,
        regions: &Range<u64>,
        slots: Range<BlockId>,
        found: &mut Vec<u64>,
    ) {
        let live = slots.filter(|slot| self.has(*slot, LIVE));
        let addresses = live.map(|slot| self.table.address(slot));
        let own = addresses.filter(|(own, region, _)| *own == volume && regions.contains(region));
        found.extend(own.map(|(_, region, _)| region));
    }

    /// Granules of a region that are cached whole.
    #[inline]
    pub(crate) fn cached(&self, volume: u16, region: u64) -> u64 {
        let blocks = self.table.find(volume, region);
        blocks.fold(0, |cached, (slot, span)| {
            let valid = self.maps(slot, span.class).0;
            cached | self.geometry.spread(valid, span, Spread::All)
        })
    }

    /// Notes a client's request of granules of a slot that holds a block of this class.
    #[inline]
    pub(crate) fn used(&mut self, slot: BlockId, class: u8, granules: u64) {
        debug_assert!(
            self.has(slot, LIVE) && !self.table.is_leaving(slot),
            "a lock keeps what is being used"
        );
        let (place, count) = (self.table.place(slot), self.geometry.granules(class));
        let repeated = self.granules.ask(place, count, granules);
        TwoSegments.used(&mut self.table, slot, repeated, count);
    }

    /// Returns whether it is time to make room.
    #[inline]
    pub(crate) fn is_low(&self, ahead: &VictimSelector) -> bool {
        ahead.is_low(&self.table)
    }

    /// Names victims, which are leaving from then on. `look` says of each whether it can be
    /// evicted.
    pub(crate) fn pick(
        &mut self,
        ahead: &mut VictimSelector,
        look: impl Fn(Candidate) -> Evictability,
    ) -> Victims {
        let (geometry, granules, flags) = (self.geometry, &self.granules, &self.flags);
        ahead.pick(&TwoSegments, &mut self.table, |table, slot| {
            let (volume, region, span) = table.address(slot);
            let maps = granules.get(table.place(slot), geometry.granules(span.class));
            look(Candidate {
                region: BlockKey::new(volume, region),
                granules: geometry.covers(span),
                dirty: maps.1 != 0,
                flags: flags[slot as usize],
            })
        })
    }

    /// A slot that was picked stays.
    pub(crate) fn stay(&mut self, slot: BlockId) {
        self.table.stay(slot);
    }

    /// Gives a block that is not there, nor overlaps one that is, a free place.
    pub(crate) fn allocate(&mut self, volume: u16, block: Block) -> Option<BlockId> {
        let region = self.geometry.region_of(block.unit);
        let span = self.geometry.span(block);
        let slot = self.table.allocate(volume, region, span)?;
        self.entered(slot, volume, block.class);
        Some(slot)
    }

    /// A block was given a slot that holds nothing yet.
    fn entered(&mut self, slot: BlockId, volume: u16, class: u8) {
        if slot as usize >= self.flags.len() {
            self.flags.resize(slot as usize + 1, Flags::default());
            self.records.resize(slot as usize + 1, NO_RECORD);
        }
        self.flags[slot as usize] = LIVE;
        self.records[slot as usize] = NO_RECORD;
        self.presence.add(volume, self.table.address(slot).1);
        let bytes = self.geometry.block_bytes(class);
        let share = self.share_mut(volume);
        share.blocks += 1;
        share.bytes += bytes;
    }

    /// Takes a block out. Its place is free at once: the caller made its death durable, or it never
    /// left a trace.
    pub(crate) fn remove(&mut self, slot: BlockId) {
        let place = self.place(slot);
        let class = self.retire(slot);
        self.table.free_place(place, class);
    }

    /// Removes a block whose place is not free yet. Returns its class.
    pub(crate) fn retire(&mut self, slot: BlockId) -> u8 {
        self.set(slot, 0, 0);
        let Slot { key, class, .. } = self.slot(slot);
        let region = self.geometry.region_of(key.block());
        self.presence.remove(key.volume(), region);
        self.table.retire(slot);
        self.flags[slot as usize] = Flags::default();
        self.records[slot as usize] = NO_RECORD;
        let bytes = self.geometry.block_bytes(class);
        let share = self.share_mut(key.volume());
        share.blocks -= 1;
        share.bytes -= bytes;
        class
    }

    /// Notes that granules of a slot are valid and clean now. A client requested some of them.
    pub(crate) fn fill(&mut self, slot: BlockId, filled: u64, asked: u64) {
        let entry = self.slot(slot);
        self.set(slot, entry.valid | filled, entry.dirty);
        let granules = self.geometry.granules(entry.class);
        (self.granules).ask(self.table.place(slot), granules, filled & asked);
    }

    /// Sets the valid and the dirty granules of a slot.
    pub(crate) fn set(&mut self, slot: BlockId, valid: u64, dirty: u64) {
        debug_assert_eq!(dirty & !valid, 0, "dirty granules are valid");
        let (volume, region, span) = self.table.address(slot);
        let (place, granules) = (self.table.place(slot), self.geometry.granules(span.class));
        let before = self.granules.get(place, granules).1;
        self.granules.set(place, granules, valid, dirty);
        if before != dirty {
            let (was, is) = (u64::from(before != 0), u64::from(dirty != 0));
            let unit = self.geometry.block_in(region, span).unit;
            (self.zones).turned(self.geometry.zone_bit(volume, unit), was, is);
            let units = u64::from(span.units());
            self.dirty_blocks = self.dirty_blocks + is - was;
            self.dirty_units = self.dirty_units + is * units - was * units;
            let granule = self.geometry.granule_bytes(span.class);
            let share = self.share_mut(volume);
            share.dirty_bytes += u64::from(dirty.count_ones()) * granule;
            share.dirty_bytes -= u64::from(before.count_ones()) * granule;
        }
        if dirty != 0 {
            self.queue_dirty(slot);
        }
    }

    pub(crate) fn add_flags(&mut self, slot: BlockId, flags: Flags) {
        self.flags[slot as usize].add(flags);
    }

    pub(crate) fn clear_flags(&mut self, slot: BlockId, flags: Flags) {
        self.flags[slot as usize].clear(flags);
    }

    /// Returns whether a slot has one of these flags.
    pub(crate) fn has(&self, slot: BlockId, flags: Flags) -> bool {
        self.flags[slot as usize].has(flags)
    }

    /// A slot's death is about to be logged: nothing may log the slot behind it.
    pub(crate) fn kill(&mut self, slot: BlockId) {
        self.clear_flags(slot, PENDING | LATER | DEFERRED);
        self.add_flags(slot, DYING);
        self.set_record(slot, NO_RECORD);
    }

    /// Place in the ring of the record that counts.
    #[inline]
    pub(crate) fn record_at(&self, slot: BlockId) -> u32 {
        self.records[slot as usize]
    }

    pub(crate) fn set_record(&mut self, slot: BlockId, record_at: u32) {
        self.records[slot as usize] = record_at;
    }

    /// Keeps a zone from being called clean, while a write is under way that may make a block
    /// dirty.
    pub(crate) fn hold_zone(&mut self, bit: usize) {
        self.zones.hold(bit);
    }

    /// Ends a hold of a zone.
    pub(crate) fn release_zone(&mut self, bit: usize) {
        self.zones.release(bit);
    }

    /// Returns whether nothing in a zone is dirty, or about to turn so.
    pub(crate) fn is_zone_clean(&self, bit: usize) -> bool {
        self.zones.is_clean(bit)
    }

    /// Returns the zones that are not clean, in order.
    pub(crate) fn held_zones(&self) -> impl Iterator<Item = usize> + '_ {
        self.zones.held()
    }

    /// The volume that a slot belongs to.
    pub(crate) fn volume(&self, slot: BlockId) -> u16 {
        self.table.address(slot).0
    }

    /// Slots that hold a block of `volume`.
    pub(crate) fn of_volume(&self, volume: u16) -> impl Iterator<Item = BlockId> + '_ {
        (0..self.numbers())
            .filter(move |slot| self.has(*slot, LIVE) && self.table.address(*slot).0 == volume)
    }
}
