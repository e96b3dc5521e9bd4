//! The blocks of a cache with several block sizes: their index, their groups and their recency
//! (AdaCache, sections III-B to III-D).
//!
//! A *group* is a stretch of the cache as long as the largest block. It holds blocks of one size,
//! so evicting it makes room for a block of any size. Groups of a size with free slots are filled
//! before another group is opened.
//!
//! A region's blocks are found through a line of heads, one for each two units at which a block may
//! begin. So a look-up visits few blocks outside the requested range, and the visits do not depend
//! on each other's results.
//!
//! Memory: 28 bytes a block, including the free slots of groups in use, for as many as there ever
//! were at a time. Each group takes five bytes, a bit or two a unit, and a bit or two a size. The
//! index's heads take two bytes a unit of the cache, or four if there is one size.

mod groups;
mod index;
mod numbers;
mod restore;

pub use restore::Misplaced;

use super::decisions::{Decision, note};
use super::ids::{BlockId, Slot};
use super::list::{Link, List, NONE};
use super::segment::Segment;
use super::sizes::{BlockSizes, Span};
use groups::Groups;
use index::line_power;

/// A group's number: where it lies, in groups from the start of the cache.
pub type GroupId = u32;

/// A block's address: volume (16 bits), class (3), whether it is protected (1) and leaving (1),
/// number of its first unit (43).
const CLASS_SHIFT: u32 = 45;
pub(super) const PROTECTED: u64 = 1 << 44;
pub(super) const LEAVING: u64 = 1 << 43;
const UNIT_MASK: u64 = LEAVING - 1;
const _: () = assert!(UNIT_MASK + 1 == BlockSizes::MAX_VOLUME_UNITS);

/// In place of the next block: there is none by this number now.
const REMOVED: u32 = NONE - 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// In halves, so that nothing is padded.
    pub(super) address: [u32; 2],
    /// The next block in the same bucket of the index.
    next: u32,
    slot: Slot,
    pub(super) recency: Link,
    /// The table's count of uses at the last one.
    pub(super) used_at: u32,
}

const _: () = assert!(size_of::<Block>() == 28);

impl Block {
    /// A number that no block has had yet.
    const NONE: Self = Self {
        address: [0; 2],
        next: REMOVED,
        slot: Slot::new(0),
        recency: Link::NONE,
        used_at: 0,
    };

    const fn is_none(&self) -> bool {
        self.next == REMOVED
    }

    const fn address(&self) -> u64 {
        (self.address[1] as u64) << 32 | self.address[0] as u64
    }

    pub(super) const fn class(&self) -> u8 {
        (self.address() >> CLASS_SHIFT & 7) as u8
    }

    pub(super) const fn segment(&self) -> Segment {
        if self.address() & PROTECTED == 0 {
            Segment::Probation
        } else {
            Segment::Protected
        }
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.address() & LEAVING != 0
    }

    const fn unit(&self) -> u64 {
        self.address() & UNIT_MASK
    }

    const fn volume(&self) -> u16 {
        (self.address() >> 48) as u16
    }
}

/// Blocks, groups, index and recency.
#[derive(Debug)]
pub struct BlockTable {
    pub(super) sizes: BlockSizes,
    pub(super) blocks: Vec<Block>,
    live_blocks: u32,
    live_units: u32,
    pub(super) protected_units: u32,
    /// Uses of blocks so far, wrapping.
    pub(super) uses: u32,
    /// Numbers drawn so far, wrapping.
    draws: u32,
    groups: Groups,
    /// Lines of half as many as a region has units, at least one; a region's line is chosen by
    /// hash.
    heads: Vec<u32>,
    /// By unit of a region: where blocks that it lies in may begin.
    starts: Vec<u64>,
    /// By segment, by class.
    pub(super) recency: [[List; 8]; 2],
    /// Memory of groups and index, in bytes, independent of the number of cached blocks.
    fixed_bytes: usize,
}

impl BlockTable {
    /// An empty table for a cache of so many groups, each as long as the largest block.
    ///
    /// # Panics
    /// If there are 2^32 units or more.
    #[must_use]
    pub fn new(sizes: BlockSizes, groups: u32) -> Self {
        let units = groups.checked_mul(sizes.region_units());
        Self::with_units(sizes, units.expect("a cache has less than 2^32 units"))
    }

    /// An empty table for a cache of so many units. Where blocks have one size, nothing is gained
    /// by groups that are given up whole. A group has 64 blocks then, since that takes least
    /// memory.
    ///
    /// # Panics
    /// If there are 2^32 - 2 units or more.
    #[must_use]
    pub fn with_units(sizes: BlockSizes, units: u32) -> Self {
        assert!(units < REMOVED, "a cache has less than 2^32 - 2 units");
        let blocks = usize::try_from(units).expect("fits memory");
        let lines = (units >> sizes.top()).max(1);
        let groups = Groups::new(sizes, units);
        let of_region = 0..sizes.region_units();
        let starts = of_region.map(|unit| sizes.starts(1 << unit)).collect();
        let heads = vec![NONE; (lines as usize) << line_power(sizes)];
        Self {
            sizes,
            fixed_bytes: groups.memory_bytes() + heads.len() * size_of::<u32>(),
            // Its pages are the system's until they are needed.
            blocks: Vec::with_capacity(blocks),
            live_blocks: 0,
            live_units: 0,
            protected_units: 0,
            uses: 0,
            draws: 0,
            groups,
            heads,
            starts,
            recency: [[List::EMPTY; 8]; 2],
        }
    }

    /// The block sizes.
    #[must_use]
    pub const fn sizes(&self) -> BlockSizes {
        self.sizes
    }

    /// Blocks that are cached.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live_blocks as usize
    }

    /// Whether nothing is cached.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live_blocks == 0
    }

    /// Bytes that the cached blocks cover.
    #[must_use]
    pub const fn cached_bytes(&self) -> u64 {
        (self.live_units as u64) << self.sizes.unit_shift()
    }

    /// Units that protected blocks cover.
    #[must_use]
    pub const fn protected_units(&self) -> u32 {
        self.protected_units
    }

    /// Units that blocks may lie in.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.groups.units()
    }

    /// Units that no block lies in.
    #[must_use]
    pub fn free_units(&self) -> u32 {
        self.units() - self.live_units
    }

    /// Units that blocks of a class find without anything being given up.
    #[must_use]
    #[inline]
    pub fn room(&self, class: u8) -> u32 {
        if self.sizes.top() == 0 {
            // The last group may be shorter.
            return self.free_units();
        }
        self.groups.hole_units(class) + self.groups.free_units()
    }

    /// Groups, free ones too.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Groups that hold nothing.
    #[must_use]
    pub const fn free_groups(&self) -> usize {
        self.groups.free() as usize
    }

    /// Returns a bound above all numbers that blocks have had. The state of a number survives until
    /// its reuse.
    #[must_use]
    pub const fn numbers(&self) -> usize {
        self.blocks.len()
    }

    /// A number of 16 bits that looks drawn by chance, and is the same for tables with the same
    /// uses.
    pub(super) fn draw(&mut self) -> u32 {
        self.draws = self.draws.wrapping_add(1);
        (crate::BlockKey::new(0, u64::from(self.draws)).hash() >> 48) as u32
    }

    /// Bytes of memory that blocks, groups and index take.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>() + self.fixed_bytes
    }

    /// The volume, the number of the region, and where in it a block lies.
    #[must_use]
    #[inline]
    pub fn address(&self, id: BlockId) -> (u16, u64, Span) {
        let block = &self.blocks[id.index()];
        (
            block.volume(),
            block.unit() >> self.sizes.top(),
            self.span(block),
        )
    }

    /// The slot of a block.
    #[must_use]
    #[inline]
    pub fn slot(&self, id: BlockId) -> Slot {
        self.blocks[id.index()].slot
    }

    /// The group that a block lies in.
    #[must_use]
    #[inline]
    pub fn group_of(&self, id: BlockId) -> GroupId {
        self.groups.of(self.blocks[id.index()].slot)
    }

    /// A block's class.
    #[must_use]
    #[inline]
    pub fn class(&self, id: BlockId) -> u8 {
        self.blocks[id.index()].class()
    }

    #[inline]
    fn span(&self, block: &Block) -> Span {
        if self.sizes.top() == 0 {
            return Span { first: 0, class: 0 };
        }
        #[expect(clippy::cast_possible_truncation, reason = "within a region")]
        Span {
            first: (block.unit() & u64::from(self.sizes.region_units() - 1)) as u8,
            class: block.class(),
        }
    }

    /// Whether a block of this class can be placed without anything being given up.
    #[must_use]
    pub fn has_room(&self, class: u8) -> bool {
        self.groups.hole_units(class) > 0 || self.groups.free() > 0
    }

    /// Places a block in a group of its size that has a free slot, else in a free group. It is the
    /// most recent block then. Returns `None` if there is neither.
    ///
    /// # Panics
    /// If the block lies beyond [`BlockSizes::MAX_VOLUME_UNITS`]; in debug builds, if the region
    /// has a block there already.
    pub fn allocate(&mut self, volume: u16, region: u64, span: Span) -> Option<BlockId> {
        debug_assert!(self.sizes.has(span.class));
        debug_assert!(
            self.find(volume, region)
                .all(|(_, other)| other.mask() & span.mask() == 0),
            "blocks overlap"
        );
        let slot = self.groups.take(span.class)?;
        note(|| Decision::Place {
            volume,
            region,
            span,
        });
        let id = self.fill(volume, region, span, slot);
        self.enter_most(id);
        Some(id)
    }

    /// Puts a block into a slot that was taken for it; it has no recency yet.
    fn fill(&mut self, volume: u16, region: u64, span: Span, slot: Slot) -> BlockId {
        let class = span.class;
        let id = self.groups.number(slot, class);
        let unit = (region << self.sizes.top()) | u64::from(span.first);
        assert!(unit <= UNIT_MASK, "unit {unit} of a volume has no number");
        let address = u64::from(volume) << 48 | u64::from(class) << CLASS_SHIFT | unit;
        let bucket = self.head(volume, region, span.first);
        if id.index() >= self.blocks.len() {
            let count = self.groups.chunk_end(id);
            self.blocks.resize(count as usize, Block::NONE);
        }
        #[expect(clippy::cast_possible_truncation, reason = "cut into halves")]
        let address = [address as u32, (address >> 32) as u32];
        self.blocks[id.index()] = Block {
            address,
            slot,
            next: self.heads[bucket],
            recency: Link::NONE,
            used_at: 0,
        };
        self.heads[bucket] = id.get();
        self.live_blocks += 1;
        self.live_units += span.units();
        id
    }

    /// Blocks of a class in a group.
    #[cfg(test)]
    pub(super) fn slots(&self, group: GroupId, class: u8) -> u32 {
        self.groups.slots(group, class)
    }

    /// The block in a slot.
    #[must_use]
    pub fn block_at(&self, slot: Slot) -> Option<BlockId> {
        let id = self.groups.number_at(slot)?;
        (!self.blocks[id.index()].is_none()).then_some(id)
    }

    /// Takes a block out; its slot is free at once, and so is its group if it was the last there.
    pub fn remove(&mut self, id: BlockId) {
        let (slot, class) = (self.slot(id), self.class(id));
        self.retire(id);
        self.free_slot(slot, class);
    }

    /// Removes a block whose slot is not free yet: see [`BlockTable::free_slot`].
    pub fn retire(&mut self, id: BlockId) {
        let block = self.blocks[id.index()];
        if !block.is_leaving() {
            self.leave(id);
        }
        let bucket = self.bucket(&block);
        match self.heads[bucket] {
            head if head == id.get() => self.heads[bucket] = block.next,
            mut at => {
                while self.blocks[at as usize].next != id.get() {
                    at = self.blocks[at as usize].next;
                }
                self.blocks[at as usize].next = block.next;
            }
        }
        // The old values of a removed block stay readable.
        self.blocks[id.index()].next = REMOVED;
        self.live_blocks -= 1;
    }

    /// The slot of a block that was retired is free.
    pub fn free_slot(&mut self, slot: Slot, class: u8) {
        self.live_units -= 1 << class;
        self.groups.release(slot, class);
    }

    /// The blocks of a group.
    pub fn blocks_of(&self, group: GroupId) -> impl Iterator<Item = BlockId> + '_ {
        let numbers = self.groups.numbers_of(group);
        BlockId::range(numbers).filter(|id| !self.blocks[id.index()].is_none())
    }

    /// All blocks, group by group.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        #[expect(clippy::cast_possible_truncation, reason = "numbered with 32 bits")]
        let groups = 0..self.groups.len() as u32;
        groups.flat_map(|group| self.blocks_of(group))
    }
}
