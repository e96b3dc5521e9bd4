//! Decides whether an idle thread polls for the next job, or sleeps at once. The study's model
//! decides by the same lines.

/// Most jobs before which a thread sleeps without polling, until it tries polling once more.
const REST_MAX: u32 = 1 << 10;

/// State of the decision to poll or to sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollPolicy {
    /// Jobs before which the thread sleeps at once.
    resting: u32,
    /// The same, after the next time in vain.
    rest: u32,
}

impl PollPolicy {
    /// Returns whether to poll this time. If so, report the result with [`PollPolicy::ended`].
    pub(crate) const fn begins(&mut self) -> bool {
        let rests = self.resting > 0;
        self.resting = self.resting.saturating_sub(1);
        !rests
    }

    /// Notes whether a job came while the thread polled.
    pub(crate) fn ended(&mut self, came: bool) {
        if came {
            self.rest /= 2;
        } else {
            self.rest = (self.rest * 2 + 1).min(REST_MAX);
            self.resting = self.rest;
        }
    }
}
