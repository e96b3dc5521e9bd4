//! The blocks of a cache with several block sizes: how they are found, how they lie in groups, and
//! how recently they and their groups were used (AdaCache, sections III-B to III-D).
//!
//! A *group* is a stretch of the cache as long as the largest block and holds blocks of one size, so
//! that giving it up makes room for a block of any size. Of each size, only groups with free slots
//! are filled before another group is opened.
//!
//! A region's blocks are found through a line of heads, one for each unit that a block may begin at: so few blocks are
//! looked at that do not touch what is asked for, and those that are do not wait for each other.
//!
//! Memory: 32 bytes a block, 32 a group, and the index's heads, two bytes a unit of the cache.

mod index;
mod restore;

pub use restore::Misplaced;

use super::decisions::{Decision, note};
use super::list::{Link, List, NONE};
use super::recency::Segment;
use super::sizes::{BlockSizes, Span};

/// A cached block's number; numbers are used again.
pub type BlockId = u32;
/// A group's number: where it lies, in groups from the start of the cache.
pub type GroupId = u32;

/// A block's address: volume (16 bits), class (3), whether it is protected (1) and leaving (1), number
/// of its first unit (43).
const CLASS_SHIFT: u32 = 45;
pub(super) const PROTECTED: u64 = 1 << 44;
pub(super) const LEAVING: u64 = 1 << 43;
const UNIT_MASK: u64 = LEAVING - 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// In halves, so that nothing is padded.
    pub(super) address: [u32; 2],
    /// Where it lies, in units from the start of the cache.
    place: u32,
    /// The next block in the same bucket of the index, or the next free number.
    next: u32,
    /// The next block of the same group.
    sibling: u32,
    pub(super) recency: Link,
    /// The table's count of uses at the last one.
    pub(super) used_at: u32,
}

const _: () = assert!(size_of::<Block>() == 32);

impl Block {
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) recency: Link,
    /// Among the groups of its class with free slots.
    holes: Link,
    /// The first of its blocks.
    first: u32,
    /// Slots in use, one bit each.
    used: [u32; 2],
    class: u8,
    /// How many of them.
    live: u8,
}

const _: () = assert!(size_of::<Group>() == 32);

impl Group {
    const fn used(&self) -> u64 {
        (self.used[1] as u64) << 32 | self.used[0] as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "cut into halves")]
    const fn set_used(&mut self, used: u64) {
        self.used = [used as u32, (used >> 32) as u32];
    }
}

/// Blocks, groups, index and recency.
#[derive(Debug)]
pub struct BlockTable {
    pub(super) sizes: BlockSizes,
    /// Units of the cache; the last group may have fewer than the others.
    units: u32,
    /// Units of a group, as a power of two.
    group_shift: u8,
    pub(super) blocks: Vec<Block>,
    free_blocks: u32,
    live_blocks: u32,
    live_units: u32,
    pub(super) protected_units: u32,
    /// Uses of blocks so far, wrapping.
    pub(super) uses: u32,
    pub(super) groups: Vec<Group>,
    /// Free groups, chained through `first`.
    free_groups: u32,
    free_group_count: u32,
    /// Lines of as many as a region has units; a region's line is chosen by hash.
    heads: Vec<u32>,
    /// By segment, by class.
    pub(super) recency: [[List; 8]; 2],
    pub(super) group_recency: List,
    /// By class: groups with free slots, and units of those.
    holes: [List; 8],
    hole_units: [u32; 8],
    /// Blocks are being put back: nothing is free yet.
    restoring: bool,
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

    /// An empty table for a cache of so many units. Where blocks have one size, nothing is gained by
    /// groups that are given up whole, and a group has 64 blocks, since that takes least memory.
    ///
    /// # Panics
    /// If there are 2^32 - 1 units.
    #[must_use]
    pub fn with_units(sizes: BlockSizes, units: u32) -> Self {
        assert!(units < NONE, "a cache has less than 2^32 units");
        let group_shift = if sizes.top() == 0 { 6 } else { sizes.top() };
        let groups = if sizes.top() == 0 {
            units.div_ceil(1 << group_shift)
        } else {
            units >> group_shift
        };
        let group = |id: u32| Group {
            recency: Link::NONE,
            holes: Link::NONE,
            first: if id + 1 < groups { id + 1 } else { NONE },
            used: [0; 2],
            class: 0,
            live: 0,
        };
        let blocks = usize::try_from(units).expect("fits memory");
        let lines = (units >> sizes.top()).div_ceil(2).max(1);
        Self {
            sizes,
            units,
            group_shift,
            // Its pages are the system's until they are needed.
            blocks: Vec::with_capacity(blocks),
            free_blocks: NONE,
            live_blocks: 0,
            live_units: 0,
            protected_units: 0,
            uses: 0,
            groups: (0..groups).map(group).collect(),
            free_groups: if groups == 0 { NONE } else { 0 },
            free_group_count: groups,
            heads: vec![NONE; (lines as usize) << sizes.top()],
            recency: [[List::EMPTY; 8]; 2],
            group_recency: List::EMPTY,
            holes: [List::EMPTY; 8],
            hole_units: [0; 8],
            restoring: false,
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
        self.units
            .min((self.groups.len() as u64 * (1 << self.group_shift)) as u32)
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
        self.hole_units[usize::from(class)] + (self.free_group_count << self.group_shift)
    }

    /// Groups, free ones too.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Groups that hold nothing.
    #[must_use]
    pub const fn free_groups(&self) -> usize {
        self.free_group_count as usize
    }

    /// Bytes of memory that blocks in use, groups and index take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.len() * size_of::<Block>()
            + self.groups.len() * size_of::<Group>()
            + self.heads.len() * size_of::<u32>()
    }

    /// The volume, the number of the region, and where in it a block lies.
    #[must_use]
    #[inline]
    pub fn address(&self, id: BlockId) -> (u16, u64, Span) {
        let block = &self.blocks[id as usize];
        (
            block.volume(),
            block.unit() >> self.sizes.top(),
            self.span(block),
        )
    }

    /// Where a block lies in the cache, in units from its start.
    #[must_use]
    #[inline]
    pub fn place(&self, id: BlockId) -> u32 {
        self.blocks[id as usize].place
    }

    /// The group that a block lies in.
    #[must_use]
    #[inline]
    pub fn group_of(&self, id: BlockId) -> GroupId {
        self.blocks[id as usize].place >> self.group_shift
    }

    /// A block's class.
    #[must_use]
    #[inline]
    pub fn class(&self, id: BlockId) -> u8 {
        self.blocks[id as usize].class()
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
        self.holes[usize::from(class)].front != NONE || self.free_groups != NONE
    }

    /// Places a block, the most recent now, in a group of its size that has a free slot, else in a
    /// free group; none if there is neither.
    ///
    /// # Panics
    /// In debug builds, if the region has a block there already.
    pub fn allocate(&mut self, volume: u16, region: u64, span: Span) -> Option<BlockId> {
        debug_assert!(self.sizes.has(span.class));
        debug_assert!(
            self.find(volume, region)
                .all(|(_, other)| other.mask() & span.mask() == 0),
            "blocks overlap"
        );
        let class = span.class;
        let group = match self.holes[usize::from(class)].front {
            NONE => self.open(class)?,
            group => group,
        };
        let slot = (!self.groups[group as usize].used()).trailing_zeros();
        note(|| Decision::Place {
            volume,
            region,
            span,
        });
        Some(self.fill(volume, region, span, group, slot))
    }

    /// Puts a block into a free slot of a group that has its class.
    pub(super) fn fill(
        &mut self,
        volume: u16,
        region: u64,
        span: Span,
        group: GroupId,
        slot: u32,
    ) -> BlockId {
        let class = span.class;
        let id = self.new_block();
        let unit = (region << self.sizes.top()) | u64::from(span.first);
        let address = u64::from(volume) << 48 | u64::from(class) << CLASS_SHIFT | unit;
        let bucket = self.line(volume, region) + usize::from(span.first);
        #[expect(clippy::cast_possible_truncation, reason = "cut into halves")]
        let address = [address as u32, (address >> 32) as u32];
        self.blocks[id as usize] = Block {
            address,
            place: (group << self.group_shift) + (slot << class),
            next: self.heads[bucket],
            sibling: self.groups[group as usize].first,
            recency: Link::NONE,
            used_at: 0,
        };
        self.heads[bucket] = id;
        self.stamp(id);
        self.recency[Segment::Probation as usize][usize::from(class)].push_front(
            &mut self.blocks,
            id,
            |block| &mut block.recency,
        );
        let entry = &mut self.groups[group as usize];
        entry.first = id;
        entry.set_used(entry.used() | 1 << slot);
        entry.live += 1;
        if u32::from(entry.live) == self.slots(group, class) && !self.restoring {
            self.holes[usize::from(class)]
                .remove(&mut self.groups, group, |group| &mut group.holes);
        }
        if !self.restoring {
            self.hole_units[usize::from(class)] -= 1 << class;
        }
        self.group_recency
            .move_to_front(&mut self.groups, group, |group| &mut group.recency);
        self.live_blocks += 1;
        self.live_units += span.units();
        id
    }

    /// Blocks of a class in a group.
    pub(super) fn slots(&self, group: GroupId, class: u8) -> u32 {
        let first = group << self.group_shift;
        (self.units - first).min(1 << self.group_shift) >> class
    }

    /// Takes a free group for a class.
    fn open(&mut self, class: u8) -> Option<GroupId> {
        let group = self.free_groups;
        if group == NONE {
            return None;
        }
        self.free_groups = self.groups[group as usize].first;
        self.free_group_count -= 1;
        self.give(group, class);
        self.hole_units[usize::from(class)] += self.slots(group, class) << class;
        self.holes[usize::from(class)]
            .push_front(&mut self.groups, group, |group| &mut group.holes);
        Some(group)
    }

    /// Gives a group that holds nothing to a class.
    fn give(&mut self, group: GroupId, class: u8) {
        let entry = &mut self.groups[group as usize];
        entry.first = NONE;
        entry.set_used(0);
        entry.class = class;
        self.group_recency
            .push_front(&mut self.groups, group, |group| &mut group.recency);
    }

    /// The block that begins at a place of the cache.
    #[must_use]
    pub fn block_at(&self, place: u32) -> Option<BlockId> {
        let group = place >> self.group_shift;
        let entry = self.groups.get(group as usize)?;
        let within = place & ((1 << self.group_shift) - 1);
        if entry.live == 0 || entry.used() >> (within >> entry.class) & 1 == 0 {
            return None;
        }
        self.blocks_of(group)
            .find(|id| self.blocks[*id as usize].place == place)
    }

    fn new_block(&mut self) -> BlockId {
        if self.free_blocks == NONE {
            let id = u32::try_from(self.blocks.len()).expect("at most one a unit");
            self.blocks.push(Block {
                address: [0; 2],
                place: 0,
                next: NONE,
                sibling: NONE,
                recency: Link::NONE,
                used_at: 0,
            });
            return id;
        }
        let id = self.free_blocks;
        self.free_blocks = self.blocks[id as usize].next;
        id
    }

    /// Takes a block out; its slot is free at once, and so is its group if it was the last there.
    pub fn remove(&mut self, id: BlockId) {
        let (place, class) = (self.place(id), self.class(id));
        self.retire(id);
        self.free_place(place, class);
    }

    /// Takes a block out whose place is not free yet: see [`BlockTable::free_place`].
    pub fn retire(&mut self, id: BlockId) {
        let block = self.blocks[id as usize];
        let group = self.group_of(id);
        let bucket = self.bucket(&block);
        let blocks = &mut self.blocks;
        unchain(&mut self.heads[bucket], blocks, id, |block| &mut block.next);
        let entry = &mut self.groups[group as usize];
        unchain(&mut entry.first, blocks, id, |block| &mut block.sibling);
        if !block.is_leaving() {
            self.leave(id);
        }
        let blocks = &mut self.blocks;
        blocks[id as usize].next = self.free_blocks;
        self.free_blocks = id;
        self.live_blocks -= 1;
    }

    /// The place of a block that was retired is free.
    pub fn free_place(&mut self, place: u32, class: u8) {
        let group = place >> self.group_shift;
        let slot = (place & ((1 << self.group_shift) - 1)) >> class;
        let slots = self.slots(group, class);
        let entry = &mut self.groups[group as usize];
        debug_assert!(entry.class == class && entry.used() >> slot & 1 == 1);
        let was_full = u32::from(entry.live) == slots;
        entry.set_used(entry.used() & !(1 << slot));
        entry.live -= 1;
        self.live_units -= 1 << class;
        let empty = entry.live == 0;
        if self.restoring {
            if empty {
                self.group_recency
                    .remove(&mut self.groups, group, |group| &mut group.recency);
            }
            return;
        }
        let hole_units = &mut self.hole_units[usize::from(class)];
        *hole_units += 1 << class;
        if empty {
            *hole_units -= slots << class;
        }
        let holes = &mut self.holes[usize::from(class)];
        match (was_full, empty) {
            (true, false) => holes.push_front(&mut self.groups, group, |group| &mut group.holes),
            (false, true) => holes.remove(&mut self.groups, group, |group| &mut group.holes),
            _ => {}
        }
        if empty {
            self.group_recency
                .remove(&mut self.groups, group, |group| &mut group.recency);
            self.groups[group as usize].first = self.free_groups;
            self.free_groups = group;
            self.free_group_count += 1;
        }
    }

    /// The blocks of a group.
    pub fn blocks_of(&self, group: GroupId) -> impl Iterator<Item = BlockId> + '_ {
        let mut at = if self.groups[group as usize].live == 0 {
            NONE
        } else {
            self.groups[group as usize].first
        };
        std::iter::from_fn(move || {
            let id = at;
            at = self.blocks.get(id as usize)?.sibling;
            Some(id)
        })
    }

    /// All blocks, group by group.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        #[expect(clippy::cast_possible_truncation, reason = "numbered with 32 bits")]
        let groups = 0..self.groups.len() as u32;
        groups.flat_map(|group| self.blocks_of(group))
    }
}

/// Takes `id` out of a chain that begins at `head`.
fn unchain(head: &mut u32, blocks: &mut [Block], id: u32, next: impl Fn(&mut Block) -> &mut u32) {
    let behind = *next(&mut blocks[id as usize]);
    if *head == id {
        *head = behind;
        return;
    }
    let mut at = *head;
    loop {
        let link = next(&mut blocks[at as usize]);
        if *link == id {
            *link = behind;
            return;
        }
        at = *link;
    }
}
