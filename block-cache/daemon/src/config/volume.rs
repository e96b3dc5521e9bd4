//! `[[volume]]`: a volume for clients, and its use of the cache.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use forebay_volume::Limits;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use toml::Spanned;

use super::duration::{self, BURSTS, TIMEOUTS};
use super::problem::Problems;
use super::whole::Count;
use forebay_terminal::size::{BadValue, Interval, Rate, Size};

/// Default time limit of a request: longer than the retries of a disk with a bad sector, shorter
/// than people wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Name, also of its NBD export.
    pub name: String,
    /// Name of its backing device.
    pub backing: String,
    /// Cache mode.
    pub mode: Mode,
    /// Condition for a miss to fill a block.
    pub promotion: Promotion,
    /// Length from which a sequential stream bypasses the cache, bytes; zero for never.
    pub sequential_cutoff_bytes: u64,
    /// Whether writes of clients are refused.
    pub read_only: bool,
    /// Limits on its rate.
    pub limits: Limits,
    /// Time limit of a request.
    pub timeout: Duration,
    /// Line in the file.
    pub line: usize,
}

/// The six cache modes. Their short names are used in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `wb`: a write is acknowledged when the cache has it.
    WriteBack,
    /// `wt`: a write goes to the cache and to the backing device.
    #[default]
    WriteThrough,
    /// `wa`: a write goes to the backing device, and also to the cache if that has the block.
    WriteAround,
    /// `wi`: a write goes to the backing device and drops the block from the cache.
    WriteInvalidate,
    /// `wo`: writes are cached as in `wb`, but read misses fill no blocks.
    WriteOnly,
    /// `pt`: everything goes to the backing device.
    PassThrough,
}

/// Condition for a miss to fill a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    /// `always`: none.
    #[default]
    Always,
    /// `nhit:N`: the miss is the N-th access to its block.
    Nhit {
        /// The number N.
        hits: u32,
    },
}

impl Mode {
    /// All modes, with long names and short descriptions.
    pub const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::WriteBack, "wb", "write-back"),
        (Self::WriteThrough, "wt", "write-through"),
        (Self::WriteAround, "wa", "write-around"),
        (Self::WriteInvalidate, "wi", "write-invalidate"),
        (Self::WriteOnly, "wo", "write-only"),
        (Self::PassThrough, "pt", "pass-through"),
    ];

    /// Whether the cache may hold the only copy of an acknowledged write.
    #[must_use]
    pub const fn keeps_dirty_data(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteOnly)
    }

    fn entry(self) -> &'static (Self, &'static str, &'static str) {
        &Self::ALL[self as usize]
    }

    /// Returns the long name.
    #[must_use]
    pub fn long_name(self) -> &'static str {
        self.entry().2
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().1)
    }
}

impl FromStr for Mode {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        Self::ALL
            .iter()
            .find(|(_, short, long)| text == *short || text == *long)
            .map(|(mode, ..)| *mode)
            .ok_or_else(|| BadValue {
                what: format!("{text:?} is not a cache mode"),
                help: "write wb (write-back), wt (write-through), wa (write-around), \
                       wi (write-invalidate), wo (write-only) or pt (pass-through)",
            })
    }
}

impl From<Mode> for forebay_cache::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::WriteBack => Self::WriteBack,
            Mode::WriteThrough => Self::WriteThrough,
            Mode::WriteAround => Self::WriteAround,
            Mode::WriteInvalidate => Self::WriteInvalidate,
            Mode::WriteOnly => Self::WriteOnly,
            Mode::PassThrough => Self::PassThrough,
        }
    }
}

impl From<Promotion> for forebay_cache::Promotion {
    fn from(promotion: Promotion) -> Self {
        match promotion {
            Promotion::Always => Self::Always,
            Promotion::Nhit { hits } => Self::Nhit { hits },
        }
    }
}

impl fmt::Display for Promotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Nhit { hits } => write!(f, "nhit:{hits}"),
        }
    }
}

impl FromStr for Promotion {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let hits = text.strip_prefix("nhit:").and_then(|n| n.parse().ok());
        match (text, hits) {
            ("always", _) => Ok(Self::Always),
            (_, Some(hits @ 1..=255)) => Ok(Self::Nhit { hits }),
            _ => Err(BadValue {
                what: format!("{text:?} is not a promotion rule"),
                help: "write \"always\", or \"nhit:2\" to fill a block at its second miss (at most \
                       255)",
            }),
        }
    }
}

macro_rules! through_text {
    ($type:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

through_text!(Mode);
through_text!(Promotion);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawVolume {
    /// Name of the volume, also as an export.
    ///
    /// - Type: name
    pub(super) name: Spanned<String>,
    /// Backing device.
    ///
    /// - Type: device name
    /// - Range: one volume each
    pub(super) backing: Spanned<String>,
    /// Cache mode; long names such as `write-back` work too.
    ///
    /// - Default: `"wt"`
    /// - Range: `wb`, `wt`, `wa`, `wi`, `wo`, `pt`
    pub(super) mode: Option<Spanned<Mode>>,
    /// Condition of a fill.
    ///
    /// - Default: `"always"`
    /// - Range: `always`, `nhit:1` to `nhit:255`
    promotion: Option<Promotion>,
    /// Length after which a sequential stream bypasses the cache.
    ///
    /// - Default: off (0)
    sequential_cutoff: Option<Size>,
    /// Clients may not write.
    ///
    /// - Default: `false`
    pub(super) read_only: Option<bool>,
    /// Requests a second, of any kind.
    ///
    /// - Default: no limit
    /// - Range: 1 to 4294967295
    iops_limit: Option<Spanned<Count>>,
    /// Bytes a second of reads and writes.
    ///
    /// - Default: no limit
    /// - Range: above zero
    bandwidth_limit: Option<Rate>,
    /// Unused limit that an idle volume may spend at once.
    ///
    /// - Default: `"100ms"`
    /// - Range: 1ms to 1h; needs a limit
    burst: Option<Spanned<Interval>>,
    /// Time that a device may take for a request.
    ///
    /// - Default: `"60s"`
    /// - Range: 1s to 1h
    timeout: Option<Spanned<Interval>>,
}

impl RawVolume {
    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Volume {
        super::check_name(problems, &self.name, "volume");
        Volume {
            name: self.name.get_ref().clone(),
            backing: self.backing.get_ref().clone(),
            mode: self
                .mode
                .as_ref()
                .map_or_else(Mode::default, |m| *m.get_ref()),
            promotion: self.promotion.unwrap_or_default(),
            sequential_cutoff_bytes: self.sequential_cutoff.map_or(0, |size| size.0),
            read_only: self.read_only.unwrap_or(false),
            limits: self.limits(problems),
            timeout: self.timeout(problems),
            line: problems.line(self.name.span().start),
        }
    }

    fn timeout(&self, problems: &mut Problems<'_>) -> Duration {
        let what = format!("volume {:?}: a `timeout`", self.name.get_ref());
        let given = duration::check(&TIMEOUTS, self.timeout.as_ref(), &what, problems);
        given.unwrap_or(TIMEOUT)
    }

    fn limits(&self, problems: &mut Problems<'_>) -> Limits {
        let name = self.name.get_ref();
        let iops = self.iops_limit.as_ref().and_then(|iops| {
            let what =
                |iops| format!("volume {name:?} cannot be limited to {iops} operations a second");
            let or = ", or leave `iops_limit` out where there is no limit";
            Count::check(iops, problems, what, or)
        });
        if let Some(burst) = &self.burst
            && self.iops_limit.is_none()
            && self.bandwidth_limit.is_none()
        {
            problems.add(
                &burst.span(),
                format!("volume {name:?} has a burst and no limit"),
                "write `iops_limit` or `bandwidth_limit` too, or leave `burst` out",
            );
        }
        let what = format!("volume {name:?}: a `burst`");
        let burst = duration::check(&BURSTS, self.burst.as_ref(), &what, problems);
        Limits {
            iops: iops.and_then(NonZeroU32::new),
            bandwidth_bytes_per_s: self
                .bandwidth_limit
                .and_then(|rate| NonZeroU64::new(rate.0)),
            burst: burst.unwrap_or(Limits::DEFAULT_BURST),
        }
    }
}
