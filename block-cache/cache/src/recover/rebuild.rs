//! Builds the map from the results of a replay.
//!
//! Blocks are added in the order of the replay, newest first. So a block that overlaps one in the
//! map is older than that one. Marks, the bit-tree and damage are applied when all blocks are
//! there: a mark may be older than the records of its blocks.

use std::collections::{HashMap, HashSet};

use forebay_metadata::log::Log;
use forebay_metadata::record::MarkState;
use forebay_metadata::replay::{FoundBlock, Replayed};
use forebay_metadata::superblock::Superblock;
use forebay_policy::{BlockId, BlockKey, Misplaced, Slot};

use crate::checksum::{CELL, LoadedChecksums};
use crate::failpoints::{Fault, planted};
use crate::geometry::{Block, Geometry};
use crate::intent::dirty_tracking::Tracking;
use crate::lost_range::LostRange;
use crate::lost_range::ranges;
use crate::map::marks::{Marks, after_crash};
use crate::map::restore::known_volumes;
use crate::map::{BlockState, LIVE, Map, NO_RECORD};
use crate::media::missing::MissingData;
use crate::recover::{OrphanRecord, Placed, RecoveredMap};
use crate::recovery_report::RecoveryReport;

/// Flags of a block for the pass after all blocks are there. Its region has a `MaybeDirty` mark.
const MAYBE_DIRTY: u8 = 1;
const INTENT: u8 = 2;
/// The process journal named the block.
const JOURNALED: u8 = 8;
/// Its clean data must not be trusted.
const FORGOTTEN: u8 = 16;
/// It holds nothing.
const EMPTY: u8 = 32;

/// A map that is being put together.
pub(crate) struct Rebuild {
    geometry: Geometry,
    log_records: u64,
    map: Map,
    /// By number: whether there is such a volume.
    volumes: Vec<bool>,
    forgotten: HashSet<Placed>,
    /// Whether a region may have blocks already, by its hash. Most have none. A look-up without
    /// this filter would miss the processor's caches.
    filter: Vec<u64>,
    /// Flags, by the block's number.
    notes: Vec<u8>,
    sums: Option<LoadedChecksums>,
    /// Where nothing of the data is left.
    missing: MissingData,
    orphans: Vec<OrphanRecord>,
    /// Blocks that lie where none can.
    misplaced: u64,
}

impl Rebuild {
    /// Returns an empty map. Clean data of `forgotten` blocks must not be trusted.
    pub(crate) fn new(
        superblock: &Superblock,
        forgotten: HashSet<Placed>,
        sums: Option<LoadedChecksums>,
        missing: MissingData,
    ) -> Self {
        let geometry = Geometry::of(superblock);
        Self {
            geometry,
            log_records: superblock.log.records,
            map: Map::new(geometry, superblock.slots),
            volumes: known_volumes(superblock),
            forgotten,
            // With eight bits a slot, at most one look in eight finds the bit of another region.
            filter: vec![0; (superblock.slots as usize / 8).next_power_of_two()],
            notes: vec![0; superblock.slots as usize],
            sums,
            missing,
            orphans: Vec::new(),
            misplaced: 0,
        }
    }

    /// Adds the next blocks of a replay.
    pub(crate) fn add(&mut self, found: &[FoundBlock]) {
        self.look_ahead(found);
        for block in found {
            self.add_one(block);
        }
    }

    /// Touches the memory that adding these blocks changes, so that the processor loads it at once.
    fn look_ahead(&self, found: &[FoundBlock]) {
        let words = found.iter().map(|found| {
            let region = self.geometry.region_of(found.block.block);
            self.filter[self.filtered(found.block.volume, region).0]
        });
        std::hint::black_box(words.fold(0, std::ops::BitXor::bitxor));
        self.map.look_ahead(found);
    }

    fn add_one(&mut self, found: &FoundBlock) {
        let (record, geometry) = (found.block, self.geometry);
        let known = self.volumes.get(usize::from(record.volume));
        if known != Some(&true) || !geometry.sizes().has(record.class) {
            return;
        }
        let block = Block {
            unit: record.block,
            class: record.class,
        };
        let region = geometry.region_of(block.unit);
        let units = geometry.span(block).mask();
        // A block that is there already is newer.
        let newer = match self.is_first_of(record.volume, region) {
            true => None,
            false => self.map.overlapping(record.volume, region, units).next(),
        };
        let slot = Slot::new(record.slot);
        let held = match newer {
            Some(_) => self.map.hold(slot, record.class),
            None => {
                let (volume, valid, dirty) = (record.volume, record.valid, record.dirty);
                match (self.map).restore(slot, volume, block, valid, dirty & valid) {
                    Ok(id) => return self.added(id, found),
                    // Two blocks in one slot, which only damage leaves: the newer is right. Or the
                    // kill of this one was lost, and its group was given to another size since.
                    Err(Misplaced::Taken(_) | Misplaced::Held) => {}
                    Err(Misplaced::NoSuchSlot) => self.misplaced += 1,
                }
                false
            }
        };
        self.orphans.push(OrphanRecord {
            slot,
            class: record.class,
            held,
        });
    }

    /// Notes that something is in a region. Returns whether nothing was before, for certain.
    fn is_first_of(&mut self, volume: u16, region: u64) -> bool {
        let (at, bit) = self.filtered(volume, region);
        let before = self.filter[at];
        self.filter[at] |= bit;
        before != self.filter[at]
    }

    /// Returns the word of the filter, and its bit, for a region.
    #[inline]
    fn filtered(&self, volume: u16, region: u64) -> (usize, u64) {
        let hash = BlockKey::new(volume, region).hash();
        let at = (hash >> 6) as usize & (self.filter.len() - 1);
        (at, 1 << (hash % 64))
    }

    fn added(&mut self, id: BlockId, found: &FoundBlock) {
        let record = found.block;
        if let Some(sums) = &mut self.sums {
            sums.restore(&record);
        }
        let note = &mut self.notes[id.index()];
        match found.lsn {
            Some(lsn) => (self.map).set_record(id, ring_position(lsn, self.log_records)),
            None => *note |= JOURNALED,
        }
        if record.valid == 0 {
            *note |= EMPTY;
        }
        if !self.forgotten.is_empty()
            && (self.forgotten).contains(&(record.volume, record.block, Slot::new(record.slot)))
        {
            *note |= FORGOTTEN;
        }
    }

    /// Completes the map when all blocks are there.
    pub(crate) fn finish(
        mut self,
        superblock: &Superblock,
        replayed: &Replayed,
        tracking: Tracking,
        mut report: RecoveryReport,
    ) -> RecoveredMap {
        let marks = self.restore_marks(superblock, replayed);
        for &(slot, lsn) in &replayed.shadowed {
            if let Some(id) = self.map.block_at(Slot::new(slot))
                && self.notes[id.index()] & JOURNALED != 0
            {
                (self.map).set_record(id, ring_position(lsn, self.log_records));
            }
        }
        let (mut stale, mut unrecorded) = (Vec::new(), Vec::new());
        let mut recorded = HashMap::new();
        // After a clean end the records are exact.
        let ask = !replayed.clean && !tracking.is_exact();
        // A lost record may have been a mark.
        let is_damaged = replayed.damaged_records + replayed.unreadable_units > 0;
        let doubts = is_damaged && self.sums.is_some();
        // A lost mark of *write intent* may be older or newer than a clean record.
        let distrusts = replayed.damaged_records > 0 && !planted(Fault::TrustDamaged);
        // Blocks that stay and will be written back although a damaged record may have dropped
        // them. Also blocks that were dropped although a damaged record may have confirmed them.
        let mut uncertain = Vec::new();
        let mut is_sparse = self.lies_in_doubt(superblock);
        let cut_at = self.cut_at(superblock);
        self.missing.decide_last_holes(is_sparse, cut_at);
        let mut cut = Vec::new();
        for id in self.map.ids() {
            let note = self.notes[id.index()];
            let is_whole = self.missing.is_empty();
            let is_known = note == 0 && !ask && !doubts && !distrusts && is_whole;
            if is_known || !self.map.has(id, LIVE) {
                continue;
            }
            let was = self.map.state(id);
            let slot = self.map.slot(id);
            let mark = note & (MAYBE_DIRTY | INTENT);
            // Dirty data is in the tree's leaves alone while no mark says otherwise.
            let in_tree = (mark == 0 || distrusts) && ask && tracking.may_be_dirty(slot, was.class);
            let state = match mark {
                MAYBE_DIRTY => MarkState::MaybeDirty,
                0 if in_tree => MarkState::MaybeDirty,
                0 => MarkState::None,
                _ => MarkState::Intent,
            };
            let (mut valid, mut dirty) = after_crash(state, was.valid, was.dirty);
            if distrusts && was.valid != was.dirty {
                // Data written in place exists nowhere else, and stays. After a bypassing write,
                // cached data is older. But if that write's mark was cleared and the lost record
                // said so, the cached data is the data that is lost.
                if state == MarkState::MaybeDirty || in_tree {
                    uncertain.extend(range_of(superblock, &self.geometry, &was));
                }
                if state != MarkState::MaybeDirty {
                    valid = dirty;
                }
            }
            if note & FORGOTTEN != 0 {
                (valid, dirty) = (0, 0);
            }
            if !is_whole {
                let volume = (superblock.volumes.iter()).find(|it| it.id == was.key.volume());
                let (name, size) = volume.map_or(("", 0), |it| (&it.name, it.size_bytes));
                let held = (was.block(), was.valid);
                let missing = self.missing.granules(&self.geometry, held, slot, size);
                // Of what was overwritten since its record, the table may be too old.
                let is_exact = state == MarkState::None && note & (JOURNALED | FORGOTTEN) == 0;
                let sums = self.sums.as_ref().filter(|_| is_exact && !is_damaged);
                let zeroes = sums.map_or(0, |sums| sums.zero_granules(slot, was.class, missing));
                is_sparse |= zeroes != 0;
                let missing = missing & !zeroes;
                cut.extend(ranges(&self.geometry, name, was.block(), missing & dirty));
                (valid, dirty) = (valid & !missing, dirty & !missing);
            }
            report.distrusted_blocks += u64::from(valid != was.valid);
            if valid == 0 {
                let class = self.map.retire(id);
                self.orphans.push(OrphanRecord {
                    slot,
                    class,
                    held: true,
                });
                continue;
            }
            if (valid, dirty) != (was.valid, was.dirty) {
                self.map.set(id, valid, dirty);
            }
            // Checksums in a record must not be trusted once data was overwritten after it and the
            // mark has gone. The mark may be among damaged records. After a clean end there was no
            // mark. If a lost record followed, it has other checksums than the table.
            let marked = state != MarkState::None || (is_damaged && !replayed.clean);
            let open = self.sums.is_some() && marked;
            if open && let Some(sums) = &mut self.sums {
                sums.doubt(slot, was.class, was.valid);
            }
            if valid != was.valid || note & JOURNALED != 0 || distrusts || open {
                stale.push(id);
            }
            if dirty != was.dirty && state == MarkState::MaybeDirty {
                unrecorded.push(id);
                if was.dirty & valid != 0 {
                    recorded.insert(id, was.dirty & valid);
                }
            }
        }
        if !tracking.is_exact() {
            for id in &unrecorded {
                marks.restore_unlogged(self.map.state(*id).key);
            }
        }
        let log = self.log(superblock, replayed, &marks);
        report.damaged_records += self.misplaced;
        report.cached_blocks = self.map.len() as u64;
        report.dirty_blocks = self.map.dirty_blocks();
        report.doubtful_blocks = unrecorded.len() as u64;
        let unknown = self.sums.as_ref().map_or(0, |sums| sums.unknown);
        report.unverified_bytes = unknown * u64::from(CELL);
        report.uncertain = LostRange::joined(uncertain);
        report.cut = LostRange::joined(cut);
        RecoveredMap {
            map: self.map,
            marks,
            log,
            stale,
            orphans: self.orphans,
            unrecorded,
            recorded,
            tracking,
            sums: self.sums.map(LoadedChecksums::finish),
            is_sparse,
            report,
        }
    }

    /// Returns whether cached data lies in a hole of the data device that no truncation made.
    fn lies_in_doubt(&self, superblock: &Superblock) -> bool {
        let lies_there = |id: BlockId| {
            let (held, slot, size) = self.held(superblock, id);
            (self.missing).is_doubtful(&self.geometry, held, slot, size)
        };
        self.missing.has_doubtful() && self.live().any(lies_there)
    }

    /// Returns the byte of the data device at which a truncation begins, if the last holes are one.
    fn cut_at(&self, superblock: &Superblock) -> Option<u64> {
        if self.missing.is_empty() {
            return None;
        }
        let cuts = self.live().filter_map(|id| {
            let (held, slot, size) = self.held(superblock, id);
            self.missing.cut_start(&self.geometry, held, slot, size)
        });
        cuts.min()
    }

    fn live(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.map.ids().filter(|id| self.map.has(*id, LIVE))
    }

    /// Returns a block with its valid granules, its slot, and the size of its volume in bytes.
    fn held(&self, superblock: &Superblock, id: BlockId) -> ((Block, u64), Slot, u64) {
        let entry = self.map.state(id);
        let volumes = &superblock.volumes;
        let volume = (volumes.iter()).find(|known| known.id == entry.key.volume());
        let size = volume.map_or(0, |known| known.size_bytes);
        ((entry.block(), entry.valid), self.map.slot(id), size)
    }

    /// The marks, which are noted at the blocks beneath them.
    fn restore_marks(&mut self, superblock: &Superblock, replayed: &Replayed) -> Marks {
        let marks = Marks::new(superblock.region_shift);
        let table = self.map.table();
        // A marked region is as long as one of the table, or several times that.
        let shift = superblock
            .region_shift
            .saturating_sub(self.geometry.sizes().top());
        for mark in &replayed.marks {
            if self.volumes.get(usize::from(mark.volume)) != Some(&true) {
                continue;
            }
            let position = ring_position(mark.lsn, self.log_records);
            marks.restore(mark.volume, mark.region, mark.state, position);
            let note = match mark.state {
                MarkState::None => 0,
                MarkState::MaybeDirty => MAYBE_DIRTY,
                MarkState::Intent => INTENT,
            };
            for region in mark.region << shift..(mark.region + 1) << shift {
                for (id, _) in table.find(mark.volume, region) {
                    self.notes[id.index()] |= note;
                }
            }
        }
        marks
    }

    /// Returns the log, which continues after the last record found.
    fn log(&self, superblock: &Superblock, replayed: &Replayed, marks: &Marks) -> Log {
        let unit = superblock.log.unit_records();
        let next = replayed.next.next_multiple_of(unit);
        let mut log = Log::new(superblock.log, superblock.seed(), replayed.tail, next);
        // A cache that dies repeatedly during an opening must not fill its log with records that it
        // has logged before.
        let records = (0..marks.numbers()).filter_map(|id| marks.record_at(id));
        let blocks = self.map.ids().map(|id| self.map.record_at(id));
        let counting = records.chain(blocks).filter(|at| *at != NO_RECORD);
        log.give_up_before(counting);
        log
    }
}

/// Returns the position of a record in a ring of `records` positions.
fn ring_position(lsn: u64, records: u64) -> u32 {
    u32::try_from(lsn % records).expect("a ring position")
}

fn range_of(superblock: &Superblock, geometry: &Geometry, state: &BlockState) -> Option<LostRange> {
    let mut volumes = superblock.volumes.iter();
    let volume = volumes.find(|volume| volume.id == state.key.volume())?;
    Some(LostRange {
        volume: volume.name.clone(),
        offset: state.key.block() * geometry.unit_bytes(),
        len: geometry.block_bytes(state.class),
    })
}

#[cfg(test)]
mod tests {
    use forebay_metadata::log::LogGeometry;
    use forebay_metadata::record::BlockRecord;
    use forebay_metadata::superblock::{DirtyTracking, Role, VolumeEntry};

    use super::*;

    #[test]
    fn of_two_that_overlap_in_one_group_the_newer_stays() {
        let superblock = Superblock {
            sequence: 1,
            compat: 0,
            ro_compat: 0,
            incompat: 1,
            checksums_offset: 0,
            uuid: [1; 16],
            lineage: [1; 16],
            service: Default::default(),
            place: String::new(),
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
            reached: 0,
            zones: None,
            next_volume: 2,
            volumes: vec![VolumeEntry {
                flush_failed: false,
                may_show_lost: false,
                has_unreported_loss: false,
                differs_at: None,
                id: 1,
                name: "v".into(),
                epoch: 1,
                size_bytes: 1 << 20,
                identity: forebay_block::Identity::default(),
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
        };
        // The kill of the older one was lost to damage.
        for older_dirty in [0b11, 0] {
            let (newer, older) = (
                found(0, 1, 1, 20, 1, 1),
                found(1, 0, 0, 10, older_dirty, older_dirty),
            );
            let replayed = Replayed {
                next: 64,
                tail: 0,
                ..Replayed::default()
            };
            let mut rebuild =
                Rebuild::new(&superblock, HashSet::new(), None, MissingData::default());
            rebuild.add(&[newer, older]);
            let report = RecoveryReport::default();
            let recovered = rebuild.finish(&superblock, &replayed, Tracking::Exact, report);
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
