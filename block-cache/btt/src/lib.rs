//! A Block Translation Table: after a power loss each block is wholly old or wholly new, on media
//! that are atomic by 8 bytes.
//!
//! A write goes to an unmapped block, then the map is changed to point there. The block that was
//! mapped before is free for the next write. A log with one entry pair a *lane* lets the next
//! opening complete an interrupted map update. The layout is that of the UEFI specification ("Block
//! Translation Table Layout"), versions 1.1 and 2.0, which Linux calls *sector mode*.
//! docs/internals/format/btt.md describes it, and argues the order of stores and fences.
//!
//! - [`layout`]: the encoding only.
//! - [`format()`]: creates an empty table.
//! - [`Btt`]: an open table, for any number of threads.
//! - [`BttDevice`]: the same as a block device.

mod arena;
mod check;
mod device;
mod fault;
mod format;
mod lanes;
pub mod layout;
mod open;

use std::sync::Arc;

use forebay_block::{Buf, Context, ErrorKind, Result};
use forebay_io::pmem::Pmem;

use arena::Arena;
pub use check::Usage;
pub use device::BttDevice;
use fault::Faults;
pub use format::{FormatOptions, Formatted, format};
use lanes::Lanes;
use layout::Version;

/// An open table. Blocks are numbered from zero over all arenas.
///
/// Any number of threads may call it. Each call takes a lane, and waits if all are in use.
/// Concurrent overlapping writes end in either order, block by block. A write is durable when it
/// returns.
pub struct Btt<P: Pmem> {
    memory: Arc<P>,
    arenas: Box<[Arena]>,
    lanes: Lanes,
    blocks: u64,
    block_bytes: u32,
    uuid: [u8; 16],
    version: Version,
    faults: Faults,
}

impl<P: Pmem> std::fmt::Debug for Btt<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Btt")
            .field("blocks", &self.blocks)
            .field("block_bytes", &self.block_bytes)
            .field("arenas", &self.arenas.len())
            .field("lanes", &self.lanes.count())
            .finish_non_exhaustive()
    }
}

impl<P: Pmem> Btt<P> {
    /// Returns the block size, bytes.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns the number of blocks.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the UUID of the table.
    #[must_use]
    pub const fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Returns the layout version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the maximum number of concurrent reads and writes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.count()
    }

    /// Reads whole blocks into `target`. Unwritten and zeroed blocks are zeroes.
    ///
    /// # Errors
    /// `Io` after a media error at this or an earlier read: the block stays marked until it is
    /// written. `Corrupt` if a map entry is out of range.
    pub fn read(&self, first: u64, target: &Buf) -> Result<()> {
        let mut lane = self.lanes.take();
        self.each(first, target, |block, part| {
            self.read_on(&mut lane, block, part)
        })
    }

    /// Writes whole blocks. Each is wholly old or wholly new after a crash. They are durable when
    /// this returns.
    ///
    /// # Errors
    /// `Corrupt` if a map entry is out of range; the block keeps its old content.
    pub fn write(&self, first: u64, source: &Buf) -> Result<()> {
        let mut lane = self.lanes.take();
        self.each(first, source, |block, part| {
            self.write_on(&mut lane, block, part)
        })
    }

    /// Makes blocks read as zeroes, block by block. This is durable when it returns.
    ///
    /// # Errors
    /// `Corrupt` if a map entry is out of range.
    pub fn zero(&self, first: u64, count: u64) -> Result<()> {
        let mut block = first;
        while block < first + count {
            let (arena, premap) = self.place(block);
            block += arena
                .zero(&*self.memory, premap, first + count - block)
                .context(|| format!("zeroing block {block}"))?;
        }
        Ok(())
    }

    fn each(
        &self,
        first: u64,
        buf: &Buf,
        mut one: impl FnMut(u64, &Buf) -> Result<()>,
    ) -> Result<()> {
        let len = self.block_bytes as usize;
        assert!(buf.len().is_multiple_of(len), "whole blocks");
        for (block, at) in (first..).zip((0..buf.len()).step_by(len)) {
            one(block, &buf.slice(at..at + len))?;
        }
        Ok(())
    }

    fn read_on(&self, lane: &mut lanes::Lane<'_>, block: u64, target: &Buf) -> Result<()> {
        let (arena, premap) = self.place(block);
        arena
            .read(&*self.memory, lane, premap, target)
            .context(|| format!("reading block {block}"))
    }

    fn write_on(&self, lane: &mut lanes::Lane<'_>, block: u64, source: &Buf) -> Result<()> {
        let (arena, premap) = self.place(block);
        arena
            .write(&*self.memory, lane, premap, source, self.faults)
            .context(|| format!("writing block {block}"))
    }

    /// Returns the arena of a block, and the block's number there.
    ///
    /// A linear search: arenas have 512 GiB each, so there are few.
    fn place(&self, block: u64) -> (&Arena, u32) {
        let mut left = block;
        for arena in &self.arenas {
            match u32::try_from(left) {
                Ok(premap) if premap < arena.blocks() => return (arena, premap),
                _ => left = left.saturating_sub(u64::from(arena.blocks())),
            }
        }
        panic!("block {block} of {}", self.blocks);
    }

    /// Checks that blocks exist.
    ///
    /// # Errors
    /// `OutOfRange` if they do not.
    pub fn check_range(&self, first: u64, count: u64) -> Result<()> {
        match first.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(ErrorKind::OutOfRange.into()),
        }
    }
}

#[cfg(test)]
mod tests;
