//! Options for opening a cache.

use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use forebay_block::{BlockDevice, Buf, Error, ErrorKind};
use forebay_metadata::superblock::{DirtyTracking, ZONE_SHIFT};
use forebay_policy::Promotion;
use forebay_policy::cleaning::Cleaning;

/// Handling of reads and writes that hit or miss. docs/concepts/modes.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `wb`: writes go to the cache and later to the backing device.
    WriteBack,
    /// `wt`: writes go to both.
    WriteThrough,
    /// `wa`: writes go to the backing device, and to the cache where it holds the block already.
    WriteAround,
    /// `wi`: writes go to the backing device and drop their cached copies.
    WriteInvalidate,
    /// `wo`: as write-back, but reads are not promoted.
    WriteOnly,
    /// `pt`: reads and writes go to the backing device; the cache serves only its dirty data.
    PassThrough,
}

impl Mode {
    /// All modes, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::WriteBack,
        Self::WriteThrough,
        Self::WriteAround,
        Self::WriteInvalidate,
        Self::WriteOnly,
        Self::PassThrough,
    ];

    /// The two-letter name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WriteBack => "wb",
            Self::WriteThrough => "wt",
            Self::WriteAround => "wa",
            Self::WriteInvalidate => "wi",
            Self::WriteOnly => "wo",
            Self::PassThrough => "pt",
        }
    }

    /// Returns whether read misses fill the cache.
    #[must_use]
    pub const fn promotes_reads(self) -> bool {
        !matches!(self, Self::WriteOnly | Self::PassThrough)
    }

    /// Whether writes can leave data in the cache that the backing device lacks.
    #[must_use]
    pub const fn makes_dirty(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteOnly)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidInput,
                    format!("cache mode {text:?}: choose one of wb, wt, wa, wi, wo, pt"),
                )
            })
    }
}

/// Durability that an acknowledgement promises across power loss. docs/durability.md argues both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Every acknowledged write survives.
    Sync,
    /// Writes survive that a successful FLUSH, or FUA, covered, as on a disk.
    Flush,
}

/// Policy for a write that finds no room because the candidates for eviction are dirty, and for the
/// device that serves clean hits. docs/concepts/admission.md has the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// `always`: it waits until something is written back, which the cache sees to ahead of need.
    #[default]
    Always,
    /// `measured`: as `always`, or bypasses the cache and leaves its content. Each write takes the
    /// route with the lower measured time ([`forebay_policy::Measured`]). A clean hit is read from
    /// the backing device if that answers sooner than a busy cache device
    /// ([`forebay_policy::Split`]).
    Measured,
}

impl Admission {
    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "always" => Some(Self::Always),
            "measured" => Some(Self::Measured),
            _ => None,
        }
    }
}

/// The devices of a cache.
#[derive(Clone)]
pub struct Devices {
    /// Device of the cached data.
    pub data: Rc<dyn BlockDevice>,
    /// Device of the metadata; if `None`, the data device has it.
    pub metadata: Option<Rc<dyn BlockDevice>>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("data", &self.data.info().name)
            .field("metadata", &self.metadata.as_ref().map(|d| d.info().name))
            .finish()
    }
}

/// Options for formatting a cache.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The cache block sizes: powers of two from 4 KiB to 1 MiB, the largest at most 64 times the
    /// smallest. With several, each missed range is given the largest that fit.
    pub block_sizes_bytes: Vec<u64>,
    /// Blocks that share a mark (docs/internals/dirty-tracking.md), as a power of two, up to 16.
    pub region_shift: u8,
    /// Method by which the cache knows after a crash which blocks were overwritten in place
    /// (docs/internals/dirty-tracking.md).
    pub dirty_tracking: DirtyTracking,
    /// Whether cached data has checksums, one for each 4 KiB.
    pub checksums: bool,
    /// Size of the unit of a volume by which possibly dirty data is tracked before the map is
    /// loaded. It is a power of two in bytes, given as its exponent, and at least the largest block
    /// (docs/internals/online-open.md).
    pub zone_shift: u8,
    /// The new cache's identity.
    pub uuid: [u8; 16],
}

impl FormatOptions {
    /// Blocks of this size, in regions of 64.
    #[must_use]
    pub fn new(block_size_bytes: u32, uuid: [u8; 16]) -> Self {
        Self::sizes(&[u64::from(block_size_bytes)], uuid)
    }

    /// Blocks of these sizes, in regions of 64 of the smallest, with exact tracking.
    #[must_use]
    pub fn sizes(block_sizes_bytes: &[u64], uuid: [u8; 16]) -> Self {
        Self {
            block_sizes_bytes: block_sizes_bytes.to_vec(),
            region_shift: 6,
            dirty_tracking: DirtyTracking::Exact,
            checksums: false,
            zone_shift: ZONE_SHIFT,
            uuid,
        }
    }
}

/// Settings of an open cache, from [`CacheOptions`](crate::CacheOptions).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Promise of an acknowledgement.
    pub(crate) durability: Durability,
    /// Memory for the process journal, which outlives the process.
    pub(crate) journal: Option<Buf>,
    /// Identity of this boot of the machine.
    pub(crate) boot_id: [u8; 16],
    /// Share of dirty blocks above which writes that miss bypass the cache.
    pub(crate) dirty_limit_percent: u8,
    /// Share of dirty blocks below which cleaning is in no hurry.
    pub(crate) dirty_low_percent: u8,
    /// Policy of the cleaner at the start.
    pub(crate) cleaning: Cleaning,
    /// Whether no volume is written back until the cache allows it.
    pub(crate) hold_write_back: bool,
    /// Treatment of writes that find no room.
    pub(crate) admission: Admission,
    /// Interval of commits that no client requests.
    pub(crate) commit_interval: Duration,
    /// Time that devices may take at a detach or at the end of the cache.
    pub(crate) patience: Duration,
    /// Highest generation of the cache that a place outside it knows.
    pub(crate) generation: u64,
    /// Path of the metadata device; empty if unknown.
    pub(crate) place: String,
    /// Path of a separate data device; empty if unknown.
    pub(crate) data_place: String,
}

/// Options for attaching a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Cache mode.
    pub mode: Mode,
    /// When a missed block is let in.
    pub promotion: Promotion,
    /// Number of bytes after which a sequential stream bypasses the cache; zero for never.
    pub sequential_cutoff_bytes: u64,
    /// The epoch that the state directory remembers, zero for none: higher than the cache's own
    /// when the volume was served without this cache meanwhile.
    pub epoch: u64,
    /// Ranges that were written without this cache. `None` if they are not known, which counts as
    /// the whole volume.
    pub written_elsewhere: Option<Vec<std::ops::Range<u64>>>,
    /// Byte ranges, in ascending order, of all data that was dirty when the volume began to bypass
    /// this failed cache. With a higher `epoch`, nothing else in the cache counts. `None` if they
    /// are not known.
    pub dirty_at_failure: Option<Vec<std::ops::Range<u64>>>,
    /// Whether to discard dirty data that is older than writes made without this cache.
    pub discard_stale_dirty: bool,
    /// Whether cached data belongs to this backing device although the device looks like another
    /// one.
    pub adopt: bool,
}

impl VolumeOptions {
    /// A volume in `mode` that promotes always, with no cut-off and no history.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            promotion: Promotion::Always,
            sequential_cutoff_bytes: 0,
            epoch: 0,
            written_elsewhere: None,
            dirty_at_failure: None,
            discard_stale_dirty: false,
            adopt: false,
        }
    }
}
