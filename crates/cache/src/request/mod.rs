//! A volume as a device, and how a request is cut: at regions, then at the blocks that are there.

mod hit_path;

use std::pin::Pin;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request, Result};
use forebay_io::rt;
use forebay_metadata::order::Site;
use forebay_policy::{BlockId, Span, Way};

use crate::degraded;
use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::lock::Guard;
use crate::mode;
use crate::parallel;
use crate::volume::{AttachedVolume, volume_info};

/// A volume as a device: what `Cache::attach` returns.
pub(crate) struct CachedVolume {
    pub(crate) engine: Rc<Engine>,
    pub(crate) volume: Rc<AttachedVolume>,
}

impl BlockDevice for CachedVolume {
    fn info(&self) -> DeviceInfo {
        volume_info(
            self.volume.name.clone(),
            self.volume.size_bytes(),
            &self.volume.backing.device.info(),
            &self.engine.devices.data().info(),
            self.engine.geometry,
            self.engine.settings.durability,
        )
    }

    fn submit(&self, request: Request, done: Completion) {
        let (size, block) = (self.volume.size_bytes(), self.volume.logical_block);
        if let Err(error) = request.check(size, block) {
            return done.complete(Err(error));
        }
        if self.volume.is_detaching() {
            return done.complete(Err(ErrorKind::ShuttingDown.into()));
        }
        let Err((request, done)) = self.try_fast(request, done) else {
            return;
        };
        let (engine, volume) = (Rc::clone(&self.engine), Rc::clone(&self.volume));
        volume.enter();
        rt::spawn(async move {
            let result = engine.serve(&volume, request).await;
            if result.is_err() {
                engine.failures.note_failure(&volume).await;
            }
            volume.leave();
            done.complete(result);
        });
    }
}

impl Engine {
    pub(crate) async fn serve(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: Request,
    ) -> Result<()> {
        let result = self.serve_untold(volume, request).await;
        if let Err(error) = &result {
            volume.log_failure(error);
        }
        result
    }

    async fn serve_untold(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: Request,
    ) -> Result<()> {
        let sync = self.committer.is_sync();
        match request.op {
            Op::Flush => match mode::flush(self, volume).await {
                Err(_) if self.diverges(volume) => degraded::flush(self, volume).await,
                result => result,
            },
            Op::Discard => mode::zero(self, volume, request.offset, request.len, None, sync).await,
            Op::WriteZeroes { fua, unmap } => {
                let durable = fua || sync;
                mode::zero(
                    self,
                    volume,
                    request.offset,
                    request.len,
                    Some(unmap),
                    durable,
                )
                .await
            }
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.expect("checked on submission");
                let write = request.op != Op::Read;
                let fua = request.op == Op::Write { fua: true };
                let (start, end) = (request.offset, request.offset + request.len);
                let sequential = volume.note_request(start, request.len);
                let wide = self.read_ahead.range(volume, start..end, write, sequential);
                let visit = match write && !sequential {
                    true => self.admission.way_of_write(volume, start..end),
                    false => None,
                };
                let around = sequential || visit.is_some_and(|visit| visit.way != Way::Cache);
                let job = move |wide: Extent| {
                    // The part of the request that lies in this part of what is brought in.
                    let from = self.geometry.region_offset(&wide);
                    let to = from + wide.len() as u64;
                    let asked = start.clamp(from, to)..end.clamp(from, to);
                    let part = Extent {
                        start: wide.start + (asked.start - from) as u32,
                        end: wide.start + (asked.end - from) as u32,
                        ..wide
                    };
                    let at = (asked.start.clamp(start, end) - start) as usize;
                    Job {
                        part,
                        buf: buf.slice(at..at + part.len()),
                        durable: write && (fua || sync),
                        bypass: around,
                    }
                };
                let mut parts = self.geometry.parts(wide.start, wide.end - wide.start);
                let first = parts.next().expect("a request has a part");
                if first.len() as u64 == wide.end - wide.start {
                    let result = self.run(volume, job(first), first, write).await;
                    self.admission.write_ended(volume, visit, &result);
                    return result;
                }
                // What was asked for gets room first.
                let parts = std::iter::once(first)
                    .chain(parts)
                    .map(|part| (job(part), part));
                let (asked, beside): (Vec<_>, Vec<_>) =
                    parts.partition(|(job, _)| job.part.len() > 0);
                let parts = asked.into_iter().chain(beside).map(|(job, part)| {
                    let (engine, volume) = (Rc::clone(self), Rc::clone(volume));
                    async move { engine.run(&volume, job, part, write).await }
                });
                let result = parallel::all(parts).await;
                self.admission.write_ended(volume, visit, &result);
                result
            }
        }
    }

    async fn run(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        wide: Extent,
        write: bool,
    ) -> Result<()> {
        match write {
            true => mode::write(self, volume, job).await,
            false => mode::read(self, volume, job, wide).await,
        }
    }

    /// Cuts a part at the blocks that are there, and what is not there into the largest blocks that fit;
    /// runs `run` for each piece, all at a time, with the block if it is there. The part's lock is held.
    pub(crate) async fn each_piece<F>(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        run: impl Fn(Rc<Self>, Rc<AttachedVolume>, Option<BlockId>, Job<Piece>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let wanted = self.geometry.units(&job.part);
        let first = {
            let map = self.map.borrow();
            let found = map.overlapping(volume.id, job.part.region, wanted).next();
            found.filter(|(_, span)| wanted & !span.mask() == 0)
        };
        let start = |found: Option<BlockId>, span: Span| {
            let job = job.piece(self.geometry, span);
            run(Rc::clone(self), Rc::clone(volume), found, job)
        };
        if let Some((slot, span)) = first {
            return start(Some(slot), span).await;
        }
        let mut pieces: Vec<(Option<BlockId>, Span)> = {
            let map = self.map.borrow();
            map.overlapping(volume.id, job.part.region, wanted)
                .map(|(slot, span)| (Some(slot), span))
                .collect()
        };
        let there = pieces
            .iter()
            .fold(0, |units, (_, span)| units | span.mask());
        let missing = self.geometry.sizes().cut(wanted & !there);
        pieces.extend(missing.map(|span| (None, span)));
        if let [(found, span)] = pieces[..] {
            return start(found, span).await;
        }
        parallel::all(pieces.into_iter().map(|(found, span)| start(found, span))).await
    }

    /// Cuts a part at the blocks that are there: `present` runs for what lies in each, and `absent` for what lies in none,
    /// in runs as long as may be. So who makes no blocks asks the backing device once for each. The part's lock is held.
    pub(crate) async fn each_block<F, G>(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        present: impl Fn(Rc<Self>, Rc<AttachedVolume>, BlockId, Job<Piece>) -> F,
        absent: impl Fn(Rc<Self>, Rc<AttachedVolume>, Job<Extent>) -> G,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + 'static,
        G: Future<Output = Result<()>> + 'static,
    {
        let mut missing = self.geometry.units(&job.part);
        let found: Vec<(BlockId, Span)> = {
            let map = self.map.borrow();
            map.overlapping(volume.id, job.part.region, missing)
                .collect()
        };
        let mut parts: Vec<Pin<Box<dyn Future<Output = Result<()>>>>> = Vec::new();
        for (slot, span) in found {
            missing &= !span.mask();
            let piece = job.piece(self.geometry, span);
            parts.push(Box::pin(present(
                Rc::clone(self),
                Rc::clone(volume),
                slot,
                piece,
            )));
        }
        for run in self.geometry.runs_of_units(&job.part, missing) {
            let run = job.cut(run);
            parts.push(Box::pin(absent(Rc::clone(self), Rc::clone(volume), run)));
        }
        parallel::all(parts.into_iter()).await
    }

    /// Whether all that a part touches is valid in the cache.
    pub(crate) fn holds(&self, volume: u16, part: &Extent) -> bool {
        let map = self.map.borrow();
        let mut missing = self.geometry.units(part);
        for (slot, span) in map.overlapping(volume, part.region, missing) {
            let needed = self.geometry.touched(&self.geometry.piece(part, span));
            if needed & !map.slot(slot).valid != 0 {
                return false;
            }
            missing &= !span.mask();
        }
        missing == 0
    }

    /// Waits until nobody else reads or changes what a part touches, nor anything of the units where no block
    /// is yet: there, a block may be made.
    pub(crate) async fn lock_blocks(
        &self,
        site: Site,
        volume: &AttachedVolume,
        part: &Extent,
    ) -> Guard<'_> {
        let needed = || self.granules_to_lock(volume, part);
        let mut granules = needed();
        loop {
            let key = volume.region_key(part.region);
            let guard = self.locks.acquire(site, key, granules, true).await;
            // A block may have gone while this waited.
            let now = needed();
            if now & !guard.granules() == 0 {
                return guard;
            }
            granules = now;
        }
    }

    /// Locks what a write touches, and runs it if the cache takes writes. Whoever held the lock may have failed with the
    /// cache: what they meant to have on media, say that a block is dead, is in the map and nowhere else.
    ///
    /// Where a volume goes on without a cache that has failed, what that did not take goes past it under the same lock: nobody
    /// sees a part of it, then what somebody else wrote there, and then that part again.
    pub(crate) async fn write_locked(
        self: &Rc<Self>,
        site: Site,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        write: impl AsyncFnOnce(Job<Extent>) -> Result<()>,
    ) -> Result<()> {
        let _lock = self.lock_blocks(site, volume, &job.part).await;
        self.write_alone(volume, job, write).await
    }

    /// [`Engine::write_locked`] for who has the lock.
    pub(crate) async fn write_alone(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        write: impl AsyncFnOnce(Job<Extent>) -> Result<()>,
    ) -> Result<()> {
        let past = volume.falls_back().then(|| job.clone());
        let written = match self.committer.check_alive() {
            Ok(()) => write(job).await,
            Err(error) => Err(error),
        };
        match (written, past) {
            // Boxed, since it is seldom: every write's future would have room for it.
            (Err(error), Some(job)) => Box::pin(degraded::write(self, volume, job, error)).await,
            (written, _) => written,
        }
    }

    /// What [`Engine::lock_blocks`] locks, as things are.
    pub(crate) fn granules_to_lock(&self, volume: &AttachedVolume, part: &Extent) -> u64 {
        let units = self.geometry.units(part);
        let map = self.map.borrow();
        let blocks = map.overlapping(volume.id, part.region, units);
        let missing = blocks.fold(units, |missing, (_, span)| missing & !span.mask());
        self.geometry.region_granules(part) | self.geometry.granules_of_units(missing)
    }
}
