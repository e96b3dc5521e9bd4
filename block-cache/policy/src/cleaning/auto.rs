//! `auto`, the default: in the order of the backing device, as fast as possible without much harm
//! to the clients.
//!
//! The latency of client I/O is compared with its latency without write-back. To measure the
//! latter, the cleaner rests now and then for about three times the duration of an I/O. If clients
//! wait longer than the cleaner may cost them, it halves its blocks in flight. Below one block it
//! pauses between batches, twice as long each time. Otherwise it takes one more block. Each device
//! is compared only with itself: clients use the backing device when they miss, and the cache
//! device always. As long as clients wait at a device with too few measurements, the cleaner takes
//! no more blocks.
//!
//! The permitted cost depends on the marks. Below the low mark nothing is urgent: a small batch
//! every half second. From there to the high mark it may cost a tenth, with shorter pauses. From
//! the high mark on clients bypass the cache, and write-back makes room for them: two fifths.
//! Without clients it runs as fast as possible.

use std::time::Duration;

use super::{Ended, GENTLE, IDLE, IoDevice, PolicyInput, Turn, WIDEST};

/// Longest duration of a batch that counts for the pause after it. A longer one stood still, with
/// its device, and says nothing about the clients.
const LONGEST_BATCH: Duration = Duration::from_secs(1);
/// Between batches below the low mark.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause between batches from the low mark on: it is shorter the closer the high mark
/// is.
const SLOW: Duration = Duration::from_millis(50);
/// Permitted latency, in percent of the latency of client I/O alone.
const PERCENT_BELOW_HIGH: u64 = 110;
const PERCENT_ABOVE_HIGH: u64 = 140;
/// I/Os from which an average says something.
const ENOUGH: u64 = 16;
/// How often the pace is not raised because too little was seen of one device's clients.
const HOLD: u32 = 16;
/// Pauses are at most so many times twice as long as a batch takes.
const LOWEST: i32 = -6;
/// Time during which it observes the clients alone: at least, at most, and the fraction of the
/// total time.
const ALONE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(300));
const ALONE_SHARE: u32 = 4;

/// Latency of client I/O on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Latency {
    /// With nothing being written back: an average that forgets, nanoseconds, and of how many.
    alone_ns: u64,
    alone: u64,
    /// During cleaning, since the pace changed last: the sum, and of how many.
    cleaning_ns: u64,
    during_cleaning: u64,
    /// Shortest latency, during cleaning or not. Zero before the first I/O.
    least_ns: u64,
}

impl Latency {
    /// Returns the latency during cleaning, in percent of the latency alone. Some clients use the
    /// device only during cleaning: when the cleaner rests, there is no room for them. Then their
    /// least latency stands for the latency alone.
    fn percent(&self) -> Option<u64> {
        let alone_ns = match self.alone {
            ENOUGH.. => self.alone_ns,
            _ => self.least_ns,
        };
        (self.during_cleaning >= ENOUGH)
            .then(|| self.cleaning_ns / self.during_cleaning * 100 / alone_ns.max(1))
    }

    fn longest_ns(&self) -> u64 {
        let during_cleaning = self
            .cleaning_ns
            .checked_div(self.during_cleaning)
            .unwrap_or(0);
        self.alone_ns.max(during_cleaning)
    }
}

/// A volume's pace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// Number of blocks in flight. At zero and below there is one, with a pause.
    level: i32,
    latency: [Latency; 2],
    /// Time at which the clients were last observed alone.
    alone_at: Duration,
    /// Whether the volume was idle at the last decision.
    idle: bool,
    pause: Duration,
    /// Number of I/Os during cleaning, at the last decision.
    seen: u64,
    /// How often the level was not raised, because too little is known of one device.
    held: u32,
}

impl Default for Auto {
    fn default() -> Self {
        Self {
            level: GENTLE as i32,
            latency: [Latency::default(); 2],
            alone_at: Duration::ZERO,
            idle: true,
            pause: Duration::ZERO,
            seen: 0,
            held: 0,
        }
    }
}

impl Auto {
    pub(super) fn note(&mut self, device: IoDevice, took: Duration, during_cleaning: bool) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let latency = &mut self.latency[device as usize];
        latency.least_ns = match latency.least_ns {
            0 => took,
            least => least.min(took),
        };
        if during_cleaning {
            latency.cleaning_ns = latency.cleaning_ns.saturating_add(took);
            latency.during_cleaning += 1;
            return;
        }
        // The first ones count as much as those behind them.
        latency.alone += 1;
        let weight = latency.alone.min(4 * ENOUGH);
        latency.alone_ns = (latency.alone_ns / weight).saturating_mul(weight - 1)
            + latency.alone_ns % weight * (weight - 1) / weight
            + took / weight;
    }

    pub(super) fn turn(&mut self, input: &PolicyInput) -> Turn {
        self.idle = input.idle >= IDLE;
        let pressed = input.is_above_high();
        if self.idle {
            return Turn {
                width: WIDEST,
                spare: !pressed,
                fullest: false,
                only_wanted: false,
            };
        }
        self.adjust(match pressed {
            true => PERCENT_ABOVE_HIGH,
            false => PERCENT_BELOW_HIGH,
        });
        let below = input.dirty_percent < input.low_percent && !input.wanted;
        self.pause = match below {
            true => PAUSE,
            false if pressed || input.wanted => Duration::ZERO,
            false => {
                let span = (input.high_percent - input.low_percent).max(1);
                let left = input
                    .high_percent
                    .saturating_sub(input.dirty_percent)
                    .min(span);
                SLOW.mul_f64(left as f64 / span as f64)
            }
        };
        let width = usize::try_from(self.level).unwrap_or(0).clamp(1, WIDEST);
        Turn {
            width: if below { width.min(GENTLE) } else { width },
            spare: !pressed,
            fullest: false,
            only_wanted: false,
        }
    }

    /// Changes the pace, once enough of the clients' I/O was seen during cleaning.
    fn adjust(&mut self, allowed: u64) {
        let worst = self.latency.iter().filter_map(Latency::percent).max();
        // With pauses, only I/O during the work counts as during cleaning.
        let parts = if self.level > 0 { 1 } else { 1 + self.pauses() };
        let cost = |percent: u64| 100 + percent.saturating_sub(100) / u64::from(parts);
        match worst.map(cost) {
            Some(percent) if percent > allowed => {
                self.level = match self.level {
                    2.. => self.level / 2,
                    few => (few - 1).max(LOWEST),
                }
            }
            // Clients wait on the other device, which has too few measurements.
            Some(_) if self.unheard() && self.held < HOLD => {
                self.held += 1;
                return;
            }
            Some(_) => self.level = (self.level + 1).min(WIDEST as i32),
            None => {
                // Clients of whom little is seen are not gone; of whom nothing is seen, nothing
                // waits.
                let seen = self
                    .latency
                    .iter()
                    .map(|latency| latency.during_cleaning)
                    .sum();
                if std::mem::replace(&mut self.seen, seen) == seen {
                    self.level = (self.level + 1).min(WIDEST as i32);
                }
                return;
            }
        }
        (self.seen, self.held) = (0, 0);
        for latency in &mut self.latency {
            (latency.during_cleaning, latency.cleaning_ns) = (0, 0);
        }
    }

    /// Returns whether a device has clients during cleaning, but too few yet to know the cost for
    /// them.
    fn unheard(&self) -> bool {
        let mut devices = self.latency.iter();
        devices.any(|latency| latency.during_cleaning > 0 && latency.percent().is_none())
    }

    /// How many times as long as a batch a pause takes, at a level that has some.
    const fn pauses(&self) -> u32 {
        1 << (1 - self.level)
    }

    pub(super) fn ended(&mut self, ended: &Ended) -> Duration {
        if self.idle {
            return Duration::ZERO;
        }
        let slow = match self.level {
            1.. => Duration::ZERO,
            _ => ended.took.min(LONGEST_BATCH) * self.pauses(),
        };
        let longest = self.latency.iter().map(Latency::longest_ns).max();
        let alone = Duration::from_nanos(longest.unwrap_or(0))
            .saturating_mul(3)
            .clamp(ALONE.0, ALONE.1);
        let due = ended.now >= self.alone_at + alone * ALONE_SHARE;
        let rest = self.pause.max(slow);
        let rest = if due { rest.max(alone) } else { rest };
        if rest >= alone {
            self.alone_at = ended.now + rest;
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_stood_still_is_followed_by_a_bounded_pause() {
        let mut auto = Auto {
            level: LOWEST,
            idle: false,
            ..Auto::default()
        };
        let mut rest_after = |seconds| {
            auto.ended(&Ended {
                now: Duration::from_secs(10),
                took: Duration::from_secs(seconds),
                empty: false,
            })
        };
        assert_eq!(rest_after(1), LONGEST_BATCH * 128);
        assert_eq!(rest_after(3600), LONGEST_BATCH * 128);
    }
}
