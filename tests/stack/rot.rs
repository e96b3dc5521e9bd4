//! Rot on the cache's devices, and its allowed costs.
//!
//! The place is looked up on media, between two lives. It is a cell of data whose checksum the next
//! process knows, or a unit of the metadata with the ranges of its records.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Result};
use forebay_cache::{DirtyTracking, Mode};
use forebay_io::sim::{Rng, SimDisk};
use forebay_metadata::checksums::{self, CELL_BYTES, UNKNOWN};
use forebay_metadata::record::{BlockRecord, Body, MarkState, RECORD_BYTES, decode};
use forebay_metadata::replay::{Elsewhere, FoundBlock, Replayed, replay};
use forebay_metadata::superblock::{COPY_BYTES, COPY_STRIDE_BYTES, Superblock};
use forebay_testkit::stack::{Damage, Decay, LostRange, Process};

use super::metadata::Medium;
use super::{CacheStack, name};
use crate::stack::setup::VOLUMES;

/// The layout of the media.
struct Survey<'a> {
    stack: &'a CacheStack,
    data: &'a SimDisk,
    metadata: Medium,
    /// The device of the metadata, to read.
    device: Rc<dyn BlockDevice>,
    superblock: Superblock,
    blocks: Vec<FoundBlock>,
    replayed: Replayed,
}

impl CacheStack {
    /// Lets something rot that `draw` names.
    pub(super) async fn decay(&self, process: &Process, decay: Decay, draw: u64) -> Result<Damage> {
        let rng = Rng::new(draw);
        let metadata = self.details.metadata.medium(process);
        let device = metadata.device(process);
        let superblock = Superblock::read(device.as_ref()).await?;
        let mut blocks = Vec::new();
        let replayed = replay(
            device.as_ref(),
            superblock.log,
            superblock.seed(),
            superblock.slots,
            Elsewhere::default(),
            |found| blocks.extend_from_slice(found),
        )
        .await?;
        let survey = Survey {
            stack: self,
            data: &process.disks[0],
            metadata,
            device,
            superblock,
            blocks,
            replayed,
        };
        Ok(match decay {
            Decay::Data => survey.rot_data(&rng).await?,
            Decay::Metadata => match rng.below(8) {
                0 => survey.rot_superblock(&rng).await,
                1 => survey.rot_tree(&rng),
                2 => survey.rot_sums(&rng),
                _ => survey.rot_log(&rng),
            },
        })
    }
}

fn rotted() -> Damage {
    Damage {
        any: true,
        ..Damage::default()
    }
}

impl Survey<'_> {
    fn unit_bytes(&self) -> u64 {
        u64::from(self.superblock.block_size_bytes)
    }

    /// Returns a range of a volume, cut at its end.
    fn range(&self, volume: u16, bytes: Range<u64>) -> Option<LostRange> {
        let mut known = self.superblock.volumes.iter();
        let known = known.find(|known| known.id == volume)?;
        let index = (0..VOLUMES).find(|&index| name(index) == known.name)?;
        let end = bytes.end.min(self.stack.setup.volume_bytes());
        (bytes.start < end).then(|| LostRange {
            volume: index,
            offset: bytes.start,
            len: end - bytes.start,
        })
    }

    fn range_of(&self, block: &BlockRecord) -> Option<LostRange> {
        let start = block.block * self.unit_bytes();
        let len = self.unit_bytes() << block.class;
        self.range(block.volume, start..start + len)
    }

    /// Lets a cell of cached data with a checksum rot.
    async fn rot_data(&self, rng: &Rng) -> Result<Damage> {
        let extent = match self.superblock.checksum_table() {
            // After a crash, nothing shows which data was not overwritten.
            Some(extent) if self.superblock.dirty_tracking != DirtyTracking::None => extent,
            _ => return Ok(Damage::default()),
        };
        if !self.replayed.clean {
            return Ok(Damage::default());
        }
        let (table, _) = checksums::read(self.device.as_ref(), extent).await?;
        // Such a mode does not read clean data, so its rot would be found too late.
        let reads_clean = !self.stack.details.modes.contains(&Mode::PassThrough);
        let mut cells = Vec::new();
        for found in &self.blocks {
            let block = &found.block;
            let units = |block: &BlockRecord| block.block..block.block + (1 << block.class);
            let shadowed = self.blocks.iter().any(|other| {
                let (one, other, volume) = (units(block), units(&other.block), other.block.volume);
                one != other
                    && volume == block.volume
                    && one.start < other.end
                    && other.start < one.end
            });
            let granule_bytes = ((self.unit_bytes() << block.class) / 64).max(CELL_BYTES as u64);
            let each = granule_bytes / CELL_BYTES as u64;
            let first = u64::from(block.slot) * self.unit_bytes() / CELL_BYTES as u64;
            let cells_of = |granule: u64| first + granule * each..first + (granule + 1) * each;
            let valid = (0..64).filter(|granule| block.valid >> granule & 1 != 0);
            let all = valid.clone().flat_map(cells_of);
            let digest = checksums::digest(
                self.superblock.seed(),
                block.slot,
                all.map(|cell| table[cell as usize]),
            );
            // If one cell has no checksum yet, a crash of the round that adds it may remove the
            // others.
            let limit = self.stack.setup.volume_bytes();
            let reaches = |granule: u64| {
                let start = block.block * self.unit_bytes() + granule * granule_bytes;
                (0..each).filter(move |nth| start + (nth + 1) * CELL_BYTES as u64 <= limit)
            };
            let mut cells_within = valid
                .clone()
                .flat_map(|granule| reaches(granule).map(move |nth| first + granule * each + nth));
            let all_known = cells_within.all(|cell| table[cell as usize] != UNKNOWN);
            if shadowed || digest != block.sums || !all_known {
                continue;
            }
            // The round that records a fill of a missing granule may remove the others, too.
            let is_whole = (0..64)
                .filter(|granule| reaches(*granule).next().is_some())
                .all(|granule| block.valid >> granule & 1 != 0);
            for granule in valid {
                let dirty = (block.dirty >> granule & 1) != 0;
                let start = block.block * self.unit_bytes() + granule * granule_bytes;
                let bad = block.bad >> granule & 1 != 0;
                let Some(range) = self.range(block.volume, start..start + granule_bytes) else {
                    continue;
                };
                if bad || (!dirty && !reads_clean) {
                    continue;
                }
                let known = cells_of(granule).filter(|cell| table[*cell as usize] != UNKNOWN);
                cells.extend(known.map(|cell| (cell, dirty, is_whole, range)));
            }
        }
        if cells.is_empty() {
            return Ok(Damage::default());
        }
        let (cell, dirty, is_whole, range) = cells[rng.index(cells.len())];
        let at = self.superblock.data_offset + cell * CELL_BYTES as u64;
        self.data.rot(at, CELL_BYTES as u64, 1);
        if std::env::var_os("FOREBAY_SIM_TRACE").is_some() {
            eprintln!("rot of data at {at}: {range:?}, dirty: {dirty}");
        }
        Ok(Damage {
            rotted: dirty.then_some(range).into_iter().collect(),
            needs_calm: !is_whole,
            ..rotted()
        })
    }

    /// Lets one of the two copies rot, on one of the devices, while the other one is sound.
    async fn rot_superblock(&self, rng: &Rng) -> Damage {
        let of_metadata = rng.index(2) == 1;
        let device = match of_metadata {
            true => self.device.as_ref(),
            false => self.data as &dyn BlockDevice,
        };
        if Superblock::sound_copies(device).await < 2 {
            return Damage::default();
        }
        let (at, len) = (rng.below(2) * COPY_STRIDE_BYTES, COPY_BYTES as u64);
        match of_metadata {
            true => self.metadata.rot(rng, at, len, 1),
            false => self.data.rot(at, len, 1),
        }
        rotted()
    }

    fn rot_tree(&self, rng: &Rng) -> Damage {
        let Some(extent) = self.superblock.tree() else {
            return Damage::default();
        };
        let unit = u64::from(extent.unit_bytes);
        let at = extent.offset + rng.below(extent.bytes() / unit) * unit;
        self.metadata.rot(rng, at, unit, 1);
        rotted()
    }

    fn rot_sums(&self, rng: &Rng) -> Damage {
        let Some(table) = self.superblock.checksum_table() else {
            return Damage::default();
        };
        let unit = u64::from(table.unit_bytes);
        let at = table.offset + rng.below(table.units()) * unit;
        self.metadata.rot(rng, at, unit, 1 + rng.below(8) as u32);
        rotted()
    }

    /// Returns the offset of a record of the log on its device.
    fn at(&self, lsn: u64) -> u64 {
        let log = self.superblock.log;
        log.offset + lsn % log.records * RECORD_BYTES as u64
    }

    fn record(&self, lsn: u64) -> Option<Body> {
        self.decode(lsn, &self.metadata.peek(self.at(lsn), RECORD_BYTES))
    }

    /// Whether a power loss that takes every unflushed write leaves a record.
    fn is_durable(&self, lsn: u64) -> bool {
        let bytes = self.metadata.peek_durable(self.at(lsn), RECORD_BYTES);
        self.decode(lsn, &bytes).is_some()
    }

    fn decode(&self, lsn: u64, bytes: &[u8]) -> Option<Body> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().expect("a record");
        let (position, body) = decode(bytes, self.superblock.seed())?;
        (position.lsn == lsn).then_some(body)
    }

    /// Lets one record of a valid unit of the log rot, or all of them. It skips the part of the
    /// last batch that nothing else proves durable: damage there looks like a batch that was never
    /// written. It lets nothing rot while all of the last batch is unflushed, as after a kill.
    /// Power loss would make the batch before it the last one.
    fn rot_log(&self, rng: &Rng) -> Damage {
        let unit = self.superblock.log.unit_records();
        let (tail, batch) = (self.replayed.tail, self.replayed.last_batch);
        let end = batch.max(self.superblock.log_reached(None));
        let first = tail - tail % unit;
        let is_proved = (batch..self.replayed.next).any(|lsn| self.is_durable(lsn));
        if end <= tail || !is_proved {
            return Damage::default();
        }
        let first = first + rng.below((end - first) / unit) * unit;
        let lsns = first.max(tail)..first + unit;
        let Some(lost) = self.ranges_of_unit(lsns.clone(), end) else {
            return Damage::default();
        };
        let one = lsns.start + rng.below(lsns.end - lsns.start);
        let rotten = match rng.chance(1, 2) {
            true => one..one + 1,
            false => lsns,
        };
        for lsn in rotten.clone() {
            self.metadata.rot(rng, self.at(lsn), RECORD_BYTES as u64, 1);
        }
        if std::env::var_os("FOREBAY_SIM_TRACE").is_some() {
            for lsn in self.replayed.tail..self.replayed.next {
                eprintln!("{lsn}: {:?}", self.record(lsn));
            }
            eprintln!("{rotten:?} rot: {lost:?}");
        }
        // A bit that rots twice is whole.
        if rotten.clone().all(|lsn| self.record(lsn).is_some()) {
            return Damage::default();
        }
        self.stack.losses.unreported_damage.set(true);
        Damage { lost, ..rotted() }
    }

    /// Whether the loss of a mark loses anything. A mark that ends another does not, nor does one
    /// of *intent*, since clean data does not count behind damage. But an older *maybe dirty* mark
    /// may return, or one of *intent* over data that only a bit-tree calls dirty.
    fn matters(&self, lsn: u64, volume: u16, region: u64, state: MarkState) -> bool {
        let before = || {
            (self.replayed.tail..lsn)
                .rev()
                .find_map(|lsn| match self.record(lsn) {
                    Some(Body::Mark {
                        volume: its,
                        region: there,
                        state,
                    }) if (its, there) == (volume, region) => Some(state),
                    _ => None,
                })
        };
        let tracking = self.superblock.dirty_tracking;
        match state {
            MarkState::None => {
                tracking != DirtyTracking::Exact && before() == Some(MarkState::Intent)
            }
            MarkState::MaybeDirty => true,
            MarkState::Intent => {
                // Where no mark says otherwise, everything below a bit-tree's node counts as dirty.
                tracking != DirtyTracking::Exact || before() == Some(MarkState::MaybeDirty)
            }
        }
    }

    /// Returns the ranges of the records of a unit. `None` if a crash took the second record of a
    /// kill among them, which nothing else repeats.
    fn ranges_of_unit(&self, unit: Range<u64>, end: u64) -> Option<Vec<LostRange>> {
        let mut lost = Vec::new();
        for lsn in unit.clone() {
            match self.record(lsn) {
                Some(Body::Block(block)) => lost.extend(self.range_of(&block)),
                Some(Body::Mark {
                    volume,
                    region,
                    state,
                }) if self.matters(lsn, volume, region, state) => {
                    let len = self.unit_bytes() << self.superblock.region_shift;
                    lost.extend(self.range(volume, region * len..(region + 1) * len));
                }
                Some(Body::Kill { slots, count }) => {
                    let is_repeated = |slot: &u32| {
                        (unit.end..end).any(|later| match self.record(later) {
                            Some(Body::Block(block)) => block.slot == *slot,
                            Some(Body::Kill { slots, count }) => {
                                slots[..usize::from(count)].contains(slot)
                            }
                            _ => false,
                        })
                    };
                    if !slots[..usize::from(count)].iter().all(is_repeated) {
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(lost)
    }
}
