//! How blocks are found: by the line of heads of their region, one for each unit that a block may begin at.

use super::{Block, BlockId, BlockTable, CLASS_SHIFT, LEAVING, NONE, PROTECTED};
use crate::BlockKey;
use crate::adaptive::sizes::{Span, ones};

impl BlockTable {
    /// Where the heads of a region begin.
    #[inline]
    pub(super) fn line(&self, volume: u16, region: u64) -> usize {
        let hash = BlockKey::new(volume, region).hash();
        let lines = self.heads.len() as u64 >> self.sizes.top();
        #[expect(clippy::cast_possible_truncation, reason = "less than the heads")]
        let line = ((u128::from(hash) * u128::from(lines)) >> 64) as usize;
        line << self.sizes.top()
    }

    /// The head of the chain that has a block.
    pub(super) fn bucket(&self, block: &Block) -> usize {
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
        let top = u32::from(self.sizes.top());
        // Volume and region alone.
        let wanted = u64::from(volume) << 48 | region << top;
        let mask = !(7 << CLASS_SHIFT | PROTECTED | LEAVING | ((1 << top) - 1));
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
                    if block.address() & mask == wanted {
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
}
