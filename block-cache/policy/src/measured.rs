//! Measured admission: decides on a write that finds no room in a cache of dirty blocks.
//!
//! Static rules (Open CAS: bypass above 32 evictions) are right for one pair of devices and wrong
//! for another (Z. Lin and others, HotStorage '23, section 3.3.3). Here both ways are measured as
//! the client feels them, at the present load. One measure is the latency of a bypassing write. The
//! other is the latency of a write into the cache, plus its share of the price of room. The price
//! occurs in lumps, since room is made for many blocks at a time: one write waits long, and many
//! use the room. So the price is averaged over many blocks, of all sizes of writes.
//!
//! No block is evicted before it is known that there is no room. One write bypasses the cache to
//! measure that way. Then the cache makes room, to measure its price. There is an exception: a
//! write so large that its write-back takes at least as many operations as its bypass. If both ways
//! cost about the same, writes bypass: the backing device gets as much either way, and the cache
//! keeps its content. Now and then the dearer way is retried, for about one byte in [`PROBE`], so
//! that both measures stay current. A bypass during write-back waits behind it, and does not
//! measure the cost of a bypass alone.

use std::time::Duration;

/// Sizes of writes that are measured apart: up to 4 KiB, 8 KiB, and so on; the largest have no end.
pub(crate) const SIZES: usize = 12;
/// Writes of a size that the cache must have taken before that says something.
const ENOUGH: u32 = 4;
/// Writes that an average over one size remembers.
const MEMORY: u32 = 16;
/// How many times what is usual a write counts for at most.
const OUTLIER: u64 = 8;
/// Fraction of writes waiting for room of which one bypasses. Also the multiple of the averaging
/// window of the price of room that bypasses before that price is measured once more.
const PROBE: u32 = 128;
/// Largest number of writes that bypass until one has the backing device to itself.
const COOL_DOWN: u32 = 8;
/// Ways that differ by one part in so many are about the same.
const TOLERANCE: u128 = 8;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Into the cache, when there is room.
    Cache,
    /// To the backing device alone.
    Bypass,
}

/// An average that forgets, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    ns: u64,
    count: u32,
}

impl Mean {
    /// One that takes very long (a device that paused) counts for [`OUTLIER`] usual ones.
    fn note(&mut self, ns: u64) {
        let ns = match self.known(ENOUGH) {
            Some(usual) => ns.min(usual.max(1000).saturating_mul(OUTLIER)),
            None => ns,
        };
        self.count = (self.count + 1).min(MEMORY);
        let (weight, old, new) = (u128::from(self.count), u128::from(self.ns), u128::from(ns));
        let mean = (old * (weight - 1) + new) / weight;
        self.ns = u64::try_from(mean).unwrap_or(u64::MAX);
    }

    fn known(&self, enough: u32) -> Option<u64> {
        (self.count >= enough).then_some(self.ns)
    }
}

/// Latency of writes of a size.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// Into the cache, with room at once.
    cache: Mean,
    bypass: Mean,
}

/// Measurements of a volume, and the decisions from them.
#[derive(Clone, Debug)]
pub struct Measured {
    sizes: [Size; SIZES],
    /// Bytes over which the price of room is averaged.
    window: u64,
    /// Bytes that are written back at a time.
    batch: u64,
    /// Number of bytes that were written to the cache since it began to evict.
    paid_for: u64,
    /// Time that writes of `paid_for` waited for room, in nanoseconds.
    paid_ns: u64,
    /// Whether the cache evicts to make room.
    evicts_dirty: bool,
    /// Whether it evicts only until the price is known.
    trial: bool,
    /// Number of bytes that bypassed since the price was known.
    passed: u64,
    /// Number of writes that should have waited since the last bypass.
    waited: u32,
    /// Number of writes that still bypass, at any cost, until one has the backing device to itself.
    cooling_down: u32,
}

impl Measured {
    /// One that knows nothing. The price of room is averaged over `window_bytes`, many times what
    /// is made at a time; `batch_bytes` are written back at a time.
    #[must_use]
    pub fn new(window_bytes: u64, batch_bytes: u64) -> Self {
        Self {
            sizes: [Size::default(); SIZES],
            window: window_bytes.max(2),
            batch: batch_bytes,
            paid_for: 0,
            paid_ns: 0,
            evicts_dirty: false,
            trial: false,
            passed: 0,
            waited: 0,
            cooling_down: 0,
        }
    }

    /// Which way a write of so many bytes goes for which there is no room.
    pub fn route(&mut self, bytes: u64) -> Route {
        let size = self.sizes[size(bytes)];
        let Some(cache) = size.cache.known(ENOUGH) else {
            self.evicts_dirty = true;
            return Route::Cache;
        };
        let Some(bypass) = size.bypass.known(1) else {
            return Route::Bypass;
        };
        if self.cooling_down > 0 {
            self.cooling_down -= 1;
            return Route::Bypass;
        }
        let price = (self.paid_for >= self.window / 2)
            .then(|| u128::from(self.paid_ns) * u128::from(bytes) / u128::from(self.paid_for));
        self.trial &= price.is_none();
        let is_within = |within: u128| u128::from(bypass) <= within + within / TOLERANCE;
        let keeps = match price {
            Some(price) => is_within(u128::from(cache) + price),
            None => !self.trial && (bytes >= self.batch || bypass <= cache),
        };
        if keeps {
            self.passed = self.passed.saturating_add(bytes);
            if self.passed < self.window.saturating_mul(u64::from(PROBE)) {
                self.begin_bypassing();
                return Route::Bypass;
            }
            (self.passed, self.paid_for, self.paid_ns) = (0, 0, 0);
        }
        self.trial = self.paid_for < self.window / 2;
        self.waited = (self.waited + 1) % PROBE;
        if self.waited == 0 {
            self.begin_bypassing();
            return Route::Bypass;
        }
        self.evicts_dirty = true;
        Route::Cache
    }

    /// Nothing is given up from here on.
    const fn begin_bypassing(&mut self) {
        if self.evicts_dirty {
            self.cooling_down = COOL_DOWN;
        }
        self.evicts_dirty = false;
    }

    /// Whether the cache gives dirty blocks up to make room.
    #[must_use]
    pub const fn evicts_dirty(&self) -> bool {
        self.evicts_dirty
    }

    /// Notes the end of a write of uncached data: its way, and its latency. `at_once` says that it
    /// had room at once, or that nothing was written back during its bypass.
    pub fn took(&mut self, bytes: u64, route: Route, at_once: bool, took: Duration) {
        let took = nanos(took);
        let Size { cache, bypass } = &mut self.sizes[size(bytes)];
        if route == Route::Bypass {
            if at_once || self.cooling_down == 0 || bypass.known(1).is_none() {
                self.cooling_down = 0;
                bypass.note(took);
            }
            return;
        }
        let usual = cache.known(ENOUGH);
        if at_once {
            cache.note(took);
        }
        let (true, Some(usual)) = (self.evicts_dirty, usual) else {
            return;
        };
        self.paid_for = self.paid_for.saturating_add(bytes);
        if !at_once {
            self.paid_ns = self.paid_ns.saturating_add(took.saturating_sub(usual));
        }
        if self.paid_for >= self.window {
            self.paid_for /= 2;
            self.paid_ns /= 2;
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn size(bytes: u64) -> usize {
    let blocks = bytes.div_ceil(4096).max(1);
    (blocks.next_power_of_two().trailing_zeros() as usize).min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 64 << 10;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Runs `writes` on a model and returns how many bypassed. In the cache a write takes 10 us
    /// with room, and one in eight waits `wait_us` for it. A bypass takes `bypass_us`, or three
    /// times that during write-back.
    fn run(measured: &mut Measured, writes: u32, wait_us: u64, bypass_us: u64) -> u32 {
        let mut round = 0;
        for nth in 0..writes {
            let evicts = measured.evicts_dirty();
            let lacks = !evicts || nth % 8 == 0;
            let route = match lacks {
                true => measured.route(BLOCK),
                false => Route::Cache,
            };
            round += u32::from(route == Route::Bypass);
            let (took, at_once) = match (route, lacks) {
                (Route::Bypass, _) if evicts => (3 * bypass_us, false),
                (Route::Bypass, _) => (bypass_us, true),
                (Route::Cache, true) => (10 + wait_us, false),
                (Route::Cache, false) => (10, true),
            };
            measured.took(BLOCK, route, at_once, us(took));
        }
        round
    }

    fn new() -> Measured {
        Measured::new(64 * BLOCK, 16 * BLOCK)
    }

    fn filled() -> Measured {
        let mut measured = new();
        for _ in 0..ENOUGH {
            measured.took(BLOCK, Route::Cache, true, us(10));
        }
        measured
    }

    #[test]
    fn nothing_is_decided_before_it_is_known() {
        let mut measured = new();
        assert_eq!(measured.route(BLOCK), Route::Cache, "no write is known");
        let mut measured = filled();
        assert_eq!(measured.route(BLOCK), Route::Bypass, "one tells");
        assert!(!measured.evicts_dirty());
        measured.took(BLOCK, Route::Bypass, false, us(100));
        // Long as the first wait is, it says nothing alone.
        for _ in 0..31 {
            assert_eq!(measured.route(BLOCK), Route::Cache);
            measured.took(BLOCK, Route::Cache, false, us(100_000));
        }
        assert!(measured.evicts_dirty());
        measured.took(BLOCK, Route::Cache, false, us(10));
        assert_eq!(measured.route(BLOCK), Route::Bypass);
        assert!(!measured.evicts_dirty());
    }

    #[test]
    fn eviction_is_not_tried_if_a_bypass_is_faster_than_the_cache() {
        let mut measured = filled();
        assert_eq!(run(&mut measured, 1000, 100_000, 9), 1000);
        assert!(!measured.evicts_dirty());
    }

    /// One long wait for many quick writes: by the average it is worth it, by itself it is not.
    #[test]
    fn a_wait_is_shared_by_all_that_find_room_after_it() {
        let mut measured = filled();
        let round = run(&mut measured, 8000, 400, 100);
        // Each time two: the first waits behind what is written back.
        assert!((2..=2 * (8000 / 8 / PROBE) + 1).contains(&round), "{round}");
        let mut measured = filled();
        let round = run(&mut measured, 8000, 1000, 100);
        assert!(round > 7900, "the same with a wait of 1000: {round}");
    }

    #[test]
    fn a_device_that_gets_faster_is_noticed_and_one_that_gets_slower() {
        let mut measured = filled();
        run(&mut measured, 4000, 400, 100);
        assert!(measured.evicts_dirty());
        run(&mut measured, 16 * 8 * PROBE * MEMORY, 400, 20);
        assert!(!measured.evicts_dirty(), "now it is faster");
        run(&mut measured, 32, 400, 1000);
        assert!(measured.evicts_dirty(), "now it is slower");
    }

    /// With 60 us on either way: the device sees as much of both, and the cache keeps what it has.
    #[test]
    fn of_ways_that_are_alike_the_one_is_taken_that_gives_nothing_up() {
        let mut measured = filled();
        let round = run(&mut measured, 2000, 400, 65);
        assert!(round > 1900, "{round}");
    }

    #[test]
    fn bypasses_during_write_backs_do_not_measure_the_device() {
        let mut measured = filled();
        run(&mut measured, 4000, 400, 100);
        assert!(measured.evicts_dirty());
        // Three times 40 would be too much.
        run(&mut measured, 16 * 8 * PROBE * MEMORY, 400, 40);
        assert!(!measured.evicts_dirty());
    }

    #[test]
    fn writes_as_large_as_a_write_back_bypass_without_a_trial() {
        for (blocks, evicts_dirty) in [(15, true), (16, false)] {
            let mut measured = new();
            for _ in 0..ENOUGH {
                measured.took(blocks * BLOCK, Route::Cache, true, us(10));
            }
            assert_eq!(measured.route(blocks * BLOCK), Route::Bypass, "one tells");
            measured.took(blocks * BLOCK, Route::Bypass, true, us(1000));
            measured.route(blocks * BLOCK);
            assert_eq!(measured.evicts_dirty(), evicts_dirty, "{blocks} blocks");
        }
    }

    #[test]
    fn a_price_that_falls_is_noticed() {
        let mut measured = filled();
        run(&mut measured, 4000, 4000, 100);
        assert!(!measured.evicts_dirty());
        let round = run(&mut measured, 64 * PROBE + 8000, 100, 100);
        assert!(measured.evicts_dirty(), "{round} went round");
    }

    #[test]
    fn one_write_that_takes_very_long_changes_nothing() {
        let mut measured = filled();
        run(&mut measured, 100, 400, 5);
        measured.took(BLOCK, Route::Bypass, false, us(100_000));
        assert_eq!(measured.route(BLOCK), Route::Bypass);
        for _ in 0..8 {
            measured.took(BLOCK, Route::Bypass, false, us(100_000));
        }
        assert_eq!(measured.route(BLOCK), Route::Cache, "if all do, it does");
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let at = [1, 4096, 4097, 8192, 1 << 20, (1 << 20) + 1, u64::MAX];
        assert_eq!(at.map(size), [0, 0, 1, 1, 8, 9, 11]);
    }
}
