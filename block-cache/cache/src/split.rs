//! Split of a part of a request, before its lock and at the existing blocks, and the lock.

use std::pin::Pin;
use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::order::Site;
use forebay_policy::{BlockId, Span};

use crate::engine::Engine;
use crate::geometry::{Extent, Piece, Spread};
use crate::job::Job;
use crate::lock::Guard;
use crate::parallel;
use crate::volume::AttachedVolume;

impl Engine {
    /// Splits a part at the existing blocks, and the gaps into the largest blocks that fit. Runs
    /// `run` for each piece, all at a time, with its block if there is one. The caller holds the
    /// part's lock.
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
        if let Some((id, span)) = first {
            return start(Some(id), span).await;
        }
        let mut pieces: Vec<(Option<BlockId>, Span)> = {
            let map = self.map.borrow();
            map.overlapping(volume.id, job.part.region, wanted)
                .map(|(id, span)| (Some(id), span))
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

    /// Splits a part at the existing blocks. Runs `present` for the piece in each block, and
    /// `absent` for each gap. A gap is not split, so it takes one I/O of the backing device. The
    /// caller holds the part's lock.
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
        for (id, span) in found {
            missing &= !span.mask();
            let piece = job.piece(self.geometry, span);
            parts.push(Box::pin(present(
                Rc::clone(self),
                Rc::clone(volume),
                id,
                piece,
            )));
        }
        for run in self.geometry.runs_of_units(&job.part, missing) {
            let run = job.cut(run);
            parts.push(Box::pin(absent(Rc::clone(self), Rc::clone(volume), run)));
        }
        parallel::all(parts.into_iter()).await
    }

    /// Returns whether all data of a part is valid in the cache.
    pub(crate) fn holds(&self, volume: u16, part: &Extent) -> bool {
        let map = self.map.borrow();
        let mut missing = self.geometry.units(part);
        for (id, span) in map.overlapping(volume, part.region, missing) {
            let needed = self.geometry.touched(&self.geometry.piece(part, span));
            if needed & !map.state(id).valid != 0 {
                return false;
            }
            missing &= !span.mask();
        }
        missing == 0
    }

    /// Returns where a write is split before it is locked, in bytes within the region. It splits
    /// off data in a granule that must first be completed from the backing device, if a block
    /// exists there. Many small consecutive writes each share such a granule with the next. If each
    /// held all its granules while it waits for its own read, each would wait for all before it.
    ///
    /// Only writes that leave dirty data complete granules, so writes in other modes are not split.
    /// The mode may change while a part waits for its lock. Then the split is merely needless or
    /// missing.
    ///
    /// If the write is split, its blocks, which are hits, are counted as used here, once for the
    /// whole write.
    pub(crate) fn cut_write(&self, volume: &AttachedVolume, part: &Extent) -> Vec<u32> {
        if !volume.mode().makes_dirty() {
            return Vec::new();
        }
        let geometry = self.geometry;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "of a region, which is at most 1 MiB"
        )]
        let granule = geometry.region_granule_bytes() as u32;
        let (first, last) = (part.start / granule, (part.end - 1) / granule);
        let ragged = |at: u32| u64::from(!at.is_multiple_of(granule));
        let partly = ragged(part.start) << first | ragged(part.end) << last;
        if first == last || partly == 0 {
            return Vec::new();
        }
        let mut map = self.map.borrow_mut();
        let blocks = map.overlapping(volume.id, part.region, geometry.units(part));
        let blocks: Vec<(BlockId, Span)> = blocks.collect();
        let absent = blocks.iter().fold(0, |absent, (id, span)| {
            let valid = geometry.spread(map.maps(*id, span.class).0, *span, Spread::All);
            absent | geometry.covers(*span) & !valid
        });
        let alone = |at: u32| partly & absent & 1 << at != 0;
        let head = alone(first).then_some((first + 1) * granule);
        let tail = alone(last).then_some(last * granule);
        let mut cuts: Vec<u32> = head.into_iter().chain(tail).collect();
        cuts.dedup();
        let leaving = |(id, _): &(BlockId, Span)| map.table().is_leaving(*id);
        if cuts.is_empty() || blocks.iter().any(leaving) {
            return Vec::new();
        }
        for (id, span) in blocks {
            let touched = geometry.touched(&geometry.piece(part, span));
            map.used(id, span.class, touched);
            volume.counters.write_hits.add(1);
        }
        cuts
    }

    /// Waits until no other task reads or changes the granules of a part, or the units without a
    /// block, where a block may be created.
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

    /// Returns the granules that [`Engine::lock_blocks`] locks in the present state.
    pub(crate) fn granules_to_lock(&self, volume: &AttachedVolume, part: &Extent) -> u64 {
        let units = self.geometry.units(part);
        let map = self.map.borrow();
        let blocks = map.overlapping(volume.id, part.region, units);
        let missing = blocks.fold(units, |missing, (_, span)| missing & !span.mask());
        self.geometry.region_granules(part) | self.geometry.granules_of_units(missing)
    }
}
