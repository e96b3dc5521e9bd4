//! Decides whether an idle thread polls for the next job, or sleeps at once. The study's model
//! includes this file.

/// Maximum number of jobs before which a thread does not poll.
const SKIPS_MAX: u32 = 1 << 10;

/// State of the decision to poll or to sleep. A poll in vain doubles the pause in polling, and a
/// successful one halves it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollPolicy {
    /// Number of jobs, from the next on, before which the thread does not poll.
    skips_left: u32,
    /// Length of the last pause, in jobs. Each success since has halved it.
    skips: u32,
}

impl PollPolicy {
    /// Returns whether to poll before the next job. If so, report the result with
    /// [`PollPolicy::note_result`].
    pub(crate) const fn should_poll(&mut self) -> bool {
        let skips = self.skips_left > 0;
        self.skips_left = self.skips_left.saturating_sub(1);
        !skips
    }

    /// Notes whether a job arrived while the thread polled.
    pub(crate) fn note_result(&mut self, found_job: bool) {
        if found_job {
            self.skips /= 2;
        } else {
            self.skips = (self.skips * 2 + 1).min(SKIPS_MAX);
            self.skips_left = self.skips;
        }
    }
}
