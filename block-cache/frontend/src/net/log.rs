//! Limit on log lines about misbehaving clients.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// Admits one line in a window of time, and counts the suppressed ones.
#[derive(Default)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Default)]
struct State {
    quiet_until: Option<Instant>,
    left_out: u64,
    last: String,
}

/// Decision about a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Log it.
    Now,
    /// Suppress it, and call [`LogLimit::rest`] after this time.
    After(Duration),
    /// Suppress it.
    Counted,
}

impl LogLimit {
    /// Decides about a line with `reason`, at `now`.
    pub(crate) fn admit(&self, now: Instant, reason: &str) -> Verdict {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.quiet_until.filter(|until| *until > now) {
            None if state.left_out == 0 => {
                state.quiet_until = Some(now + WINDOW);
                Verdict::Now
            }
            until => {
                state.left_out += 1;
                reason.clone_into(&mut state.last);
                match until {
                    Some(until) if state.left_out == 1 => Verdict::After(until - now),
                    _ => Verdict::Counted,
                }
            }
        }
    }

    /// Returns the number of suppressed lines and the last reason. The next window starts at `now`.
    pub(crate) fn rest(&self, now: Instant) -> (u64, String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.quiet_until = Some(now + WINDOW);
        let left_out = std::mem::take(&mut state.left_out);
        (left_out, std::mem::take(&mut state.last))
    }
}
