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
//! Memory: 32 bytes a block, 32 a group, and four a unit for the index's heads.

use super::list::{Link, List, NONE};
use super::recency::Segment;
use super::sizes::{BlockSizes, Span, ones};
use crate::BlockKey;

/// A cached block's number; numbers are used again.
pub type BlockId = u32;
/// A group's number: where it lies, in groups from the start of the cache.
pub type GroupId = u32;

/// A block's address: volume (16 bits), class (3), whether it is protected (1), number of its first
/// unit (44).
const CLASS_SHIFT: u32 = 45;
pub(super) const PROTECTED: u64 = 1 << 44;
const UNIT_MASK: u64 = PROTECTED - 1;

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
    holes: [List; 8],
}

impl BlockTable {
    /// An empty table for a cache of so many groups.
    ///
    /// # Panics
    /// If there are 2^32 units or more.
    #[must_use]
    pub fn new(sizes: BlockSizes, groups: u32) -> Self {
        let units = u64::from(groups) * u64::from(sizes.region_units());
        assert!(units < u64::from(NONE), "a cache has less than 2^32 units");
        let group = |id: u32| Group {
            recency: Link::NONE,
            holes: Link::NONE,
            first: if id + 1 < groups { id + 1 } else { NONE },
            used: [0; 2],
            class: 0,
            live: 0,
        };
        // A line of heads even for a cache of none.
        let heads = units.max(u64::from(sizes.region_units()));
        let heads = usize::try_from(heads).expect("less than 2^32");
        Self {
            sizes,
            blocks: Vec::new(),
            free_blocks: NONE,
            live_blocks: 0,
            live_units: 0,
            protected_units: 0,
            uses: 0,
            groups: (0..groups).map(group).collect(),
            free_groups: if groups == 0 { NONE } else { 0 },
            free_group_count: groups,
            heads: vec![NONE; heads],
            recency: [[List::EMPTY; 8]; 2],
            group_recency: List::EMPTY,
            holes: [List::EMPTY; 8],
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
    pub fn place(&self, id: BlockId) -> u32 {
        self.blocks[id as usize].place
    }

    /// The group that a block lies in.
    #[must_use]
    pub fn group_of(&self, id: BlockId) -> GroupId {
        self.blocks[id as usize].place >> self.sizes.top()
    }

    /// A block's class.
    #[must_use]
    pub fn class(&self, id: BlockId) -> u8 {
        self.blocks[id as usize].class()
    }

    fn span(&self, block: &Block) -> Span {
        #[expect(clippy::cast_possible_truncation, reason = "within a region")]
        Span {
            first: (block.unit() & u64::from(self.sizes.region_units() - 1)) as u8,
            class: block.class(),
        }
    }

    /// Where the heads of a region begin.
    fn line(&self, volume: u16, region: u64) -> usize {
        let hash = BlockKey::new(volume, region).hash();
        let lines = self.heads.len() as u64 >> self.sizes.top();
        #[expect(clippy::cast_possible_truncation, reason = "less than the heads")]
        let line = ((u128::from(hash) * u128::from(lines)) >> 64) as usize;
        line << self.sizes.top()
    }

    /// The head of the chain that has a block.
    fn bucket(&self, block: &Block) -> usize {
        let region = block.unit() >> self.sizes.top();
        self.line(block.volume(), region) + usize::from(self.span(block).first)
    }

    /// The blocks of a region, in no order.
    #[inline]
    pub fn find(&self, volume: u16, region: u64) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        self.find_near(volume, region, u64::MAX)
    }

    /// The blocks of a region that touch these units, and some others of it, in no order.
    #[inline]
    pub fn find_near(
        &self,
        volume: u16,
        region: u64,
        units: u64,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        let top = self.sizes.top();
        let line = self.line(volume, region);
        let heads = &self.heads[line..line + (1 << top)];
        let mut starts = self.sizes.starts(units) & ones(1 << top);
        let mut at = NONE;
        std::iter::from_fn(move || {
            loop {
                while at != NONE {
                    let id = at;
                    let block = &self.blocks[id as usize];
                    at = block.next;
                    if block.unit() >> top == region && block.volume() == volume {
                        return Some((id, self.span(block)));
                    }
                }
                if starts == 0 {
                    return None;
                }
                // From the last, where the smallest blocks begin that hold what is asked for.
                let start = starts.ilog2();
                at = heads[start as usize];
                starts ^= 1 << start;
            }
        })
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
        let id = self.new_block();
        let unit = (region << self.sizes.top()) | u64::from(span.first);
        let address = u64::from(volume) << 48 | u64::from(class) << CLASS_SHIFT | unit;
        let bucket = self.line(volume, region) + usize::from(span.first);
        #[expect(clippy::cast_possible_truncation, reason = "cut into halves")]
        let address = [address as u32, (address >> 32) as u32];
        self.blocks[id as usize] = Block {
            address,
            place: (group << self.sizes.top()) + (slot << class),
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
        let full = u32::from(entry.live) == self.slots(class);
        if full {
            self.holes[usize::from(class)]
                .remove(&mut self.groups, group, |group| &mut group.holes);
        }
        self.group_recency
            .move_to_front(&mut self.groups, group, |group| &mut group.recency);
        self.live_blocks += 1;
        self.live_units += 1 << class;
        Some(id)
    }

    /// Blocks of a class in a group.
    const fn slots(&self, class: u8) -> u32 {
        self.sizes.region_units() >> class
    }

    /// Takes a free group for a class.
    fn open(&mut self, class: u8) -> Option<GroupId> {
        let group = self.free_groups;
        if group == NONE {
            return None;
        }
        let entry = &mut self.groups[group as usize];
        self.free_groups = entry.first;
        self.free_group_count -= 1;
        entry.first = NONE;
        entry.set_used(0);
        entry.class = class;
        self.holes[usize::from(class)]
            .push_front(&mut self.groups, group, |group| &mut group.holes);
        self.group_recency
            .push_front(&mut self.groups, group, |group| &mut group.recency);
        Some(group)
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
        let block = self.blocks[id as usize];
        let (class, group) = (block.class(), self.group_of(id));
        let bucket = self.bucket(&block);
        let blocks = &mut self.blocks;
        unchain(&mut self.heads[bucket], blocks, id, |block| &mut block.next);
        let entry = &mut self.groups[group as usize];
        unchain(&mut entry.first, blocks, id, |block| &mut block.sibling);
        self.recency[block.segment() as usize][usize::from(class)]
            .remove(blocks, id, |block| &mut block.recency);
        if block.segment() == Segment::Protected {
            self.protected_units -= 1 << class;
        }
        self.live_units -= 1 << class;
        blocks[id as usize].next = self.free_blocks;
        self.free_blocks = id;
        self.live_blocks -= 1;

        let slots = self.sizes.region_units() >> class;
        let slot = (block.place & (self.sizes.region_units() - 1)) >> class;
        let was_full = u32::from(entry.live) == slots;
        entry.set_used(entry.used() & !(1 << slot));
        entry.live -= 1;
        let empty = entry.live == 0;
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
