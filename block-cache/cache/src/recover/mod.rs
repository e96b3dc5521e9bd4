//! Recovery of a cache: replays the log and rebuilds the map.

mod in_doubt;
pub(crate) mod rebuild;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::journal::{Journal, Recovered};
use forebay_metadata::log::Log;
use forebay_metadata::order;
use forebay_metadata::record::BlockRecord;
use forebay_metadata::replay::{Elsewhere, Replayed, replay_with, rewrite_last_batch};
use forebay_metadata::superblock::Superblock;
use forebay_policy::{BlockId, Slot};

use crate::cache_options::CacheOptions;
use crate::checksum::{Checksums, LoadedChecksums};
use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;
use crate::intent::dirty_tracking::Tracking;
use crate::lost_range::LostRange;
use crate::map::Map;
use crate::map::marks::Marks;
use crate::media::missing::MissingData;
use crate::media::{journal_trouble, may_be_dirty, own_journal};
use crate::options::Devices;
use crate::recover::rebuild::Rebuild;
use crate::recovery_report::RecoveryReport;

/// The live record of a slot that holds no block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrphanRecord {
    pub(crate) slot: Slot,
    pub(crate) class: u8,
    /// Whether the slot stays taken until the record is dead. Otherwise another block has it
    /// already.
    pub(crate) held: bool,
}

/// A recovered map, before the cache goes into service.
pub(crate) struct RecoveredMap {
    pub(crate) map: Map,
    pub(crate) marks: Marks,
    pub(crate) log: Log,
    /// Blocks whose records differ from the map, to be logged first.
    pub(crate) stale: Vec<BlockId>,
    /// Slots without a block whose records are alive. They are killed before the slots are free.
    pub(crate) orphans: Vec<OrphanRecord>,
    /// Blocks that count as dirty without a record that says so.
    pub(crate) unrecorded: Vec<BlockId>,
    /// Dirty granules in the records of blocks that are dirty in part.
    pub(crate) recorded: HashMap<BlockId, u64>,
    pub(crate) tracking: Tracking,
    pub(crate) sums: Option<Checksums>,
    /// Whether the data device has holes in cached data although it was not truncated.
    pub(crate) is_sparse: bool,
    pub(crate) report: RecoveryReport,
}

/// Reads the map. Writes padding where a crash tore the log, and slots that the journal names after
/// a failed flush. Of a bit-tree, writes its epoch and the units that were read.
pub(crate) async fn recover(
    devices: &Devices,
    superblock: &mut Superblock,
    options: &CacheOptions,
) -> Result<RecoveredMap> {
    let metadata = Rc::clone(devices.metadata.as_ref().unwrap_or(&devices.data));
    let journal = match &options.journal {
        Some(buf) => own_journal(buf, superblock, devices, &options.boot_id, options.moved)?,
        None => None,
    };
    let shared_journal = Rc::new(journal);
    let journal = (*shared_journal).as_ref();
    let usable = journal
        .filter(|found| !found.poisoned)
        .map_or(&[][..], |found| &found.entries);
    let sums = LoadedChecksums::open(metadata.as_ref(), superblock).await?;
    let missing = match planted(Fault::OverlookCut) {
        true => MissingData::default(),
        false => MissingData::find(devices, superblock).await,
    };
    let mut rebuild = Rebuild::new(superblock, forgotten(journal), sums, missing);
    let progress = options.progress.clone().unwrap_or_default();
    let opening_map = options.opening_map.as_ref();
    let paced = opening_map.map(|map| {
        let shared = Rc::clone(&shared_journal);
        map.begin(
            devices,
            superblock,
            shared,
            options.durability,
            options.boot_id,
            &progress,
        );
        map.paced(&metadata)
    });
    let replayed = replay_with(
        paced.as_ref().map_or(metadata.as_ref(), |paced| paced),
        superblock.log,
        superblock.seed(),
        superblock.slots,
        Elsewhere {
            journal: usable,
            reached: superblock.log_reached(journal),
        },
        &progress,
        |found| rebuild.add(found),
    )
    .await;
    // Writes follow, which change the log that the map describes.
    if let Some(map) = opening_map {
        map.close();
    }
    let replayed = replayed?;
    let journal_losses = check_journal(&replayed, journal, options, superblock)?;
    let mut report = RecoveryReport {
        clean_shutdown: replayed.clean,
        // The record that a process of this boot opened the cache may be among the damaged ones.
        power_was_lost: replayed.damaged_records + replayed.unreadable_units == 0
            && journal.is_none()
            && (replayed.last_open.as_ref()).is_some_and(|open| open.boot_id != options.boot_id),
        never_used: replayed.records + replayed.damaged_records + replayed.unreadable_units == 0,
        damaged_records: replayed.damaged_records,
        unreadable_units: replayed.unreadable_units,
        journal_entries: usable.len() as u64,
        lost: lost_ranges(superblock, journal),
        possible_losses: match replayed.damaged_records + replayed.unreadable_units {
            0 => Vec::new(),
            _ => may_be_dirty(superblock),
        },
        journal_losses,
        lost_in_flight: journal.is_some_and(|found| found.in_flight),
        unreported: unreported(superblock),
        ..RecoveryReport::default()
    };
    // From here on the damage may vanish. If this process dies, the next one may not find it.
    if let Some(sink) = &options.report_sink {
        sink.receive(&report).await?;
    }
    rewrite_last_batch(
        metadata.as_ref(),
        superblock.log,
        superblock.seed(),
        &replayed,
    )
    .await?;
    if let Err(error) = order::flush(metadata.as_ref()).await {
        if devices.metadata.is_none() {
            poison_own_journal(devices, superblock, options);
        }
        return Err(error);
    }
    let (tracking, tree) = Tracking::open(&metadata, superblock).await?;
    report.lost_tree_units = tree.lost_units;
    let mut recovered = rebuild.finish(superblock, &replayed, tracking, report);
    if let Some(journal) = journal.filter(|found| found.poisoned) {
        let is_in_doubt = in_doubt::has_unnamed_overwrites(devices.data.as_ref(), journal);
        if is_in_doubt {
            recovered.report.unnamed_overwrites = dirty_volumes(superblock, &recovered.map);
        }
        let geometry = Geometry::of(superblock);
        in_doubt::rewrite(devices.data.as_ref(), &geometry, journal, &recovered.map).await;
    }
    Ok(recovered)
}

/// Returns the names of the volumes with dirty data.
fn dirty_volumes(superblock: &Superblock, map: &Map) -> Vec<String> {
    let volumes = superblock.volumes.iter();
    let dirty = volumes.filter(|volume| map.share(volume.id).dirty_bytes > 0);
    dirty.map(|volume| volume.name.clone()).collect()
}

/// Returns the names of the volumes with a loss that no start has reported.
fn unreported(superblock: &Superblock) -> Vec<String> {
    let volumes = superblock.volumes.iter();
    let owing = volumes.filter(|volume| volume.has_unreported_loss);
    owing.map(|volume| volume.name.clone()).collect()
}

/// Records in the process journal that a flush of the data device failed before the log was
/// replayed. A killed process may have left data in the device's cache that only the journal names.
/// The next opening reports that data as lost (rule 9). The journal of another cache stays as it
/// is.
pub(crate) fn poison_own_journal(
    devices: &Devices,
    superblock: &Superblock,
    options: &CacheOptions,
) {
    let CacheOptions { boot_id, moved, .. } = options;
    if let Some(buf) = &options.journal
        && let Ok(Some(_)) = own_journal(buf, superblock, devices, boot_id, *moved)
    {
        Journal::poison_remains(buf, &superblock.uuid, boot_id);
    }
}

/// Returns the ranges that may be lost with a missing or damaged journal, if the options accept
/// that.
fn check_journal(
    replayed: &Replayed,
    journal: Option<&Recovered>,
    options: &CacheOptions,
    superblock: &Superblock,
) -> Result<Option<Vec<LostRange>>> {
    match journal_trouble(replayed, journal, &options.boot_id, superblock) {
        Some(trouble) if !options.accept_journal_loss => Err(trouble),
        trouble => Ok(trouble.map(|_| may_be_dirty(superblock))),
    }
}

/// Returns the dirty data that a failed flush of the cache device took.
pub(crate) fn lost_ranges(superblock: &Superblock, journal: Option<&Recovered>) -> Vec<LostRange> {
    let Some(poisoned) = journal.filter(|found| found.poisoned) else {
        return Vec::new();
    };
    let geometry = Geometry::of(superblock);
    let name = |record: &BlockRecord| {
        superblock
            .volumes
            .iter()
            .find(|volume| volume.id == record.volume)
            .map_or_else(
                || format!("#{}", record.volume),
                |volume| volume.name.clone(),
            )
    };
    let dirty = poisoned.entries.iter();
    let lost = dirty
        .filter(|(_, record)| record.dirty != 0)
        .map(|(_, record)| LostRange {
            volume: name(record),
            offset: record.block * geometry.unit_bytes(),
            len: geometry.block_bytes(record.class),
        });
    LostRange::joined(lost.collect())
}

/// A block in its slot: volume, first unit, slot.
pub(crate) type Placed = (u16, u64, Slot);

/// Returns the clean data that was in doubt when a flush of the cache device failed. The backing
/// device has that data.
pub(crate) fn forgotten(journal: Option<&Recovered>) -> HashSet<Placed> {
    let poisoned = journal.filter(|found| found.poisoned).into_iter();
    poisoned
        .flat_map(|found| &found.entries)
        .filter(|(_, record)| record.dirty == 0)
        .map(|(_, record)| (record.volume, record.block, Slot::new(record.slot)))
        .collect()
}
