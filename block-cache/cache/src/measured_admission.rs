//! The interface between the engine and measured admission ([`forebay_policy::Measured`]).
//!
//! A write that misses and finds no room would wait until dirty blocks are written back. Measured
//! admission decides whether it waits or bypasses the cache. A bypass follows rule 5, as above the
//! dirty limit: under the write's lock, with its cached copies handled. Writes that hit, or that
//! find room, always use the cache.
//!
//! Of reads, measured admission decides only on hits on clean data. Both devices have that data, so
//! it may be read from the backing device ([`forebay_policy::Split`]).

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_policy::{Measured, Route};

use crate::clean::Cleaner;
use crate::clean::write_back::BATCH;
use crate::evict::Reclaimer;
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::map::Map;
use crate::options::{Admission, Settings};
use crate::volume::AttachedVolume;

/// Smallest number of units over which the wait for room is averaged. The cleaner writes blocks
/// back in batches, so one wait usually covers a whole batch.
const WINDOW: u32 = 16 * BATCH as u32;

/// Measurement of a write that misses, until the write ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) route: Route,
    /// Number of bytes of the write that are not cached.
    bytes: u64,
    /// Whether none of the write is cached. Only such writes measure the cost of a bypass.
    all: bool,
    had_room: bool,
    /// Start of the write, and the cleaner's turns at that time.
    began: (Duration, u64),
}

/// The part that decides which device serves a request.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    geometry: Geometry,
    settings: Rc<Settings>,
    map: Rc<RefCell<Map>>,
    reclaimer: Rc<Reclaimer>,
    cleaner: Rc<Cleaner>,
    /// Whether clean hits may be read from the backing device.
    measures_hits: bool,
}

impl AdmissionControl {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(base: &Foundation, reclaimer: Rc<Reclaimer>, cleaner: Rc<Cleaner>) -> Self {
        Self {
            measures_hits: matches!(base.settings.admission, Admission::Measured),
            geometry: base.geometry,
            settings: Rc::clone(&base.settings),
            map: Rc::clone(&base.map),
            reclaimer,
            cleaner,
        }
    }

    pub(crate) fn new_measures(&self) -> Measured {
        let window = self.reclaimer.batch().saturating_mul(8).max(WINDOW);
        // To know the price, half a window is given up: in a small cache not the half of that.
        let window = window.min((self.map.borrow().units() / 8).max(2 * BATCH as u32));
        let block_bytes = self.geometry.block_bytes(0);
        Measured::new(u64::from(window) * block_bytes, BATCH as u64 * block_bytes)
    }

    /// Returns the route of a write. Returns `None` if the cache has all its blocks, or if
    /// admission is not measured.
    pub(crate) fn route_write(
        &self,
        volume: &Rc<AttachedVolume>,
        range: Range<u64>,
    ) -> Option<Visit> {
        if self.settings.admission == Admission::Always
            || !volume.mode().makes_dirty()
            || self.cleaner.above_dirty_limit()
        {
            return None;
        }
        let (mut missing, mut asked) = (0, 0);
        // The class of blocks for which there is no room.
        let mut short = None;
        {
            let map = self.map.borrow();
            for part in self.geometry.parts(range.start, range.end - range.start) {
                let units = self.geometry.units(&part);
                let blocks = map.overlapping(volume.id, part.region, units);
                let rest = blocks.fold(units, |rest, (_, span)| rest & !span.mask());
                asked += units.count_ones();
                missing += rest.count_ones();
                if let Some(span) = self.geometry.sizes().cut(rest).next()
                    && map.table().room(span.class) < missing
                {
                    short = Some(span.class);
                }
            }
        }
        if missing == 0 || !volume.admits_all() {
            return None;
        }
        let bytes =
            (u64::from(missing) * self.geometry.block_bytes(0)).min(range.end - range.start);
        let route = match short {
            None => Route::Cache,
            Some(class) => {
                let route = volume.route_write(bytes);
                let is_sent = route == Route::Bypass;
                volume.counters.bypassed_for_room.add(u64::from(is_sent));
                self.reclaimer.keep_dirty();
                // Clean blocks make room for later writes, whether or not this write bypasses the
                // cache.
                self.reclaimer.ask_for_room(class);
                route
            }
        };
        Some(Visit {
            route,
            bytes,
            all: missing == asked,
            had_room: short.is_none(),
            began: volume.begin_io(),
        })
    }

    /// Whether clean hits may be read elsewhere.
    #[inline]
    pub(crate) fn measures_hits(&self) -> bool {
        self.measures_hits
    }

    /// Returns where to read a hit; `dirty` has its dirty granules. Returns `None` if the hit is
    /// not measured, or if the backing device may lose data that it still shows. The cache never
    /// loses such data.
    pub(crate) fn route_hit(
        &self,
        volume: &AttachedVolume,
        bytes: u64,
        dirty: u64,
    ) -> Option<(Route, Duration)> {
        let asked = self.measures_hits() && dirty == 0 && volume.backing.keeps_readable_data();
        asked.then(|| (volume.route_hit(bytes), rt::now()))
    }

    /// Notes the end of a hit that [`Self::route_hit`] has routed.
    pub(crate) fn hit_ended(
        &self,
        volume: &AttachedVolume,
        bytes: u64,
        hit: Option<(Route, Duration)>,
    ) {
        let Some((route, began)) = hit else { return };
        if route == Route::Bypass {
            volume.counters.split_reads.add(1);
        }
        volume.hit_took(bytes, route, rt::now() - began);
    }

    /// A write has ended.
    pub(crate) fn write_ended(
        &self,
        volume: &AttachedVolume,
        visit: Option<Visit>,
        result: &Result<()>,
    ) {
        let Some(visit) = visit.filter(|visit| visit.all && result.is_ok()) else {
            return;
        };
        let took = rt::now() - visit.began.0;
        let at_once = match visit.route {
            Route::Cache => visit.had_room,
            Route::Bypass => !volume.cleaner.has_cleaned_since(visit.began.1),
        };
        volume.write_took(visit.bytes, visit.route, at_once, took);
    }
}
