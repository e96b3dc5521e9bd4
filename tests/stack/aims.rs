//! Lives that random ones hardly reach, each aimed at one window in which an order matters.

use std::time::Duration;

use forebay_cache::{DirtyTracking, Durability, Mode};
use forebay_testkit::workload::Step::{self, Control, Flush, Pause, Read, Write, Zero};

use super::metadata::Metadata;
use super::setup::{Details, VOLUME_BYTES};

/// Draws of `OpenCache::control`.
const WRITE_BACK: Step = Control(0);

const fn mode(number: u64) -> Step {
    Control(3 * number + 1)
}

const WB: Step = mode(0);
const WT: Step = mode(1);

const ALL: u64 = VOLUME_BYTES >> 10;

/// A life and its configuration.
pub(crate) struct Aim {
    pub(super) mode: Mode,
    pub(super) durability: Durability,
    pub(super) script: &'static [Step],
    change: fn(Details) -> Details,
    /// Whether recoveries are cut off, too.
    pub(super) recoveries: bool,
    /// Number of seeds. Each draws other latencies.
    pub(super) seeds: u64,
}

impl Aim {
    /// Returns the plain configuration with the aim's changes.
    pub(super) fn details(&self, plain: Details) -> Details {
        let small = Details {
            block_sizes: &[4 << 10],
            region_shift: 6,
            ..plain
        };
        (self.change)(small)
    }
}

/// The most frequent life is the last. The mutation sweep runs them in this order until one finds
/// the mutation.
pub(crate) const AIMS: [Aim; 12] = [
    // Many blocks of one region are dirty by a mark only, and flushed. Then the region gets a mark
    // of the other kind.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[
            Write(0, ALL),
            Flush,
            WRITE_BACK,
            Pause(1000),
            Write(0, ALL),
            Flush,
            WT,
            Write(0, 4),
        ],
        change: |small| small,
        recoveries: false,
        seeds: 1,
    },
    // An announced write is unflushed. Then the region gets a mark of the other kind, which
    // idleness ends before the slow backing device has flushed anything. A read comes from the
    // backing device after one crash and from the cache after the next.
    Aim {
        mode: Mode::WriteThrough,
        durability: Durability::Flush,
        script: &[
            Write(0, 4),
            Write(16, 4),
            Flush,
            Pause(1000),
            Write(0, 4),
            WB,
            Write(16, 4),
            Write(20, 4),
            Pause(7500),
        ],
        change: |small| Details {
            block_sizes: &[16 << 10],
            latency_us: [(20, 200), (20, 200), (4_000_000, 4_100_000)],
            modes: vec![Mode::PassThrough, Mode::WriteThrough],
            ..small
        },
        recoveries: false,
        seeds: 6,
    },
    // A recorded copy is written through in place, so that no record waits for the backing device.
    // Idleness ends the mark. A read comes from the backing device after one crash and from the
    // cache after the next.
    Aim {
        mode: Mode::WriteThrough,
        durability: Durability::Flush,
        script: &[
            Read(0, 4),
            Flush,
            Pause(1000),
            Write(0, 4),
            Pause(7500),
            Read(32, 4),
            Pause(3000),
        ],
        change: |small| Details {
            block_sizes: &[16 << 10],
            modes: vec![Mode::PassThrough, Mode::WriteThrough],
            ..small
        },
        recoveries: false,
        seeds: 6,
    },
    // Many announced writes drop their copies, and idleness ends their marks before any other
    // commit.
    Aim {
        mode: Mode::WriteInvalidate,
        durability: Durability::Flush,
        script: &[
            Read(0, ALL),
            Flush,
            Pause(21_000),
            Write(0, ALL),
            Pause(7000),
        ],
        change: |small| Details {
            region_shift: 0,
            commit_interval: Duration::from_secs(10),
            modes: vec![Mode::PassThrough, Mode::WriteInvalidate],
            ..small
        },
        recoveries: false,
        seeds: 1,
    },
    // A block turns clean in a region that is announced for bypassing writes, so that no round
    // includes its record. Then a write bypasses it, and the backing device is done long before the
    // log.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Sync,
        script: &[
            Flush,
            Read(16, 4),
            Write(0, 4),
            WT,
            Write(16, 4),
            Pause(1000),
            Write(0, 4),
            Write(32, 4),
        ],
        change: |small| Details {
            metadata: Metadata::Disk,
            commit_interval: Duration::from_secs(10),
            latency_us: [(20, 200), (4000, 5000), (100, 1000)],
            ..small
        },
        recoveries: false,
        seeds: 1,
    },
    // The cleaner made a granule clean in a marked region, and its block waits for that record. An
    // overwrite of the granule fails. A later write goes to the backing device alone, which is done
    // long before the log.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Sync,
        script: &[
            Read(16, 4),
            Pause(50),
            WRITE_BACK,
            Write(16, 4),
            Write(0, 4),
            Pause(1600),
            Write(0, 4),
            Zero(0, 4),
        ],
        change: |small| Details {
            block_sizes: &[16 << 10],
            metadata: Metadata::Disk,
            commit_interval: Duration::from_secs(10),
            latency_us: [(20, 200), (4000, 5000), (20, 200)],
            ..small
        },
        recoveries: false,
        seeds: 1,
    },
    // A batch of many units on its own device, where no flush of data covers it.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[Write(0, ALL * 3 / 4), Flush],
        change: |small| Details {
            metadata: Metadata::Disk,
            fua: false,
            latency_us: [(1, 2), (10, 5000), (20, 200)],
            ..small
        },
        recoveries: true,
        seeds: 6,
    },
    // Writes that only the process journal knows.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[Write(0, 16)],
        change: |small| Details {
            commit_interval: Duration::from_secs(10),
            ..small
        },
        recoveries: true,
        seeds: 1,
    },
    // Clean blocks are overwritten in place and flushed, long before the bit-tree's slow device has
    // the announcement. The next process reads the backing device where the cache claims clean
    // data.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[
            Write(0, 16),
            Flush,
            WRITE_BACK,
            Pause(1000),
            Write(0, 16),
            Flush,
            Write(32, 4),
        ],
        change: |small| Details {
            dirty_tracking: DirtyTracking::Abt,
            metadata: Metadata::Disk,
            latency_us: [(1, 2), (4000, 5000), (20, 200)],
            modes: vec![Mode::PassThrough, Mode::WriteBack],
            ..small
        },
        recoveries: true,
        seeds: 2,
    },
    // Writes bypassed the cache, and idleness ended that. Long before any commit, a write goes in
    // place without a mark, and is done long before the slow device of the log.
    Aim {
        mode: Mode::WriteThrough,
        durability: Durability::Flush,
        script: &[
            Write(0, 4),
            Flush,
            Pause(1000),
            Write(0, 4),
            WB,
            Pause(7000),
            Write(0, 4),
        ],
        change: |small| Details {
            dirty_tracking: DirtyTracking::None,
            metadata: Metadata::Disk,
            commit_interval: Duration::from_secs(10),
            latency_us: [(1, 2), (4000, 5000), (1, 2)],
            ..small
        },
        recoveries: false,
        seeds: 1,
    },
    // Writes that only the process journal knows, as soon as the cache is open, with a slow device
    // for the log.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[Write(0, 4)],
        change: |small| Details {
            metadata: Metadata::Disk,
            commit_interval: Duration::from_secs(10),
            latency_us: [(1, 2), (10, 5000), (1, 2)],
            ..small
        },
        recoveries: true,
        seeds: 40,
    },
    // Overwrites of a dirty block take longer than two passes of the cleaner. It must not clean the
    // block by its earlier contents. The next process reads the backing device.
    Aim {
        mode: Mode::WriteBack,
        durability: Durability::Flush,
        script: &[Write(0, 4), Write(0, 4), Write(0, 4), Write(0, 4), Flush],
        change: |small| Details {
            metadata: Metadata::Disk,
            latency_us: [(1, 3_000_000), (1, 2), (1, 2)],
            modes: vec![Mode::PassThrough, Mode::WriteBack],
            ..small
        },
        recoveries: false,
        seeds: 20,
    },
];
