//! Decides whether a reactor polls for work for a while before it sleeps.
//!
//! Falling asleep and waking take the kernel tens of microseconds, as much as all the rest of a
//! request. A client with one request in flight returns sooner than that. So after several short
//! idle times, the reactor polls during the next one. If that idle time was long after all, it
//! polls less and less often. On a processor that others need too, a thread that never sleeps is
//! preempted when there is work. After one sign of that, the reactor sleeps for a good while. A
//! reactor without work sleeps.

use std::time::Duration;

/// Idle time up to this is short: about what falling asleep and being woken costs twice.
const SHORT: Duration = Duration::from_micros(100);
/// Awake for so long without a look: the processor was taken away.
const TAKEN_AWAY: Duration = Duration::from_micros(300);
/// Short idle times in a row that it takes, at first and after many that were not.
const ROW_MIN: u32 = 16;
const ROW_MAX: u32 = 1 << 14;
/// As many that were awaited awake and did end make up for one that did not.
const TRUST: u32 = 32;
/// Number of idle times without polling after the processor was preempted, at first and when that
/// happens repeatedly. If the reactor polled as many idle times in between, preemption counts as a
/// chance event. A timer of the kernel or the hypervisor is one, and costs less than the sleep that
/// polling avoids.
const REST_MIN: u32 = 1 << 6;
const REST_MAX: u32 = 1 << 14;
const PEACE: u32 = 1 << 9;

/// Statistics of one reactor's idle times.
#[derive(Debug)]
pub(super) struct Spin {
    /// Short ones in a row, up to now.
    row: u32,
    /// As many make the next one worth waiting for.
    enough: u32,
    /// To be slept through whatever they are.
    resting: u32,
    /// The same, next time.
    next_rest: u32,
    /// Awaited awake since the processor was taken away.
    peace: u32,
}

impl Spin {
    pub(super) const fn new() -> Self {
        Self {
            row: 0,
            enough: ROW_MIN,
            resting: 0,
            next_rest: REST_MIN,
            peace: 0,
        }
    }

    /// Number of short idle times in a row after which the next one is awaited awake.
    #[cfg(test)]
    pub(super) const fn threshold(&self) -> u32 {
        self.enough
    }

    /// Returns the time to look for work before sleeping. `None` to sleep at once.
    pub(super) const fn patience(&self) -> Option<Duration> {
        if self.row >= self.enough && self.resting == 0 {
            Some(SHORT)
        } else {
            None
        }
    }

    /// An idle time has ended, which was awaited asleep.
    pub(super) fn slept(&mut self, idle: Duration) {
        self.resting = self.resting.saturating_sub(1);
        self.row = if idle <= SHORT {
            self.row.saturating_add(1)
        } else {
            0
        };
    }

    /// One was awaited awake for the time `taken`, and ended meanwhile or not.
    pub(super) fn spun(&mut self, found: bool, taken: Duration) {
        if taken >= TAKEN_AWAY {
            if self.peace >= PEACE {
                self.next_rest = REST_MIN;
            }
            self.resting = self.next_rest;
            self.next_rest = (self.next_rest * 4).min(REST_MAX);
            self.peace = 0;
            return;
        }
        self.peace = self.peace.saturating_add(1);
        if found {
            self.row = self.row.saturating_add(1);
            if self.row.is_multiple_of(TRUST) {
                self.enough = (self.enough / 2).max(ROW_MIN);
            }
        } else {
            self.row = 0;
            self.enough = (self.enough * 2).min(ROW_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: u32 = 100_000;
    const LONG: Duration = Duration::from_millis(1);

    /// Returns the number of idle times, of `WAITS`, in which the reactor polls, if those asleep
    /// are short. `awake` returns for each of them whether it ended, and its length.
    fn spun(awake: impl Fn(u32) -> (bool, Duration)) -> u32 {
        let mut spin = Spin::new();
        let mut spun = 0;
        for wait in 0..WAITS {
            match spin.patience() {
                Some(_) => {
                    let (found, taken) = awake(wait);
                    spin.spun(found, taken);
                    spun += 1;
                }
                None => spin.slept(SHORT),
            }
        }
        spun
    }

    #[test]
    fn it_takes_short_idle_times_in_a_row() {
        let mut spin = Spin::new();
        for _ in 1..ROW_MIN {
            spin.slept(SHORT);
        }
        assert_eq!(spin.patience(), None);
        spin.slept(LONG);
        for _ in 0..ROW_MIN {
            assert_eq!(spin.patience(), None);
            spin.slept(SHORT);
        }
        assert_eq!(spin.patience(), Some(SHORT));
        spin.spun(true, SHORT / 2);
        assert_eq!(spin.patience(), Some(SHORT));
    }

    #[test]
    fn polling_that_finds_nothing_becomes_ever_rarer() {
        // A client on the same processor: it returns at once, unless it cannot run.
        let spun = spun(|_| (false, SHORT));
        assert!((5..25).contains(&spun), "{spun} of {WAITS}");
    }

    #[test]
    fn one_that_did_not_pay_among_many_is_forgiven() {
        let spun = spun(|wait| (wait % 200 > 0, SHORT / 2));
        assert!(spun > WAITS * 7 / 10, "{spun} of {WAITS}");
    }

    #[test]
    fn where_others_want_the_processor_the_reactor_sleeps() {
        // It returns soon, but every hundredth time another program gets the processor first.
        let spun = spun(|wait| (true, if wait % 100 == 0 { LONG } else { SHORT / 2 }));
        assert!(spun < WAITS / 100, "{spun} of {WAITS}");
    }
}
