//! Read-ahead on a read miss, learned from the later use of granules next to misses.
//!
//! A miss has a *context*: the size of the request, and the number of cached granules next to the
//! missing ones, before or behind. If none touch them, the context is the cached part of their
//! region. By context and distance, the footprint learns how often a granule next to a miss is read
//! while the fetched block stays cached. It learns from *trials*: misses in a sample of the
//! regions, observed until their block is evicted. A trial counts granules whether they were
//! fetched or not, so that bad luck with a context does not end the learning.
//!
//! The read-ahead is then a matter of price ([`Worth`]). The rest of a unit takes no room, since
//! its slot is taken anyhow. It takes no time on a backing device that is bound by operations,
//! either. Whole units beyond it take both. Sequential streams need no detector. A long run of
//! cached granules before a miss is a context, and it teaches that all following granules will be
//! read.

use std::ops::Range;

use super::decisions::{Decision, note};
use super::sizes::BlockSizes;
use super::worth::Worth;
use crate::BlockKey;

/// How likely a granule must be to be read if its bytes take time. Every request waits for the
/// bandwidth that wasted granules take, and they push out others: only what is all but sure pays.
/// On the traces we know, 0.9 moves up to 4% more bytes for up to 1% less latency.
const SURE: f32 = 0.97;

/// Fraction of the cache's units that may be replaced before a trial loses its slot. That is about
/// the lifetime of blocks without a second use, which is the lifetime of useless read-ahead.
const LIFETIME_PART: u32 = 8;

/// Number of observations of a context below which `PRIOR` applies: the rest of a unit is fetched,
/// as in a cache of units.
const FEW: u8 = 8;
const PRIOR: f32 = 0.2;

/// Where counts are halved, so that the present outweighs the past, and a count fits a byte.
const MANY: u8 = 254;

/// Fewer than eight requested granules, and more.
const LENGTHS: usize = 2;
const PLACES: usize = 17;
/// Distances 1 and 2, then up to 4, 8, 16, 32 and 64. On the traces we know, each one apart teaches
/// no more.
const DISTANCES: usize = 7;
/// Of one region, at a time: the first misses of a stream must not hide the later ones.
const TRIALS_OF_REGION: u32 = 4;
/// Trials at most; more of them teach no more.
const TRIALS: u32 = 64;
/// A small cache has a trial for so many of its units.
const UNITS_OF_TRIAL: u32 = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    seen: u8,
    used: u8,
}

/// By side (behind, before) and distance.
type Tallies = [[Tally; DISTANCES]; 2];

/// A miss that is watched; granules of its region, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// Not cached when it began, less those that were overwritten before they were used.
    open: u64,
    /// Used, or overwritten before that.
    decided: u64,
    /// Of the region's hash; zero if there is no trial.
    tag: u16,
    /// Count of observed or skipped misses when it began, wrapping. A trial whose age wraps to a
    /// low one is left alone a little longer.
    began: u16,
    context: u8,
    first: u8,
    last: u8,
}

const _: () = assert!(size_of::<Trial>() == 24 && size_of::<Tallies>() == 28);

/// Learns which granules are read after misses next to them, and decides on read-ahead. Takes 1
/// KiB, and 24 bytes a trial: 2.5 KiB at most.
#[derive(Debug)]
pub struct Footprint {
    worth: Worth,
    /// Granules of a unit, and of a region.
    unit: u32,
    region: u32,
    tallies: Box<[Tallies; LENGTHS * PLACES]>,
    /// Those of a region are adjacent.
    trials: Box<[Trial]>,
    /// One of so many regions is watched.
    sample: u32,
    watched: u16,
    /// How long a trial must be left alone, in misses watched.
    lifetime: u16,
}

impl Footprint {
    /// Knows nothing yet. `units` are those of the cache, `granules` those of a region, at most 64.
    #[must_use]
    pub fn new(sizes: BlockSizes, granules: u32, units: u32, worth: Worth) -> Self {
        let trials = (units / UNITS_OF_TRIAL).clamp(TRIALS_OF_REGION, TRIALS);
        let trials = 1 << trials.ilog2();
        // As many regions are watched as there are trials, for as long as their blocks stay.
        let sample = (units / (2 * trials)).max(1);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "four times the trials at most"
        )]
        let lifetime = (units / sample / LIFETIME_PART) as u16;
        Self {
            worth,
            unit: granules / sizes.region_units(),
            region: granules,
            tallies: Box::new([Tallies::default(); LENGTHS * PLACES]),
            trials: vec![Trial::default(); trials as usize].into_boxed_slice(),
            sample,
            watched: 0,
            lifetime,
        }
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.tallies) + size_of_val(&*self.trials)
    }

    /// The trials that a region may have and its tag, if it is watched.
    #[inline]
    fn watch(&self, volume: u16, region: u64) -> Option<(Range<usize>, u16)> {
        let hash = BlockKey::new(volume, region).hash();
        // Each from bits of its own: the high ones, the low ones, and some between.
        let share = ((hash >> 33) * u64::from(self.sample)) >> 31;
        let per = TRIALS_OF_REGION as usize;
        #[expect(clippy::cast_possible_truncation, reason = "cut to what it needs")]
        let (slot, tag) = (
            hash as usize & (self.trials.len() - per),
            (hash >> 16) as u16 | 1,
        );
        (share == 0).then_some((slot..slot + per, tag))
    }

    /// Granules of a region were read or written by a client.
    #[inline]
    pub fn used(&mut self, volume: u16, region: u64, granules: u64, write: bool) {
        if let Some((slots, tag)) = self.watch(volume, region) {
            for trial in self.trials[slots]
                .iter_mut()
                .filter(|trial| trial.tag == tag)
            {
                let turned = granules & trial.open & !trial.decided;
                trial.decided |= turned;
                if write {
                    trial.open &= !turned;
                }
            }
        }
    }

    /// Notes the eviction of a block that held these granules of a region.
    pub fn evicted(&mut self, volume: u16, region: u64, granules: u64) {
        let Some((slots, tag)) = self.watch(volume, region) else {
            return;
        };
        for slot in slots {
            let trial = &self.trials[slot];
            if trial.tag == tag && granules >> trial.last & 1 != 0 {
                self.finish_trial(slot);
            }
        }
    }

    /// Handles a read of the granules `asked` of a volume that misses; the first and the last
    /// missing granule are those of `missing`. Returns the granules to fetch: the missing ones and
    /// adjacent ones, none of which is cached. `cached` returns the cached granules of a region.
    pub fn miss(
        &mut self,
        volume: u16,
        asked: Range<u64>,
        missing: Range<u64>,
        cached: impl Fn(u64) -> u64,
    ) -> Range<u64> {
        let per = u64::from(self.region);
        let (first, last) = (missing.start, missing.end - 1);
        let (region, other) = (first / per, last / per);
        #[expect(clippy::cast_possible_truncation, reason = "less than 64")]
        let (first_at, last_at) = ((first % per) as u32, (last % per) as u32);
        let here = cached(region);
        let there = if other == region { here } else { cached(other) };
        let granules = self.region;
        // Cached granules before the miss are at the top of one word, those after it at the bottom
        // of another. The neighbouring regions are looked up only if a run of cached granules, or
        // the chosen range, reaches them.
        let far = |region: u64| if region == 0 { 0 } else { cached(region - 1) };
        let below = |far: u64| {
            let both = u128::from(here) << granules | u128::from(far);
            both << (128 - granules - first_at)
        };
        let above = |next: u64| {
            let both = u128::from(next) << granules | u128::from(there);
            both >> last_at >> 1
        };
        let to_end = granules - 1 - last_at;
        let before = match below(0).leading_ones() {
            all if all >= first_at => below(far(region)).leading_ones(),
            some => some,
        };
        let after = match above(0).trailing_ones() {
            all if all >= to_end => above(cached(other + 1)).trailing_ones(),
            some => some,
        };
        let length = usize::from(asked.end - asked.start >= 8);
        let place = match (before, after, here.count_ones()) {
            (0, 0, 0) => 0,
            (0, 0, 1..=8) => 1,
            (0, 0, _) => 2,
            (0, after, _) => 10 + after.ilog2().min(6) as usize,
            (before, _, _) => 3 + before.ilog2().min(6) as usize,
        };
        let context = place * LENGTHS + length;
        // A trial is about one region, up to its end.
        let ends_at = if other == region {
            last_at
        } else {
            self.region - 1
        };
        self.begin(volume, region, context, first_at..ends_at + 1, here);
        let (back, forward) = self.choose(context, (first_at, last_at), asked.end - asked.start);
        let back = match back {
            within if within <= first_at => within.min(below(0).leading_zeros()),
            beyond => beyond.min(below(far(region)).leading_zeros()),
        };
        let back = u64::from(back).min(first);
        let forward = match forward {
            within if within <= to_end => within.min(above(0).trailing_zeros()),
            beyond => beyond.min(above(cached(other + 1)).trailing_zeros()),
        };
        let fetch = first - back..last + 1 + u64::from(forward);
        note(|| Decision::Fetch {
            volume,
            first: fetch.start,
            end: fetch.end,
        });
        fetch
    }

    /// Watches a miss, if its region is one of the sample and its slot is not taken by a trial that
    /// may still teach something.
    fn begin(
        &mut self,
        volume: u16,
        region: u64,
        context: usize,
        missing: Range<u32>,
        cached: u64,
    ) {
        let Some((slots, tag)) = self.watch(volume, region) else {
            return;
        };
        self.watched = self.watched.wrapping_add(1);
        let (watched, lifetime) = (self.watched, self.lifetime);
        let over = |old: &Trial| old.tag == 0 || watched.wrapping_sub(old.began) >= lifetime;
        let Some(slot) = slots.clone().find(|slot| over(&self.trials[*slot])) else {
            return;
        };
        if self.trials[slot].tag != 0 {
            self.finish_trial(slot);
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than 64")]
        let trial = Trial {
            tag,
            began: self.watched,
            context: context as u8,
            first: missing.start as u8,
            last: (missing.end - 1) as u8,
            open: !cached,
            decided: 0,
        };
        self.trials[slot] = trial;
    }

    /// A trial ends: its context learns the use of the granules next to the miss.
    fn finish_trial(&mut self, slot: usize) {
        let trial = std::mem::take(&mut self.trials[slot]);
        let tallies = &mut self.tallies[usize::from(trial.context)];
        let (seen, used) = (trial.open | trial.decided, trial.open & trial.decided);
        let mut count = |side: usize, distance: u32, at: u32| {
            if seen >> at & 1 != 0 {
                let tally = &mut tallies[side][bucket(distance)];
                if tally.seen >= MANY {
                    *tally = Tally {
                        seen: tally.seen / 2,
                        used: tally.used / 2,
                    };
                }
                tally.seen += 1;
                tally.used += (used >> at & 1) as u8;
            }
        };
        let (first, last) = (u32::from(trial.first), u32::from(trial.last));
        for at in last + 1..self.region {
            count(0, at - last, at);
        }
        for at in 0..first {
            count(1, first - at, at);
        }
    }

    /// Returns the number of granules that are worth fetching before the first and after the last
    /// missing one.
    fn choose(&self, context: usize, (first, last): (u32, u32), asked: u64) -> (u32, u32) {
        let tallies = &self.tallies[context];
        let likely = |side: usize, distance: u32| {
            let Tally { seen, used } = tallies[side][bucket(distance)];
            match seen {
                // Two that were not used are added: a run of luck is not certainty.
                FEW.. => f32::from(used) / (f32::from(seen) + 2.0),
                _ if distance < self.unit => PRIOR,
                _ => 0.0,
            }
        };
        let asked = u32::try_from(asked).unwrap_or(u32::MAX);
        let mut free = self.worth.free_granules.saturating_sub(asked);
        // Granules from `from` on one side: their number if they are worth it.
        let mut extend = |side: usize, from: u32, granules: u32| -> u32 {
            let cheap = granules.min(free);
            #[expect(clippy::cast_precision_loss, reason = "at most 64")]
            let price = cheap as f32 * self.worth.free + (granules - cheap) as f32 * SURE;
            let likelihoods = (0..granules).map(|nth| likely(side, from + 1 + nth));
            if !is_over(price, likelihoods) {
                return 0;
            }
            free -= cheap;
            granules
        };
        let unit = self.unit;
        // The rest of the units that are taken, then whole ones.
        let rest = [unit - 1 - last % unit, first % unit];
        let mut reach = [extend(0, 0, rest[0]), extend(1, 0, rest[1])];
        for side in 0..2 {
            while reach[side] >= rest[side] && reach[side] + unit <= self.region {
                let more = extend(side, reach[side], unit);
                reach[side] += more;
                if more == 0 {
                    break;
                }
            }
        }
        (reach[1], reach[0])
    }
}

/// Whether some likelihoods sum to more than a price. They are computed, with a division each, only
/// until the result is certain: mostly the first one decides.
fn is_over(price: f32, likelihoods: impl ExactSizeIterator<Item = f32>) -> bool {
    let (mut sum, mut left) = (0.0, likelihoods.len());
    for likelihood in likelihoods {
        sum += likelihood;
        left -= 1;
        #[expect(clippy::cast_precision_loss, reason = "at most 64")]
        let most = sum + left as f32;
        // Rounding takes less than that.
        if sum > price || most < price - 0.001 {
            break;
        }
    }
    sum > price
}

/// The tally of a distance, 1 to 64 granules.
const fn bucket(distance: u32) -> usize {
    (u32::BITS - (distance - 1).leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of 32K to 256K, small enough that every region is watched; the costs of an operation
    /// are those of ten granules.
    fn footprint() -> Footprint {
        let sizes = BlockSizes::new(&[32 << 10, 64 << 10, 128 << 10, 256 << 10]);
        let worth = Worth::new(10.0, 30.0, 1.0);
        Footprint::new(sizes.expect("right"), 64, 256, worth)
    }

    /// A miss of one granule of an otherwise empty region.
    fn miss(footprint: &mut Footprint, region: u64, granule: u64) -> (u64, u64) {
        let at = region * 64 + granule;
        let fetch = footprint.miss(0, at..at + 1, at..at + 1, |_| 0);
        (at - fetch.start, fetch.end - 1 - at)
    }

    #[test]
    fn at_first_the_rest_of_the_unit_is_read_too() {
        assert_eq!(miss(&mut footprint(), 0, 10), (2, 5));
        assert_eq!(miss(&mut footprint(), 0, 0), (0, 7));
    }

    #[test]
    fn read_ahead_stops_fetching_granules_that_are_never_used() {
        let mut footprint = footprint();
        for region in 0..1000 {
            miss(&mut footprint, region, 10);
            footprint.evicted(0, region, 0xff00);
        }
        assert_eq!(miss(&mut footprint, 2000, 10), (0, 0));
    }

    #[test]
    fn read_ahead_fetches_the_granules_that_always_follow_and_none_before() {
        let mut footprint = footprint();
        for region in 0..1000 {
            miss(&mut footprint, region, 8);
            footprint.used(0, region, u64::MAX << 9, false);
            footprint.evicted(0, region, 0xff00);
        }
        // Up to a region's length, since the last tally is of distances within the region and
        // beyond its end.
        assert_eq!(miss(&mut footprint, 2000, 8), (0, 63));
        // The read-ahead ends at a cached granule.
        let at = 2000 * 64 + 8;
        let fetch = footprint.miss(0, at..at + 1, at..at + 1, |_| 1 << 12);
        assert_eq!(fetch, at..2000 * 64 + 12);
    }

    #[test]
    fn overwritten_granules_do_not_count_as_used() {
        let mut footprint = footprint();
        for region in 0..1000 {
            miss(&mut footprint, region, 8);
            footprint.used(0, region, u64::MAX << 9, true);
            footprint.used(0, region, u64::MAX << 9, false);
            footprint.evicted(0, region, 0xff00);
        }
        assert_eq!(miss(&mut footprint, 2000, 8), (0, 0));
    }

    #[test]
    fn a_change_of_habit_is_learned() {
        let mut footprint = footprint();
        let mut rounds = |used: bool| -> (u64, u64) {
            for region in 0..30_000 {
                miss(&mut footprint, region, 8);
                if used {
                    footprint.used(0, region, u64::MAX << 9, false);
                }
                footprint.evicted(0, region, 0xff00);
            }
            miss(&mut footprint, 40_000, 8)
        };
        assert_eq!(rounds(false), (0, 0));
        assert_eq!(rounds(true), (0, 63));
    }

    proptest::proptest! {
        #[test]
        fn read_ahead_fetches_missing_granules_and_no_cached_ones(
            misses in proptest::collection::vec(
                (0u64..300, 1u64..40, proptest::prelude::any::<u64>()),
                1..200,
            ),
        ) {
            let (mut one, mut other) = (footprint(), footprint());
            for (first, len, seed) in misses {
                // A map that is the same at each look-up, with the range missing.
                let cached = |region: u64| -> u64 {
                    let hash = BlockKey::new(1, (seed & 0xffff) << 20 | region).hash();
                    let mut map = hash & seed.rotate_left(region as u32);
                    for granule in first..first + len {
                        if granule / 64 == region {
                            map &= !(1 << (granule % 64));
                        }
                    }
                    map
                };
                let asked = first..first + len;
                let fetch = one.miss(0, asked.clone(), asked.clone(), cached);
                proptest::prop_assert!(fetch.start <= first && fetch.end >= first + len);
                for granule in fetch.clone() {
                    proptest::prop_assert_eq!(cached(granule / 64) >> (granule % 64) & 1, 0);
                }
                proptest::prop_assert_eq!(other.miss(0, asked.clone(), asked, cached), fetch);
            }
        }
    }
}
