//! Reads from slots, verified.

use std::ops::Range;

use forebay_block::{BlockDeviceExt, Buf, Error, Result};
use forebay_policy::BlockId;

use super::SlotIo;
use crate::checksum::{CELL, CellState, Checksums};
use crate::failpoints::{Fault, planted};
use crate::map::REWRITTEN;
use crate::volume::AttachedVolume;

/// Result of a read that the device answered.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The data that was written, or the backing device's data in its place.
    Sound,
    /// Something else, which is nowhere else: the error is the client's.
    Corrupt(Error),
    /// Something else, and the read of the backing device failed: the error is the client's.
    Unfetched(Error),
}

impl SlotIo {
    /// Reads a run of valid granules and verifies it; the run is in bytes within the block. The
    /// caller holds at least a shared lock.
    ///
    /// Corrupt clean data is read from the backing device instead, and the copy is dropped.
    pub(crate) async fn read_verified(
        &self,
        volume: &AttachedVolume,
        id: BlockId,
        run: Range<u32>,
        buf: Buf,
    ) -> Result<Verdict> {
        let Some(checksums) = &self.checksums else {
            let read = self.read(id, run.start, buf).await;
            return read.map(|()| Verdict::Sound);
        };
        let (entry, slot) = {
            let map = self.map.borrow();
            (map.state(id), map.slot(id))
        };
        let geometry = self.geometry;
        let limit = volume.limit(geometry, entry.block());
        let wide = run.start - run.start % CELL..run.end.next_multiple_of(CELL).min(limit);
        let whole = match wide == run {
            true => buf.clone(),
            false => Buf::scratch(wide.len()),
        };
        self.read(id, wide.start, whole.clone()).await?;
        let (mut dropped, mut unknown) = (0, 0);
        let (mut bad, mut unfetched) = (None, None);
        // The cell that the volume ends in has no checksum.
        let verified = wide.start..wide.end - wide.end % CELL;
        for at in verified.step_by(CELL as usize) {
            let part = (at - wide.start) as usize..(at - wide.start + CELL) as usize;
            let part = whole.slice(part);
            let cell = checksums.cell(slot, at);
            match checksums.check(cell, &part) {
                CellState::Sound => continue,
                CellState::Unknown => {
                    checksums.set(cell, checksums.checksum_of(&part));
                    unknown += 1;
                    continue;
                }
                CellState::Corrupt => {}
            }
            if self.is_sound_when_reread(checksums, id, at, &part).await {
                continue;
            }
            let granule = at / geometry.granule_bytes(entry.class) as u32;
            if self.map.borrow().state(id).dirty >> granule & 1 != 0 {
                let error = self.condemn(volume, id, granule);
                bad.get_or_insert(error);
                continue;
            }
            dropped |= 1 << granule;
            let offset = geometry.backing_offset(entry.block(), at);
            if let Err(error) = volume.backing.device().read(offset, part).await {
                unfetched.get_or_insert(error);
                continue;
            }
            checksums.counters.refetched.add(1);
            tracing::warn!(
                volume = volume.name,
                offset,
                "clean data is corrupt on the cache device: served from the backing device"
            );
        }
        if unknown != 0 {
            checksums.counters.unverified.add(unknown);
            // The record's digest is one without these.
            self.committer.queue_later(id);
        }
        let failed = bad.is_some() || unfetched.is_some();
        // Also when the read fails: after a crash, corrupt data of a block that counts as dirty
        // would count as lost, or be written back.
        if dropped != 0 && !(failed && planted(Fault::KeepCorrupt)) {
            self.drop_corrupt(id, dropped).await;
        }
        if let Some(error) = bad {
            // Once a client gets this error, it must get it for ever. A cache that cannot record
            // that durably has failed.
            let _ = self.committer.commit().await;
            return Ok(Verdict::Corrupt(error));
        }
        if let Some(error) = unfetched {
            return Ok(Verdict::Unfetched(error));
        }
        if wide != run {
            let part = (run.start - wide.start) as usize..(run.end - wide.start) as usize;
            buf.copy_from_buf(&whole.slice(part));
        }
        Ok(Verdict::Sound)
    }

    /// Returns whether what was read of a block from byte `start` on is what its checksums say,
    /// where there are any. Cells without a known checksum, and one that the volume ends in, count
    /// as not sound.
    pub(crate) fn is_known_sound(&self, id: BlockId, start: u32, buf: &Buf) -> bool {
        let Some(checksums) = &self.checksums else {
            return true;
        };
        let slot = self.map.borrow().slot(id);
        buf.len().is_multiple_of(CELL as usize)
            && start.is_multiple_of(CELL)
            && checksums.agree(checksums.cell(slot, start), buf)
    }

    /// Drops corrupt clean copies, durably: the next write there takes the granule for one without
    /// a record.
    pub(crate) async fn drop_corrupt(&self, id: BlockId, granules: u64) {
        {
            let mut map = self.map.borrow_mut();
            let entry = map.state(id);
            let dropped = granules & entry.valid & !entry.dirty;
            map.set(id, entry.valid & !dropped, entry.dirty);
        }
        self.committer.queue_record(id);
        // A cache that cannot say it has failed, and takes no writes.
        let _ = self.committer.commit().await;
    }

    /// Reads a cell once more, into its buffer: the transfer from the medium may have failed.
    pub(crate) async fn is_sound_when_reread(
        &self,
        checksums: &Checksums,
        id: BlockId,
        at: u32,
        part: &Buf,
    ) -> bool {
        let slot = self.map.borrow().slot(id);
        let cell = checksums.cell(slot, at);
        if checksums.is_bad(cell) {
            return false;
        }
        let reread = Buf::scratch(CELL as usize);
        let read = self.read(id, at, reread.clone()).await;
        let sound = read.is_ok() && checksums.check(cell, &reread) == CellState::Sound;
        if sound {
            part.copy_from_buf(&reread);
        }
        sound
    }

    /// Verifies data that the cleaner read of a block, from byte `start` of the block on, before it
    /// is written back. Data that was rewritten meanwhile is not verified: it stays dirty.
    pub(crate) async fn verify_for_write_back(
        &self,
        volume: &AttachedVolume,
        id: BlockId,
        start: u32,
        buf: &Buf,
    ) -> Result<()> {
        let Some(checksums) = self
            .checksums
            .as_ref()
            .filter(|_| !planted(Fault::WriteCorruptBack))
        else {
            return Ok(());
        };
        let (entry, slot) = {
            let map = self.map.borrow();
            (map.state(id), map.slot(id))
        };
        for nth in 0..buf.len() / CELL as usize {
            let at = start + nth as u32 * CELL;
            let part = buf.slice(nth * CELL as usize..(nth + 1) * CELL as usize);
            let corrupt = || {
                !self.map.borrow().has(id, REWRITTEN)
                    && checksums.check(checksums.cell(slot, at), &part) == CellState::Corrupt
            };
            if !corrupt() {
                continue;
            }
            let sound = self.is_sound_when_reread(checksums, id, at, &part).await;
            if !sound && corrupt() {
                let granule = at / self.geometry.granule_bytes(entry.class) as u32;
                return Err(self.condemn(volume, id, granule));
            }
        }
        Ok(())
    }
}
