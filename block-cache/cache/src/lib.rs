//! The cache engine: six modes, commit, write intent, cleaning, eviction and recovery.
//!
//! A [`Cache`] stands on one or two devices (data and metadata) and makes cached volumes of backing
//! devices: [`Cache::attach`] returns one as a [`BlockDevice`](forebay_block::BlockDevice). A cache
//! lives on one reactor. Front-ends on other reactors reach it by message, through `volume`.
//! Several caches may run in one process.
//!
//! The engine is made of parts. A part owns its state and offers a few methods. `engine` wires the
//! parts; only the code that drives all of them knows it. Modules form no circle (`cargo xtask
//! tidy` checks that).
//!
//! | module | part |
//! |---|---|
//! | `request` | a volume as a device: requests are split at regions; the hit path |
//! | `split` | splits each part at the existing blocks, and locks them |
//! | `mode` | the table of modes: what a read and a write do |
//! | `measured_admission` | routes of clean hits, and of writes without room, by measured costs |
//! | `read`, `write`, `bypass` | the data path behind the table |
//! | `read_ahead` | ranges that are worth reading with a miss |
//! | `extents` | allocation of a volume: the backing device's, with dirty data as data |
//! | `map` | cached blocks, free slots and the marks of regions, as the log has them |
//! | `lock` | locks of granules |
//! | `slots`, `checksum` | reads and writes of slots, verified |
//! | `intent` | write intent: marks of regions, the bit-tree, dirty zones |
//! | `commit` | the committer: queues, batches, the log, the process journal |
//! | `clean`, `evict` | the cleaner and the reclaimer |
//! | `attach`, `volume` | volumes come and go; the state of one |
//! | `recover`, `online_open` | replay of the log, rebuild of the map; reads while that runs |
//! | `media` | holes and truncation of the cache's own files |
//! | `format` | formats a cache, and inspects one that is not in use |
//! | `degraded` | service without a cache that has failed |
//! | `repair` | scrub, verification and repair |
//!
//! Four walks. ARCHITECTURE.md describes the steps.
//!
//! - **Write-back miss**: `request/mod.rs` `transfer`, `write/mod.rs` `write`, `split.rs`
//!   `lock_blocks`, `mode.rs` `write_rule`, `write/dirty.rs` `write`, `evict.rs` `allocate`,
//!   `write/slot_write.rs` `write`, `slots/mod.rs` `write`, `commit/queue.rs` `queue_record`,
//!   `commit/round.rs` `round`.
//! - **Read miss**: `request/mod.rs` `transfer`, `read_ahead.rs` `range`, `read/mod.rs` `read`,
//!   `mode.rs` `read_rule`, `split.rs` `lock_blocks`, `read/fill.rs` `fill`, `evict.rs` `allocate`,
//!   `slots/mod.rs` `write`, `commit/queue.rs` `queue_later`.
//! - **Eviction**: `evict.rs` `reclaim_round`, `map/mod.rs` `pick`, `lock/mod.rs` `take`,
//!   `commit/queue.rs` `kill_block`, `commit/round.rs` `round`, `commit/batch.rs` `log_kills`,
//!   `slots/mod.rs` `forget`.
//! - **Recovery**: `cache.rs` `open`, `recover/mod.rs` `recover`, `media/missing.rs` `find`,
//!   `map/restore.rs` `restore`, `recover/rebuild.rs` `finish`, `engine.rs` `wire`,
//!   `intent/dirty_tracking.rs` `restore_tracking`, `superblock.rs` `raise_generation`.
//!
//! docs/durability.md and docs/internals argue why the order of writes is as it is.

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
mod extents;
pub mod failpoints;
mod format;
mod foundation;
mod geometry;
mod intent;
mod job;
mod lock;
mod lost_range;
mod map;
mod measured_admission;
mod media;
mod memory_estimate;
mod mode;
mod online_open;
mod options;
mod parallel;
mod presumed_dirty;
mod read;
mod read_ahead;
mod recover;
mod recovery_report;
mod repair;
mod request;
mod service_state;
mod signals;
mod slots;
mod split;
mod stats;
mod superblock;
mod volume;
mod volume_size;
mod write;

pub use attach::Announcement;
pub use attach::idle::{IdleVolume, check_count, no_room};
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
pub use media::{check_relation, writes_at_stake};
pub use memory_estimate::memory_needed;
pub use online_open::{OpeningMap, OpeningVolume};
pub use options::{Admission, Devices, Durability, FormatOptions, Mode, VolumeOptions};
pub use recovery_report::{RecoveryReport, ReportSink, UNREPORTED_LOSS};
pub use repair::verify::DataReport;
pub use repair::{
    RepairOptions, RepairReport, count_unverified, open_alone, predict_stale, repair, verify,
};
pub use stats::{CacheStats, ChecksumStats, RecoveryProgress, TreeStats, VolumeStats};
pub use volume::fallback::{Fallback, Remains};
pub use volume_size::check_volume_size;

#[cfg(test)]
mod tests;
