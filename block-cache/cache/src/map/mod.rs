//! The map in memory: cached blocks, their index, their slots, recency, and free slots.
//!
//! A [`BlockId`] is a block's number in memory. Blocks are numbered densely, so that few large
//! blocks take little memory. A [`Slot`] is where a block's data is on the cache device, in units
//! from the start of the data. Records name slots.
//!
//! The map has the same content as the log, in the order in which changes were given to the log.
//! Before an operation on media relies on a change, it must wait until the log has that change
//! durably (see `commit`).

mod block_state;
mod dirty_order;
pub(crate) mod flags;
mod granules;
pub(crate) mod marks;
mod presence;
pub(crate) mod restore;
mod zone_holds;

use std::ops::Range;

use forebay_metadata::record::BlockRecord;
use forebay_policy::{
    BlockId, BlockKey, BlockTable, DirtyOrder, Evictability, Slot, Span, TwoLevel, TwoSegments,
    VictimSelector, Victims,
};

pub(crate) use block_state::{BlockState, Candidate, Share};
pub(crate) use flags::*;
use presence::Presence;
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
    /// Position in the ring of the live record, by the block's number.
    records: Vec<u32>,
    /// Flags, by the block's number.
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
    pub(crate) fn state(&self, id: BlockId) -> BlockState {
        let (volume, region, span) = self.table.address(id);
        let block = self.geometry.block_in(region, span);
        let slot = self.table.slot(id);
        let (valid, dirty) = self.granules.get(slot, self.geometry.granules(span.class));
        BlockState {
            key: block.key(volume),
            class: span.class,
            valid,
            dirty,
            record_at: self.records[id.index()],
            flags: self.flags[id.index()],
        }
    }

    /// The valid and dirty maps of a block of this class.
    #[inline]
    pub(crate) fn maps(&self, id: BlockId, class: u8) -> (u64, u64) {
        let granules = self.geometry.granules(class);
        self.granules.get(self.table.slot(id), granules)
    }

    /// Returns the slot of a block.
    #[inline]
    pub(crate) fn slot(&self, id: BlockId) -> Slot {
        self.table.slot(id)
    }

    /// The block in a slot.
    pub(crate) fn block_at(&self, slot: Slot) -> Option<BlockId> {
        self.table.block_at(slot)
    }

    /// A record of a block with these granules, without their checksums.
    pub(crate) fn record(&self, id: BlockId, valid: u64, dirty: u64) -> BlockRecord {
        let entry = self.state(id);
        BlockRecord {
            volume: entry.key.volume(),
            class: entry.class,
            block: entry.key.block(),
            slot: self.table.slot(id).get(),
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

    /// The blocks whose numbers were ever given out. Some are not cached any more.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = BlockId> + Clone + use<> {
        BlockId::range(0..self.numbers())
    }

    /// Numbers that were ever given out; all are below this.
    pub(crate) fn numbers(&self) -> u32 {
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
        let each = size_of::<u32>() + size_of::<Flags>();
        self.table.memory_bytes()
            + self.flags.len() * each
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
            .map(|(id, _)| id)
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

    /// Whether it takes fewer looks to go over all blocks than over these regions, of which there
    /// are not many millions.
    pub(crate) fn is_scanned(&self, volume: u16, regions: &Range<u64>) -> bool {
        self.presence.looks(volume, regions) > u64::from(self.numbers())
    }

    /// Adds the regions of blocks that lie in `regions`, of these numbers.
    pub(crate) fn scan(
        &self,
        volume: u16,
        regions: &Range<u64>,
        numbers: Range<u32>,
        found: &mut Vec<u64>,
    ) {
        let live = BlockId::range(numbers).filter(|id| self.has(*id, LIVE));
        let addresses = live.map(|id| self.table.address(id));
        let own = addresses.filter(|(own, region, _)| *own == volume && regions.contains(region));
        found.extend(own.map(|(_, region, _)| region));
    }

    /// Granules of a region that are cached whole.
    #[inline]
    pub(crate) fn cached(&self, volume: u16, region: u64) -> u64 {
        let blocks = self.table.find(volume, region);
        blocks.fold(0, |cached, (id, span)| {
            let valid = self.maps(id, span.class).0;
            cached | self.geometry.spread(valid, span, Spread::All)
        })
    }

    /// Notes a client's request of granules of a block of this class.
    #[inline]
    pub(crate) fn used(&mut self, id: BlockId, class: u8, granules: u64) {
        debug_assert!(
            self.has(id, LIVE) && !self.table.is_leaving(id),
            "a lock keeps what is being used"
        );
        let (slot, count) = (self.table.slot(id), self.geometry.granules(class));
        let repeated = self.granules.ask(slot, count, granules);
        TwoSegments.used(&mut self.table, id, repeated, count);
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
        ahead.pick(&TwoSegments, &mut self.table, |table, id| {
            let (volume, region, span) = table.address(id);
            let maps = granules.get(table.slot(id), geometry.granules(span.class));
            look(Candidate {
                region: BlockKey::new(volume, region),
                granules: geometry.covers(span),
                dirty: maps.1 != 0,
                flags: flags[id.index()],
            })
        })
    }

    /// A block that was picked stays.
    pub(crate) fn stay(&mut self, id: BlockId) {
        self.table.stay(id);
    }

    /// Gives a block that is not there, nor overlaps one that is, a free slot.
    pub(crate) fn allocate(&mut self, volume: u16, block: Block) -> Option<BlockId> {
        let region = self.geometry.region_of(block.unit);
        let span = self.geometry.span(block);
        let id = self.table.allocate(volume, region, span)?;
        self.entered(id, volume, block.class);
        Some(id)
    }

    /// A block was given a number and a slot, and holds nothing yet.
    fn entered(&mut self, id: BlockId, volume: u16, class: u8) {
        if id.index() >= self.flags.len() {
            self.flags.resize(id.index() + 1, Flags::default());
            self.records.resize(id.index() + 1, NO_RECORD);
        }
        self.flags[id.index()] = LIVE;
        self.records[id.index()] = NO_RECORD;
        self.presence.add(volume, self.table.address(id).1);
        let bytes = self.geometry.block_bytes(class);
        let share = self.share_mut(volume);
        share.blocks += 1;
        share.bytes += bytes;
    }

    /// Takes a block out. Its slot is free at once: the caller made its death durable, or it never
    /// left a trace.
    pub(crate) fn remove(&mut self, id: BlockId) {
        let slot = self.slot(id);
        let class = self.retire(id);
        self.table.free_slot(slot, class);
    }

    /// Removes a block whose slot is not free yet. Returns its class.
    pub(crate) fn retire(&mut self, id: BlockId) -> u8 {
        self.set(id, 0, 0);
        let BlockState { key, class, .. } = self.state(id);
        let region = self.geometry.region_of(key.block());
        self.presence.remove(key.volume(), region);
        self.table.retire(id);
        self.flags[id.index()] = Flags::default();
        self.records[id.index()] = NO_RECORD;
        let bytes = self.geometry.block_bytes(class);
        let share = self.share_mut(key.volume());
        share.blocks -= 1;
        share.bytes -= bytes;
        class
    }

    /// Notes that granules of a block are valid and clean now. A client requested some of them.
    pub(crate) fn fill(&mut self, id: BlockId, filled: u64, asked: u64) {
        let entry = self.state(id);
        self.set(id, entry.valid | filled, entry.dirty);
        let granules = self.geometry.granules(entry.class);
        (self.granules).ask(self.table.slot(id), granules, filled & asked);
    }

    /// Sets the valid and the dirty granules of a block.
    pub(crate) fn set(&mut self, id: BlockId, valid: u64, dirty: u64) {
        debug_assert_eq!(dirty & !valid, 0, "dirty granules are valid");
        let (volume, region, span) = self.table.address(id);
        let (slot, granules) = (self.table.slot(id), self.geometry.granules(span.class));
        let before = self.granules.get(slot, granules).1;
        self.granules.set(slot, granules, valid, dirty);
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
            self.queue_dirty(id);
        }
    }

    pub(crate) fn add_flags(&mut self, id: BlockId, flags: Flags) {
        self.flags[id.index()].add(flags);
    }

    pub(crate) fn clear_flags(&mut self, id: BlockId, flags: Flags) {
        self.flags[id.index()].clear(flags);
    }

    /// Returns whether a block has one of these flags.
    pub(crate) fn has(&self, id: BlockId, flags: Flags) -> bool {
        self.flags[id.index()].has(flags)
    }

    /// A block's death is about to be logged: nothing may log the block behind it.
    pub(crate) fn kill(&mut self, id: BlockId) {
        self.clear_flags(id, PENDING | LATER | DEFERRED);
        self.add_flags(id, DYING);
        self.set_record(id, NO_RECORD);
    }

    /// Position in the ring of the record that counts.
    #[inline]
    pub(crate) fn record_at(&self, id: BlockId) -> u32 {
        self.records[id.index()]
    }

    pub(crate) fn set_record(&mut self, id: BlockId, record_at: u32) {
        self.records[id.index()] = record_at;
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

    /// The volume that a block belongs to.
    pub(crate) fn volume(&self, id: BlockId) -> u16 {
        self.table.address(id).0
    }

    /// Cached blocks of `volume`.
    pub(crate) fn of_volume(&self, volume: u16) -> impl Iterator<Item = BlockId> + '_ {
        self.ids()
            .filter(move |id| self.has(*id, LIVE) && self.table.address(*id).0 == volume)
    }
}
