//! Recency of blocks.
//!
//! Blocks are in two *segments*. They enter the first, on probation. A replacement policy may
//! promote them to the second, and demote them. Within a segment, blocks of each size have a
//! separate list, so the coldest of a size is found at once. A stamp of the last use compares
//! blocks of different lists.

use super::decisions::{Decision, note};
use super::ids::BlockId;
use super::list::NONE;
use super::segment::Segment;
use super::table::{BlockTable, GroupId, LEAVING, PROTECTED};

/// A walk over blocks, from the least recently used on. Blocks on probation come before those that
/// are protected. It knows the next of each segment and class.
#[derive(Clone, Debug)]
pub(super) struct Walk([[BlockId; 8]; 2]);

impl Walk {
    pub(super) fn new(table: &BlockTable) -> Self {
        Self(
            table
                .recency
                .each_ref()
                .map(|lists| lists.map(|list| BlockId::new(list.back))),
        )
    }

    /// The next block, and the next of a class in its segment, or [`BlockId::NONE`].
    pub(super) fn peek(&self, table: &BlockTable, class: u8) -> Option<(BlockId, BlockId)> {
        self.0.iter().find_map(|next| {
            let some = next.iter().copied().filter(|id| *id != BlockId::NONE);
            let coldest = some.max_by_key(|id| table.age(*id))?;
            Some((coldest, next[usize::from(class)]))
        })
    }

    /// The next block of a class, or [`BlockId::NONE`].
    pub(super) fn next_of(&self, class: u8) -> BlockId {
        let mut next = self.0.iter().map(|next| next[usize::from(class)]);
        next.find(|id| *id != BlockId::NONE)
            .unwrap_or(BlockId::NONE)
    }

    /// Goes on behind a block if that is where it is. The block is on a list still.
    pub(super) fn pass(&mut self, table: &BlockTable, id: BlockId) {
        let block = &table.blocks[id.index()];
        let next = &mut self.0[block.segment() as usize][usize::from(block.class())];
        if *next == id {
            *next = BlockId::new(block.recency.newer);
        }
    }

    /// The next block; continues behind it.
    pub(super) fn next(&mut self, table: &BlockTable) -> Option<BlockId> {
        let (id, _) = self.peek(table, 0)?;
        self.pass(table, id);
        Some(id)
    }
}

impl BlockTable {
    /// A block was used: it is the most recent now.
    #[inline]
    pub fn touch(&mut self, id: BlockId) {
        let block = &self.blocks[id.index()];
        if block.used_at == self.uses {
            // It is what was used last.
            return;
        }
        self.stamp(id);
        let block = &self.blocks[id.index()];
        debug_assert!(!block.is_leaving(), "a leaving block is not used");
        let (segment, class) = (block.segment(), block.class());
        self.recency[segment as usize][usize::from(class)].move_to_front(
            &mut self.blocks,
            id.get(),
            |block| &mut block.recency,
        );
    }

    /// A block was placed: it is the most recent now.
    pub(super) fn enter_most(&mut self, id: BlockId) {
        self.stamp(id);
        let class = usize::from(self.class(id));
        self.recency[Segment::Probation as usize][class].push_front(
            &mut self.blocks,
            id.get(),
            |block| &mut block.recency,
        );
    }

    /// A block was placed that is less recent than all others.
    pub(super) fn enter_least(&mut self, id: BlockId) {
        // As if each of the others, of which there is one less than there are blocks, had been used
        // since.
        self.blocks[id.index()].used_at = self.uses.wrapping_sub(self.len() as u32 - 1);
        let class = usize::from(self.class(id));
        self.recency[Segment::Probation as usize][class].push_back(
            &mut self.blocks,
            id.get(),
            |block| &mut block.recency,
        );
    }

    pub(super) fn stamp(&mut self, id: BlockId) {
        self.uses = self.uses.wrapping_add(1);
        self.blocks[id.index()].used_at = self.uses;
    }

    /// Where a block stands.
    #[must_use]
    pub fn segment(&self, id: BlockId) -> Segment {
        self.blocks[id.index()].segment()
    }

    /// Puts a block at the recent end of the other segment.
    pub fn change_segment(&mut self, id: BlockId) {
        self.stamp(id);
        let block = &mut self.blocks[id.index()];
        debug_assert!(!block.is_leaving(), "a leaving block is on no list");
        let (from, class) = (block.segment(), block.class());
        let bit = (PROTECTED >> 32) as u32;
        block.address[1] ^= bit;
        let to = block.segment();
        let class_index = usize::from(class);
        self.recency[from as usize][class_index]
            .remove(&mut self.blocks, id.get(), |block| &mut block.recency);
        self.recency[to as usize][class_index]
            .push_front(&mut self.blocks, id.get(), |block| &mut block.recency);
        match to {
            Segment::Protected => self.protected_units += 1 << class,
            Segment::Probation => self.protected_units -= 1 << class,
        }
    }

    /// Whether a block is about to go.
    #[must_use]
    pub fn is_leaving(&self, id: BlockId) -> bool {
        self.blocks[id.index()].is_leaving()
    }

    /// Takes a block that is being evicted out of the candidates.
    pub(super) fn leave(&mut self, id: BlockId) {
        note(|| {
            let (volume, region, span) = self.address(id);
            Decision::Leave {
                volume,
                region,
                span,
            }
        });
        let block = &mut self.blocks[id.index()];
        let (segment, class) = (block.segment(), block.class());
        block.address[1] &= !((PROTECTED >> 32) as u32);
        block.address[1] |= (LEAVING >> 32) as u32;
        if segment == Segment::Protected {
            self.protected_units -= 1 << class;
        }
        self.recency[segment as usize][usize::from(class)].remove(
            &mut self.blocks,
            id.get(),
            |block| &mut block.recency,
        );
    }

    /// A block that was about to go stays, on probation.
    pub fn stay(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.index()];
        debug_assert!(block.is_leaving());
        block.address[1] &= !((LEAVING >> 32) as u32);
        let class = usize::from(block.class());
        self.recency[Segment::Probation as usize][class].push_front(
            &mut self.blocks,
            id.get(),
            |block| &mut block.recency,
        );
    }

    /// Uses of blocks, of all, since a block was last used.
    #[must_use]
    pub fn age(&self, id: BlockId) -> u32 {
        self.uses.wrapping_sub(self.blocks[id.index()].used_at)
    }

    /// The least recently used block of a segment and class.
    #[must_use]
    pub fn coldest_of(&self, segment: Segment, class: u8) -> Option<BlockId> {
        let back = self.recency[segment as usize][usize::from(class)].back;
        (back != NONE).then_some(BlockId::new(back))
    }

    /// The least recently used block of a segment.
    #[must_use]
    pub fn coldest(&self, segment: Segment) -> Option<BlockId> {
        let coldest = self
            .sizes
            .classes()
            .filter_map(|class| self.coldest_of(segment, class));
        coldest.max_by_key(|id| self.age(*id))
    }

    /// Returns the number of uses of all blocks since a block of a group was last used. Blocks that
    /// are leaving do not count. Returns `None` if there are no others.
    pub(super) fn group_age(&self, group: GroupId) -> Option<u32> {
        let blocks = self.blocks_of(group).filter(|id| !self.is_leaving(*id));
        blocks.map(|id| self.age(id)).min()
    }
}
