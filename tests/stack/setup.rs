//! Configurations of the stack: plain ones, drawn ones, pressed ones, aimed ones.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use forebay_cache::{Admission, Cleaning, DirtyTracking, Durability, Mode, Promotion};
use forebay_io::sim::Rng;
use forebay_testkit::crash::{Failure, Report, Target};
use forebay_testkit::depth::Depth;
use forebay_testkit::workload::{Mix, Plan};

use super::CacheStack;
use super::aims::{AIMS, Aim};
use super::metadata::Metadata;

/// Volumes of every stack, and their size.
pub(crate) const VOLUMES: usize = 2;
pub(crate) const VOLUME_BYTES: u64 = 96 << 10;
/// Their size in a variant of [`Setup::large`]: the last block is not whole.
const LARGE_VOLUME_BYTES: u64 = (2 << 20) + (10 << 10);

/// The variant of the plain configuration in which modes change under the clients, and blocks have
/// several sizes.
pub(crate) const CHANGING: u64 = 1;
/// Set in a variant of the plain configuration that has a bit-tree, or nothing, in place of marks.
pub(crate) const TREE: u64 = 1 << 34;
pub(crate) const UNTRACKED: u64 = 1 << 35;
/// Set in a variant of the plain configuration in which all that is dirty is written back at once.
pub(crate) const CLEANED: u64 = 1 << 39;
/// Set in a variant of [`Setup::pressed`].
const PRESSED: u64 = 1 << 32;
/// Set in a variant of [`Setup::aimed`].
const AIMED: u64 = 1 << 33;
/// Set in a variant of [`Setup::large`].
const LARGE: u64 = 1 << 36;
/// Set in a variant of the plain configuration that has checksums.
pub(crate) const SUMS: u64 = 1 << 38;
/// Set in a variant of the plain configuration that serves while it is being opened.
pub(crate) const EARLY: u64 = 1 << 40;
/// Set in a variant of the plain configuration whose metadata lies on byte-addressable media.
pub(crate) const LINES: u64 = 1 << 41;
/// Set in a variant of [`Setup::measured`].
const MEASURED: u64 = 1 << 42;
/// Set in a variant of [`Setup::ailing`].
const AILING: u64 = 1 << 43;
/// Set in a variant of [`Setup::tiny`].
const TINY: u64 = 1 << 37;

/// Sizes of cache blocks that a drawn configuration may have, bytes.
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

/// The same for large blocks.
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

/// A configuration; as text it is the label in replay commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) durability: Durability,
    /// Whether the volumes fit into the cache.
    pub(crate) fits: bool,
    /// Draws everything else; zero for the plain configuration, [`CHANGING`] for it with changes.
    pub(crate) variant: u64,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}",
            self.mode,
            match self.durability {
                Durability::Sync => "sync",
                Durability::Flush => "flush",
            },
            if self.fits { "fits" } else { "evicts" },
            self.variant
        )
    }
}

impl FromStr for Setup {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [mode, durability, size, variant] = words[..] else {
            return Err(format!("{text:?} is not: mode durability size variant"));
        };
        Ok(Self {
            mode: mode.parse().map_err(|error| format!("{error}"))?,
            durability: match durability {
                "sync" => Durability::Sync,
                "flush" => Durability::Flush,
                other => return Err(format!("no durability {other:?}")),
            },
            fits: match size {
                "fits" => true,
                "evicts" => false,
                other => return Err(format!("no size {other:?}")),
            },
            variant: variant
                .parse()
                .map_err(|_| format!("no variant {variant:?}"))?,
        })
    }
}

impl Setup {
    /// A configuration that `seed` draws.
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = Rng::labelled(seed, 21);
        Self {
            mode: Mode::ALL[rng.index(Mode::ALL.len())],
            durability: if rng.chance(1, 2) {
                Durability::Sync
            } else {
                Durability::Flush
            },
            fits: rng.chance(1, 3),
            variant: CHANGING + 1 + rng.below(1 << 20),
        }
    }

    /// A configuration that `seed` draws among those that press: small caches, devices with volatile
    /// caches, and much of what is rare otherwise.
    #[cfg_attr(not(test), expect(dead_code, reason = "not every test presses"))]
    pub(crate) fn pressed(seed: u64) -> Self {
        let drawn = Self::draw(seed);
        Self {
            fits: drawn.fits && seed.is_multiple_of(2),
            variant: drawn.variant | PRESSED,
            ..drawn
        }
    }

    /// A configuration that `seed` draws among those with large blocks, on larger volumes.
    #[allow(dead_code, reason = "its lives are long: not every test has the time")]
    pub(crate) fn large(seed: u64) -> Self {
        let drawn = Self::draw(seed);
        Self {
            variant: drawn.variant | LARGE,
            ..drawn
        }
    }

    /// A configuration that `seed` draws among those that press, with a cache of fewer than 16 blocks.
    #[allow(dead_code, reason = "not every test draws them")]
    pub(crate) fn tiny(seed: u64) -> Self {
        let drawn = Self::pressed(seed);
        Self {
            fits: false,
            variant: drawn.variant | TINY,
            ..drawn
        }
    }

    /// A configuration that `seed` draws among those that press, whose cache measures what writes without room take, and clean
    /// hits.
    #[allow(dead_code, reason = "not every test draws them")]
    pub(crate) fn measured(seed: u64) -> Self {
        let drawn = Self::pressed(seed);
        Self {
            mode: match seed % 5 {
                0 => Mode::WriteOnly,
                // Clean hits are measured in all of them.
                1 => drawn.mode,
                _ => Mode::WriteBack,
            },
            fits: false,
            variant: drawn.variant | MEASURED,
            ..drawn
        }
    }

    /// A configuration that `seed` draws among those that press, with backing devices whose writes fail for a while: often one in which
    /// a crash leaves much that is only presumed to be dirty.
    #[allow(dead_code, reason = "not every test draws them")]
    pub(crate) fn ailing(seed: u64) -> Self {
        let drawn = Self::pressed(seed);
        Self {
            mode: match Rng::labelled(seed, 29).chance(1, 2) {
                true => Mode::WriteBack,
                false => drawn.mode,
            },
            variant: drawn.variant | AILING,
            ..drawn
        }
    }

    pub(super) const fn is_ailing(&self) -> bool {
        self.variant & AILING != 0
    }

    /// The size of each volume, bytes.
    pub(super) const fn volume_bytes(&self) -> u64 {
        match self.variant & LARGE {
            0 => VOLUME_BYTES,
            _ => LARGE_VOLUME_BYTES,
        }
    }

    /// Where the cache's data starts at the latest: what the format reserves, and the log, up to the next block.
    pub(super) const fn overhead_bytes(&self) -> u64 {
        match self.variant & LARGE {
            0 => 256 << 10,
            _ => 4 << 20,
        }
    }

    /// The life aimed at one window that has this number, if there are so many.
    #[cfg_attr(not(test), expect(dead_code, reason = "not every test aims"))]
    pub(crate) fn aimed(number: u64) -> Option<Self> {
        let aim = AIMS.get(usize::try_from(number).ok()?)?;
        Some(Self {
            mode: aim.mode,
            durability: aim.durability,
            fits: true,
            variant: AIMED | number,
        })
    }

    /// Returns the number of seeds with which a life that is aimed is to be lived.
    pub(crate) fn aim_seeds(&self) -> u64 {
        self.aim().map_or(0, |aim| aim.seeds)
    }

    /// Cuts a life that is aimed off everywhere, and makes each of its operations fail.
    #[cfg_attr(not(test), expect(dead_code, reason = "not every test aims"))]
    pub(crate) fn hit(&self, target: &Target<CacheStack>, seed: u64) -> Result<Report, Failure> {
        let mut sum = Report::default();
        let Some(aim) = self.aim() else {
            return Ok(sum);
        };
        let depth = Depth {
            singles: 0,
            subsets: 2,
            deaths: 1,
            stride: 1,
            recoveries: aim.recoveries,
        };
        for report in [target.sweep(seed, depth)?, target.faults(seed, 1)?] {
            sum.points += report.points;
            sum.crashes += report.crashes;
            sum.alike += report.alike;
        }
        Ok(sum)
    }

    #[allow(dead_code, reason = "not every test counts them")]
    pub(crate) const fn is_measured(&self) -> bool {
        self.variant & MEASURED != 0
    }

    pub(crate) const fn is_aimed(&self) -> bool {
        self.variant & AIMED != 0
    }

    fn aim(&self) -> Option<&'static Aim> {
        let number = usize::try_from(self.variant & !AIMED).ok()?;
        self.is_aimed().then(|| &AIMS[number])
    }

    const fn is_plain(&self) -> bool {
        self.variant & !(TREE | UNTRACKED | SUMS | CLEANED | EARLY | LINES) <= CHANGING
    }

    const fn changes(&self) -> bool {
        self.is_plain() && self.variant & CHANGING != 0
    }

    pub(crate) const fn is_pressed(&self) -> bool {
        self.variant & PRESSED != 0
    }

    /// What presses, of a pressed configuration.
    fn pressure(&self) -> Option<Pressure> {
        const KINDS: [Pressure; 4] = [
            Pressure::Mixed,
            Pressure::Mixed,
            Pressure::Calm,
            Pressure::Bulk,
        ];
        let kind = Rng::labelled(self.variant, 24).index(KINDS.len());
        self.is_pressed().then(|| KINDS[kind])
    }

    /// What clients do; with a variant, of a kind that it draws.
    pub(crate) fn plan(&self) -> Plan {
        let plain = Mix::default();
        if let Some(aim) = self.aim() {
            return Plan {
                script: aim.script,
                lanes: 1,
                operations: 0,
                mix: plain,
                largest_bytes: 8 << 10,
            };
        }
        if self.is_plain() {
            return Plan {
                script: &[],
                lanes: 3,
                operations: 8,
                mix: Mix {
                    control: 12 * u64::from(self.changes()),
                    ..plain
                },
                largest_bytes: 48 << 10,
            };
        }
        let rng = Rng::labelled(self.variant, 23);
        let mix = match rng.below(4) {
            0 => Mix { read: 80, ..plain },
            1 => Mix { flush: 1, ..plain },
            2 => Mix {
                discard: 10,
                zeroes: 10,
                ..plain
            },
            _ => plain,
        };
        let mix = match self.pressure() {
            None => Mix { control: 2, ..mix },
            Some(Pressure::Mixed) => Mix {
                read: [4, 24][rng.index(2)],
                fua: [1, 8][rng.index(2)],
                flush: [1, 10, 60][rng.index(3)],
                zeroes: [3, 20][rng.index(2)],
                pause: [2, 10][rng.index(2)],
                control: [0, 2, 10][rng.index(3)],
                ..mix
            },
            Some(Pressure::Calm) => Mix {
                read: 24,
                fua: 0,
                flush: [1, 6][rng.index(2)],
                discard: 1,
                zeroes: 1,
                pause: 20,
                control: [0, 5][rng.index(2)],
                ..plain
            },
            Some(Pressure::Bulk) => Mix {
                read: [4, 24][rng.index(2)],
                fua: 1,
                flush: 10,
                discard: 1,
                zeroes: 1,
                control: [2, 10, 30][rng.index(3)],
                ..plain
            },
        };
        Plan {
            script: &[],
            lanes: if self.is_pressed() {
                [1, 2, 6][rng.index(3)]
            } else {
                2 + rng.index(5)
            },
            operations: [10, 40, 80, 160][rng.index(if self.is_pressed() { 4 } else { 3 })],
            mix,
            largest_bytes: match self.pressure() {
                Some(Pressure::Bulk) => VOLUME_BYTES,
                _ if self.variant & LARGE != 0 => [8, 48, 96, 700][rng.index(4)] << 10,
                _ => [8, 48, 96][rng.index(3)] << 10,
            },
        }
    }

    /// The plain configuration.
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
            early: (self.variant & EARLY != 0).then_some(Duration::from_millis(5)),
        }
    }

    pub(super) fn details(&self) -> Details {
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
            early: match Rng::labelled(self.variant, 27).below(6) {
                delay @ 0..3 => Some(Duration::from_millis([0, 2, 50][delay as usize])),
                _ => None,
            },
        };
        let drawn = match self.variant & TINY {
            0 => drawn,
            _ => Details {
                // One size, or as few as several get by with.
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
            // Writes find no room: nothing turns clean before somebody wants it to, or by a change of mode.
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

/// What a pressed configuration makes much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressure {
    /// Everything.
    Mixed,
    /// Long pauses and few flushes: what timers do, and what waits.
    Calm,
    /// Many blocks at a time: batches of many units.
    Bulk,
}

impl Details {
    /// The largest cache block, bytes.
    pub(super) fn largest_block(&self) -> u64 {
        *self.block_sizes.last().expect("there is a size")
    }
}

pub(super) struct Details {
    /// Of cache blocks, bytes.
    pub(super) block_sizes: &'static [u64],
    pub(super) region_shift: u8,
    pub(super) dirty_tracking: DirtyTracking,
    pub(super) checksums: bool,
    pub(super) metadata: Metadata,
    /// Logical block of the metadata device, or physical block of the one that holds everything.
    pub(super) unit_bytes: u32,
    /// Whether data, metadata and backing devices have volatile caches.
    pub(super) volatile: [bool; 3],
    pub(super) fua: bool,
    pub(super) journal: bool,
    pub(super) promotion: Promotion,
    pub(super) cutoff_bytes: u64,
    /// One a boot, in turn.
    pub(super) modes: Vec<Mode>,
    pub(super) dirty_limit_percent: u8,
    pub(super) admission: Admission,
    pub(super) cleaning: Cleaning,
    /// Of the data, metadata and backing devices.
    pub(super) latency_us: [(u64, u64); 3],
    pub(super) commit_interval: Duration,
    /// Where the volumes do not fit, the cache has one block for so many of theirs.
    pub(super) share: u64,
    /// Or this many of the smallest size, exactly.
    pub(super) blocks: Option<u64>,
    /// Whether clients come while it is being opened, which then begins so much later.
    pub(super) early: Option<Duration>,
}
