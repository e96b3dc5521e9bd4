//! Dirty data that is older than writes that bypassed this cache (rule 6): found at the attach, and
//! before it.

use std::collections::HashSet;
use std::ops::Range;

use forebay_block::{Error, ErrorKind, Result};
use forebay_metadata::superblock::VolumeEntry;
use forebay_policy::BlockId;

use crate::cache::Cache;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::options::VolumeOptions;

/// Most places that the refusal names.
const NAMED: usize = 8;

/// A block with dirty data that is older than the backing device's data.
struct StaleBlock {
    id: BlockId,
    /// Offset of the block in its volume, bytes.
    offset: u64,
    /// Number of bytes of it that are dirty.
    dirty_bytes: u64,
}

impl Cache {
    /// Checks that the attach of a volume with these options finds no stale dirty data, or may
    /// discard it.
    ///
    /// # Errors
    /// `Busy` with the number of blocks and bytes at stake, as [`Cache::attach`].
    pub fn check_stale(&self, name: &str, options: &VolumeOptions) -> Result<()> {
        match self.engine.known_volume(name) {
            Some(known) => self.engine.find_stale(&known, options).map(drop),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Drops cached data of a volume that was written without this cache: all clean data, and with
    /// `discard_stale_dirty` the dirty data that was overwritten there.
    ///
    /// # Errors
    /// As [`Cache::check_stale`], and the devices' own.
    pub(super) async fn drop_stale(
        &self,
        known: &VolumeEntry,
        options: &VolumeOptions,
    ) -> Result<()> {
        if options.epoch <= known.epoch {
            return Ok(());
        }
        let stale = self.find_stale(known, options)?;
        for Range { start, end } in self.dirty_ranges(stale.iter().map(|block| block.id)) {
            tracing::warn!(
                volume = known.name,
                offset = start,
                len = end - start,
                "stale dirty data is discarded and LOST"
            );
        }
        let stale: HashSet<BlockId> = stale.iter().map(|block| block.id).collect();
        let dirty = |id| match stale.contains(&id) {
            true => 0,
            false => self.was_dirty(id, options),
        };
        self.drop_clean(known.id, dirty).await
    }

    /// Returns the stale dirty blocks of a volume, which its attach may discard.
    fn find_stale(&self, known: &VolumeEntry, options: &VolumeOptions) -> Result<Vec<StaleBlock>> {
        let stale = match options.epoch <= known.epoch {
            true => Vec::new(),
            false => self.stale_blocks(known, options),
        };
        match stale.is_empty() || options.discard_stale_dirty {
            true => Ok(stale),
            false => Err(holds_stale(&known.name, &stale)),
        }
    }

    fn stale_blocks(&self, known: &VolumeEntry, options: &VolumeOptions) -> Vec<StaleBlock> {
        let everywhere = std::slice::from_ref(&(0..u64::MAX));
        let written = options.written_elsewhere.as_deref().unwrap_or(everywhere);
        let overlaps = |start: u64, len: u64| {
            written
                .iter()
                .any(|range: &Range<u64>| range.start < start + len && start < range.end)
        };
        let blocks: Vec<BlockId> = self.map.borrow().of_volume(known.id).collect();
        let mut stale = Vec::new();
        for id in blocks {
            let dirty = self.was_dirty(id, options);
            let entry = self.map.borrow().state(id);
            let offset = self.geometry.backing_offset(entry.block(), 0);
            if dirty != 0 && overlaps(offset, self.geometry.block_bytes(entry.class)) {
                let granule_bytes = self.geometry.granule_bytes(entry.class);
                stale.push(StaleBlock {
                    id,
                    offset,
                    dirty_bytes: u64::from(dirty.count_ones()) * granule_bytes,
                });
            }
        }
        stale
    }

    /// Returns the dirty granules of a block that are on the list of dirty data from the time at
    /// which degraded service began. Without a list, returns all dirty granules. A record, a mark
    /// or the bit-tree may call more granules dirty than the list has.
    fn was_dirty(&self, id: BlockId, options: &VolumeOptions) -> u64 {
        let entry = self.map.borrow().state(id);
        let Some(listed) = (options.dirty_at_failure.as_ref())
            .filter(|_| entry.dirty != 0 && !planted(Fault::KeepUnlisted))
        else {
            return entry.dirty;
        };
        let bytes = self.geometry.granule_bytes(entry.class);
        let start = self.geometry.backing_offset(entry.block(), 0);
        let is_listed = |granule: &u32| {
            let from = start + u64::from(*granule) * bytes;
            let at = listed.partition_point(|range| range.end <= from);
            listed
                .get(at)
                .is_some_and(|range| range.start < from + bytes)
        };
        let listed = (0..64).filter(|granule| entry.dirty >> granule & 1 != 0);
        listed
            .filter(is_listed)
            .fold(0, |all, granule| all | 1 << granule)
    }
}

/// Refuses to attach a volume of which the cache holds these blocks.
fn holds_stale(name: &str, stale: &[StaleBlock]) -> Error {
    let bytes: u64 = stale.iter().map(|block| block.dirty_bytes).sum();
    let mut at: Vec<u64> = stale.iter().map(|block| block.offset).collect();
    at.sort_unstable();
    let named: Vec<String> = at.iter().take(NAMED).map(u64::to_string).collect();
    let more = if at.len() > NAMED { ", ..." } else { "" };
    let blocks = match stale.len() {
        1 => "1 block".to_owned(),
        blocks => format!("{blocks} blocks"),
    };
    Error::with_source(
        ErrorKind::Busy,
        "",
        format!(
            "volume {name:?} was written without this cache, which holds older dirty data there: \
             {blocks}, {bytes} bytes\n    help: start with --discard-stale-dirty {name} to \
             give up these blocks, or with --without-cache {name}. Blocks are given up whole, \
             since writes without a cache are noted by the MiB; the blocks are at {}{more}",
            named.join(", ")
        ),
    )
}
