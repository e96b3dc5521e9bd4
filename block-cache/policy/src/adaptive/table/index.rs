//! How blocks are found: by the line of heads of their region, each for the blocks that begin at
//! one of two units.
//!
//! With several sizes there are fewer blocks than units, and a head for each unit would mostly lead
//! nowhere.

use super::{Block, BlockTable, CLASS_SHIFT, LEAVING, NONE, PROTECTED};
use crate::BlockKey;
use crate::adaptive::ids::BlockId;
use crate::adaptive::sizes::{BlockSizes, Span, aligned, ones};

/// Heads of a line, as a power of two.
pub(super) const fn line_power(sizes: BlockSizes) -> u8 {
    sizes.top().saturating_sub(1)
}

impl BlockTable {
    /// Where the heads of a region begin.
    #[inline]
    fn line(&self, volume: u16, region: u64) -> usize {
        let hash = BlockKey::new(volume, region).hash();
        let power = line_power(self.sizes);
        let lines = self.heads.len() as u64 >> power;
        #[expect(clippy::cast_possible_truncation, reason = "less than the heads")]
        let line = ((u128::from(hash) * u128::from(lines)) >> 64) as usize;
        line << power
    }

    /// The head of the chain that has the block of a region that begins at a unit.
    #[inline]
    pub(super) fn head(&self, volume: u16, region: u64, first: u8) -> usize {
        self.line(volume, region) + usize::from(first / 2)
    }

    /// The head of the chain that has a block.
    pub(super) fn bucket(&self, block: &Block) -> usize {
        let region = block.unit() >> self.sizes.top();
        self.head(block.volume(), region, self.span(block).first)
    }

    /// The blocks of a region, in no order.
    #[inline]
    pub fn find(&self, volume: u16, region: u64) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        self.find_near(volume, region, u64::MAX)
    }

    /// The blocks of a region as bits of granules, of which `bits` says those of a block. All
    /// chains are followed at once: a region's blocks are anywhere in memory, and waiting for one
    /// after the other is what takes time.
    pub fn gather(
        &self,
        volume: u16,
        region: u64,
        mut bits: impl FnMut(BlockId, Span) -> u64,
    ) -> u64 {
        let (wanted, mask) = self.key(volume, region);
        let line = self.line(volume, region);
        // Where each chain is, and the blocks of the region that were come by.
        let mut at = [NONE; BlockSizes::MAX_UNITS as usize / 2];
        let mut found = [NONE; BlockSizes::MAX_UNITS as usize / 2];
        let (mut chains, mut matches, mut gathered) = (0, 0, 0);
        for head in &self.heads[line..line + (1 << line_power(self.sizes))] {
            at[chains] = *head;
            chains += usize::from(*head != NONE);
        }
        while chains > 0 {
            let mut left = 0;
            for nth in 0..chains {
                // The next step does not depend on the loaded values, so the processor loads all of
                // them at once.
                let id = at[nth];
                let block = &self.blocks[id as usize];
                found[matches] = id;
                matches += usize::from(block.address() & mask == wanted);
                at[left] = block.next;
                left += usize::from(block.next != NONE);
            }
            for id in &found[..matches] {
                gathered |= bits(BlockId::new(*id), self.span(&self.blocks[*id as usize]));
            }
            (chains, matches) = (left, 0);
        }
        gathered
    }

    /// A region's volume and number as they are in the address of its blocks, and the bits of the
    /// address that have them.
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
        starts: u64,
    ) -> impl Iterator<Item = (BlockId, Span)> + '_ {
        let (wanted, mask) = self.key(volume, region);
        let line = self.line(volume, region);
        let heads = &self.heads[line..line + (1 << line_power(self.sizes))];
        // At the first unit of each two.
        let mut starts = (starts | starts >> 1) & aligned(1);
        let mut at = NONE;
        std::iter::from_fn(move || {
            loop {
                while at != NONE {
                    let id = at;
                    let block = &self.blocks[id as usize];
                    at = block.next;
                    if block.address() & mask == wanted {
                        return Some((BlockId::new(id), self.span(block)));
                    }
                }
                if starts == 0 {
                    return None;
                }
                // From the last, where the smallest blocks begin that hold the units.
                let start = starts.ilog2();
                at = heads[start as usize / 2];
                starts ^= 1 << start;
            }
        })
    }
}
