//! From what is on media to a map in memory.

use std::collections::HashSet;
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_metadata::journal::{Journal, Recovered};
use forebay_metadata::log::Log;
use forebay_metadata::order;
use forebay_metadata::record::{BlockRecord, MarkState};
use forebay_metadata::replay::{Replayed, replay, rewrite_last_batch};
use forebay_metadata::superblock::Superblock;
use forebay_policy::{BlockId, Misplaced};

use crate::geometry::{Block, Geometry};
use crate::integrity::{CELL, LoadedSums, Sums};
use crate::map::{Map, NO_RECORD};
use crate::options::{CacheOptions, Devices};
use crate::region::Regions;
use crate::tracking::Tracking;

/// A range of a volume whose acknowledged, unflushed data is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The volume's name.
    pub volume: String,
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

/// What opening a cache found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// The last shutdown was clean.
    pub clean_shutdown: bool,
    /// There was no record at all: the cache is as it was formatted.
    pub never_used: bool,
    /// Blocks that are cached.
    pub cached_blocks: u64,
    /// Blocks that count as dirty.
    pub dirty_blocks: u64,
    /// Records of acknowledged writes that the process journal had and the log had not.
    pub journal_entries: u64,
    /// Damaged records in the log.
    pub damaged_records: u64,
    /// Units of the log that could not be read.
    pub unreadable_units: u64,
    /// Of the dirty blocks, those that no record calls so: what a mark or the bit-tree covers, or all.
    pub doubtful_blocks: u64,
    /// Units of the bit-tree that could not be believed, and count as all dirty.
    pub lost_tree_units: u32,
    /// Bytes of cached data whose checksums are not known; they are believed.
    pub unverified_bytes: u64,
    /// Blocks whose clean copy was dropped because a write may have gone round it.
    pub distrusted_blocks: u64,
    /// Acknowledged and not flushed before a flush of the cache device failed: lost.
    pub lost: Vec<LostRange>,
}

/// What lies at a place and holds nothing, but for a record that is alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zombie {
    pub(crate) place: u32,
    pub(crate) class: u8,
    /// The place waits for the record's death; otherwise something else is there already.
    pub(crate) held: bool,
}

/// A recovered map, before the cache goes into service.
pub(crate) struct RecoveredMap {
    pub(crate) map: Map,
    pub(crate) regions: Regions,
    pub(crate) log: Log,
    /// Slots whose records differ from the map, to be logged first.
    pub(crate) stale: Vec<BlockId>,
    /// Slots that hold nothing but whose records are alive: killed before they are free.
    pub(crate) zombies: Vec<Zombie>,
    /// Slots dirty though no record says so.
    pub(crate) unrecorded: Vec<BlockId>,
    pub(crate) tracking: Tracking,
    pub(crate) sums: Option<Sums>,
    pub(crate) report: RecoveryReport,
}

/// Reads the map. Nothing is written but padding where a crash tore the log, and, of a bit-tree, its epoch and
/// what was read of it.
pub(crate) async fn recover(
    devices: &Devices,
    superblock: &mut Superblock,
    options: &CacheOptions,
) -> Result<RecoveredMap> {
    let metadata = Rc::clone(devices.metadata.as_ref().unwrap_or(&devices.data));
    let journal = options
        .journal
        .as_ref()
        .and_then(|buf| Journal::recover(buf, &superblock.uuid, &options.boot_id));
    let usable = journal
        .as_ref()
        .filter(|found| !found.poisoned)
        .map_or(&[][..], |found| &found.entries);
    let replayed = replay(
        metadata.as_ref(),
        superblock.log,
        superblock.seed(),
        superblock.slots,
        usable,
    )
    .await?;
    check_journal(&replayed, journal.as_ref(), options)?;
    rewrite_last_batch(
        metadata.as_ref(),
        superblock.log,
        superblock.seed(),
        &replayed,
    )
    .await?;
    if let Err(error) = order::flush(metadata.as_ref()).await {
        // What a killed process wrote to this device, and only the journal names, may have gone with it (rule 9).
        if devices.metadata.is_none()
            && let Some(buf) = &options.journal
        {
            Journal::poison_remains(buf, &superblock.uuid, &options.boot_id);
        }
        return Err(error);
    }
    let (tracking, tree) = Tracking::open(&metadata, superblock).await?;
    let sums = LoadedSums::open(metadata.as_ref(), superblock).await?;
    let mut report = RecoveryReport {
        lost_tree_units: tree.lost_units,
        clean_shutdown: replayed.clean,
        never_used: replayed.records + replayed.damaged_records + replayed.unreadable_units == 0,
        damaged_records: replayed.damaged_records,
        unreadable_units: replayed.unreadable_units,
        journal_entries: usable.len() as u64,
        lost: lost_ranges(superblock, journal.as_ref()),
        ..RecoveryReport::default()
    };
    let forgotten = forgotten(journal.as_ref());
    Ok(build(
        superblock,
        &replayed,
        &forgotten,
        tracking,
        sums,
        &mut report,
    ))
}

/// What is wrong with the process journal, if acknowledged writes are lost for it: going on as if nothing
/// had happened would lie to the clients.
pub(crate) fn journal_trouble(
    replayed: &Replayed,
    journal: Option<&Recovered>,
    boot_id: &[u8; 16],
) -> Option<String> {
    const ACCEPT: &str =
        "or start with --accept-journal-loss and check what the clients stored last";
    if let Some(found) = journal.filter(|found| found.damaged > 0) {
        return Some(format!(
            "the process journal is damaged: of {} acknowledged writes that the log has not, {} cannot be read and are lost. Put a sound copy of it back, {ACCEPT}",
            found.entries.len() as u64 + found.damaged,
            found.damaged
        ));
    }
    let kept = (replayed.last_open.as_ref()).is_some_and(|(open, kept)| *kept && open == boot_id);
    (!replayed.clean && kept && journal.is_none()).then(|| {
        format!(
            "the process that served this cache died in this boot of the machine, and its process journal is gone, or was cut: writes that it acknowledged after the last flush may be lost. Put the journal back, {ACCEPT}"
        )
    })
}

fn check_journal(
    replayed: &Replayed,
    journal: Option<&Recovered>,
    options: &CacheOptions,
) -> Result<()> {
    match journal_trouble(replayed, journal, &options.boot_id) {
        Some(trouble) if !options.accept_journal_loss => Err(Error::new(ErrorKind::Lost, trouble)),
        _ => Ok(()),
    }
}

fn lost_ranges(superblock: &Superblock, journal: Option<&Recovered>) -> Vec<LostRange> {
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
    dirty
        .filter(|(_, record)| record.dirty != 0)
        .map(|(_, record)| LostRange {
            volume: name(record),
            offset: record.block * geometry.unit_bytes(),
            len: geometry.block_bytes(record.class),
        })
        .collect()
}

/// A block at its place: volume, first unit, place.
type Placed = (u16, u64, u32);

/// What was clean, and in doubt, when a flush of the cache device failed: the backing device has it.
fn forgotten(journal: Option<&Recovered>) -> HashSet<Placed> {
    let poisoned = journal.filter(|found| found.poisoned).into_iter();
    poisoned
        .flat_map(|found| &found.entries)
        .filter(|(_, record)| record.dirty == 0)
        .map(|(_, record)| (record.volume, record.block, record.slot))
        .collect()
}

/// A block is kept, and will be written back, though a record that let it go may have been damaged.
fn tell_of_doubt(superblock: &Superblock, geometry: &Geometry, record: &BlockRecord) {
    let mut volumes = superblock.volumes.iter();
    let volume = volumes.find(|volume| volume.id == record.volume);
    tracing::warn!(
        volume = volume.map(|volume| volume.name.as_str()),
        offset = record.block * geometry.unit_bytes(),
        len = geometry.block_bytes(record.class),
        "kept as dirty; newer records are damaged, and one of them may have said otherwise: check what was stored there"
    );
}

/// Lets go of the places that are held in a group. Returns whether there are any.
fn release_held(map: &mut Map, zombies: &mut [Zombie], group: u32) -> bool {
    let top = map.table().sizes().top();
    let mut released = false;
    for zombie in zombies {
        if zombie.held && zombie.place >> top == group {
            map.release(zombie.place, zombie.class);
            zombie.held = false;
            released = true;
        }
    }
    released
}

fn build(
    superblock: &Superblock,
    replayed: &Replayed,
    forgotten: &HashSet<Placed>,
    tracking: Tracking,
    mut sums: Option<LoadedSums>,
    report: &mut RecoveryReport,
) -> RecoveredMap {
    let geometry = Geometry::of(superblock);
    let mut map = Map::new(geometry, superblock.slots);
    let regions = Regions::new(superblock.region_shift);
    let unit = superblock.log.unit_records();
    let next = replayed.next.next_multiple_of(unit);
    let mut log = Log::new(superblock.log, superblock.seed(), replayed.tail, next);
    let known: HashSet<u16> = superblock.volumes.iter().map(|volume| volume.id).collect();

    for mark in replayed
        .marks
        .iter()
        .filter(|mark| known.contains(&mark.volume))
    {
        let place = u32::try_from(mark.lsn % log.capacity()).expect("a ring place");
        regions.restore(mark.volume, mark.region, mark.state, place);
    }

    // A lost record may have been a mark.
    let is_damaged = replayed.damaged_records + replayed.unreadable_units > 0;
    let mut stale = Vec::new();
    let mut zombies = Vec::new();
    let mut unrecorded = Vec::new();
    // Oldest first, so that recency follows the log, and of two records of one block the newer stays.
    for found in &replayed.blocks {
        let record = found.block;
        let block = Block {
            unit: record.block,
            class: record.class,
        };
        if !known.contains(&record.volume) || !geometry.sizes().has(record.class) {
            continue;
        }
        let state = match regions.state(block.key(record.volume)) {
            // After a clean end the records are exact.
            MarkState::None
                if !replayed.clean && tracking.may_be_dirty(record.slot, record.class) =>
            {
                MarkState::MaybeDirty
            }
            state => state,
        };
        let mut valid = record.valid;
        let mut dirty = record.dirty & valid;
        match state {
            MarkState::MaybeDirty => dirty = valid,
            MarkState::Intent => valid = dirty,
            MarkState::None => {}
        }
        if found.reduced {
            match state {
                // What was written in place stands nowhere else.
                MarkState::MaybeDirty => tell_of_doubt(superblock, &geometry, &record),
                MarkState::Intent | MarkState::None => valid = dirty,
            }
        }
        if forgotten.contains(&(record.volume, record.block, record.slot)) {
            (valid, dirty) = (0, 0);
        }
        report.distrusted_blocks += u64::from(valid != record.valid);
        let region = geometry.region_of(block.unit);
        let units = geometry.span(block).mask();
        let older: Vec<BlockId> = map
            .overlapping(record.volume, region, units)
            .map(|(slot, _)| slot)
            .collect();
        for older in older {
            let place = map.place(older);
            let class = map.retire(older);
            // Its number is given out again.
            stale.retain(|slot| *slot != older);
            unrecorded.retain(|slot| *slot != older);
            zombies.push(Zombie {
                place,
                class,
                held: true,
            });
        }
        if valid == 0 {
            zombies.push(Zombie {
                place: record.slot,
                class: record.class,
                held: map.hold(record.slot, record.class),
            });
            continue;
        }
        let slot = loop {
            match map.restore(record.slot, record.volume, block, valid, dirty) {
                Ok(slot) => break Some(slot),
                // Two blocks in one place, which only damage leaves: the newer is right.
                Err(Misplaced::Taken(other)) => {
                    zombies.push(Zombie {
                        place: map.place(other),
                        class: map.slot(other).class,
                        held: false,
                    });
                    map.remove(other);
                    stale.retain(|slot| *slot != other);
                    unrecorded.retain(|slot| *slot != other);
                }
                // The kill of an older block in this group was lost to damage; it will be logged again.
                Err(Misplaced::Held) => {
                    if !release_held(
                        &mut map,
                        &mut zombies,
                        record.slot >> geometry.sizes().top(),
                    ) {
                        break None;
                    }
                }
                Err(Misplaced::NoSuchPlace) => break None,
            }
        };
        let Some(slot) = slot else {
            zombies.push(Zombie {
                place: record.slot,
                class: record.class,
                held: false,
            });
            report.damaged_records += 1;
            continue;
        };
        if let Some(lsn) = found.lsn {
            let place = u32::try_from(lsn % log.capacity()).expect("a ring place");
            map.set_record(slot, place);
        }
        // Of what was overwritten since, its record's checksums must not be believed once the mark has gone.
        let open = sums.is_some() && (state != MarkState::None || is_damaged);
        if let Some(sums) = &mut sums {
            sums.restore(&record, open);
        }
        if valid != record.valid || found.journaled || found.reduced || open {
            stale.push(slot);
        }
        if dirty != record.dirty && state == MarkState::MaybeDirty {
            unrecorded.push(slot);
        }
    }
    if !tracking.is_exact() {
        for slot in &unrecorded {
            regions.restore_unlogged(map.slot(*slot).key);
        }
    }
    // A cache that dies again and again while it opens must not fill its log with what it has already
    // logged again.
    let marks = (0..regions.numbers()).filter_map(|id| regions.record_at(id));
    let slots = (0..map.numbers()).map(|slot| map.record_at(slot));
    let counting = marks.chain(slots).filter(|place| *place != NO_RECORD);
    log.give_up_before(counting);
    report.cached_blocks = map.len() as u64;
    report.dirty_blocks = map.dirty_blocks();
    report.doubtful_blocks = unrecorded.len() as u64;
    report.unverified_bytes = (sums.as_ref()).map_or(0, |sums| sums.unknown * u64::from(CELL));
    RecoveredMap {
        map,
        regions,
        log,
        stale,
        zombies,
        unrecorded,
        tracking,
        sums: sums.map(LoadedSums::finish),
        report: report.clone(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_metadata::log::LogGeometry;
    use forebay_metadata::replay::FoundBlock;
    use forebay_metadata::superblock::{DirtyTracking, Role, VolumeEntry};

    use super::*;

    #[test]
    fn of_two_that_overlap_in_one_group_the_newer_stays() {
        let superblock = Superblock {
            sequence: 1,
            compat: 0,
            ro_compat: 0,
            incompat: 1,
            sums_offset: 0,
            uuid: [1; 16],
            role: Role::Whole,
            region_shift: 6,
            block_size_bytes: 4096,
            classes: 0b11,
            slots: 16,
            data_offset: 1 << 20,
            log: LogGeometry {
                offset: 131_072,
                records: 1024,
                unit_bytes: 512,
            },
            dirty_tracking: DirtyTracking::Exact,
            tree_offset: 0,
            tree_epoch: 1,
            next_volume: 2,
            volumes: vec![VolumeEntry {
                id: 1,
                name: "v".into(),
                epoch: 1,
                size_bytes: 1 << 20,
                identity: 0,
            }],
        };
        let found = |class, block, slot, lsn, valid, dirty| FoundBlock {
            block: BlockRecord {
                volume: 1,
                class,
                block,
                slot,
                valid,
                dirty,
                bad: 0,
                sums: 0,
            },
            lsn: Some(lsn),
            journaled: false,
            reduced: false,
        };
        // The kill of the older one was lost to damage.
        for older_dirty in [0b11, 0] {
            let replayed = Replayed {
                blocks: vec![
                    found(1, 0, 0, 10, older_dirty, older_dirty),
                    found(0, 1, 1, 20, 1, 1),
                ],
                next: 64,
                tail: 0,
                ..Replayed::default()
            };
            let mut report = RecoveryReport::default();
            let recovered = build(
                &superblock,
                &replayed,
                &HashSet::new(),
                Tracking::Exact,
                None,
                &mut report,
            );
            assert_eq!(
                (
                    recovered.report.dirty_blocks,
                    recovered.report.damaged_records
                ),
                (1, 0),
                "older {older_dirty:b}: the newer, dirty, is in a sound record"
            );
        }
    }
}
