//! Verification and repair of a cache that is not in use.
//!
//! A repair is a start without volumes, and a clean end. Any start may make the same changes to the
//! log, the bit-tree and the table of checksums. It makes them in the same order, and may be
//! interrupted in the same places. A repair adds four steps:
//!
//! - A damaged copy of a superblock is rewritten from the sound one, before any other write there.
//! - All live records are logged once more, durably, before the log's tail moves past the damage.
//! - With `data`, all cached data is read. Corrupt clean data is forgotten. Corrupt dirty data
//!   reads as an error by name from then on.
//! - The losses that the superblock records are cleared, since the caller reports them.
//!
//! No dirty data is given up. docs/internals/repair.md argues it.
//!
//! Verification does the same on devices that hold all writes in memory, and so changes nothing.

mod overlay;
pub(crate) mod scrub;
pub(crate) mod verify;

use std::rc::Rc;

use forebay_block::{Buf, Result};
use forebay_metadata::superblock::{Service, Superblock};
use forebay_policy::cleaning::Cleaning;

use crate::cache::Cache;
use crate::cache_options::CacheOptions;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::format::check_roles;
use crate::map::LIVE;
use crate::options::{Devices, VolumeOptions};
use crate::recover::poison_own_journal;
use crate::recovery_report::{RecoveryReport, ReportSink};
use overlay::Overlay;
use verify::DataReport;

/// Options of a repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// The process journal, if there is one.
    pub journal: Option<Buf>,
    /// The boot of the machine.
    pub boot_id: [u8; 16],
    /// Whether to read all that is cached.
    pub data: bool,
    /// As in [`CacheOptions`].
    pub generation: u64,
    /// As in [`CacheOptions`].
    pub place: String,
    /// As in [`CacheOptions`].
    pub data_place: String,
    /// As in [`CacheOptions`].
    pub moved: bool,
    /// As in [`CacheOptions`]. Only [`repair`] reports there.
    pub report_sink: Option<ReportSink>,
}

/// Findings of a repair, and its changes.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Devices of which one copy of the superblock was damaged and has been rewritten.
    pub superblocks: Vec<String>,
    /// Findings of opening the cache. The log no longer contains the damage that they name.
    pub recovery: RecoveryReport,
    /// Findings of reading all cached data, if that was requested.
    pub data: Option<DataReport>,
    /// The last opening of the cache, which the repair was, and its clean end.
    pub service: Service,
}

impl RepairReport {
    /// Returns whether dirty data is lost or may be lost. A repair cannot restore it.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        let recovery = &self.recovery;
        recovery.damaged_records + recovery.unreadable_units > 0
            || !recovery.lost.is_empty()
            || !recovery.cut.is_empty()
            || !recovery.unnamed_overwrites.is_empty()
            || !recovery.unreported.is_empty()
            || self.data.as_ref().is_some_and(DataReport::has_losses)
    }
}

/// Repairs a cache that is not in use, as far as possible.
///
/// # Errors
/// As [`Cache::open`], and the devices' own. After an error the cache is as after a crash, and can
/// be repaired later.
pub async fn repair(devices: &Devices, options: &RepairOptions) -> Result<RepairReport> {
    let metadata = devices.metadata.as_ref().unwrap_or(&devices.data);
    let superblock = Superblock::read(metadata.as_ref()).await?;
    check_roles(devices, &superblock).await?;
    let mut superblocks = Vec::new();
    let apart = devices.metadata.as_ref().map(|_| &devices.data);
    for device in [Some(metadata), apart].into_iter().flatten() {
        let poison = || {
            if Rc::ptr_eq(device, &devices.data) {
                poison_own_journal(devices, &superblock, &opening(options, false));
            }
        };
        if Superblock::repair(device.as_ref(), poison).await? {
            superblocks.push(device.info().name);
        }
    }
    let report = repair_devices(devices.clone(), options, false).await?;
    Ok(RepairReport {
        superblocks,
        ..report
    })
}

/// Reads all cached data and verifies it against its checksums, if any. Changes nothing: writes of
/// the start stay in memory. A cache with damage takes 64 bytes of memory for each cached block.
///
/// # Errors
/// As [`Cache::open`], but for a process journal that is gone.
pub async fn verify(devices: &Devices, options: &RepairOptions) -> Result<DataReport> {
    let report = repair_in_memory(devices, options, true).await?;
    Ok(report.data.unwrap_or_default())
}

/// Returns how many bytes of cached data have no checksum that is known, as the next start will
/// find them. No data is read, and nothing is changed, as by [`verify()`].
///
/// # Errors
/// As [`verify()`].
pub async fn count_unverified(devices: &Devices, options: &RepairOptions) -> Result<u64> {
    let report = repair_in_memory(devices, options, false).await?;
    Ok(report.recovery.unverified_bytes)
}

/// Checks that the attaches of these volumes find no stale dirty data, as [`Cache::check_stale`]
/// does in service. Nothing is changed, as by [`verify()`]. Returns the result of each, in order.
///
/// # Errors
/// As [`verify()`].
pub async fn predict_stale(
    devices: &Devices,
    options: &RepairOptions,
    volumes: &[(&str, VolumeOptions)],
) -> Result<Vec<Result<()>>> {
    let (over, options) = in_memory(devices, options);
    let (cache, _) = Cache::open(over, opening(&options, true)).await?;
    let volumes = volumes.iter();
    let checked = volumes.map(|(name, options)| cache.check_stale(name, options));
    let checked = checked.collect();
    cache.close().await?;
    Ok(checked)
}

/// Returns devices that keep what is written in memory, and options with a copy of the journal.
fn in_memory(devices: &Devices, options: &RepairOptions) -> (Devices, RepairOptions) {
    let over = Devices {
        data: Overlay::over(&devices.data),
        metadata: devices.metadata.as_ref().map(Overlay::over),
    };
    let options = RepairOptions {
        journal: (options.journal.as_ref()).map(|journal| Buf::copied(&journal.to_vec())),
        report_sink: None,
        ..options.clone()
    };
    (over, options)
}

/// Mends a cache on devices that keep what is written in memory.
async fn repair_in_memory(
    devices: &Devices,
    options: &RepairOptions,
    data: bool,
) -> Result<RepairReport> {
    let (over, options) = in_memory(devices, options);
    repair_devices(over, &RepairOptions { data, ..options }, true).await
}

/// Opens a cache that is not in use, without volumes. [`Cache::close`] ends that cleanly.
///
/// # Errors
/// As [`Cache::open`].
pub async fn open_alone(
    devices: &Devices,
    options: &RepairOptions,
) -> Result<(Cache, RecoveryReport)> {
    Cache::open(devices.clone(), opening(options, false)).await
}

fn opening(options: &RepairOptions, accept_journal_loss: bool) -> CacheOptions {
    CacheOptions {
        journal: options.journal.clone(),
        cleaning: Cleaning::Nop,
        accept_journal_loss,
        generation: options.generation,
        place: options.place.clone(),
        data_place: options.data_place.clone(),
        moved: options.moved,
        report_sink: options.report_sink.clone(),
        ..CacheOptions::new(options.boot_id)
    }
}

async fn repair_devices(
    devices: Devices,
    options: &RepairOptions,
    accept_journal_loss: bool,
) -> Result<RepairReport> {
    let opening = opening(options, accept_journal_loss);
    let (cache, recovery) = Cache::open(devices, opening).await?;
    let engine = &cache.engine;
    let data = match options.data {
        true => Some(engine.verify_alone().await?),
        false => None,
    };
    if recovery.damaged_records + recovery.unreadable_units > 0 {
        engine.leave_damage_behind().await?;
    }
    // The caller reports all of them.
    engine.superblock.forget_losses(|_| true).await?;
    cache.close().await?;
    Ok(RepairReport {
        recovery,
        data,
        service: cache.service(),
        ..RepairReport::default()
    })
}

impl Engine {
    /// Logs all that counts once more, and moves the log's tail up to there.
    async fn leave_damage_behind(self: &Rc<Self>) -> Result<()> {
        // No volume is attached. The start has already dropped, durably, the data that marks of
        // *intent* protected.
        self.regions.clear_all_marks().await?;
        if planted(Fault::GiveUpUnlogged) {
            self.committer.give_up_log();
            return self.committer.commit().await;
        }
        let ids = self.map.borrow().ids();
        for id in ids.clone() {
            if self.map.borrow().has(id, LIVE) {
                self.committer.queue_record(id);
            }
        }
        self.committer.commit_all().await?;
        let map = self.map.borrow();
        let counting = ids.map(|id| map.record_at(id));
        let marks = (0..self.marks.numbers()).filter_map(|id| self.marks.record_at(id));
        // The next batch says so, and is built when these are durable.
        self.committer.give_up_before(counting.chain(marks));
        Ok(())
    }
}
