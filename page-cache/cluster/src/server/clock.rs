//! The time by which the directory measures the silence of nodes.

use std::time::{Duration, Instant};

/// Longest time between two checks that counts: ten times their usual interval.
const STEP_MAX: Duration = Duration::from_millis(200);

/// Time for which the directory has run.
///
/// A directory that was stopped, or that the system did not schedule, has not read its messages.
/// The nodes were not silent for that time, so it must not count towards their leases.
#[derive(Debug)]
pub(super) struct Clock {
    now: Duration,
    advanced: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            now: Duration::ZERO,
            advanced: Instant::now(),
        }
    }

    /// Returns the time at the last check.
    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    /// Advances the time by that since the last check, but at most by [`STEP_MAX`].
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        self.now += (now - self.advanced).min(STEP_MAX);
        self.advanced = now;
    }
}
