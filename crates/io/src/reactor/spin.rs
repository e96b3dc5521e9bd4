//! Whether a reactor looks for work a little longer before it sleeps.
//!
//! To be put to sleep and woken takes the kernel tens of microseconds, as much as all the rest of a
//! request. A client with one request in flight comes back sooner than that. So where one idle time
//! after another has been short, the next one is awaited awake; where it was not short after all,
//! the wager is made less and less often. A reactor without work sleeps.

use std::time::Duration;

/// Idle time up to this is short: about what falling asleep and being woken costs twice.
const SHORT: Duration = Duration::from_micros(100);
/// Short idle times in a row that it takes, at first and after many that were not.
const ROW_MIN: u32 = 16;
const ROW_MAX: u32 = 1 << 14;
/// As many that were awaited awake and did end make up for one that did not.
const TRUST: u32 = 32;

/// What the idle times of one reactor were like.
#[derive(Debug)]
pub(super) struct Spin {
    /// Short ones in a row, up to now.
    row: u32,
    /// As many make the next one worth waiting for.
    enough: u32,
}

impl Spin {
    pub(super) const fn new() -> Self {
        Self {
            row: 0,
            enough: ROW_MIN,
        }
    }

    /// How long to look for work before sleeping, if at all.
    pub(super) const fn patience(&self) -> Option<Duration> {
        if self.row >= self.enough {
            Some(SHORT)
        } else {
            None
        }
    }

    /// An idle time has ended, which was awaited asleep.
    pub(super) fn slept(&mut self, idle: Duration) {
        self.row = if idle <= SHORT {
            self.row.saturating_add(1)
        } else {
            0
        };
    }

    /// One was awaited awake, and ended while patience lasted or not.
    pub(super) fn spun(&mut self, found: bool) {
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

    const LONG: Duration = Duration::from_millis(1);

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
        spin.spun(true);
        assert_eq!(spin.patience(), Some(SHORT));
    }

    #[test]
    fn what_does_not_pay_is_tried_ever_less_often() {
        let mut spin = Spin::new();
        let (mut spun, waits) = (0, 100_000);
        for _ in 0..waits {
            // A client on the same processor: it comes at once, unless it is kept from running.
            match spin.patience() {
                Some(_) => {
                    spin.spun(false);
                    spun += 1;
                }
                None => spin.slept(SHORT),
            }
        }
        assert!((5..25).contains(&spun), "{spun} of {waits}");
    }

    #[test]
    fn one_that_did_not_pay_among_many_is_forgiven() {
        let mut spin = Spin::new();
        let mut spun = 0;
        for wait in 0..100_000 {
            match spin.patience() {
                Some(_) => {
                    spin.spun(wait % 200 > 0);
                    spun += 1;
                }
                None => spin.slept(SHORT),
            }
        }
        assert!(spun > 70_000, "{spun}");
    }
}
