//! Keeps whoever breaks connections from filling the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// Lets one line through in a window of time, and counts what was left out.
#[derive(Default)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Default)]
struct State {
    quiet_until: Option<Instant>,
    left_out: u64,
    last: String,
}

/// What to do with a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Log it.
    Now,
    /// Leave it out, and call [`LogLimit::rest`] after this time.
    After(Duration),
    /// Leave it out.
    Counted,
}

impl LogLimit {
    /// Decides on a line that gives `reason`, at `now`.
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

    /// How many lines were left out, with the reason that the last of them gives. From `now` on the
    /// next window runs.
    pub(crate) fn rest(&self, now: Instant) -> (u64, String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.quiet_until = Some(now + WINDOW);
        let left_out = std::mem::take(&mut state.left_out);
        (left_out, std::mem::take(&mut state.last))
    }
}
