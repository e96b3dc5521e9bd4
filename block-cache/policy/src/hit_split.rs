//! Choice of the device for a clean hit: the cache device, or the backing device, which has the
//! same data.
//!
//! A busy cache device may answer later than the backing device would. (Wu and others, "The Storage
//! Hierarchy is Not a Hierarchy: Optimizing Caching on Modern Storage Devices with Orthus", FAST
//! '21. In section 4, feedback offloads the excess load.) Here reads of both devices are measured,
//! with the client's latency at the present load. The backing device's share grows as long as that
//! device answers sooner, and shrinks otherwise. It settles where both take the same time.
//!
//! As long as the cache device takes less than twice its least latency, nothing is tried. Tries
//! become rarer the longer they were in vain, and the longer they took. Sizes that were only ever
//! read in a queue have no known least latency, and nothing is tried for them.

use std::time::Duration;

use crate::measured::{Route, SIZES, nanos, size};

/// Clean hits of a size after which its share is looked at: it is counted in parts of so many.
const ROUND: u32 = 64;
/// The largest share: some stay, so that what the cache device takes stays known.
const MOST: u32 = ROUND - ROUND / 8;
/// Rounds in which nothing is tried, at most.
const REST_MAX: u32 = 1 << 10;
/// Rounds that the end of the first try is waited for: they are short where many read together.
const WAIT_MAX: u32 = 16;

/// Sum of the latencies of a device's reads, and their number.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ns: u64,
    count: u64,
}

impl Sum {
    fn note(&mut self, ns: u64) {
        self.ns = self.ns.saturating_add(ns);
        self.count += 1;
    }

    fn mean(self) -> Option<u64> {
        self.ns.checked_div(self.count)
    }
}

/// Clean hits of a size.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    /// Of this round.
    cache: Sum,
    backing: Sum,
    /// The least that one took of the cache device.
    least_ns: u64,
    /// Of [`ROUND`] hits so many go to the backing device.
    share: u32,
    /// Hits of this round.
    turn: u32,
    /// Number of rounds without a try, and its next value if the next try is in vain.
    resting: u32,
    rest: u32,
    /// Rounds that the first try is waited for.
    waited: u32,
}

/// Where a volume's clean hits are read.
#[derive(Clone, Debug, Default)]
pub struct Split {
    sizes: [Hits; SIZES],
}

impl Split {
    /// Where a clean hit of so many bytes is read.
    pub fn route(&mut self, bytes: u64) -> Route {
        self.sizes[size(bytes)].route()
    }

    /// A clean hit was read, and took so long.
    pub fn took(&mut self, bytes: u64, route: Route, took: Duration) {
        let hits = &mut self.sizes[size(bytes)];
        let ns = nanos(took);
        match route {
            Route::Bypass => hits.backing.note(ns),
            Route::Cache => {
                hits.least_ns = match hits.least_ns {
                    0 => ns,
                    least => least.min(ns),
                };
                hits.cache.note(ns);
            }
        }
    }
}

impl Hits {
    fn route(&mut self) -> Route {
        self.turn += 1;
        if self.turn >= ROUND {
            self.turn = 0;
            self.adapt();
        }
        // Tries are spread evenly over the round, and are sent at once, so that they have ended
        // when the round ends.
        match self.waited == 0 && self.turn * self.share % ROUND < self.share {
            true => Route::Bypass,
            false => Route::Cache,
        }
    }

    fn adapt(&mut self) {
        if self.share == 1 && self.backing.count == 0 && self.waited < WAIT_MAX {
            self.waited += 1;
            return;
        }
        self.waited = 0;
        let (cache, backing) = (self.cache.mean(), self.backing.mean());
        (self.cache, self.backing) = (Sum::default(), Sum::default());
        let Some(cache) = cache else { return };
        // A try in vain may take at most a hundredth of the time of the hits until the next try.
        let dear = |backing: u64| {
            u32::try_from(backing.saturating_mul(2) / cache.max(1)).unwrap_or(u32::MAX)
        };
        if self.share == 0 {
            // It ended late.
            if let Some(backing) = backing {
                self.resting = self.resting.max(dear(backing));
            }
            let waits = cache > self.least_ns.saturating_mul(2);
            match (waits, self.resting) {
                (false, _) => {}
                (true, 0) => self.share = 1,
                (true, _) => self.resting -= 1,
            }
            return;
        }
        match backing {
            Some(backing) if backing < cache => {
                self.share = (self.share + 1).min(MOST);
                self.rest = 0;
            }
            // Or the tries failed, or have not ended.
            _ => {
                self.share -= self.share.div_ceil(4);
                if self.share == 0 {
                    self.rest = (self.rest * 2 + 1).min(REST_MAX);
                    self.resting = self.rest.max(backing.map_or(0, dear));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    /// Runs `hits` on a model. A hit of the cache device takes `cache_us` more for each sixteenth
    /// that it serves, and one of the backing device takes `backing_us`. Returns how many reads the
    /// backing device served, of the last thousand and of all.
    fn run(split: &mut Split, hits: u32, load: u64, backing_us: u64) -> (u32, u32) {
        let (mut served, mut last, mut all) = (1.0, 0, 0);
        for nth in 0..hits {
            let route = split.route(BLOCK);
            let here = f64::from(u8::from(route == Route::Cache));
            served += (here - served) / 64.0;
            let took = match route {
                Route::Cache => 10.0 + load as f64 * served,
                Route::Bypass => backing_us as f64,
            };
            split.took(BLOCK, route, Duration::from_secs_f64(took / 1e6));
            let sent = u32::from(route == Route::Bypass);
            all += sent;
            last += sent * u32::from(nth + 1000 >= hits);
        }
        (last, all)
    }

    /// One that has seen the cache device idle.
    fn rested() -> Split {
        let mut split = Split::default();
        assert_eq!(run(&mut split, 200, 0, 5), (0, 0), "it takes what it can");
        split
    }

    #[test]
    fn a_cache_that_does_not_wait_keeps_its_hits_though_the_backing_device_is_faster() {
        let mut split = rested();
        assert_eq!(run(&mut split, 10_000, 5, 1), (0, 0));
    }

    #[test]
    fn a_slow_cache_sheds_hits_until_both_devices_take_the_same_time() {
        let mut split = rested();
        // 10 + 200 * served = 110 at one half.
        let (last, _) = run(&mut split, 20_000, 200, 110);
        assert!((400..=600).contains(&last), "{last}");
        let (last, _) = run(&mut split, 20_000, 0, 110);
        assert_eq!(last, 0, "it waits no more");
    }

    #[test]
    fn a_slow_backing_device_is_tried_ever_more_seldom() {
        let mut split = rested();
        let (last, all) = run(&mut split, 64 * 2000, 200, 50_000);
        assert!((1..=20).contains(&all), "{all}, {last} at last");
        // It is noticed when it gets faster.
        let (last, _) = run(&mut split, 64 * 3000, 200, 20);
        assert!(last > 600, "{last}");
    }

    /// A try that outlasts its round says what it took all the same.
    #[test]
    fn a_try_that_ends_behind_its_round_counts() {
        let mut split = rested();
        let slow = Duration::from_micros(5000);
        let mut tried = None;
        for nth in 0..100 * ROUND {
            match split.route(BLOCK) {
                Route::Cache => split.took(BLOCK, Route::Cache, slow),
                Route::Bypass => tried = tried.or(Some(nth)),
            }
            if tried.is_some_and(|tried| nth == tried + 5 * ROUND) {
                split.took(BLOCK, Route::Bypass, Duration::from_micros(2000));
                let ways = (0..2 * ROUND).map(|_| {
                    split.took(BLOCK, Route::Cache, slow);
                    split.route(BLOCK)
                });
                assert!(ways.filter(|route| *route == Route::Bypass).count() > 1);
                return;
            }
        }
        panic!("nothing was tried: {tried:?}");
    }

    #[test]
    fn sizes_are_measured_apart() {
        let mut split = rested();
        run(&mut split, 20_000, 200, 20);
        assert!((0..64).any(|_| split.route(BLOCK) == Route::Bypass));
        assert!((0..64).all(|_| split.route(64 * BLOCK) == Route::Cache));
    }
}
