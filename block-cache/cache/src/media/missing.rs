//! Data that a data device lacks when a cache is opened: it was cut, or is a copy with holes.

use std::ops::Range;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_metadata::order;
use forebay_metadata::superblock::{Role, Superblock};
use forebay_policy::Slot;

use super::media_of;
use crate::failpoints::{Fault, planted};
use crate::geometry::{Block, Geometry};
use crate::options::Devices;

/// Ranges of the data device that lost their data before the cache is opened.
#[derive(Debug, Default)]
pub(crate) struct MissingData {
    /// Bytes of the data device, in ascending order.
    ranges: Vec<Range<u64>>,
    /// Holes behind which there are only holes and zeroes: a cut, unless zeroes were left out of
    /// the file elsewhere. A tool that leaves zeroes out leaves none behind.
    last: Vec<Range<u64>>,
    /// Holes of a copy, and holes before data. A tool may have left zeroes out there, so they are
    /// no evidence of a truncation.
    doubtful: Vec<Range<u64>>,
    /// End of the data on the device, in bytes.
    data_end: u64,
}

impl MissingData {
    /// Looks at the data device of a cache that is not open.
    pub(crate) async fn find(devices: &Devices, superblock: &Superblock) -> Self {
        let (service, end) = (superblock.service, superblock.data_end());
        let media = media_of(devices);
        let is_copy = !service.media.data.is_same_as(media.data) || service.is_sparse;
        let holes = devices.data.holes(superblock.data_offset..end);
        let mut doubtful = merged(holes.unwrap_or_default());
        let (mut ranges, mut last) = (Vec::new(), Vec::new());
        match (is_copy, service.was_cut) {
            (true, _) => {}
            (false, true) => ranges.append(&mut doubtful),
            _ if planted(Fault::TrustHoles) => ranges.append(&mut doubtful),
            // Behind a cut there is no data, or what made the file longer: zeroes.
            (false, false) => {
                let first = first_before_zeroes(devices.data.as_ref(), &doubtful, end).await;
                last = doubtful.split_off(first);
            }
        }
        if service.cut_bytes != 0 {
            ranges.push(service.cut_bytes.min(end)..end);
        }
        Self {
            ranges: merged(ranges),
            last,
            doubtful,
            data_end: end,
        }
    }

    /// Decides about the last holes. If cached data `is_doubtful`, a tool left zeroes out of the
    /// file, and the last holes are no evidence either. `cut_at` is the start of the first of them
    /// with cached data: everything behind is lost, too.
    pub(crate) fn decide_last_holes(&mut self, is_doubtful: bool, cut_at: Option<u64>) {
        let last = std::mem::take(&mut self.last);
        let end = last.last().map_or(0, |hole| hole.end).max(self.data_end);
        match (is_doubtful, cut_at) {
            (true, _) => self.doubtful.extend(last),
            (false, Some(start)) => self.ranges.push(start..end),
            (false, None) => {}
        }
        for holes in [&mut self.doubtful, &mut self.ranges] {
            *holes = merged(std::mem::take(holes));
        }
    }

    /// Returns the start of the first of the last holes in which a part of a block is missing.
    pub(crate) fn cut_start(
        &self,
        geometry: &Geometry,
        held: (Block, u64),
        slot: Slot,
        size_bytes: u64,
    ) -> Option<u64> {
        let has = |holes: &[_]| missing_granules(holes, geometry, held, slot, size_bytes) != 0;
        if !has(&self.last) {
            return None;
        }
        let mut holes = self.last.iter();
        let first = holes.find(|hole| has(std::slice::from_ref(*hole)));
        first.map(|hole| hole.start)
    }

    /// Returns whether there are holes that are no evidence of a truncation.
    pub(crate) const fn has_doubtful(&self) -> bool {
        !self.doubtful.is_empty()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.doubtful.is_empty() && self.last.is_empty()
    }

    /// Returns whether a part of these bytes of the device is missing, or may be.
    pub(crate) fn touches(&self, bytes: &Range<u64>) -> bool {
        // Zeroes behind a cut took the place of data.
        let last = self.last.first().map(|hole| hole.start..self.data_end);
        touches(&self.ranges, bytes) || touches(last.as_slice(), bytes)
    }

    /// Returns the granules of a block that are missing in part. The volume has `size_bytes`.
    pub(crate) fn granules(
        &self,
        geometry: &Geometry,
        (block, valid): (Block, u64),
        slot: Slot,
        size_bytes: u64,
    ) -> u64 {
        missing_granules(&self.ranges, geometry, (block, valid), slot, size_bytes)
    }

    /// Returns whether a block lies in a hole that zeroes may have left.
    pub(crate) fn is_doubtful(
        &self,
        geometry: &Geometry,
        (block, valid): (Block, u64),
        slot: Slot,
        size_bytes: u64,
    ) -> bool {
        missing_granules(&self.doubtful, geometry, (block, valid), slot, size_bytes) != 0
    }
}

/// Most zeroes that are read behind a hole at a start, bytes. More of them count as data.
const MOST_ZEROES: u64 = 64 << 20;
/// Bytes that are read at once behind a hole.
const PIECE_BYTES: u64 = 256 << 10;

/// Returns the index of the first hole behind which there are only holes and zeroes. The data ends
/// at byte `end`.
async fn first_before_zeroes(device: &dyn BlockDevice, holes: &[Range<u64>], end: u64) -> usize {
    let (mut behind, mut left) = (end, MOST_ZEROES);
    for (index, hole) in holes.iter().enumerate().rev() {
        let mut at = hole.end;
        while at < behind {
            let len = (behind - at).min(PIECE_BYTES);
            let piece = Buf::zeroed(usize::try_from(len).expect("a piece"));
            let is_read = device.read(at, piece.clone()).await.is_ok();
            if !is_read || left < len || !piece.is_zero() {
                return index + 1;
            }
            (at, left) = (at + len, left - len);
        }
        behind = hole.start;
    }
    0
}

/// Returns the same bytes as ranges in ascending order that do not touch each other.
pub(super) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

fn touches(ranges: &[Range<u64>], bytes: &Range<u64>) -> bool {
    let behind = ranges.partition_point(|range| range.start < bytes.end);
    (ranges[..behind].last()).is_some_and(|range| range.end > bytes.start)
}

pub(super) fn missing_granules(
    ranges: &[Range<u64>],
    geometry: &Geometry,
    (block, valid): (Block, u64),
    slot: Slot,
    size_bytes: u64,
) -> u64 {
    let bytes = |run: Range<u32>| {
        geometry.data_offset(slot, run.start)..geometry.data_offset(slot, run.end)
    };
    let whole = u32::try_from(geometry.block_bytes(block.class)).expect("at most a block");
    if !touches(ranges, &bytes(0..whole)) {
        return 0;
    }
    let rest = size_bytes.saturating_sub(geometry.backing_offset(block, 0));
    let limit = u32::try_from(rest.min(u64::from(whole))).expect("at most a block");
    let granule = u32::try_from(geometry.granule_bytes(block.class)).expect("at most a block");
    (0..geometry.granules(block.class))
        .filter(|nth| valid >> nth & 1 == 1)
        // The last one was written as far as the volume goes.
        .map(|nth| (nth, nth * granule..((nth + 1) * granule).min(limit)))
        .filter(|(_, run)| run.start < run.end && touches(ranges, &bytes(run.clone())))
        .fold(0, |missing, (nth, _)| missing | 1 << nth)
}

/// Returns whether a device is a file: truncating a file loses data. A block device that is shorter
/// for a time has lost nothing when it has its length again.
pub(super) fn is_file(device: &dyn BlockDevice) -> bool {
    device.allocated_bytes().is_some()
}

/// Returns whether this is the device that the cache's data was on, and not another one that was
/// named by mistake.
async fn is_own_data(devices: &Devices, superblock: &Superblock) -> bool {
    let is_part = match &devices.metadata {
        None => superblock.role == Role::Whole,
        Some(_) => {
            let found = Superblock::read(devices.data.as_ref()).await;
            superblock.role == Role::Metadata
                && found.is_ok_and(|it| it.uuid == superblock.uuid && it.role == Role::Data)
        }
    };
    let now = media_of(devices).data;
    is_part && superblock.service.media.data.is_same_as(now)
}

/// Records in the superblock, durably, that the cache's data file is shorter than the cache. The
/// data beyond its end is gone, even if the file has its length again at the next start. For any
/// other device nothing is recorded. Calls `flush_failed` if the flush before the record fails.
pub(crate) async fn note_shrunk(
    devices: &Devices,
    superblock: &Superblock,
    flush_failed: impl FnOnce(),
) -> Result<()> {
    let size = devices.data.info().size_bytes.max(1);
    let noted = superblock.service.cut_bytes;
    if size >= superblock.data_end() || (noted != 0 && noted <= size) {
        return Ok(());
    }
    let is_cut = is_file(devices.data.as_ref()) && is_own_data(devices, superblock).await;
    if !is_cut && !planted(Fault::NoteAnyShort) {
        return Ok(());
    }
    let holder: &dyn BlockDevice = devices.metadata.as_ref().unwrap_or(&devices.data).as_ref();
    // A process that was killed may have left the newest copy in the device's cache.
    order::flush(holder).await.inspect_err(|_| flush_failed())?;
    let mut next = superblock.clone();
    next.service.cut_bytes = size;
    for _ in 0..2 {
        next.sequence += 1;
        next.write(holder, next.role).await?;
    }
    Ok(())
}
