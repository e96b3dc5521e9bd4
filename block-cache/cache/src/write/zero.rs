//! Discard and write-zeroes: writes, with the same locks and the same order (rule 10).
//!
//! They go to the backing device, so that zeroing a terabyte does not fill the cache with zeroes.
//! Dirty cached data is zeroed in place in both cases, and stays dirty. If it were dropped, a crash
//! in between could revive older data under it. Clean cached data is dropped, durably, before the
//! backing device is touched.
//!
//! The cost depends on the cached data in the range and not on its length. A range is processed in
//! chunks with a few occupied regions each. The map is skipped between those without a look at each
//! region.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Buf, ErrorKind, Op, Request, Result};
use forebay_io::rt;
use forebay_metadata::order::Site;
use forebay_policy::{BlockId, Span};

use crate::degraded;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::geometry::{Extent, Piece};
use crate::map::{REWRITTEN, TRACED};
use crate::volume::AttachedVolume;

/// Number of regions with cached data that are locked and zeroed at a time.
const CHUNK_REGIONS: usize = 64;
/// Largest range that is zeroed at a time, bytes. Other requests have their turn in between.
const CHUNK_BYTES: u64 = 4 << 30;
/// Number of look-ups in the map before other tasks have their turn.
const LOOKS: u32 = 4096;
/// Number of blocks that are visited before other tasks have their turn.
const BLOCKS: usize = 1 << 16;

/// Makes `len` bytes at byte `offset` read as zeroes, or discards them if `unmap` is `None`. With
/// `Some(true)`, their space may be freed. With `durable`, the change is durable on return.
pub(crate) async fn zero(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    offset: u64,
    len: u64,
    unmap: Option<bool>,
    durable: bool,
) -> Result<()> {
    let end = offset + len;
    let mut start = offset;
    while start < end {
        let stop = chunk_end(engine, volume, start..end).await;
        zero_chunk(engine, volume, start..stop, unmap, durable).await?;
        start = stop;
    }
    Ok(())
}

/// Returns the end of the range at the start of `bytes` that is zeroed at a time.
async fn chunk_end(engine: &Engine, volume: &AttachedVolume, bytes: Range<u64>) -> u64 {
    let region_bytes = engine.geometry.sizes().region_bytes();
    let most = bytes.start - bytes.start % region_bytes + CHUNK_BYTES;
    let stop = bytes.end.min(most);
    let cached = cached_regions(engine, volume, bytes.start..stop, CHUNK_REGIONS + 1).await;
    match cached.get(CHUNK_REGIONS) {
        Some(region) => region * region_bytes,
        None => stop,
    }
}

/// Returns the first `most` regions of a range that have a cached block, in ascending order.
async fn cached_regions(
    engine: &Engine,
    volume: &AttachedVolume,
    bytes: Range<u64>,
    most: usize,
) -> Vec<u64> {
    let geometry = engine.geometry;
    let end = geometry.region_at(bytes.end - 1) + 1;
    let mut at = geometry.region_at(bytes.start);
    let mut cached = Vec::new();
    if engine.map.borrow().share(volume.id).blocks == 0 {
        return cached;
    }
    // Dense regions need few looks. A scan for them would be repeated for each chunk.
    let mut looks = LOOKS;
    while at < end && cached.len() < most && looks > 0 {
        let next = (engine.map.borrow()).next_cached(volume.id, at..end, &mut looks);
        let (region, is_cached) = next;
        if is_cached {
            cached.push(region);
        }
        at = region + u64::from(is_cached);
    }
    if at >= end || cached.len() == most {
        return cached;
    }
    if engine.map.borrow().is_scanned(volume.id, &(at..end)) {
        let numbers = engine.map.borrow().numbers();
        for first in (0..numbers).step_by(BLOCKS) {
            if first > 0 {
                rt::next_turn().await;
            }
            let last = numbers.min(first.saturating_add(BLOCKS as u32));
            (engine.map.borrow()).scan(volume.id, &(at..end), first..last, &mut cached);
        }
        cached.sort_unstable();
        cached.dedup();
        cached.truncate(most);
        return cached;
    }
    while at < end && cached.len() < most {
        let mut looks = LOOKS;
        let next = (engine.map.borrow()).next_cached(volume.id, at..end, &mut looks);
        let (region, is_cached) = next;
        if is_cached {
            cached.push(region);
        }
        at = region + u64::from(is_cached);
        if !is_cached && at < end {
            rt::next_turn().await;
        }
    }
    cached
}

async fn zero_chunk(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    bytes: Range<u64>,
    unmap: Option<bool>,
    durable: bool,
) -> Result<()> {
    let geometry = engine.geometry;
    let site = Site::here();
    let len = bytes.end - bytes.start;
    let request = match unmap {
        None => Request::discard(bytes.start, len),
        Some(unmap) => Request::write_zeroes(bytes.start, len, false, unmap),
    };
    if let Some(part) = geometry.single_part(bytes.start, len) {
        let _lock = engine.lock_blocks(site, volume, &part).await;
        return zero_locked(engine, volume, &[part], request, durable).await;
    }
    let regions = geometry.region_at(bytes.start)..geometry.region_at(bytes.end - 1) + 1;
    let _lock = (engine.locks)
        .exclusive_range(site, volume.id, regions)
        .await;
    let cached = cached_regions(engine, volume, bytes.clone(), usize::MAX).await;
    let region_bytes = geometry.sizes().region_bytes();
    let parts: Vec<Extent> = (cached.into_iter())
        .filter_map(|region| {
            let start = bytes.start.max(region * region_bytes);
            let end = bytes.end.min((region + 1) * region_bytes);
            geometry.single_part(start, end - start)
        })
        .collect();
    zero_locked(engine, volume, &parts, request, durable).await
}

/// Zeroes a range whose regions are locked; `parts` are those with something cached.
async fn zero_locked(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    parts: &[Extent],
    request: Request,
    durable: bool,
) -> Result<()> {
    match zero_cached(engine, volume, parts, request.clone(), durable).await {
        Err(error) => degraded::zero(engine, volume, parts, request, durable, error).await,
        Ok(()) => Ok(()),
    }
}

async fn zero_cached(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    parts: &[Extent],
    request: Request,
    durable: bool,
) -> Result<()> {
    // As in `write_or_degrade`.
    engine.committer.check_alive()?;
    let mut dropped = false;
    let mut zeroed = false;
    let mut result = Ok(());
    for part in parts {
        let units = engine.geometry.units(part);
        let found: Vec<(BlockId, Span)> = {
            let map = engine.map.borrow();
            map.overlapping(volume.id, part.region, units).collect()
        };
        for (id, span) in found {
            if result.is_err() {
                break;
            }
            let piece = engine.geometry.piece(part, span);
            dropped |= drop_before_zeroing(engine, id, &piece);
            result = zero_dirty(engine, volume, id, &piece)
                .await
                .map(|zeroes| zeroed |= zeroes);
        }
    }
    if dropped {
        // The clean copies are durably gone before the backing device changes (rule 5). This holds
        // after an error, too: a retry would not find them, and so would not drop them.
        engine.committer.commit().await?;
    }
    result?;
    let discard = request.op == Op::Discard;
    match volume.backing.change(request, durable).await {
        // A device that cannot discard keeps what it has, which a discard allows.
        Err(error) if discard && error.kind() == ErrorKind::Unsupported => {}
        result => result?,
    }
    match zeroed {
        true if durable => engine.committer.commit().await,
        // The device failed meanwhile, so it is unknown whether the zeroes are there.
        true => engine.committer.check_alive(),
        false => Ok(()),
    }
}

/// Drops the clean granules of a piece. Returns whether a record may call one of them valid.
fn drop_before_zeroing(engine: &Engine, id: BlockId, piece: &Piece) -> bool {
    let touched = engine.geometry.touched(piece);
    let before = engine.map.borrow().state(id);
    // The cleaner will not call clean what is dirty while this continues.
    if !planted(Fault::ForgetDiscard) {
        engine.map.borrow_mut().add_flags(id, REWRITTEN);
    }
    engine.slots.drop_clean(id, touched);
    touched & before.valid & !before.dirty != 0 && before.has(TRACED)
}

/// Writes zeroes over the dirty granules of a piece, in place. Returns whether there are any.
async fn zero_dirty(
    engine: &Rc<Engine>,
    volume: &AttachedVolume,
    id: BlockId,
    piece: &Piece,
) -> Result<bool> {
    let entry = engine.map.borrow().state(id);
    let dirty = engine.geometry.touched(piece) & entry.dirty;
    if dirty == 0 {
        return Ok(false);
    }
    let mark = engine.regions.open_for_overwriting(entry.key).await?;
    if mark.is_some() {
        engine.tracker.announce(id).await?;
    }
    for run in engine
        .geometry
        .runs(piece.block.class, dirty, piece.start..piece.end)
    {
        let zeroes = Buf::zeroed((run.end - run.start) as usize);
        engine.slots.write(volume, id, run.start, zeroes).await?;
    }
    Ok(true)
}
