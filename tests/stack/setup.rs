//! Configurations of the stack: plain ones, drawn ones, pressed ones, aimed ones.

mod details;
mod plan;

use std::fmt;
use std::str::FromStr;

use forebay_cache::{Durability, Mode};
use forebay_io::sim::Rng;
use forebay_testkit::crash::{Failure, Report, Target};
use forebay_testkit::depth::Depth;

use super::CacheStack;
use super::aims::{AIMS, Aim};

pub(super) use details::Details;

/// Number of volumes of every stack.
pub(crate) const VOLUMES: usize = 2;
/// Size of each volume, bytes.
pub(crate) const VOLUME_BYTES: u64 = 96 << 10;
/// Size of each volume in a variant of [`Setup::large`], bytes. The last block is not whole.
const LARGE_VOLUME_BYTES: u64 = (2 << 20) + (10 << 10);

/// The variant of the plain configuration with changes of mode under the clients, and with several
/// block sizes.
pub(crate) const CHANGING: u64 = 1;
/// Set in a variant of the plain configuration with a bit-tree in place of marks.
pub(crate) const TREE: u64 = 1 << 34;
/// Set in a variant of the plain configuration without dirty tracking.
pub(crate) const UNTRACKED: u64 = 1 << 35;
/// Set in a variant of the plain configuration that writes dirty data back at once.
pub(crate) const CLEANED: u64 = 1 << 39;
/// Set in a variant of [`Setup::pressed`].
const PRESSED: u64 = 1 << 32;
/// Set in a variant of [`Setup::aimed`].
const AIMED: u64 = 1 << 33;
/// Set in a variant of [`Setup::large`].
const LARGE: u64 = 1 << 36;
/// Set in a variant of the plain configuration that has checksums.
pub(crate) const SUMS: u64 = 1 << 38;
/// Set in a variant of the plain configuration that serves during its opening.
pub(crate) const ONLINE: u64 = 1 << 40;
/// Set in a variant of the plain configuration whose metadata lies on byte-addressable media.
pub(crate) const LINES: u64 = 1 << 41;
/// Set in a variant of [`Setup::measured`].
const MEASURED: u64 = 1 << 42;
/// Set in a variant of [`Setup::ailing`].
const AILING: u64 = 1 << 43;
/// Set in a variant of [`Setup::tiny`].
const TINY: u64 = 1 << 37;

/// A configuration. Its text is the label in replay commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) durability: Durability,
    /// Whether the volumes fit into the cache.
    pub(crate) fits: bool,
    /// Draws everything else. Zero is the plain configuration, [`CHANGING`] adds changes to it.
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
    /// Returns a configuration that `seed` draws.
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

    /// Returns a configuration that `seed` draws among those with pressure: small caches, volatile
    /// device caches, and frequent rare events.
    #[cfg_attr(not(test), expect(dead_code, reason = "not every test presses"))]
    pub(crate) fn pressed(seed: u64) -> Self {
        let drawn = Self::draw(seed);
        Self {
            fits: drawn.fits && seed.is_multiple_of(2),
            variant: drawn.variant | PRESSED,
            ..drawn
        }
    }

    /// Returns a configuration that `seed` draws among those with large blocks, on larger volumes.
    #[allow(dead_code, reason = "its lives are long: not every test has the time")]
    pub(crate) fn large(seed: u64) -> Self {
        let drawn = Self::draw(seed);
        Self {
            variant: drawn.variant | LARGE,
            ..drawn
        }
    }

    /// Returns a configuration that `seed` draws among those with pressure, and a cache of fewer
    /// than 16 blocks.
    #[allow(dead_code, reason = "not every test draws them")]
    pub(crate) fn tiny(seed: u64) -> Self {
        let drawn = Self::pressed(seed);
        Self {
            fits: false,
            variant: drawn.variant | TINY,
            ..drawn
        }
    }

    /// Returns a configuration that `seed` draws among those with pressure and measured admission
    /// of writes without room and of clean hits.
    #[allow(dead_code, reason = "not every test draws them")]
    pub(crate) fn measured(seed: u64) -> Self {
        let drawn = Self::pressed(seed);
        Self {
            mode: match seed % 5 {
                0 => Mode::WriteOnly,
                // All of them measure clean hits.
                1 => drawn.mode,
                _ => Mode::WriteBack,
            },
            fits: false,
            variant: drawn.variant | MEASURED,
            ..drawn
        }
    }

    /// Returns a configuration that `seed` draws among those with pressure, and with backing
    /// devices whose writes fail for a while. In many of them a crash leaves much presumed dirty
    /// data.
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

    /// Whether the writes of backing devices fail for a while.
    pub(super) const fn is_ailing(&self) -> bool {
        self.variant & AILING != 0
    }

    /// Returns the size of each volume, bytes.
    pub(super) const fn volume_bytes(&self) -> u64 {
        match self.variant & LARGE {
            0 => VOLUME_BYTES,
            _ => LARGE_VOLUME_BYTES,
        }
    }

    /// Returns a bound for the offset of the cache's data: the reserved area and the log, up to the
    /// next block.
    pub(super) const fn overhead_bytes(&self) -> u64 {
        match self.variant & LARGE {
            0 => 256 << 10,
            _ => 4 << 20,
        }
    }

    /// Returns the configuration of the aimed life of this number, if there are so many.
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

    /// Returns the number of seeds of an aimed life.
    pub(crate) fn aim_seeds(&self) -> u64 {
        self.aim().map_or(0, |aim| aim.seeds)
    }

    /// Cuts an aimed life off everywhere, and makes each of its operations fail.
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
        self.variant & !(TREE | UNTRACKED | SUMS | CLEANED | ONLINE | LINES) <= CHANGING
    }

    const fn changes(&self) -> bool {
        self.is_plain() && self.variant & CHANGING != 0
    }

    pub(crate) const fn is_pressed(&self) -> bool {
        self.variant & PRESSED != 0
    }

    /// Returns the kind of pressure, if any.
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
}

/// Kind of pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressure {
    /// Everything.
    Mixed,
    /// Long pauses and few flushes: timers and waiting requests act.
    Calm,
    /// Many blocks at a time: batches of many units.
    Bulk,
}
