//! The cache engine: look up, allocate, six modes, clean, recover.
//!
//! A [`Cache`] stands on one or two devices (data and metadata) and makes cached volumes out of
//! backing devices: [`Cache::attach`] returns one as a [`BlockDevice`](forebay_block::BlockDevice). It
//! lives on one reactor; front-ends on other reactors reach it by message, through `volume`.
//!
//! Follow a request: [`engine`] cuts it into pieces, one a cache block; [`mode`] dispatches a piece by
//! cache mode ([`fast`] takes hits the short way); [`lock`] orders pieces of one block; [`map`] says what is where; [`commit`] makes the map
//! durable, from what [`queue`] holds; [`region`] keeps the marks that rules 3 and 5 ask for, [`tracking`] what takes their place; [`tracts`] what reads may rely on before the map is there ([`early`]); [`clean`] writes dirty blocks back, when [`cleaner`] says so;
//! [`reclaim`] frees slots ahead of need; [`recover`] reads it all back; [`integrity`] keeps checksums of what is cached; [`repair`](mod@repair) mends a cache that nobody uses. docs/durability.md and
//! docs/internals argue why the order is what it is.

mod admit;
mod attach;
mod backing;
mod batch;
mod bring;
mod clean;
mod cleaner;
mod commit;
mod compare;
mod cut;
mod diverge;
mod early;
mod engine;
mod fast;
mod forget;
mod format;
mod geometry;
mod granules;
mod identity;
mod integrity;
mod leave;
mod lock;
mod lost;
mod map;
mod medium;
mod memory;
mod mode;
mod open;
mod options;
pub mod plant;
mod queue;
mod rebuild;
mod reclaim;
mod recover;
mod region;
mod repair;
mod sample;
mod serve;
mod size;
mod stats;
mod tail;
mod tracking;
mod tracts;

pub use diverge::{Fallback, Remains};
pub use early::{EarlyMap, EarlyVolume};
pub use forebay_metadata::replay::Progress as OpeningProgress;
pub use forebay_metadata::superblock::DirtyTracking;
pub use forebay_policy::cleaning::Cleaning;
pub use forebay_policy::{BlockSizes, Promotion};
pub use forget::{IdleVolume, no_room};
pub use format::{InspectedVolume, Inspection, check_parts, format, inspect, spare_damage};
pub use integrity::{DataReport, ScrubProgress};
pub use medium::check_relation;
pub use memory::memory_needed;
pub use open::Cache;
pub use options::{
    Admission, CacheOptions, Devices, Durability, FormatOptions, Mode, VolumeOptions,
};
pub use recover::{LostRange, RecoveryReport};
pub use repair::{RepairOptions, RepairReport, count_unverified, open_alone, repair, verify};
pub use size::check_volume_size;
pub use stats::{CacheStats, ChecksumStats, RecoveryProgress, VolumeStats};
pub use tracking::TreeStats;

#[cfg(test)]
mod tests;
