//! What a read brings in beside what it asks for, as the footprint has learned (`forebay_policy::Footprint`).

use std::ops::Range;
use std::rc::Rc;

use forebay_policy::{Span, Worth};

use crate::engine::Engine;
use crate::geometry::{Extent, Spread};
use crate::volume::AttachedVolume;

/// What bringing in is worth: a general-purpose cloud volume's 3,000 operations and 125 MiB a second at a
/// latency of 1 ms.
pub(crate) fn worth(granule_bytes: u64) -> Worth {
    Worth::of(1_000_000, 3000, 125 << 20, granule_bytes)
}

/// Bytes that may be on their way into the cache at a time though nobody asked for them; beyond that, reads bring in
/// what they ask for and no more. These bytes lie in memory that no connection's budget of buffers counts, and a
/// backing device that has got slow would let them grow without end. It is as much as a front end admits at a time.
pub(crate) const ALONG_MAX_BYTES: u64 = 32 << 20;

/// Bytes that come along with what was asked for, counted until this is dropped.
pub(crate) struct Along {
    engine: Rc<Engine>,
    bytes: u64,
}

impl Drop for Along {
    fn drop(&mut self) {
        let bytes = &self.engine.along_bytes;
        bytes.set(bytes.get() - self.bytes);
    }
}

impl Engine {
    /// Counts bytes that nobody asked for, if there is still room for them under [`ALONG_MAX_BYTES`].
    pub(crate) fn come_along(self: &Rc<Self>, bytes: usize) -> Option<Along> {
        let (engine, bytes) = (Rc::clone(self), bytes as u64);
        let all = self.along_bytes.get() + bytes;
        (all <= ALONG_MAX_BYTES).then(|| {
            self.along_bytes.set(all);
            Along { engine, bytes }
        })
    }

    /// Notes a request. Returns what of the volume it is about, bytes: for a read that misses, with what is
    /// worth bringing in along with it.
    pub(crate) fn bring(
        &self,
        volume: &AttachedVolume,
        asked: Range<u64>,
        write: bool,
        sequential: bool,
    ) -> Range<u64> {
        let promotes = volume.mode().promotes_reads() && !sequential && self.committer.is_alive();
        let granule = self.geometry.region_granule_bytes();
        let (mut footprint, map) = (self.footprint.borrow_mut(), self.map.borrow());
        let mut missing: Option<Range<u64>> = None;
        for part in self.geometry.parts(asked.start, asked.end - asked.start) {
            let granules = self.geometry.region_granules(&part);
            footprint.used(volume.id, part.region, granules, write);
            if write || !promotes {
                continue;
            }
            let absent = granules & !map.cached(volume.id, part.region);
            if absent != 0 {
                let base = part.region * (self.geometry.sizes().region_bytes() / granule);
                let first = base + u64::from(absent.trailing_zeros());
                let end = base + u64::from(64 - absent.leading_zeros());
                missing = Some(missing.map_or(first, |missing| missing.start)..end);
            }
        }
        let Some(missing) = missing else {
            return asked;
        };
        let granules = asked.start / granule..asked.end.div_ceil(granule);
        let bring = footprint.miss(volume.id, granules, missing, |region| {
            map.cached(volume.id, region)
        });
        let end = (bring.end * granule).min(volume.size_bytes());
        asked.start.min(bring.start * granule)..asked.end.max(end)
    }

    /// Notes a part of a request that is served the short way, and its granules.
    #[inline]
    pub(crate) fn note_part(&self, volume: u16, part: &Extent, granules: u64, write: bool) {
        let mut footprint = self.footprint.borrow_mut();
        footprint.used(volume, part.region, granules, write);
    }

    /// Notes that a block was evicted.
    pub(crate) fn note_evicted(&self, volume: u16, region: u64, span: Span) {
        let granules = self.geometry.spread(u64::MAX, span, Spread::Any);
        let mut footprint = self.footprint.borrow_mut();
        footprint.evicted(volume, region, granules);
    }
}
