//! Read-ahead: data that a read fetches in addition to the requested data, as the footprint has
//! learned (`forebay_policy::Footprint`).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_policy::{Footprint, Span, Worth};

use crate::commit::Committer;
use crate::foundation::Foundation;
use crate::geometry::{Extent, Geometry, Spread};
use crate::map::Map;
use crate::volume::AttachedVolume;

/// Cost of a fetch, modelled on a general-purpose cloud volume: 3,000 operations and 125 MiB a
/// second at a latency of 1 ms.
fn worth(granule_bytes: u64) -> Worth {
    Worth::of(1_000_000, 3000, 125 << 20, granule_bytes)
}

/// Number of read-ahead bytes that may be in flight at a time. Beyond that, reads fetch only the
/// requested data. These bytes lie in memory that no connection's buffer budget counts. A slow
/// backing device would let them grow without bound. The limit is as much as a front-end admits at
/// a time.
pub(crate) const MAX_BYTES: u64 = 32 << 20;

/// Bytes that are read ahead, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct AheadBytes {
    read_ahead: Rc<ReadAhead>,
    bytes: u64,
}

impl Drop for AheadBytes {
    fn drop(&mut self) {
        let in_flight = &self.read_ahead.in_flight_bytes;
        in_flight.set(in_flight.get() - self.bytes);
    }
}

/// Decides which additional data a read fetches.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    committer: Rc<Committer>,
    footprint: RefCell<Footprint>,
    /// Bytes on their way into the cache that no client asked for.
    in_flight_bytes: Cell<u64>,
}

impl ReadAhead {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(base: &Foundation, committer: Rc<Committer>) -> Self {
        let (geometry, units) = (base.geometry, base.units);
        let granule = geometry.region_granule_bytes();
        let granules = geometry.sizes().region_bytes() / granule;
        let granules = u32::try_from(granules).expect("at most 64");
        let footprint = Footprint::new(geometry.sizes(), granules, units, worth(granule));
        Self {
            geometry,
            map: Rc::clone(&base.map),
            committer,
            footprint: RefCell::new(footprint),
            in_flight_bytes: Cell::new(0),
        }
    }

    /// Returns the memory of the footprint in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.footprint.borrow().memory_bytes()
    }

    /// Returns the bytes on their way into the cache that no client asked for.
    #[cfg(test)]
    pub(crate) const fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.get()
    }

    /// Counts read-ahead bytes, if they fit under [`MAX_BYTES`].
    pub(crate) fn begin(self: &Rc<Self>, bytes: usize) -> Option<AheadBytes> {
        let (read_ahead, bytes) = (Rc::clone(self), bytes as u64);
        let all = self.in_flight_bytes.get() + bytes;
        (all <= MAX_BYTES).then(|| {
            self.in_flight_bytes.set(all);
            AheadBytes { read_ahead, bytes }
        })
    }

    /// Notes a request. Returns its byte range in the volume. For a read that misses, the range
    /// includes the data that is worth fetching with it.
    pub(crate) fn range(
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
        let range = footprint.miss(volume.id, granules, missing, |region| {
            map.cached(volume.id, region)
        });
        let end = (range.end * granule).min(volume.size_bytes());
        asked.start.min(range.start * granule)..asked.end.max(end)
    }

    /// Notes a part of a request on the hit path, and its granules.
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
