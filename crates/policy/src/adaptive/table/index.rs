//! How blocks are found: by the line of heads of their region, one for each unit that a block may begin at.

use super::{Block, BlockId, BlockTable, CLASS_SHIFT, LEAVING, NONE, PROTECTED};
use crate::BlockKey;
use crate::adaptive::sizes::{BlockSizes, Span, ones};

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

    /// The blocks of a region as bits of granules, of which `bits` says those of a block. All chains are followed at once: a
    /// region's blocks are anywhere in memory, and waiting for one after the other is what takes time.
    pub fn gather(
        &self,
        volume: u16,
        region: u64,
        mut bits: impl FnMut(BlockId, Span) -> u64,
    ) -> u64 {
        let (wanted, mask) = self.key(volume, region);
        let line = self.line(volume, region);
        // Where each chain is, and the blocks of the region that were come by.
        let mut at = [NONE; BlockSizes::MAX_UNITS as usize];
        let mut found = [NONE; BlockSizes::MAX_UNITS as usize];
        let (mut chains, mut matches, mut gathered) = (0, 0, 0);
        for head in &self.heads[line..line + (1 << self.sizes.top())] {
            at[chains] = *head;
            chains += usize::from(*head != NONE);
        }
        while chains > 0 {
            let mut left = 0;
            for nth in 0..chains {
                // What is done next does not depend on what is read, so that all of it is read at once.
                let id = at[nth];
                let block = &self.blocks[id as usize];
                found[matches] = id;
                matches += usize::from(block.address() & mask == wanted);
                at[left] = block.next;
                left += usize::from(block.next != NONE);
            }
            for id in &found[..matches] {
                gathered |= bits(*id, self.span(&self.blocks[*id as usize]));
            }
            (chains, matches) = (left, 0);
        }
        gathered
    }

    /// A region's volume and number as they are in the address of its blocks, and the bits of the address that have them.
    #[inline]
    const fn key(&self, volume: u16, region: u64) -> (u64, u64) {
        let top = self.sizes.top() as u32;
        let wanted = (volume as u64) << 48 | region << top;
        (
            wanted,
            !(7 << CLASS_SHIFT | PROTECTED | LEAVING | ((1 << top) - 1)),
        )
    }

    /// The blocks of a region that touch these units, and some others of it, in no order.
    #[inline]
    pub fn find_near(
        &self,
        volume: u16,
        region: u64,
        units: u64,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        let starts = self.sizes.starts(units) & ones(1 << self.sizes.top());
        self.find_from(volume, region, starts)
    }

    /// The block of a region that a unit lies in, and some others of it.
    #[inline]
    pub fn find_at(
        &self,
        volume: u16,
        region: u64,
        unit: u32,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        self.find_from(volume, region, self.starts[unit as usize])
    }

    /// The blocks of a region that begin at these units, and some others of it.
    #[inline]
    fn find_from(
        &self,
        volume: u16,
        region: u64,
        mut starts: u64,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        let (wanted, mask) = self.key(volume, region);
        let line = self.line(volume, region);
        let heads = &self.heads[line..line + (1 << self.sizes.top())];
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
