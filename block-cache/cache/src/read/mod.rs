//! Reads: from the cache, from the backing device, or from both. [`fill`](mod@fill) adds missing
//! data to the cache. [`read_ahead`](crate::read_ahead) has chosen the range by then.

mod fill;

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Error, ErrorKind, Result};
use forebay_metadata::order::Site;
use forebay_policy::cleaning::IoDevice;
use forebay_policy::{BlockId, Route};

use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::mode::{ReadRule, Usable};
use crate::slots::Verdict;
use crate::volume::AttachedVolume;
use fill::{Held, fill};

/// Reads a part of a request, with its read-ahead: `wide` contains the part, which may be empty.
pub(crate) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
) -> Result<()> {
    if job.part.len() == 0 {
        return match volume.mode().read_rule() {
            ReadRule::Fill => read_and_fill(engine, volume, job, wide).await,
            // The mode has changed since.
            ReadRule::Bypass(_) => Ok(()),
        };
    }
    let region = volume.region_key(job.part.region);
    let granules = engine.geometry.region_granules(&job.part);
    let lock = engine.locks.shared(region, granules).await;
    match volume.mode().read_rule() {
        ReadRule::Bypass(usable) => {
            let present = move |engine, volume, id, job| async move {
                read_present(&engine, &volume, id, &job, usable).await
            };
            engine.each_block(volume, job, present, read_missed).await
        }
        ReadRule::Fill if engine.holds(volume.id, &job.part) => {
            engine.each_piece(volume, job, read_held).await
        }
        ReadRule::Fill => {
            drop(lock);
            read_and_fill(engine, volume, job, wide).await
        }
    }
}

/// Serves a read that misses. Fills missing data of `wide`, if the policy admits it. The answer
/// waits for read-ahead data only where one read of the backing device has both. Read-ahead data
/// gets locks and room either at once or not at all, and most of it is read after the answer.
async fn read_and_fill(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
) -> Result<()> {
    // Promotion changes blocks, and a read of the backing device must not race with a write to it.
    let site = Site::here();
    let key = volume.region_key(wide.region);
    let locked = || engine.granules_to_lock(volume, &wide);
    if job.part.len() == 0 {
        if let Some(ahead) = engine.read_ahead.begin(wide.len())
            && let Some(lock) = engine.locks.try_exclusive(site, key, locked())
        {
            let held = Held {
                lock,
                ahead: Some(ahead),
            };
            return fill(engine, volume, job, wide, held).await;
        }
        return Ok(());
    }
    let mut lock = engine.lock_blocks(site, volume, &job.part).await;
    let ahead = match wide.len() - job.part.len() {
        0 => None,
        beside => engine
            .read_ahead
            .begin(beside)
            .filter(|_| lock.widen(locked())),
    };
    let wide = if ahead.is_some() { wide } else { job.part };
    fill(engine, volume, job, wide, Held { lock, ahead }).await
}

/// Reads a piece that is in the cache.
async fn read_held(
    engine: Rc<Engine>,
    volume: Rc<AttachedVolume>,
    found: Option<BlockId>,
    job: Job<Piece>,
) -> Result<()> {
    let id = found.expect("the cache holds all of it");
    let touched = engine.geometry.touched(&job.part);
    let class = job.part.block.class;
    engine.map.borrow_mut().used(id, class, touched);
    volume.counters.read_hits.add(1);
    from_cache(&engine, &volume, id, &job).await
}

/// Reads data outside of cached blocks.
async fn read_missed(
    engine: Rc<Engine>,
    volume: Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    volume.counters.read_misses.add(1);
    volume.counters.bypassed_reads.add(1);
    let offset = engine.geometry.region_offset(&job.part);
    let reading = volume.backing.device().read(offset, job.buf);
    volume.timed(IoDevice::Backing, reading).await
}

async fn read_present(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
    usable: Usable,
) -> Result<()> {
    let needed = engine.geometry.touched(&job.part);
    let entry = engine.map.borrow().state(id);
    let mask = match usable {
        Usable::AllValid => entry.valid,
        Usable::DirtyOnly => entry.dirty,
    };
    if needed & !mask == 0 {
        volume.counters.read_hits.add(1);
        engine
            .map
            .borrow_mut()
            .used(id, job.part.block.class, needed);
        return from_cache(engine, volume, id, job).await;
    }
    volume.counters.read_misses.add(1);
    volume.counters.bypassed_reads.add(1);
    mixed(engine, volume, id, mask & needed, job).await
}

/// Reads a piece whose granules are all valid.
async fn from_cache(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
) -> Result<()> {
    let within = job.part.start..job.part.end;
    let dirty = engine.map.borrow().state(id).dirty;
    let bytes = job.part.len() as u64;
    let hit = engine
        .admission
        .route_hit(volume, bytes, engine.geometry.touched(&job.part) & dirty);
    let bypass = matches!(hit, Some((Route::Bypass, _)));
    if bypass && (from_backing(engine, volume, job, within.clone()).await).is_ok() {
        engine.admission.hit_ended(volume, bytes, hit);
        return Ok(());
    }
    from_slot(engine, volume, id, job, within).await?;
    // If the backing device failed, the cache served the read, so its time says nothing about the
    // backing device.
    if !bypass {
        engine.admission.hit_ended(volume, bytes, hit);
    }
    Ok(())
}

/// Reads a run of valid granules, bytes within the block. Clean ones can be had from the backing
/// device if the cache device fails; dirty ones are nowhere else, and the error is the client's.
pub(crate) async fn from_slot(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
    run: Range<u32>,
) -> Result<()> {
    let part = job.buf.slice(relative(job, &run));
    let read = match engine.committer.is_in_doubt(id) {
        false => match engine
            .slots
            .read_verified(volume, id, run.clone(), part)
            .await
        {
            Ok(Verdict::Corrupt(error) | Verdict::Unfetched(error)) => return Err(error),
            Ok(Verdict::Sound) => Ok(()),
            Err(error) => Err(error),
        },
        true => Ok(()),
    };
    // The flush may have failed while this was read.
    let doubt = || match engine.committer.is_in_doubt(id) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorKind::Io,
            "the cache device failed, or was truncated, since the data was written: its content is \
             unknown\n\
             help: restart to recover flushed data",
        )),
    };
    let Err(error) = read.and_then(|()| doubt()) else {
        return Ok(());
    };
    engine.stats.cache_read_errors.add(1);
    engine.truncation.look().await;
    let dirty = engine.map.borrow().state(id).dirty;
    let piece = Piece {
        block: job.part.block,
        start: run.start,
        end: run.end,
    };
    if engine.geometry.touched(&piece) & dirty != 0 {
        let at = engine.geometry.backing_offset(piece.block, run.start);
        return Err(error.context(format!(
            "volume {}: {} bytes at {at} are dirty in the cache and cannot be read",
            volume.name,
            piece.len(),
        )));
    }
    from_backing(engine, volume, job, run).await
}

/// Reads a run, bytes within the block, from the backing device.
async fn from_backing(
    engine: &Engine,
    volume: &AttachedVolume,
    job: &Job<Piece>,
    run: Range<u32>,
) -> Result<()> {
    let offset = engine.geometry.backing_offset(job.part.block, run.start);
    let buf = job.buf.slice(relative(job, &run));
    let reading = volume.backing.device().read(offset, buf);
    volume.timed(IoDevice::Backing, reading).await
}

/// Reads the granules in `mask` from the slot and the others from the backing device.
async fn mixed(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    mask: u64,
    job: &Job<Piece>,
) -> Result<()> {
    let within = job.part.start..job.part.end;
    let geometry = engine.geometry;
    for run in geometry.runs(job.part.block.class, mask, within.clone()) {
        from_slot(engine, volume, id, job, run).await?;
    }
    for run in geometry.runs(job.part.block.class, !mask, within) {
        from_backing(engine, volume, job, run).await?;
    }
    Ok(())
}

fn relative(job: &Job<Piece>, run: &Range<u32>) -> Range<usize> {
    (run.start - job.part.start) as usize..(run.end - job.part.start) as usize
}
