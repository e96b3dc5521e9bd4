//! Rate limit for log messages on failed requests. The log is the only place that names, for
//! example, dirty data that cannot be read: protocols answer their clients with a number.

use std::cell::Cell;
use std::time::Duration;

use crate::rt;
use forebay_block::{Error, ErrorKind};

/// Time after a logged failure during which further ones are only counted.
const PAUSE: Duration = Duration::from_secs(10);

/// Rate limiter for the log messages of a volume's failed requests.
#[derive(Debug, Default)]
pub struct LogLimiter {
    /// Time of the last logged failure.
    last: Cell<Option<Duration>>,
    /// Number of failures since then that were not logged.
    suppressed: Cell<u64>,
}

impl LogLimiter {
    /// Logs that a request of a volume failed, unless a failure was logged less than `PAUSE` ago.
    /// Returns whether it did.
    pub fn failure(&self, volume: &str, error: &Error) -> bool {
        if error.kind() == ErrorKind::ShuttingDown {
            return false;
        }
        let now = rt::now();
        if self.last.get().is_some_and(|last| now - last < PAUSE) {
            self.suppressed.set(self.suppressed.get() + 1);
            return false;
        }
        self.last.set(Some(now));
        let suppressed = self.suppressed.take();
        tracing::error!(volume, suppressed, "a request failed: {}", error.report());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_the_first_is_logged_and_one_every_ten_seconds() {
        rt::block_on_simulated(1, async {
            let (limiter, error) = (LogLimiter::default(), Error::from(ErrorKind::Io));
            assert!(!limiter.failure("v", &ErrorKind::ShuttingDown.into()));
            assert!(limiter.failure("v", &error));
            for _ in 0..3 {
                assert!(!limiter.failure("v", &error));
            }
            assert_eq!(limiter.suppressed.get(), 3);
            rt::sleep(PAUSE).await;
            assert!(limiter.failure("v", &error));
            assert_eq!(limiter.suppressed.get(), 0);
        });
    }
}
