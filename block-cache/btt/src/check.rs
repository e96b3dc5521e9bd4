//! Check of a whole table.

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::pmem::Pmem;

use crate::Btt;
use crate::arena::Arena;
use crate::layout::State;

/// Use of a table's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that read as zeroes and hold nothing.
    pub zero: u64,
    /// Blocks that hold data.
    pub data: u64,
    /// Blocks with a media error.
    pub unreadable: u64,
}

impl<P: Pmem> Btt<P> {
    /// Checks that every internal block is mapped once or free once. Reads and writes wait
    /// meanwhile. It allocates one bit a block.
    ///
    /// # Errors
    /// `Corrupt` if a block is neither or both, or a map entry is out of range.
    pub fn check(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        let mut lanes: Vec<_> = (0..self.lanes.count())
            .map(|lane| self.lanes.take_this(lane))
            .collect();
        for arena in &self.arenas {
            let used = lanes.iter_mut().map(|lane| lane.free(arena.index).block);
            let free = used.chain(arena.spare.iter().map(|free| free.block));
            check_arena(&*self.memory, arena, free.collect(), &mut usage)?;
        }
        Ok(usage)
    }
}

fn check_arena<P: Pmem>(
    memory: &P,
    arena: &Arena,
    free: Vec<u32>,
    usage: &mut Usage,
) -> Result<()> {
    let mut seen = vec![0_u64; arena.info.internal_blocks.div_ceil(64) as usize];
    let mut see = |block: u32, who: &dyn std::fmt::Display| {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if seen[word] & bit != 0 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "arena {}: internal block {block} of {who} has a second owner\n\
                     help: restore the medium from a copy",
                    arena.index
                ),
            ));
        }
        seen[word] |= bit;
        Ok(())
    };
    for (lane, block) in free.into_iter().enumerate() {
        see(block, &format_args!("lane {lane}"))?;
    }
    for premap in 0..arena.blocks() {
        let entry = arena.entry(memory, premap)?;
        see(entry.block(), &format_args!("block {premap}"))?;
        match entry.state() {
            State::Initial | State::Zero => usage.zero += 1,
            State::Normal => usage.data += 1,
            State::Error => usage.unreadable += 1,
        }
    }
    // The count is complete and no block was counted twice, so none is missing.
    Ok(())
}
