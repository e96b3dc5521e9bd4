//! The cache engine: look up, allocate, six modes, clean, recover.
//!
//! A [`Cache`] stands on one or two devices (data and metadata) and makes cached volumes out of
//! backing devices: [`Cache::attach`] returns one as a [`BlockDevice`](forebay_block::BlockDevice). It
//! lives on one reactor; front-ends on other reactors reach it by message, through `volume`.
//!
//! Follow a request: [`engine`] cuts it into pieces, one a cache block; [`mode`] dispatches a piece by
//! cache mode ([`fast`] takes hits the short way); [`lock`] orders pieces of one block; [`map`] says what is where; [`commit`] makes the map
//! durable, from what [`queue`] holds; [`region`] keeps the marks that rules 3 and 5 ask for, [`tracking`] what takes their place; [`tracts`] what reads may rely on before the map is there ([`early`]); [`clean`] writes dirty blocks back, when [`cleaner`] says so;
//! [`reclaim`] frees slots ahead of need; [`recover`] reads it all back; [`integrity`] keeps checksums of what is cached; [`repair`](mod@repair) mends a cache that nobody uses. docs/format.md and
//! docs/durability.md argue why the order is what it is.

mod admission;
mod attach;
mod backing_failures;
mod bypass;
mod cache;
mod cache_options;
mod checksum;
mod clean;
mod commit;
mod degraded;
mod devices;
mod engine;
mod evict;
pub mod failpoints;
mod format;
mod geometry;
mod intent;
mod job;
mod lock;
mod lost_range;
mod map;
mod media;
mod memory;
mod mode;
mod online_open;
mod options;
mod parallel;
mod presumed_dirty;
mod read;
mod read_ahead;
mod recover;
mod repair;
mod request;
mod service;
mod signals;
mod size;
mod slots;
mod split;
mod stats;
mod superblock;
mod volume;
mod write;

pub use attach::idle::{IdleVolume, no_room};
pub use cache::Cache;
pub use cache_options::CacheOptions;
pub use checksum::scrubber::ScrubProgress;
pub use forebay_metadata::replay::Progress as OpeningProgress;
pub use forebay_metadata::superblock::DirtyTracking;
pub use forebay_policy::cleaning::Cleaning;
pub use forebay_policy::{BlockSizes, Promotion};
pub use format::inspect::{InspectedVolume, Inspection, inspect, spare_damage};
pub use format::{check_parts, format};
pub use lost_range::LostRange;
pub use media::check_relation;
pub use memory::memory_needed;
pub use online_open::{EarlyMap, EarlyVolume};
pub use options::{Admission, Devices, Durability, FormatOptions, Mode, VolumeOptions};
pub use recover::RecoveryReport;
pub use repair::verify::DataReport;
pub use repair::{RepairOptions, RepairReport, count_unverified, open_alone, repair, verify};
pub use size::check_volume_size;
pub use stats::{CacheStats, ChecksumStats, RecoveryProgress, TreeStats, VolumeStats};
pub use volume::fallback::{Fallback, Remains};

#[cfg(test)]
mod tests;
