//! A data device that was cut: a file that somebody made shorter, and perhaps as long again.
//!
//! What lay beyond the cut is gone, and reads as zeroes once the file has its length again. Three things
//! tell of it: the size, if it is looked at in between; the space that the file takes, which never
//! shrinks otherwise; and its holes, since every valid granule was written to. At a start only a hole that
//! runs to the end of the data counts: a tool may have dug holes where the file had zeroes. What is lost is
//! named, is not written back, and is an error until the next start, which forgets it. A block device that
//! is shorter loses nothing: nothing is noted of it. docs/internals/truncation.md argues it.

use std::cell::Cell;
use std::ops::Range;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_metadata::superblock::{Role, Superblock};
use forebay_policy::BlockId;

use crate::engine::Engine;
use crate::geometry::{Block, Geometry};
use crate::map::{LIVE, UNKNOWN};
use crate::medium::media_of;
use crate::options::Devices;
use crate::plant::{Fault, planted};
use crate::recover::LostRange;

/// What is known in service of a data device that was cut.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// The smallest size that was seen below what the cache needs, bytes.
    seen_bytes: Cell<Option<u64>>,
    /// The space that the file took at the last look, bytes.
    allocated_bytes: Cell<u64>,
    /// Whether holes tell what was cut off.
    tells: Cell<bool>,
}

/// Where nothing of the data is left when a cache is opened.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    /// Stretches of the data device, bytes, in order.
    stretches: Vec<Range<u64>>,
    /// Hole that runs to the end of the data: a cut, unless zeroes were left out of the file elsewhere.
    last: Option<Range<u64>>,
    /// Holes of a copy, and those with data behind them: a tool may have left zeroes out, so that they do
    /// not tell.
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

    /// Decides about the hole at the end: where something `is_doubtful`, a tool left zeroes out of the file, and
    /// that hole does not tell either.
    pub(crate) fn settle(&mut self, is_doubtful: bool) {
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
fn merged(mut stretches: Vec<Range<u64>>) -> Vec<Range<u64>> {
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

fn gone_of(
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

/// Returns whether a device is a file: what a file is cut by is lost. A block device that is shorter for a time has
/// lost nothing when it has its length again.
fn is_file(device: &dyn BlockDevice) -> bool {
    device.allocated_bytes().is_some()
}

/// Returns whether this is the device that the cache's data was on, and not another one that was named by mistake.
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

/// Notes in the superblock, durably, that the cache's data file is shorter than the cache: whatever its size is at
/// the next start, what lay beyond its end is gone. Of any other device nothing is noted.
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

impl Engine {
    /// Begins to mind the device: what its holes mean is known now.
    pub(crate) fn begin_cut_watch(&self, tells: bool) {
        self.cut.tells.set(tells);
        let allocated = self.data.allocated_bytes().unwrap_or(0);
        self.cut.allocated_bytes.set(allocated);
    }

    /// Looks whether the data device was cut since the last look, and minds it.
    pub(crate) async fn look_for_cut(&self) {
        if planted(Fault::OverlookCut) {
            return;
        }
        let (size, end) = (self.data.info().size_bytes, self.geometry_end());
        let allocated = self.data.allocated_bytes().unwrap_or(0);
        let had = self.cut.allocated_bytes.replace(allocated);
        if size < end {
            self.mind_cut(size).await;
        } else if allocated < had {
            self.mind_cut(end).await;
        }
    }

    /// Refuses to write back what lies in a hole of the data device: it was cut off, and reads as zeroes.
    ///
    /// # Errors
    /// `Lost` if some of it does.
    pub(crate) async fn refuse_cut(&self, slot: BlockId, start: u32, len: u64) -> Result<()> {
        if !self.cut.tells.get() || planted(Fault::OverlookCut) {
            return Ok(());
        }
        let at = self
            .geometry
            .data_offset(self.map.borrow().place(slot), start);
        let holes = self.data.holes(at..at + len);
        if holes.is_none_or(|holes| holes.is_empty()) || self.are_zeroes(slot, start, len) {
            return Ok(());
        }
        self.mind_cut(self.geometry_end()).await;
        Err(Error::new(
            ErrorKind::Lost,
            "it was cut off the cache device while that was in use: it is not written back",
        ))
    }

    /// Why the end cannot be a clean one, if the data device was cut while it was in use.
    pub(crate) async fn cut(&self) -> Option<Error> {
        if !planted(Fault::OverlookCut) {
            // What was written since the last look may hide that the file takes less.
            let size = self.data.info().size_bytes.min(self.geometry_end());
            self.mind_cut(size).await;
        }
        let size = self.cut.seen_bytes.get()?;
        let name = self.data.info().name;
        if !is_file(self.data.as_ref()) {
            let what = format!(
                "{name} was shorter while it was in use: {size} bytes; what lay beyond is LOST unless the device \
                 has its length again: it was not written back"
            );
            return Some(Error::new(ErrorKind::Lost, what));
        }
        Some(Error::new(
            ErrorKind::Lost,
            format!(
                "{name} was cut while it was in use, at {size} bytes or behind: what lay beyond is LOST, dirty data with it; \
                 the next start names it"
            ),
        ))
    }

    fn geometry_end(&self) -> u64 {
        self.superblock.borrow().data_end()
    }

    /// The device was cut to `size` bytes, or was cut and has its length again: what is gone is named, and is an
    /// error from now on.
    async fn mind_cut(&self, size: u64) {
        let (end, offset) = (self.geometry_end(), self.superblock.borrow().data_offset);
        let is_file = is_file(self.data.as_ref());
        let mut stretches = match self.cut.tells.get() {
            true => self.data.holes(offset..end).unwrap_or_default(),
            false => Vec::new(),
        };
        if size < end {
            stretches.push(size..end);
        }
        let lost = self.give_up_cut(&merged(stretches));
        if lost.is_none() && size >= end {
            return;
        }
        let seen = self.cut.seen_bytes.get();
        let smallest = seen.map_or(size, |seen| seen.min(size));
        self.cut.seen_bytes.set(Some(smallest));
        if seen == Some(smallest) {
            return;
        }
        let name = self.data.info().name;
        if !is_file && !planted(Fault::NoteAnyShort) {
            let what = format!(
                "{name} became shorter while it is in use: {size} of {end} bytes are left; nothing is lost if it \
                 has its length again at the next start"
            );
            return self.fail(Error::new(ErrorKind::Io, what));
        }
        let in_holes = lost.is_some() && size >= end;
        for range in lost.unwrap_or_default() {
            tracing::error!(
                volume = range.volume,
                offset = range.offset,
                len = range.len,
                "LOST: it lay where the cache device was cut, and was not written back"
            );
        }
        let what = format!("{name} was cut while it is in use: {size} of {end} bytes were left");
        self.fail(Error::new(ErrorKind::Lost, what));
        if smallest < end || in_holes {
            let noted = self
                .change_superblock(|superblock| {
                    superblock.service.was_cut |= in_holes;
                    if smallest < end {
                        superblock.service.cut_bytes = smallest.max(1);
                    }
                })
                .await;
            if let Err(error) = noted {
                tracing::error!("that it was cut is not noted: {}", error.report());
            }
        }
    }

    /// Leaves blocks in doubt of which something is gone. Returns what of it was dirty; none if nothing is gone that was
    /// not before.
    fn give_up_cut(&self, stretches: &[Range<u64>]) -> Option<Vec<LostRange>> {
        if stretches.is_empty() {
            return None;
        }
        let (mut lost, mut found) = (Vec::new(), false);
        let slots = self.map.borrow().numbers();
        for slot in 0..slots {
            let (entry, place) = {
                let map = self.map.borrow();
                if !map.has(slot, LIVE) {
                    continue;
                }
                (map.slot(slot), map.place(slot))
            };
            let volume = entry.key.volume();
            let superblock = self.superblock.borrow();
            let Some(known) = superblock.volumes.iter().find(|known| known.id == volume) else {
                continue;
            };
            let gone = gone_of(
                stretches,
                &self.geometry,
                (entry.block(), entry.valid),
                place,
                known.size_bytes,
            );
            let sums = self.sums.as_ref();
            let zeroes = sums.map_or(0, |it| it.zero_granules(place, entry.class, gone));
            let gone = gone & !zeroes;
            if gone == 0 || entry.has(UNKNOWN) {
                continue;
            }
            found = true;
            lost.extend(ranges(
                &self.geometry,
                &known.name,
                entry.block(),
                gone & entry.dirty,
            ));
            drop(superblock);
            // What is clean is on the backing device.
            self.map.borrow_mut().set(slot, entry.dirty, entry.dirty);
            self.leave_in_doubt(slot, 0);
        }
        found.then(|| LostRange::joined(lost))
    }
}

/// Granules of a block, as bytes of its volume.
pub(crate) fn ranges(
    geometry: &Geometry,
    volume: &str,
    block: Block,
    granules: u64,
) -> Vec<LostRange> {
    let runs = geometry.runs(block.class, granules, 0..u32::MAX);
    runs.map(|run| LostRange {
        volume: volume.to_owned(),
        offset: geometry.backing_offset(block, run.start),
        len: run.len() as u64,
    })
    .collect()
}
