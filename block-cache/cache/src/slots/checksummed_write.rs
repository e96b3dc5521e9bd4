//! Writes to slots, with the checksums of what is written.

use std::ops::Range;

use forebay_block::{BlockDeviceExt, Buf, Op, Request, Result};
use forebay_metadata::order::Site;
use forebay_policy::{BlockId, BlockKey, Slot};

use super::{SlotIo, SlotWriteError};
use crate::checksum::{CELL, CellState, Checksums, UNKNOWN};
use crate::failpoints::{Fault, planted};
use crate::geometry::Piece;
use crate::map::{BlockState, LIVE};
use crate::volume::AttachedVolume;

/// A cell that is written in part, with what it will hold.
#[derive(Debug)]
struct Merged {
    /// Its first byte within the block.
    at: u32,
    buf: Buf,
    /// Whether the old content was corrupt clean data, which is rewritten whole.
    refetched: bool,
}

impl SlotIo {
    /// Writes to the slot of a block and updates the checksums. The caller holds an exclusive lock
    /// on the touched granules. If some of them are valid, the region has a mark.
    pub(crate) async fn write_with_checksums(
        &self,
        site: Site,
        checksums: &Checksums,
        volume: &AttachedVolume,
        id: BlockId,
        start: u32,
        buf: Buf,
    ) -> Result<(), SlotWriteError> {
        let (entry, slot) = {
            let map = self.map.borrow();
            (map.state(id), map.slot(id))
        };
        let end = start + u32::try_from(buf.len()).expect("at most a block");
        let limit = volume.limit(self.geometry, entry.block());
        let piece = Piece {
            block: entry.block(),
            start,
            end,
        };
        let touched = self.geometry.touched(&piece) & entry.valid;
        let bad = checksums.bad_granules(slot, entry.class, touched & entry.dirty);
        let partial = bad & !self.geometry.covered(&piece, limit);
        if partial != 0 {
            let bytes = self.geometry.granule_bytes(entry.class) as u32;
            let first = partial.trailing_zeros();
            let error = self.corrupt(volume, entry.block(), first * bytes..(first + 1) * bytes);
            return Err(SlotWriteError::not_begun(error));
        }
        let mut merged: [Option<Merged>; 2] = [None, None];
        let (head, tail) = (start - start % CELL, end - end % CELL);
        if head != start {
            let merge = self.merge(checksums, volume, id, &entry, head, &piece, &buf);
            merged[0] = merge.await.map_err(SlotWriteError::not_begun)?;
        }
        if tail != end && (tail != head || head == start) {
            match self
                .merge(checksums, volume, id, &entry, tail, &piece, &buf)
                .await
            {
                Ok(found) => merged[1] = found,
                Err(error) => {
                    // The corrupt head is not overwritten, and the region's mark calls it dirty
                    // after a crash.
                    if merged[0].as_ref().is_some_and(|head| head.refetched)
                        && !planted(Fault::KeepCorrupt)
                    {
                        let granule = head / self.geometry.granule_bytes(entry.class) as u32;
                        self.drop_corrupt(id, 1 << granule).await;
                    }
                    return Err(SlotWriteError::not_begun(error));
                }
            }
        }
        let alive = self.committer.check_alive();
        alive.map_err(SlotWriteError::not_begun)?;
        if planted(Fault::ChecksumBeforeData) && touched != 0 {
            self.set_checksums(checksums, slot, start..end, limit, &buf, &merged);
            self.committer.queue_record(id);
            self.committer.commit().await?;
        }
        let (at, data) = widened(start, &buf, &merged);
        let result = self.write_data(site, id, at, data).await;
        self.committer.block_written(id);
        match result.is_ok() {
            true => self.set_checksums(checksums, slot, start..end, limit, &buf, &merged),
            // It may be any mixture of old and new.
            false => self.reset_checksums(checksums, slot, start..end),
        }
        if touched != 0 && !planted(Fault::ChecksumBeforeData) {
            self.committer.note_unrecorded(id);
        }
        if bad != 0 && result.is_ok() {
            // Durably, before the answer: a bad granule stays bad for the next process.
            self.committer.queue_record(id);
            self.committer.commit().await?;
        }
        Ok(result?)
    }

    /// Returns the new content of a cell that a write covers in part. Returns `None` if the cell
    /// has no checksum and gets none.
    #[expect(clippy::too_many_arguments, reason = "of one caller")]
    async fn merge(
        &self,
        checksums: &Checksums,
        volume: &AttachedVolume,
        id: BlockId,
        entry: &BlockState,
        at: u32,
        piece: &Piece,
        data: &Buf,
    ) -> Result<Option<Merged>> {
        let granule = at / self.geometry.granule_bytes(entry.class) as u32;
        let limit = volume.limit(self.geometry, entry.block());
        if at + CELL > limit || entry.valid >> granule & 1 == 0 {
            return Ok(None);
        }
        let cell = checksums.cell(self.map.borrow().slot(id), at);
        let buf = Buf::scratch(CELL as usize);
        self.read(id, at, buf.clone()).await?;
        let mut refetched = false;
        if checksums.check(cell, &buf) == CellState::Corrupt
            && !self.is_sound_when_reread(checksums, id, at, &buf).await
        {
            if entry.dirty >> granule & 1 != 0 {
                let error = self.condemn(volume, id, granule);
                let _ = self.committer.commit().await;
                return Err(error);
            }
            let offset = self.geometry.backing_offset(entry.block(), at);
            if let Err(error) = volume.backing.device().read(offset, buf.clone()).await {
                // It must not turn dirty as it is.
                self.drop_corrupt(id, 1 << granule).await;
                return Err(error);
            }
            checksums.counters.refetched.add(1);
            refetched = true;
        }
        let (from, to) = (piece.start.max(at), piece.end.min(at + CELL));
        let new = data.slice((from - piece.start) as usize..(to - piece.start) as usize);
        buf.slice((from - at) as usize..(to - at) as usize)
            .copy_from_buf(&new);
        Ok(Some(Merged { at, buf, refetched }))
    }

    /// Sets the checksums of written data.
    fn set_checksums(
        &self,
        checksums: &Checksums,
        slot: Slot,
        written: Range<u32>,
        limit: u32,
        buf: &Buf,
        merged: &[Option<Merged>; 2],
    ) {
        let first = written.start - written.start % CELL;
        for at in (first..written.end).step_by(CELL as usize) {
            let cell = checksums.cell(slot, at);
            let is_whole = at >= written.start && at + CELL <= written.end;
            let mut parts = merged.iter().flatten();
            let sum = if is_whole && at + CELL <= limit {
                let from = (at - written.start) as usize;
                checksums.checksum_of(&buf.slice(from..from + CELL as usize))
            } else {
                let part = parts.find(|part| part.at == at);
                part.map_or(UNKNOWN, |part| checksums.checksum_of(&part.buf))
            };
            checksums.set(cell, sum);
        }
    }

    /// Notes that the content of cells is unknown. Bad cells stay bad.
    fn reset_checksums(&self, checksums: &Checksums, slot: Slot, written: Range<u32>) {
        let first = written.start - written.start % CELL;
        for at in (first..written.end).step_by(CELL as usize) {
            let cell = checksums.cell(slot, at);
            if !checksums.is_bad(cell) {
                checksums.set(cell, UNKNOWN);
            }
        }
    }

    /// Notes that bytes of a block were written that the volume did not have before. The content of
    /// their cells is unknown.
    pub(crate) fn reset_checksums_at(&self, id: BlockId, bytes: Range<u32>) {
        if let Some(checksums) = &self.checksums {
            let slot = self.map.borrow().slot(id);
            self.reset_checksums(checksums, slot, bytes);
            self.committer.queue_record(id);
        }
    }

    /// Returns the first cell of a request on the hit path. Returns `None` if checksums keep the
    /// request off it.
    #[inline]
    pub(crate) fn hit_cells(
        &self,
        checksums: &Checksums,
        piece: &Piece,
        slot: Slot,
        write: bool,
        volume: u16,
    ) -> Option<usize> {
        if (piece.start | piece.end) & (CELL - 1) != 0 {
            return None;
        }
        let first = checksums.cell(slot, piece.start);
        let open = || {
            self.regions
                .is_open_for_overwriting(piece.block.key(volume))
        };
        let known = || checksums.knows(first, piece.len() / CELL as usize);
        match write {
            true if checksums.has_bad() && !known() => None,
            true => open().then_some(first),
            false => Some(first),
        }
    }

    /// Ends a request on the hit path, with its result. Returns whether the data of a read matches
    /// its checksums.
    #[inline]
    pub(crate) fn end_hit(
        &self,
        cells: Option<(usize, BlockKey)>,
        id: BlockId,
        request: &Request,
        ok: bool,
    ) -> bool {
        let (Some((first, _)), Some(checksums), Some(buf)) = (cells, &self.checksums, &request.buf)
        else {
            return true;
        };
        if request.op == Op::Read {
            return !ok || checksums.agree(first, buf);
        }
        self.end_hit_write(checksums, id, first, buf, ok);
        true
    }

    fn end_hit_write(&self, checksums: &Checksums, id: BlockId, first: usize, buf: &Buf, ok: bool) {
        for nth in 0..buf.len() / CELL as usize {
            let at = nth * CELL as usize;
            let sum = match ok {
                true => checksums.checksum_of(&buf.slice(at..at + CELL as usize)),
                false => UNKNOWN,
            };
            checksums.set(first + nth, sum);
        }
        if self.map.borrow().has(id, LIVE) {
            self.committer.note_unrecorded(id);
        }
    }
}

/// Returns the data to write: as it is, or with neighbouring cells that were read from the backing
/// device.
fn widened(start: u32, buf: &Buf, merged: &[Option<Merged>; 2]) -> (u32, Buf) {
    let end = start + u32::try_from(buf.len()).expect("at most a block");
    let refetched = || merged.iter().flatten().filter(|part| part.refetched);
    let from = refetched().fold(start, |from, part| from.min(part.at));
    let to = refetched().fold(end, |to, part| to.max(part.at + CELL));
    if (from, to) == (start, end) {
        return (start, buf.clone());
    }
    let wide = Buf::scratch((to - from) as usize);
    wide.slice((start - from) as usize..(end - from) as usize)
        .copy_from_buf(buf);
    for part in refetched() {
        let at = (part.at - from) as usize;
        wide.slice(at..at + CELL as usize).copy_from_buf(&part.buf);
    }
    (from, wide)
}
