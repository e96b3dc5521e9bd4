//! The details of a configuration: devices, cache and volumes.

use std::time::Duration;

use forebay_cache::{Admission, Cleaning, DirtyTracking, Mode, Promotion};
use forebay_io::sim::Rng;

use super::super::metadata::Metadata;
use super::{
    CLEANED, LARGE, LINES, MEASURED, ONLINE, Pressure, SUMS, Setup, TINY, TREE, UNTRACKED,
};

/// Sizes of cache blocks in drawn configurations, bytes.
const SIZES: [&[u64]; 8] = [
    &[4 << 10],
    &[8 << 10],
    &[16 << 10],
    &[32 << 10],
    &[4 << 10, 8 << 10],
    &[4 << 10, 8 << 10, 16 << 10],
    &[4 << 10, 16 << 10],
    &[8 << 10, 16 << 10, 32 << 10],
];

/// Sizes of cache blocks in variants of [`Setup::large`], bytes.
const LARGE_SIZES: [&[u64]; 8] = [
    &[512 << 10],
    &[1 << 20],
    &[4 << 10, 256 << 10],
    &[8 << 10, 512 << 10],
    &[64 << 10, 512 << 10],
    &[32 << 10, 1 << 20],
    &[16 << 10, 128 << 10, 1 << 20],
    &[4 << 10, 8 << 10, 64 << 10, 256 << 10],
];
/// The details of a configuration.
pub(crate) struct Details {
    /// Sizes of cache blocks, bytes.
    pub(crate) block_sizes: &'static [u64],
    pub(crate) region_shift: u8,
    pub(crate) dirty_tracking: DirtyTracking,
    pub(crate) checksums: bool,
    pub(crate) metadata: Metadata,
    /// Logical block of the metadata device, or physical block of the one that holds everything.
    pub(crate) unit_bytes: u32,
    /// Whether data, metadata and backing devices have volatile caches.
    pub(crate) volatile: [bool; 3],
    pub(crate) fua: bool,
    pub(crate) journal: bool,
    pub(crate) promotion: Promotion,
    pub(crate) cutoff_bytes: u64,
    /// Cache modes. Each boot takes the next one.
    pub(crate) modes: Vec<Mode>,
    pub(crate) dirty_limit_percent: u8,
    pub(crate) admission: Admission,
    pub(crate) cleaning: Cleaning,
    /// Shortest and longest latency of the data, metadata and backing devices.
    pub(crate) latency_us: [(u64, u64); 3],
    pub(crate) commit_interval: Duration,
    /// If the volumes do not fit, the cache has one block for this many of theirs.
    pub(crate) share: u64,
    /// Exact number of blocks of the smallest size, in place of `share`.
    pub(crate) blocks: Option<u64>,
    /// Delay of the opening, while clients are served. `None` if they wait for the opening.
    pub(crate) opens_after: Option<Duration>,
}

impl Details {
    /// Returns the size of the largest cache block, bytes.
    pub(crate) fn largest_block(&self) -> u64 {
        *self.block_sizes.last().expect("there is a size")
    }
}

impl Setup {
    /// Returns the plain configuration.
    fn plain(&self) -> Details {
        Details {
            block_sizes: match (self.fits, self.changes()) {
                (true, false) => &[16 << 10],
                (false, false) => &[4 << 10],
                (true, true) => &[4 << 10, 8 << 10, 16 << 10],
                (false, true) => &[4 << 10, 8 << 10],
            },
            region_shift: 2,
            dirty_tracking: match self.variant {
                tree if tree & TREE != 0 => DirtyTracking::Abt,
                nothing if nothing & UNTRACKED != 0 => DirtyTracking::None,
                _ => DirtyTracking::Exact,
            },
            checksums: self.variant & SUMS != 0,
            metadata: match self.variant & LINES {
                0 => Metadata::Beside,
                _ => Metadata::Memory,
            },
            unit_bytes: 512,
            volatile: [true; 3],
            fua: true,
            journal: true,
            promotion: Promotion::Always,
            cutoff_bytes: 0,
            modes: vec![self.mode],
            dirty_limit_percent: 75,
            admission: Admission::Always,
            cleaning: match self.variant & CLEANED {
                0 => Cleaning::Auto,
                _ => Cleaning::Acp,
            },
            latency_us: [(20, 200), (20, 200), (100, 1000)],
            commit_interval: Duration::from_millis(50),
            share: 3,
            blocks: None,
            opens_after: (self.variant & ONLINE != 0).then_some(Duration::from_millis(5)),
        }
    }

    /// Returns the details of the configuration.
    pub(crate) fn details(&self) -> Details {
        let rng = Rng::labelled(self.variant, 22);
        if let Some(aim) = self.aim() {
            return aim.details(self.plain());
        }
        if self.is_plain() {
            return self.plain();
        }
        let drawn = Details {
            block_sizes: match self.variant & LARGE {
                0 => SIZES[rng.index(SIZES.len())],
                _ => LARGE_SIZES[rng.index(LARGE_SIZES.len())],
            },
            region_shift: [0, 2, 6][rng.index(3)],
            dirty_tracking: match (Rng::labelled(self.variant, 25).below(8), self.is_ailing()) {
                (0..5, false) | (0..2, true) => DirtyTracking::Exact,
                (5..7, false) | (2..4, true) => DirtyTracking::Abt,
                _ => DirtyTracking::None,
            },
            checksums: Rng::labelled(self.variant, 26).chance(1, 2),
            metadata: match rng.chance(1, 2) {
                true if Rng::labelled(self.variant, 28).chance(1, 3) => Metadata::Memory,
                true => Metadata::Disk,
                false => Metadata::Beside,
            },
            unit_bytes: if rng.chance(1, 3) { 4096 } else { 512 },
            volatile: [(); 3].map(|()| rng.chance(3, 4)),
            fua: rng.chance(2, 3),
            journal: rng.chance(2, 3),
            promotion: if rng.chance(1, 4) {
                Promotion::Nhit { hits: 2 }
            } else {
                Promotion::Always
            },
            cutoff_bytes: if rng.chance(1, 4) { 24 << 10 } else { 0 },
            modes: if rng.chance(1, 2) {
                vec![self.mode]
            } else {
                vec![self.mode, Mode::ALL[rng.index(Mode::ALL.len())]]
            },
            dirty_limit_percent: match self.variant & MEASURED {
                0 => [30, 75, 95][rng.index(3)],
                _ => 100,
            },
            admission: match self.variant & MEASURED {
                0 => Admission::Always,
                _ => Admission::Measured,
            },
            cleaning: Cleaning::ALL[Rng::labelled(self.variant, 26).index(Cleaning::ALL.len())],
            // A slow device widens the windows in which others can overtake it.
            latency_us: [(); 3].map(|()| [(5, 50), (20, 200), (500, 3000)][rng.index(3)]),
            commit_interval: Duration::from_millis([1, 50, 1000][rng.index(3)]),
            share: 2 + rng.below(6),
            blocks: None,
            opens_after: match Rng::labelled(self.variant, 27).below(6) {
                delay @ 0..3 => Some(Duration::from_millis([0, 2, 50][delay as usize])),
                _ => None,
            },
        };
        let drawn = match self.variant & TINY {
            0 => drawn,
            _ => Details {
                // One size, or the fewest that work together.
                block_sizes: [&[4 << 10][..], &[16 << 10], &[4 << 10, 8 << 10]][rng.index(3)],
                blocks: Some(10 + rng.below(6)),
                ..drawn
            },
        };
        if !self.is_pressed() {
            return drawn;
        }
        let pressed = Details {
            volatile: [(); 3].map(|()| rng.chance(15, 16)),
            promotion: Promotion::Always,
            cutoff_bytes: 0,
            latency_us: [(); 3].map(|()| [(5, 50), (500, 3000), (2000, 20_000)][rng.index(3)]),
            ..drawn
        };
        let pressed = match self.variant & MEASURED {
            0 => pressed,
            // Writes find no room: blocks turn clean only on request, or by a change of mode.
            _ => Details {
                cleaning: Cleaning::Nop,
                modes: vec![self.mode],
                share: 8,
                ..pressed
            },
        };
        match self.pressure() {
            Some(Pressure::Calm) => Details {
                commit_interval: Duration::from_secs([1, 10][rng.index(2)]),
                ..pressed
            },
            Some(Pressure::Bulk) => Details {
                block_sizes: &[4 << 10],
                unit_bytes: 512,
                ..pressed
            },
            _ => pressed,
        }
    }
}
