//! How recently blocks and groups were used.
//!
//! Blocks stand in two *segments*: they enter the first, on probation; a replacement policy may promote
//! them to the second, and demote them. Within a segment, blocks of each size have a list of their own, so
//! that the coldest of a size is at hand; a stamp of the last use compares across lists.

use super::decisions::{Decision, note};
use super::list::NONE;
use super::table::{BlockId, BlockTable, GroupId, LEAVING, PROTECTED};

/// Where a block stands in the order of replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Where blocks enter.
    Probation,
    /// Where a policy puts blocks that are to outlive those.
    Protected,
}

impl BlockTable {
    /// A block was used: it and its group are the most recent now.
    #[inline]
    pub fn touch(&mut self, id: BlockId) {
        let block = &self.blocks[id as usize];
        if block.used_at == self.uses {
            // It is what was used last.
            return;
        }
        self.stamp(id);
        let block = &self.blocks[id as usize];
        debug_assert!(!block.is_leaving(), "a leaving block is not used");
        let (segment, class) = (block.segment(), block.class());
        self.recency[segment as usize][usize::from(class)].move_to_front(
            &mut self.blocks,
            id,
            |block| &mut block.recency,
        );
        // Groups of blocks of one size are never given up whole.
        if self.sizes.top() > 0 {
            let group = self.group_of(id);
            self.group_recency
                .move_to_front(&mut self.groups, group, |group| &mut group.recency);
        }
    }

    pub(super) fn stamp(&mut self, id: BlockId) {
        self.uses = self.uses.wrapping_add(1);
        self.blocks[id as usize].used_at = self.uses;
    }

    /// Where a block stands.
    #[must_use]
    pub fn segment(&self, id: BlockId) -> Segment {
        self.blocks[id as usize].segment()
    }

    /// Puts a block at the recent end of the other segment.
    pub fn change_segment(&mut self, id: BlockId) {
        self.stamp(id);
        let block = &mut self.blocks[id as usize];
        let (from, class) = (block.segment(), block.class());
        let bit = (PROTECTED >> 32) as u32;
        block.address[1] ^= bit;
        let to = block.segment();
        let class_index = usize::from(class);
        self.recency[from as usize][class_index]
            .remove(&mut self.blocks, id, |block| &mut block.recency);
        self.recency[to as usize][class_index]
            .push_front(&mut self.blocks, id, |block| &mut block.recency);
        match to {
            Segment::Protected => self.protected_units += 1 << class,
            Segment::Probation => self.protected_units -= 1 << class,
        }
    }

    /// Whether a block is about to go.
    #[must_use]
    pub fn is_leaving(&self, id: BlockId) -> bool {
        self.blocks[id as usize].is_leaving()
    }

    /// A block is about to go: nobody chooses it any more.
    pub(super) fn leave(&mut self, id: BlockId) {
        note(|| {
            let (volume, region, span) = self.address(id);
            Decision::Leave {
                volume,
                region,
                span,
            }
        });
        let block = &mut self.blocks[id as usize];
        let (segment, class) = (block.segment(), block.class());
        block.address[1] &= !((PROTECTED >> 32) as u32);
        block.address[1] |= (LEAVING >> 32) as u32;
        if segment == Segment::Protected {
            self.protected_units -= 1 << class;
        }
        self.recency[segment as usize][usize::from(class)]
            .remove(&mut self.blocks, id, |block| &mut block.recency);
    }

    /// A block that was about to go stays, on probation.
    pub fn stay(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.is_leaving());
        block.address[1] &= !((LEAVING >> 32) as u32);
        let class = usize::from(block.class());
        self.recency[Segment::Probation as usize][class].push_front(
            &mut self.blocks,
            id,
            |block| &mut block.recency,
        );
    }

    /// Uses of blocks, of all, since a block was last used.
    #[must_use]
    pub fn age(&self, id: BlockId) -> u32 {
        self.uses.wrapping_sub(self.blocks[id as usize].used_at)
    }

    /// The least recently used block of a segment and class.
    #[must_use]
    pub fn coldest_of(&self, segment: Segment, class: u8) -> Option<BlockId> {
        let back = self.recency[segment as usize][usize::from(class)].back;
        (back != NONE).then_some(back)
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

    /// Groups in use from the least recently used on.
    pub fn coldest_groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        let mut at = self.group_recency.back;
        std::iter::from_fn(move || {
            let id = at;
            at = self.groups.get(id as usize)?.recency.newer;
            Some(id)
        })
    }
}
