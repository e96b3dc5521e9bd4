//! Verification of cached data while no volume is served: there are no other requests, and no
//! backing device to read from.

use std::rc::Rc;

use forebay_block::{Buf, ErrorKind, Result};
use forebay_policy::BlockId;

use crate::checksum::{CELL, CellState, Checksums};
use crate::engine::Engine;
use crate::lost_range::LostRange;
use crate::map::{BlockState, LIVE};

/// Bytes read at a time.
const READ_BYTES: u32 = 256 << 10;

/// Findings of reading all cached data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataReport {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Of these, bytes whose checksums were not known: they are believed.
    pub unverified_bytes: u64,
    /// Bytes that are clean, and corrupt or unreadable: the backing device has them.
    pub forgotten_bytes: u64,
    /// Dirty data that is corrupt. Reads of it fail.
    pub corrupt: Vec<LostRange>,
    /// Dirty data that cannot be read now.
    pub unreadable: Vec<LostRange>,
}

impl DataReport {
    /// Whether something is lost that is nowhere else.
    #[must_use]
    pub const fn has_losses(&self) -> bool {
        !self.corrupt.is_empty() || !self.unreadable.is_empty()
    }
}

/// Granules of a block, by what is wrong with them.
#[derive(Default)]
struct BadGranules {
    corrupt: u64,
    unreadable: u64,
    /// Cells that had no checksum that is known, and the ones that they get.
    learned: Vec<(usize, u32)>,
}

impl Engine {
    /// Reads all cached data, with no volume attached. Corrupt clean data is forgotten. Corrupt
    /// dirty data is marked bad, durably.
    pub(crate) async fn verify_alone(self: &Rc<Self>) -> Result<DataReport> {
        let mut report = DataReport::default();
        let ids = self.map.borrow().ids();
        for id in ids {
            if self.map.borrow().has(id, LIVE) {
                self.verify_block(id, &mut report).await?;
            }
        }
        self.committer.commit_all().await?;
        report.corrupt = LostRange::joined(report.corrupt);
        report.unreadable = LostRange::joined(report.unreadable);
        Ok(report)
    }

    async fn verify_block(&self, id: BlockId, report: &mut DataReport) -> Result<()> {
        let entry = self.map.borrow().state(id);
        let geometry = self.geometry;
        let (name, size_bytes) = {
            let superblock = self.superblock.current();
            let mut volumes = superblock.volumes.iter();
            let Some(volume) = volumes.find(|volume| volume.id == entry.key.volume()) else {
                return Ok(());
            };
            (volume.name.clone(), volume.size_bytes)
        };
        let rest = size_bytes.saturating_sub(geometry.backing_offset(entry.block(), 0));
        let limit = rest.min(geometry.block_bytes(entry.class)) as u32;
        let mut wrong = BadGranules::default();
        for run in geometry.runs(entry.class, entry.valid, 0..limit) {
            for start in run.clone().step_by(READ_BYTES as usize) {
                let part = start..run.end.min(start + READ_BYTES);
                self.verify_part(id, &entry, part, &mut wrong, report)
                    .await?;
            }
        }
        let bytes = geometry.granule_bytes(entry.class);
        let dropped = (wrong.corrupt | wrong.unreadable) & !entry.dirty;
        report.forgotten_bytes += u64::from(dropped.count_ones()) * bytes;
        let ranges = |granules: u64| {
            let each = geometry.runs(entry.class, granules & entry.dirty, 0..limit);
            let granules = each.flat_map(move |run| {
                let end = run.end;
                (run.step_by(bytes as usize)).map(move |at| at..end.min(at + bytes as u32))
            });
            let (name, block) = (name.clone(), entry.block());
            granules.map(move |at| LostRange {
                volume: name.clone(),
                offset: geometry.backing_offset(block, at.start),
                len: u64::from(at.end - at.start),
            })
        };
        report.corrupt.extend(ranges(wrong.corrupt));
        report
            .unreadable
            .extend(ranges(wrong.unreadable & !wrong.corrupt));
        self.keep_sound(id, &entry, dropped, &wrong);
        Ok(())
    }

    /// Reads a part of a block. If it cannot be read at once, reads it by cells.
    async fn verify_part(
        &self,
        id: BlockId,
        entry: &BlockState,
        part: std::ops::Range<u32>,
        wrong: &mut BadGranules,
        report: &mut DataReport,
    ) -> Result<()> {
        let slot = self.map.borrow().slot(id);
        let buf = Buf::scratch(part.len());
        let whole = self.slots.read(id, part.start, buf.clone()).await;
        for at in part.clone().step_by(CELL as usize) {
            let len = CELL.min(part.end - at);
            let from = (at - part.start) as usize;
            let piece = buf.slice(from..from + len as usize);
            let granule = 1 << (at / self.geometry.granule_bytes(entry.class) as u32);
            let read = match &whole {
                Ok(()) => Ok(()),
                Err(_) => self.slots.read(id, at, piece.clone()).await,
            };
            match read {
                Ok(()) => report.read_bytes += u64::from(len),
                Err(error) if error.kind() == ErrorKind::ShuttingDown => return Err(error),
                Err(_) => {
                    wrong.unreadable |= granule;
                    continue;
                }
            }
            let Some(checksums) = self.checksums.as_ref().filter(|_| len == CELL) else {
                continue;
            };
            let cell = checksums.cell(slot, at);
            match checksums.check(cell, &piece) {
                CellState::Sound => {}
                CellState::Unknown => {
                    wrong.learned.push((cell, checksums.checksum_of(&piece)));
                    report.unverified_bytes += u64::from(CELL);
                }
                CellState::Corrupt
                    if self
                        .slots
                        .is_sound_when_reread(checksums, id, at, &piece)
                        .await => {}
                CellState::Corrupt => wrong.corrupt |= granule,
            }
        }
        Ok(())
    }

    /// From the next round of commits on.
    fn keep_sound(&self, id: BlockId, entry: &BlockState, dropped: u64, wrong: &BadGranules) {
        if dropped != 0 {
            (self.map.borrow_mut()).set(id, entry.valid & !dropped, entry.dirty);
        }
        let bad = wrong.corrupt & entry.dirty;
        if let Some(checksums) = &self.checksums {
            self.condemn_alone(checksums, id, entry.class, bad);
        }
        // Never both: until a new record is durable, the table must match the record before it.
        if dropped | bad != 0 {
            self.committer.queue_record(id);
        } else if let Some(checksums) = &self.checksums
            && !wrong.learned.is_empty()
        {
            wrong
                .learned
                .iter()
                .for_each(|(cell, sum)| checksums.set(*cell, *sum));
            self.committer.queue_record(id);
        }
    }

    fn condemn_alone(&self, checksums: &Checksums, id: BlockId, class: u8, bad: u64) {
        let slot = self.map.borrow().slot(id);
        let new = bad & !checksums.bad_granules(slot, class, bad);
        checksums
            .cells_of(slot, class, new)
            .for_each(|cell| checksums.set_bad(cell));
        checksums
            .counters
            .condemned
            .add(u64::from(new.count_ones()));
    }
}
