//! Read misses: missing data is read from the backing device, adjacent data in one read, and filled
//! into the cache.

use std::cell::RefCell;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Result};
use forebay_io::rt;
use forebay_policy::cleaning::IoDevice;
use forebay_policy::{BlockId, Span};

use super::from_slot;
use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::lock::Guard;
use crate::parallel;
use crate::read_ahead::AheadBytes;
use crate::volume::AttachedVolume;

/// Runs that touch are read at once up to this length, bytes: a backing device that is shared would
/// make others wait for more.
const READ_MAX: u32 = 256 << 10;

/// A block, and its granules that are to be filled.
#[derive(Clone, Copy, Debug)]
struct Target {
    id: BlockId,
    span: Span,
    granules: u64,
    /// Granules that the client requested.
    asked: u64,
}

/// Resources that are held during a fill.
pub(crate) struct Held<'a> {
    /// Lock on all blocks of the fill.
    pub(crate) lock: Guard<'a>,
    /// Counter of read-ahead bytes, if there are any.
    pub(crate) ahead: Option<AheadBytes>,
}

/// Reads the requested data of a region, which may be none, and fills in the missing data of
/// `wide`. The result depends neither on whether the cache device takes the data nor on read-ahead
/// data. Data that the client does not wait for has its own task, which holds the locks until it
/// ends.
pub(crate) async fn fill(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
    held: Held<'_>,
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
    let mut targets: Vec<Target> = Vec::new();
    let mut work: Vec<Pin<Box<dyn Future<Output = Result<()>>>>> = Vec::new();
    for (id, span) in found {
        missing &= !span.mask();
        let valid = engine.map.borrow().state(id).valid;
        let wanted = span.mask() & asked != 0;
        let piece = wanted.then(|| geometry.piece(&job.part, span));
        let touched = piece.map_or(0, |piece| geometry.touched(&piece));
        if engine.committer.is_alive() {
            targets.push(Target {
                id,
                span,
                granules: geometry.touched(&geometry.piece(&wide, span)) & !valid,
                asked: touched,
            });
        }
        if !wanted {
            continue;
        }
        engine.map.borrow_mut().used(id, span.class, touched);
        match touched & !valid {
            0 => volume.counters.read_hits.add(1),
            _ => volume.counters.read_misses.add(1),
        }
        let piece = job.piece(geometry, span);
        let within = piece.part.start..piece.part.end;
        if !engine.committer.is_alive() {
            let base = geometry.block_start(span);
            let runs = geometry.runs(span.class, touched & !valid, within.clone());
            reads.extend(runs.map(|run| base + run.start..base + run.end));
        }
        for run in geometry.runs(span.class, touched & valid, within) {
            let (engine, volume, piece) = (Rc::clone(engine), Rc::clone(volume), piece.clone());
            work.push(Box::pin(async move {
                from_slot(&engine, &volume, id, &piece, run).await
            }));
        }
    }
    let fresh = targets.len();
    // Read-ahead data is filled together with requested data before it, if any of that was missing.
    let may = !job.bypass && engine.committer.is_alive();
    let mut admitted = may && volume.admits_all();
    for span in geometry.sizes().cut_asked(missing, asked) {
        let block = geometry.block_in(wide.region, span);
        let wanted = span.mask() & asked != 0;
        if wanted {
            volume.counters.read_misses.add(1);
            admitted =
                !job.bypass && engine.committer.is_alive() && volume.promotes(volume.key(block));
        }
        let id = match (admitted, wanted) {
            (true, true) => engine.reclaimer.allocate(volume.id, block).await,
            (true, false) => engine.reclaimer.allocate_now(volume.id, block),
            (false, _) => None,
        };
        if let Some(id) = id {
            let asked = match wanted {
                true => geometry.touched(&geometry.piece(&job.part, span)),
                false => 0,
            };
            targets.push(Target {
                id,
                span,
                granules: geometry.touched(&geometry.piece(&wide, span)),
                asked,
            });
        } else if wanted {
            volume.counters.bypassed_reads.add(1);
            let (base, piece) = (geometry.block_start(span), geometry.piece(&job.part, span));
            reads.push(base + piece.start..base + piece.end);
        }
    }
    for target in &targets {
        let block = geometry.block_in(wide.region, target.span);
        let limit = volume.limit(geometry, block);
        let base = geometry.block_start(target.span);
        let runs = geometry.runs(target.span.class, target.granules, 0..limit);
        reads.extend(runs.map(|run| base + run.start..base + run.end));
    }
    let filling = Rc::new(Fill {
        engine: Rc::clone(engine),
        volume: Rc::clone(volume),
        region: wide.region,
        targets,
        fresh,
    });
    let (waited_for, behind) = parted(joined(reads), &(job.part.start..job.part.end));
    let read: Rc<RefCell<Vec<Run>>> = Rc::default();
    for run in waited_for {
        let (filling, job, read) = (Rc::clone(&filling), job.clone(), Rc::clone(&read));
        work.push(Box::pin(async move {
            let more = filling.read_for_client(&job, run).await?;
            read.borrow_mut().extend(more);
            Ok(())
        }));
    }
    let result = match work.pop() {
        Some(only) if work.is_empty() => only.await,
        Some(last) => parallel::all(work.into_iter().chain([last])).await,
        None => Ok(()),
    };
    let mut rest = read.take();
    rest.extend(behind.into_iter().map(|run| Run { run, buf: None }));
    if rest.is_empty() {
        filling.end();
    } else {
        filling.continue_behind(rest, held);
    }
    result
}

/// A run of a region to be filled, with its data if that was read.
#[derive(Debug)]
struct Run {
    run: Range<u32>,
    buf: Option<Buf>,
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

/// Splits runs into those that the client waits for and those that are read after its answer.
///
/// A run with requested data is read at once up to [`READ_MAX`]. The client waits a little longer
/// for more bytes, but the backing device serves one operation instead of two, and operations are
/// its scarcest resource. Of a longer run, the client waits only for the aligned stretches of that
/// length that contain requested data. They end at ends of granules.
fn parted(runs: Vec<Range<u32>>, asked: &Range<u32>) -> (Vec<Range<u32>>, Vec<Range<u32>>) {
    let (mut waited_for, mut behind) = (Vec::new(), Vec::new());
    for run in runs {
        let own = run.start.max(asked.start)..run.end.min(asked.end);
        if own.is_empty() {
            behind.push(run);
            continue;
        }
        let (mut start, mut end) = (run.start, run.end);
        if end - start > READ_MAX {
            start = start.max(own.start - own.start % READ_MAX);
            end = end.min(own.end.next_multiple_of(READ_MAX));
        }
        waited_for.push(start..end);
        behind.extend(
            [run.start..start, end..run.end]
                .into_iter()
                .filter(|rest| !rest.is_empty()),
        );
    }
    (waited_for, behind)
}

/// A fill in progress: a region, and the blocks that are filled.
struct Fill {
    engine: Rc<Engine>,
    volume: Rc<AttachedVolume>,
    region: u64,
    targets: Vec<Target>,
    /// Index of the first target whose block this fill allocated.
    fresh: usize,
}

impl Fill {
    /// Returns the offset in the volume of a byte of the region.
    fn offset(&self, start: u32) -> u64 {
        let (region, end) = (self.region, start);
        self.engine
            .geometry
            .region_offset(&Extent { region, start, end })
    }

    /// Reads a run, of which the client requested at least a part, from the backing device. Data in
    /// the client's buffer is filled into the cache before the answer, since the client owns the
    /// buffer afterwards. A run with more data is returned for a later fill.
    async fn read_for_client(&self, job: &Job<Extent>, run: Range<u32>) -> Result<Option<Run>> {
        let asked = run.start.max(job.part.start)..run.end.min(job.part.end);
        let at = (asked.start - job.part.start) as usize;
        let own = job.buf.slice(at..at + asked.len());
        let backing = self.volume.backing.device();
        if asked == run {
            let reading = backing.read(self.offset(run.start), own.clone());
            self.volume.timed(IoDevice::Backing, reading).await?;
            self.fill(&run, &own).await;
            return Ok(None);
        }
        let buf = Buf::scratch(run.len());
        let reading = backing.read(self.offset(run.start), buf.clone());
        let read = self.volume.timed(IoDevice::Backing, reading).await;
        if read.is_err() {
            // The read-ahead data may be the unreadable part.
            backing.read(self.offset(asked.start), own).await?;
            return Ok(None);
        }
        let at = (asked.start - run.start) as usize;
        own.copy_from_buf(&buf.slice(at..at + asked.len()));
        let buf = Some(buf);
        Ok(Some(Run { run, buf }))
    }

    /// Fills data that the client does not wait for. The locks are held, and the volume stays
    /// attached, until the fill ends.
    fn continue_behind(self: Rc<Self>, rest: Vec<Run>, held: Held<'_>) {
        let Held { lock, ahead } = held;
        let lock = lock.hand_over();
        self.volume.enter();
        rt::spawn(async move {
            let lock = self.engine.locks.adopt(lock);
            let runs = rest.into_iter().map(|run| self.fill_run(run));
            // This is read-ahead, so no request gets the error.
            let _ = parallel::all(runs).await;
            self.end();
            drop((lock, ahead));
            self.volume.leave();
        });
    }

    /// Fills a run, and reads it before if that was not done.
    async fn fill_run(&self, Run { run, buf }: Run) -> Result<()> {
        let buf = match buf {
            Some(buf) => buf,
            None => {
                let (at, buf) = (self.offset(run.start), Buf::scratch(run.len()));
                self.volume.backing.device().read(at, buf.clone()).await?;
                buf
            }
        };
        self.fill(&run, &buf).await;
        Ok(())
    }

    /// Writes a run that was read into the blocks that take it.
    async fn fill(&self, run: &Range<u32>, buf: &Buf) {
        let (engine, geometry) = (&self.engine, self.engine.geometry);
        for target in &self.targets {
            let base = geometry.block_start(target.span);
            let block = geometry.block_in(self.region, target.span);
            let limit = self.volume.limit(geometry, block);
            // Granules are whole in a run: runs end where blocks, the volume or granules do.
            let within = run.start.max(base) - base..run.end.saturating_sub(base).min(limit);
            let mut filled = 0;
            for part in geometry.runs(target.span.class, target.granules, within) {
                let at = (base + part.start - run.start) as usize;
                let data = buf.slice(at..at + part.len());
                if engine
                    .slots
                    .write(&self.volume, target.id, part.start, data)
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
            // After a failed flush the content of the block is unknown.
            if filled != 0 && !engine.committer.is_in_doubt(target.id) {
                (engine.map.borrow_mut()).fill(target.id, filled, target.asked);
                engine.committer.queue_later(target.id);
            }
        }
    }

    /// Counts the blocks that the fill created, and forgets those that got no data.
    fn end(&self) {
        for target in &self.targets[self.fresh..] {
            if !self.engine.slots.forget_if_empty(target.id) {
                self.engine.stats.promotions.add(1);
            }
        }
    }
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

    #[test]
    fn a_long_run_is_waited_for_where_it_was_asked_for() {
        const M: u32 = READ_MAX;
        let of = |run, asked| {
            let (waited_for, behind) = parted(vec![run], &asked);
            let ends = |runs: Vec<Range<u32>>| -> Vec<(u32, u32)> {
                runs.into_iter().map(|run| (run.start, run.end)).collect()
            };
            (ends(waited_for), ends(behind))
        };
        assert_eq!(of(8..M, 16..20), (vec![(8, M)], vec![]));
        assert_eq!(of(8..16, 16..20), (vec![], vec![(8, 16)]));
        assert_eq!(of(8..M + 9, 16..20), (vec![(8, M)], vec![(M, M + 9)]));
        let behind = vec![(0, M), (2 * M, 4 * M)];
        assert_eq!(of(0..4 * M, M + 4..M + 8), (vec![(M, 2 * M)], behind));
        assert_eq!(of(0..4 * M, 0..4 * M), (vec![(0, 4 * M)], vec![]));
        assert_eq!(of(0..4, 0..0), (vec![], vec![(0, 4)]));
    }
}
