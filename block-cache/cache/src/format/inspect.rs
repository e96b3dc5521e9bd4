//! Inspection of a cache that is not open: its volumes, its log and its problems.

use std::collections::{HashMap, HashSet};

use forebay_block::{Buf, Error, ErrorKind, Identity, Result};
use forebay_metadata::journal::Journal;
use forebay_metadata::record::{BlockRecord, MarkState};
use forebay_metadata::replay::{Elsewhere, FoundBlock, Replayed, replay};
use forebay_metadata::superblock::{DirtyTracking, Superblock};
use forebay_metadata::tree;
use forebay_policy::{BlockSizes, Slot};

use super::check_roles;
use crate::checksum::LoadedChecksums;
use crate::geometry::slots;
use crate::geometry::{Block, Geometry};
use crate::lost_range::LostRange;
use crate::lost_range::ranges;
use crate::map::marks::after_crash;
use crate::media::journal_trouble;
use crate::media::missing::MissingData;
use crate::media::{check_relation, media_of};
use crate::options::Devices;
use crate::recover::{Placed, forgotten, lost_ranges};
use crate::recovery_report::damage_of_log;

/// A volume of a cache that is not open.
#[derive(Clone, Debug)]
pub struct InspectedVolume {
    /// Name.
    pub name: String,
    /// Epoch of its last attachment.
    pub epoch: u64,
    /// Size of the backing device then, bytes.
    pub size_bytes: u64,
    /// Identity of the backing device at that time.
    pub identity: Identity,
    /// Bytes of the blocks of it that the next start keeps.
    pub cached_bytes: u64,
    /// Bytes that the backing device may lack, in granules.
    pub dirty_bytes: u64,
    /// End of the last dirty data, in bytes. The backing device must not end before it.
    pub dirty_end_bytes: u64,
    /// Whether a start must still report a loss of acknowledged writes.
    pub owes_report: bool,
    /// Whether this loss is data that an earlier opening found lost.
    pub has_unreported_loss: bool,
    /// Byte at which the backing device differed from a clean copy at the last attach; none if it
    /// did at none.
    pub differs_at: Option<u64>,
}

/// Content of the cache's devices.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The cache's identity.
    pub uuid: [u8; 16],
    /// The smallest cache block size, bytes.
    pub block_size_bytes: u32,
    /// All cache block sizes: `32K`, `32K..256K`.
    pub block_sizes: String,
    /// The same, as block sizes.
    pub(crate) sizes: BlockSizes,
    /// Method by which the cache knows after a crash which blocks were overwritten in place.
    pub dirty_tracking: DirtyTracking,
    /// Whether cached data has checksums.
    pub checksums: bool,
    /// Blocks of the smallest size that fit.
    pub blocks: u32,
    /// Whether the last shutdown was clean.
    pub clean_shutdown: bool,
    /// Records in the log that count.
    pub records: u64,
    /// Records that are damaged.
    pub damaged_records: u64,
    /// Units of the log that could not be read.
    pub unreadable_units: u64,
    /// Problems of the map, one message each. Empty if the map is sound.
    pub problems: Vec<String>,
    /// Dirty data that records call corrupt. No repair restores it.
    pub corrupt: Vec<LostRange>,
    /// Problem of the process journal. Until the operator decides, neither a start nor a repair
    /// continues without the journal.
    pub journal_problem: Option<Error>,
    /// Notes for the operator, one message each. They are not problems.
    pub notes: Vec<String>,
    /// Damage that loses no data, since another copy or a safe assumption replaces the damaged
    /// part. Each message says how it is repaired.
    pub spare_damage: Vec<String>,
    /// The volumes that it knows.
    pub volumes: Vec<InspectedVolume>,
    /// Numbers that the cache can still give to new volumes.
    pub(crate) free_numbers: u16,
}

/// Reads a cache, and its process journal if it has one, without opening or changing it. `boot_id`
/// names this boot of the machine.
///
/// # Errors
/// `NotFound` if there is none, `Corrupt`, `Unsupported`, or the device's own error.
pub async fn inspect(
    devices: &Devices,
    journal: Option<&Buf>,
    boot_id: &[u8; 16],
) -> Result<Inspection> {
    let metadata = devices.metadata.as_ref().unwrap_or(&devices.data);
    let superblock = Superblock::read(metadata.as_ref()).await?;
    check_roles(devices, &superblock).await?;
    let found = journal.and_then(|buf| Journal::recover(buf, &superblock.uuid, boot_id));
    let generation = superblock.service.generation;
    let relation = found.as_ref().map_or(Ok(()), |found| {
        check_relation(found.tie, media_of(devices), generation, false)
    });
    // A journal of other devices, or of another opening, says nothing of this cache.
    let journal = found.filter(|_| relation.is_ok());
    let entries = (journal.as_ref())
        .filter(|recovered| !recovered.poisoned)
        .map_or(&[][..], |recovered| &recovered.entries);
    let mut blocks = Vec::new();
    let replayed = replay(
        metadata.as_ref(),
        superblock.log,
        superblock.seed(),
        superblock.slots,
        Elsewhere {
            journal: entries,
            reached: superblock.log_reached(journal.as_ref()),
        },
        |found| blocks.extend_from_slice(found),
    )
    .await?;
    // Oldest first, as they came to be.
    blocks.reverse();
    let tree = match superblock.tree() {
        Some(extent) => Some(tree::look(metadata.as_ref(), extent, superblock.seed()).await?),
        None => None,
    };
    let overwritten = |block: &BlockRecord| match (&tree, superblock.dirty_tracking) {
        (Some((tree, _)), _) => tree.may_be_dirty(slots(Slot::new(block.slot), block.class)),
        (None, tracking) => tracking == DirtyTracking::None,
    };
    let mut missing = MissingData::find(devices, &superblock).await;
    let is_doubtful = missing.has_doubtful() && lie_in_doubt(&missing, &superblock, &blocks);
    missing.decide_last_holes(is_doubtful, cut_at(&missing, &superblock, &blocks));
    let sums = match missing.is_empty() {
        true => None,
        false => LoadedChecksums::open(metadata.as_ref(), &superblock).await?,
    };
    let sums = sums.map(|mut sums| {
        blocks.iter().for_each(|found| sums.restore(&found.block));
        sums
    });
    let missing = (&missing, sums.as_ref());
    let dropped = forgotten(journal.as_ref());
    let mut inspection = describe(
        &superblock,
        &replayed,
        &blocks,
        missing,
        overwritten,
        &dropped,
    );
    let trouble = journal_trouble(&replayed, journal.as_ref(), boot_id, &superblock);
    inspection.journal_problem = match relation {
        Ok(()) => trouble,
        // A copy that was shut down cleanly needs none.
        Err(error) if error.kind() == ErrorKind::Busy => trouble.map(|_| error),
        Err(error) => Some(error),
    };
    if let Some(journal) = journal.filter(|journal| journal.poisoned) {
        let lost = lost_ranges(&superblock, Some(&journal));
        let names = match journal.in_flight {
            true => "the unacknowledged writes that were in flight",
            false => "the LOST writes, which were acknowledged since the last successful flush",
        };
        match lost.is_empty() {
            true => inspection.notes.push(
                "a flush or write of the cache device failed. No acknowledged write was \
                 lost by that"
                    .to_owned(),
            ),
            false => inspection.problems.push(format!(
                "a flush of the cache device failed: the next start lists {names}"
            )),
        }
    }
    inspection.spare_damage = spare_damage(devices).await;
    if let Some((_, report)) = tree
        && report.lost_units > 0
    {
        inspection.spare_damage.push(format!(
            "{} of the {} units of the bit-tree are damaged in both copies: the next start writes \
             back all their blocks",
            report.lost_units, report.units
        ));
    }
    Ok(inspection)
}

/// Returns whether a cached block lies in a hole of the data device that no truncation made.
fn lie_in_doubt(missing: &MissingData, superblock: &Superblock, blocks: &[FoundBlock]) -> bool {
    let geometry = Geometry::of(superblock);
    blocks.iter().any(|FoundBlock { block, .. }| {
        let (slot, size) = (Slot::new(block.slot), size_of(superblock, block));
        missing.is_doubtful(&geometry, (held(block), block.valid), slot, size)
    })
}

/// Returns the byte of the data device at which a truncation begins, if the last holes are one.
fn cut_at(missing: &MissingData, superblock: &Superblock, blocks: &[FoundBlock]) -> Option<u64> {
    let geometry = Geometry::of(superblock);
    let cuts = blocks.iter().filter_map(|FoundBlock { block, .. }| {
        let (slot, size) = (Slot::new(block.slot), size_of(superblock, block));
        missing.cut_start(&geometry, (held(block), block.valid), slot, size)
    });
    cuts.min()
}

/// Returns the size of the volume of a block, bytes.
fn size_of(superblock: &Superblock, block: &BlockRecord) -> u64 {
    let volume = (superblock.volumes.iter()).find(|known| known.id == block.volume);
    volume.map_or(0, |known| known.size_bytes)
}

/// Returns the block of a record.
const fn held(block: &BlockRecord) -> Block {
    Block {
        unit: block.block,
        class: block.class,
    }
}

/// `overwritten`: whether a block counts as dirty whatever its record says, as something else than
/// a mark says. The next start forgets the `forgotten` blocks.
fn describe(
    superblock: &Superblock,
    replayed: &Replayed,
    blocks: &[FoundBlock],
    (missing, sums): (&MissingData, Option<&LoadedChecksums>),
    overwritten: impl Fn(&BlockRecord) -> bool,
    forgotten: &HashSet<Placed>,
) -> Inspection {
    let geometry = Geometry::of(superblock);
    let (mut problems, mut corrupt) = (Vec::new(), Vec::new());
    let mut seen = HashMap::new();
    for found in blocks {
        let block = &found.block;
        corrupt.extend(known_corrupt(superblock, &geometry, block));
        if block.dirty & !block.valid != 0 {
            problems.push(format!(
                "slot {}: dirty granules that are not valid",
                block.slot
            ));
        }
        let units = if block.valid == 0 {
            0
        } else {
            1 << block.class.min(6)
        };
        for unit in block.block..block.block + units {
            if let Some(other) = seen.insert((block.volume, unit), block.slot) {
                problems.push(format!(
                    "block {unit} of volume {} is in slots {other} and {}",
                    block.volume, block.slot
                ));
            }
        }
    }
    problems.extend(damage_of_log(
        replayed.damaged_records,
        replayed.unreadable_units,
    ));
    let marks: HashMap<(u16, u64), MarkState> = replayed
        .marks
        .iter()
        .map(|mark| ((mark.volume, mark.region), mark.state))
        .collect();
    let state_of = |block: &BlockRecord| {
        let region = (block.volume, block.block >> superblock.region_shift);
        match marks.get(&region).copied().unwrap_or(MarkState::None) {
            MarkState::None if !replayed.clean && overwritten(block) => MarkState::MaybeDirty,
            state => state,
        }
    };
    // Valid and dirty granules, and those that are missing. As `Rebuild::finish` decides.
    let after_start = |block: &BlockRecord, size_bytes: u64| {
        let slot = Slot::new(block.slot);
        if forgotten.contains(&(block.volume, block.block, slot)) {
            return (0, 0, 0);
        }
        let state = state_of(block);
        let (mut valid, dirty) = after_crash(state, block.valid, block.dirty);
        if replayed.damaged_records > 0 && state != MarkState::MaybeDirty {
            valid = dirty;
        }
        let held = held(block);
        let lost = missing.granules(&geometry, (held, valid), slot, size_bytes);
        let is_exact = state != MarkState::MaybeDirty && replayed.damaged_records == 0;
        let sums = sums.filter(|_| is_exact);
        let zeroes = sums.map_or(0, |it| it.zero_granules(slot, block.class, lost));
        (valid, dirty, lost & !zeroes)
    };
    let mut cut = Vec::new();
    let volumes = (superblock.volumes.iter()).map(|volume| {
        let mut inspected = InspectedVolume {
            name: volume.name.clone(),
            epoch: volume.epoch,
            size_bytes: volume.size_bytes,
            identity: volume.identity,
            cached_bytes: 0,
            dirty_bytes: 0,
            dirty_end_bytes: 0,
            owes_report: volume.flush_failed || volume.has_unreported_loss,
            has_unreported_loss: volume.has_unreported_loss,
            differs_at: volume.differs_at,
        };
        let own = blocks.iter().map(|found| &found.block);
        for block in own.filter(|block| block.volume == volume.id) {
            let (valid, dirty, lost) = after_start(block, volume.size_bytes);
            cut.extend(ranges(&geometry, &volume.name, held(block), lost & dirty));
            let (valid, dirty) = (valid & !lost, dirty & !lost);
            if valid == 0 {
                continue;
            }
            inspected.cached_bytes += geometry.block_bytes(block.class);
            let granule = geometry.granule_bytes(block.class);
            inspected.dirty_bytes += u64::from(dirty.count_ones()) * granule;
            if dirty != 0 {
                let granules = u64::from(64 - dirty.leading_zeros());
                let end = block.block * geometry.unit_bytes() + granules * granule;
                let end = end.min(volume.size_bytes);
                inspected.dirty_end_bytes = inspected.dirty_end_bytes.max(end);
            }
        }
        inspected
    });
    let volumes = volumes.collect();
    problems.extend(LostRange::joined(cut).into_iter().map(|range| {
        format!(
            "volume {}: {} dirty bytes at {} ARE LOST: the cache device was truncated there",
            range.volume, range.len, range.offset
        )
    }));
    Inspection {
        uuid: superblock.uuid,
        block_size_bytes: superblock.block_size_bytes,
        block_sizes: geometry.sizes().to_string(),
        sizes: geometry.sizes(),
        free_numbers: u16::MAX - superblock.next_volume,
        dirty_tracking: superblock.dirty_tracking,
        checksums: superblock.has_checksums(),
        blocks: superblock.slots,
        clean_shutdown: replayed.clean,
        records: replayed.records,
        damaged_records: replayed.damaged_records,
        unreadable_units: replayed.unreadable_units,
        problems,
        corrupt: LostRange::joined(corrupt),
        journal_problem: None,
        notes: Vec::new(),
        spare_damage: Vec::new(),
        volumes,
    }
}

/// Returns the ranges of dirty data that records call corrupt.
fn known_corrupt(
    superblock: &Superblock,
    geometry: &Geometry,
    block: &BlockRecord,
) -> Vec<LostRange> {
    let mut volumes = superblock.volumes.iter();
    let volume = volumes.find(|volume| volume.id == block.volume);
    let Some(volume) = volume.filter(|_| superblock.has_checksums()) else {
        return Vec::new();
    };
    ranges(geometry, &volume.name, held(block), block.bad & block.dirty)
}

/// Describes each damaged copy of the superblock whose other copy is sound, and the repair.
pub async fn spare_damage(devices: &Devices) -> Vec<String> {
    let metadata = devices.metadata.as_ref().unwrap_or(&devices.data);
    let mut damage = Vec::new();
    let apart = devices.metadata.is_some().then_some(&devices.data);
    for device in [Some(metadata), apart].into_iter().flatten() {
        if Superblock::sound_copies(device.as_ref()).await == 1 {
            damage.push(format!(
                "one of the two copies of the superblock on {} is damaged: nothing is lost, and \
                 the next start rewrites it",
                device.info().name
            ));
        }
    }
    damage
}
