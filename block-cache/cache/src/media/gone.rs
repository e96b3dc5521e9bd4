//! Data that a data device lacks when a cache is opened: it was cut, or is a copy with holes.

use std::ops::Range;

use forebay_block::{BlockDevice, Result};
use forebay_metadata::superblock::{Role, Superblock};

use super::media_of;
use crate::failpoints::{Fault, planted};
use crate::geometry::{Block, Geometry};
use crate::options::Devices;

/// Where nothing of the data is left when a cache is opened.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    /// Stretches of the data device, bytes, in order.
    stretches: Vec<Range<u64>>,
    /// Hole that runs to the end of the data: a cut, unless zeroes were left out of the file
    /// elsewhere.
    last: Option<Range<u64>>,
    /// Holes of a copy, and those with data behind them: a tool may have left zeroes out, so that
    /// they do not tell.
    doubtful: Vec<Range<u64>>,
}

impl Gone {
    /// Looks at the data device of a cache that is not open.
    pub(crate) fn find(devices: &Devices, superblock: &Superblock) -> Self {
        let (service, end) = (superblock.service, superblock.data_end());
        let media = media_of(devices);
        let is_copy = !service.media.data.is_same_as(media.data) || service.is_sparse;
        let holes = devices.data.holes(superblock.data_offset..end);
        let mut doubtful = merged(holes.unwrap_or_default());
        let (mut stretches, mut last) = (Vec::new(), None);
        match (is_copy, service.was_cut) {
            (true, _) => {}
            (false, true) => stretches.append(&mut doubtful),
            _ if planted(Fault::TrustHoles) => stretches.append(&mut doubtful),
            // Behind a cut there is no data.
            (false, false) => last = doubtful.pop_if(|hole| hole.end >= end),
        }
        if service.cut_bytes != 0 {
            stretches.push(service.cut_bytes.min(end)..end);
        }
        Self {
            stretches: merged(stretches),
            last,
            doubtful,
        }
    }

    /// Decides about the hole at the end: where something `is_doubtful`, a tool left zeroes out of
    /// the file, and that hole does not tell either.
    pub(crate) fn decide_last_hole(&mut self, is_doubtful: bool) {
        let holes = match is_doubtful {
            true => &mut self.doubtful,
            false => &mut self.stretches,
        };
        holes.extend(self.last.take());
        *holes = merged(std::mem::take(holes));
    }

    /// Whether there are holes that do not tell.
    pub(crate) const fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.stretches.is_empty() && self.doubtful.is_empty() && self.last.is_none()
    }

    /// Whether a part of these bytes of the device is gone, or may be.
    pub(crate) fn touches(&self, bytes: &Range<u64>) -> bool {
        touches(&self.stretches, bytes) || touches(self.last.as_slice(), bytes)
    }

    /// Which of a block's granules are gone in part, of a volume of `size_bytes`.
    pub(crate) fn granules(
        &self,
        geometry: &Geometry,
        (block, valid): (Block, u64),
        place: u32,
        size_bytes: u64,
    ) -> u64 {
        gone_of(&self.stretches, geometry, (block, valid), place, size_bytes)
    }

    /// Whether a block lies in a hole that may have been one of zeroes.
    pub(crate) fn is_doubtful(
        &self,
        geometry: &Geometry,
        (block, valid): (Block, u64),
        place: u32,
        size_bytes: u64,
    ) -> bool {
        gone_of(&self.doubtful, geometry, (block, valid), place, size_bytes) != 0
    }
}

/// The same bytes in stretches that are in order and do not touch each other.
pub(super) fn merged(mut stretches: Vec<Range<u64>>) -> Vec<Range<u64>> {
    stretches.retain(|stretch| !stretch.is_empty());
    stretches.sort_unstable_by_key(|stretch| stretch.start);
    stretches.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
    stretches
}

fn touches(stretches: &[Range<u64>], bytes: &Range<u64>) -> bool {
    let behind = stretches.partition_point(|stretch| stretch.start < bytes.end);
    (stretches[..behind].last()).is_some_and(|stretch| stretch.end > bytes.start)
}

pub(super) fn gone_of(
    stretches: &[Range<u64>],
    geometry: &Geometry,
    (block, valid): (Block, u64),
    place: u32,
    size_bytes: u64,
) -> u64 {
    let bytes = |run: Range<u32>| {
        geometry.data_offset(place, run.start)..geometry.data_offset(place, run.end)
    };
    let whole = u32::try_from(geometry.block_bytes(block.class)).expect("at most a block");
    if !touches(stretches, &bytes(0..whole)) {
        return 0;
    }
    let rest = size_bytes.saturating_sub(geometry.backing_offset(block, 0));
    let limit = u32::try_from(rest.min(u64::from(whole))).expect("at most a block");
    let granule = u32::try_from(geometry.granule_bytes(block.class)).expect("at most a block");
    (0..geometry.granules(block.class))
        .filter(|nth| valid >> nth & 1 == 1)
        // The last one was written as far as the volume goes.
        .map(|nth| (nth, nth * granule..((nth + 1) * granule).min(limit)))
        .filter(|(_, run)| run.start < run.end && touches(stretches, &bytes(run.clone())))
        .fold(0, |gone, (nth, _)| gone | 1 << nth)
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
/// other device nothing is recorded.
pub(crate) async fn note_shrunk(devices: &Devices, superblock: &Superblock) -> Result<()> {
    let size = devices.data.info().size_bytes.max(1);
    let noted = superblock.service.cut_bytes;
    if size >= superblock.data_end() || noted != 0 && noted <= size {
        return Ok(());
    }
    let is_cut = is_file(devices.data.as_ref()) && is_own_data(devices, superblock).await;
    if !is_cut && !planted(Fault::NoteAnyShort) {
        return Ok(());
    }
    let holder: &dyn BlockDevice = devices.metadata.as_ref().unwrap_or(&devices.data).as_ref();
    let mut next = superblock.clone();
    next.service.cut_bytes = size;
    for _ in 0..2 {
        next.sequence += 1;
        next.write(holder, next.role).await?;
    }
    Ok(())
}
