//! Allocation of a volume: that of its backing device, with what the cache holds as data.
//!
//! First the granules are noted that are data whatever the backing device says. Then the backing
//! device is asked, without a lock. An extent that reads as zeroes did so at some moment of the
//! query. The argument, for one block:
//!
//! 1. The block was not dirty at its look, and the backing device had zeroes there later. Consider
//!    the last moment between the two at which the block was not dirty.
//! 2. If nothing changed it on the backing device from that moment on, a read at that moment
//!    returned its zeroes. Clean copies are equal to the backing device (rules 4 and 5).
//! 3. If something did, the last such change left zeroes. It was a client's, or a write-back of
//!    dirty data from after that moment. So a read returned zeroes once the change, or the write
//!    that made the data dirty, was complete.
//! 4. A write that was acknowledged before the look is dirty at the look, or on the backing device
//!    before the question.
//!
//! Step 2 fails if the backing device may forget a client's write, of which the cache still has a
//! copy. Then all copies are data (as in rule 11, of clean hits). Step 1 fails if dirty data is
//! dropped before its replacement is on the backing device. Only a failed cache does that, and it
//! calls everything data.
//!
//! Discards and zeroes need no state of their own. They are on the backing device before they are
//! acknowledged, and zeroed dirty data is data until it is written back (rule 10).

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{ErrorKind, Extents, MAX_EXTENTS, Result};
use forebay_io::rt;

use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::volume::AttachedVolume;

/// Number of look-ups in the map before other tasks have their turn.
const LOOKS: u32 = 4096;
/// Number of such turns after which an answer covers what was looked at.
const TURNS: u32 = 64;

/// A query in progress. The volume is not detached before its end.
struct Query<'a>(&'a AttachedVolume);

impl Drop for Query<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Returns the allocation of `range` of a volume, bytes, from its start.
pub(crate) async fn extents(
    engine: &Engine,
    volume: &Rc<AttachedVolume>,
    range: Range<u64>,
) -> Result<Extents> {
    if volume.is_detaching() {
        return Err(ErrorKind::ShuttingDown.into());
    }
    volume.enter();
    let _query = Query(volume);
    if !engine.committer.is_alive() {
        return Ok(Extents::data(range));
    }
    let known = cached_data(engine, volume, range.clone()).await;
    let below = volume.backing.device().extents(range.start..known.end);
    // The cache may have failed meanwhile, and then have dropped dirty data.
    match below.await {
        Ok(_) if !engine.committer.is_alive() => Ok(Extents::data(range)),
        found => Ok(found?.with_data(&known.data)),
    }
}

/// Data of a range that the cache knows of.
struct CachedData {
    /// Ascending ranges, bytes of the volume.
    data: Vec<Range<u64>>,
    /// End of what was looked at, bytes.
    end: u64,
}

/// Returns what is data in `range` whatever the backing device says. It may look at less.
async fn cached_data(engine: &Engine, volume: &AttachedVolume, range: Range<u64>) -> CachedData {
    let region_bytes = engine.geometry.sizes().region_bytes();
    let regions = engine.geometry.region_at(range.start)..range.end.div_ceil(region_bytes);
    let mut data: Vec<Range<u64>> = Vec::new();
    let (mut at, mut turns) = (regions.start, 0);
    while at < regions.end && data.len() < MAX_EXTENTS && turns < TURNS {
        if turns > 0 {
            rt::next_turn().await;
        }
        turns += 1;
        at = look(engine, volume, at..regions.end, &mut data);
    }
    CachedData {
        data,
        end: range.end.min(at.saturating_mul(region_bytes)),
    }
}

/// Appends the data of the first of these regions, in one turn. Returns the next region.
fn look(
    engine: &Engine,
    volume: &AttachedVolume,
    regions: Range<u64>,
    data: &mut Vec<Range<u64>>,
) -> u64 {
    let (geometry, map) = (engine.geometry, engine.map.borrow());
    let copies = !volume.backing.keeps_readable_data() && !planted(Fault::HoleOverCopy);
    if !copies && map.share(volume.id).dirty_bytes == 0 || planted(Fault::HoleOverDirty) {
        return regions.end;
    }
    let (mut at, mut looks) = (regions.start, LOOKS);
    while at < regions.end && looks > 0 && data.len() < MAX_EXTENTS {
        let (region, is_cached) = map.next_cached(volume.id, at..regions.end, &mut looks);
        at = region;
        if !is_cached {
            continue;
        }
        looks = looks.saturating_sub(1);
        let mut found: Vec<_> = map.overlapping(volume.id, region, u64::MAX).collect();
        found.sort_unstable_by_key(|(_, span)| geometry.block_in(region, *span).unit);
        for (id, span) in found {
            let block = geometry.block_in(region, span);
            let (valid, dirty) = map.maps(id, span.class);
            let mask = if copies { valid } else { dirty };
            for run in geometry.runs(span.class, mask, 0..u32::MAX) {
                let bytes = geometry.backing_offset(block, run.start)
                    ..geometry.backing_offset(block, run.end);
                match data.last_mut() {
                    Some(last) if last.end == bytes.start => last.end = bytes.end,
                    _ => data.push(bytes),
                }
            }
        }
        at += 1;
    }
    at
}
