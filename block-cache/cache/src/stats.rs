//! Counters. All count since the cache was opened, unless they say otherwise.

use std::cell::Cell;

use forebay_metadata::superblock::DirtyTracking;

use crate::options::Mode;

/// A counter of one reactor.
#[derive(Debug, Default)]
pub(crate) struct Counter(Cell<u64>);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.set(self.0.get().wrapping_add(by));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

/// The cache's counters.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) commits: Counter,
    pub(crate) commit_time_us: Counter,
    pub(crate) log_bytes: Counter,
    pub(crate) marks: Counter,
    pub(crate) evictions: Counter,
    pub(crate) write_backs: Counter,
    pub(crate) write_back_bytes: Counter,
    pub(crate) compared_bytes: Counter,
    pub(crate) same_bytes: Counter,
    pub(crate) write_back_errors: Counter,
    pub(crate) promotions: Counter,
    pub(crate) cache_read_errors: Counter,
    /// Pieces of writes to volumes that are detached.
    pub(crate) writes_of_detached: Counter,
}

/// A volume's counters.
#[derive(Debug, Default)]
pub(crate) struct VolumeCounters {
    pub(crate) read_hits: Counter,
    pub(crate) read_misses: Counter,
    pub(crate) write_hits: Counter,
    pub(crate) write_misses: Counter,
    pub(crate) bypassed_reads: Counter,
    pub(crate) bypassed_writes: Counter,
    pub(crate) split_reads: Counter,
    pub(crate) bypassed_for_room: Counter,
}

impl VolumeCounters {
    /// Pieces of reads and writes.
    pub(crate) fn requests(&self) -> u64 {
        let reads = self.read_hits.get().wrapping_add(self.read_misses.get());
        reads.wrapping_add(self.writes())
    }

    /// Pieces of writes.
    pub(crate) fn writes(&self) -> u64 {
        self.write_hits.get().wrapping_add(self.write_misses.get())
    }
}

/// How far the blocks are written back that counted as dirty at the start, though no record said
/// so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Blocks that were found.
    pub found_blocks: u64,
    /// Of these, blocks that were not written back yet.
    pub left_blocks: u64,
    /// Since the start, milliseconds.
    pub elapsed_ms: u64,
    /// Bytes of them that were compared with the backing device, each time.
    pub compared_bytes: u64,
    /// Of these, bytes that it had already: they were not written back.
    pub same_bytes: u64,
}

impl RecoveryProgress {
    /// Time until all are written back if it continues as it did, milliseconds; none if nothing was
    /// written back yet.
    #[must_use]
    pub fn left_ms(&self) -> Option<u64> {
        let done = self.found_blocks - self.left_blocks;
        match (self.left_blocks, done) {
            (0, _) => Some(0),
            (_, 0) => None,
            (left, done) => Some(self.elapsed_ms.saturating_mul(left) / done),
        }
    }
}

/// Of a bit-tree, for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Writes of its units since the cache was opened.
    pub persists: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Memory that it takes, bytes.
    pub memory_bytes: u64,
}

/// Checksums of cached data, for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumStats {
    /// Pieces of 4 KiB that were seen without a checksum that is known, believed, and given one.
    pub unverified: u64,
    /// Pieces of 4 KiB that were clean and corrupt, and were had from the backing device.
    pub refetched: u64,
    /// Dirty granules that were found corrupt.
    pub condemned: u64,
    /// Bytes of dirty data that are known to be corrupt now: reading them is an error.
    pub corrupt_bytes: u64,
    /// Bytes of the table of checksums written.
    pub table_bytes: u64,
}

/// A volume, for status and metrics.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Name.
    pub name: String,
    /// Cache mode.
    pub mode: Mode,
    /// Epoch of this attachment.
    pub epoch: u64,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Blocks of it that are cached.
    pub cached_blocks: u64,
    /// Bytes that they take on the cache device.
    pub cached_bytes: u64,
    /// Bytes of it that are dirty, in granules.
    pub dirty_bytes: u64,
    /// Pieces of reads (a request counts once for each cache block that it touches) served from the
    /// cache.
    pub read_hits: u64,
    /// Pieces of reads that needed the backing device.
    pub read_misses: u64,
    /// Pieces of writes to blocks that the cache held.
    pub write_hits: u64,
    /// Number of pieces of writes to blocks that the cache did not hold. A bypass in one operation
    /// is one piece.
    pub write_misses: u64,
    /// Of the read misses, those that were not promoted.
    pub bypassed_reads: u64,
    /// Number of write misses that were written only to the backing device.
    pub bypassed_writes: u64,
    /// Of the read hits, clean ones that were read from the backing device, since it answers
    /// sooner.
    pub split_reads: u64,
    /// Number of writes without room that measured admission sent to the backing device.
    pub bypassed_for_room: u64,
    /// Reason why data of clients is lost, or may be. `None` if none is.
    pub loss: Option<String>,
    /// Whether it is written without the cache, which has failed.
    pub diverged: bool,
    /// Whether it refuses writes, since the cache has failed.
    pub refuses_writes: bool,
}

/// The cache, for status and metrics.
#[derive(Clone, Debug)]
pub struct CacheStats {
    /// The smallest cache block size, bytes.
    pub block_size_bytes: u64,
    /// All cache block sizes: `32K`, `32K..256K`.
    pub block_sizes: String,
    /// Blocks of the smallest size that fit.
    pub blocks: u64,
    /// Blocks that are cached.
    pub cached_blocks: u64,
    /// Bytes that they take on the cache device.
    pub cached_bytes: u64,
    /// Blocks with dirty data.
    pub dirty_blocks: u64,
    /// Blocks of the smallest size that are free.
    pub free_blocks: u64,
    /// Regions with a mark.
    pub marked_regions: u64,
    /// Records between the log's tail and its end.
    pub log_used_records: u64,
    /// Records that the log's ring holds.
    pub log_records: u64,
    /// Bytes of metadata written.
    pub log_bytes: u64,
    /// Rounds of the committer.
    pub commits: u64,
    /// Time that they took, microseconds.
    pub commit_time_us: u64,
    /// Marks set.
    pub marks: u64,
    /// When dirty blocks are written back.
    pub cleaning: forebay_policy::cleaning::Cleaning,
    /// How the cache knows what was overwritten in place.
    pub dirty_tracking: DirtyTracking,
    /// Of its checksums, if it has some.
    pub checksums: Option<ChecksumStats>,
    /// Of its bit-tree, if it has one.
    pub tree: Option<TreeStats>,
    /// Progress of the write-back after recovery.
    pub recovery: RecoveryProgress,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks promoted by reads.
    pub promotions: u64,
    /// Blocks written back, or found to be as the backing device has them.
    pub write_backs: u64,
    /// Bytes written back.
    pub write_back_bytes: u64,
    /// Number of failed write-backs, which are retried.
    pub write_back_errors: u64,
    /// Reads of the cache device that failed.
    pub cache_read_errors: u64,
    /// Memory of the map and of what decides about it, bytes.
    pub memory_bytes: u64,
    /// Why the cache takes no more writes, if so.
    pub failure: Option<String>,
    /// The attached volumes.
    pub volumes: Vec<VolumeStats>,
}
