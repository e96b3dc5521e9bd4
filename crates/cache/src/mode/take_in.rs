//! Read misses: what the cache lacks comes from the backing device, in one read where it touches, and is
//! taken in on the way.

use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Result};
use forebay_policy::{BlockId, Span};

use super::cached::forget_if_empty;
use super::fetch::from_slot;
use crate::engine::{Attached, Engine, Job};
use crate::geometry::{Piece, Stretch};

/// Runs that touch are read at once up to this length, bytes: a backing device that is shared would make
/// others wait for more.
const READ_MAX: u32 = 256 << 10;

/// A block, and its granules that are to be taken in.
#[derive(Clone, Copy, Debug)]
struct Taker {
    slot: BlockId,
    span: Span,
    granules: u64,
}

/// Reads what `job` asks for of a region, which may be nothing, and takes in what is missing of `wide`. All
/// blocks there are locked. The answer does not depend on whether the cache device takes anything, nor on
/// what was not asked for.
pub(super) async fn take_in(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
    wide: Stretch,
) -> Result<()> {
    let geometry = engine.geometry;
    let asked = match job.part.len() {
        0 => 0,
        _ => geometry.units(&job.part),
    };
    let mut missing = geometry.units(&wide);
    let found: Vec<(BlockId, Span)> = {
        let map = engine.map.borrow();
        map.overlapping(volume.id, wide.region, missing).collect()
    };
    let mut reads: Vec<Range<u32>> = Vec::new();
    let mut takers: Vec<Taker> = Vec::new();
    let mut work: Vec<Pin<Box<dyn Future<Output = Result<()>>>>> = Vec::new();
    for (slot, span) in found {
        missing &= !span.mask();
        let valid = engine.map.borrow().slot(slot).valid;
        if engine.commit.is_alive() {
            takers.push(Taker {
                slot,
                span,
                granules: geometry.touched(&geometry.piece(&wide, span)) & !valid,
            });
        }
        if span.mask() & asked == 0 {
            continue;
        }
        let piece = geometry.piece(&job.part, span);
        let touched = geometry.touched(&piece);
        engine.map.borrow_mut().used(slot, span.class, touched);
        match touched & !valid {
            0 => volume.counters.read_hits.add(1),
            _ => volume.counters.read_misses.add(1),
        }
        let at = (geometry.block_start(span) + piece.start - job.part.start) as usize;
        let piece = Job {
            buf: job.buf.slice(at..at + piece.len()),
            part: piece,
            durable: false,
            sequential: job.sequential,
        };
        let within = piece.part.start..piece.part.end;
        if !engine.commit.is_alive() {
            let base = geometry.block_start(span);
            let runs = geometry.runs(span.class, touched & !valid, within.clone());
            reads.extend(runs.map(|run| base + run.start..base + run.end));
        }
        for run in geometry.runs(span.class, touched & valid, within) {
            let (engine, volume, piece) = (Rc::clone(engine), Rc::clone(volume), piece.clone());
            work.push(Box::pin(async move {
                from_slot(&engine, &volume, slot, &piece, run).await
            }));
        }
    }
    let fresh = takers.len();
    // What nobody asked for goes with what was asked for before it, if any of that was missing.
    let may = !job.sequential && engine.commit.is_alive();
    let mut admitted = may && volume.filter.borrow().admits_all();
    for span in geometry.sizes().cut_asked(missing, asked) {
        let block = geometry.block_in(wide.region, span);
        let wanted = span.mask() & asked != 0;
        if wanted {
            volume.counters.read_misses.add(1);
            admitted =
                !job.sequential && engine.commit.is_alive() && volume.promotes(volume.key(block));
        }
        let slot = match admitted {
            true => engine.allocate(volume.id, block).await,
            false => None,
        };
        if let Some(slot) = slot {
            if wanted {
                let touched = geometry.touched(&geometry.piece(&job.part, span));
                engine.map.borrow_mut().used(slot, span.class, touched);
            }
            takers.push(Taker {
                slot,
                span,
                granules: geometry.touched(&geometry.piece(&wide, span)),
            });
        } else if wanted {
            volume.counters.bypassed_reads.add(1);
            let (base, piece) = (geometry.block_start(span), geometry.piece(&job.part, span));
            reads.push(base + piece.start..base + piece.end);
        }
    }
    for taker in &takers {
        let block = geometry.block_in(wide.region, taker.span);
        let limit = volume.limit(geometry, block);
        let base = geometry.block_start(taker.span);
        let runs = geometry.runs(taker.span.class, taker.granules, 0..limit);
        reads.extend(runs.map(|run| base + run.start..base + run.end));
    }
    let takers: Rc<[Taker]> = takers.into();
    for run in joined(reads) {
        let (engine, volume) = (Rc::clone(engine), Rc::clone(volume));
        let (job, takers) = (job.clone(), Rc::clone(&takers));
        work.push(Box::pin(async move {
            read_run(&engine, &volume, &job, run, &takers).await
        }));
    }
    let result = match work.pop() {
        Some(only) if work.is_empty() => only.await,
        Some(last) => Engine::all(work.into_iter().chain([last])).await,
        None => Ok(()),
    };
    for taker in &takers[fresh..] {
        forget_if_empty(engine, taker.slot);
    }
    result
}

/// Puts runs that touch each other together, bytes of the region.
fn joined(mut runs: Vec<Range<u32>>) -> Vec<Range<u32>> {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let joins = next.start == run.end && next.end - run.start <= READ_MAX;
        if joins {
            run.end = next.end;
        }
        joins
    });
    runs
}

/// Reads a run of a region from the backing device, for the client and for the blocks that take it in.
async fn read_run(
    engine: &Rc<Engine>,
    volume: &Attached,
    job: &Job<Stretch>,
    run: Range<u32>,
    takers: &[Taker],
) -> Result<()> {
    let geometry = engine.geometry;
    let region = |start: u32| geometry.region_offset(&Stretch { start, ..job.part });
    let asked = run.start.max(job.part.start)..run.end.min(job.part.end);
    let for_client = |range: &Range<u32>| {
        let at = (range.start - job.part.start) as usize;
        job.buf.slice(at..at + range.len())
    };
    let buf = if asked == run {
        for_client(&asked)
    } else {
        Buf::scratch(run.len())
    };
    let read = volume.backing.device.read(region(run.start), buf.clone());
    if let Err(error) = read.await {
        if asked == run {
            return Err(error);
        }
        // What nobody asked for may be what cannot be read.
        if !asked.is_empty() {
            let (at, buf) = (region(asked.start), for_client(&asked));
            return volume.backing.device.read(at, buf).await;
        }
        return Ok(());
    }
    if asked != run && !asked.is_empty() {
        let at = (asked.start - run.start) as usize;
        for_client(&asked).copy_from_buf(&buf.slice(at..at + asked.len()));
    }
    for taker in takers {
        let base = geometry.block_start(taker.span);
        let block = geometry.block_in(job.part.region, taker.span);
        let limit = volume.limit(geometry, block);
        let mut filled = 0;
        for part in geometry.runs(taker.span.class, taker.granules, 0..limit) {
            // Runs were put together, never cut.
            let (start, end) = (base + part.start, base + part.end);
            if start < run.start || end > run.end {
                continue;
            }
            let data = buf.slice((start - run.start) as usize..(end - run.start) as usize);
            if engine
                .write_slot(taker.slot, part.start, data)
                .await
                .is_ok()
            {
                filled |= geometry.touched(&Piece {
                    block,
                    start: part.start,
                    end: part.end,
                });
            }
        }
        // After a failed flush nobody knows what is there.
        if filled != 0 && !engine.is_in_doubt(taker.slot) {
            let mut map = engine.map.borrow_mut();
            let entry = map.slot(taker.slot);
            map.set(taker.slot, entry.valid | filled, entry.dirty);
            drop(map);
            engine.stats.promotions.add(1);
            engine.queue_later(taker.slot);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_read_at_once_up_to_a_length() {
        let runs = vec![8..12, 0..4, 4..8, 16..20];
        assert_eq!(joined(runs), [0..12, 16..20]);
        let long = vec![0..READ_MAX, READ_MAX..READ_MAX + 4];
        assert_eq!(joined(long.clone()), long);
        assert_eq!(joined(Vec::new()), []);
    }
}
