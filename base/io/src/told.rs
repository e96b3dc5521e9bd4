//! Requests that fail are told to the operator: what is dirty and cannot be read, say, is named there alone, since protocols
//! answer their clients with a number.

use std::cell::Cell;
use std::time::Duration;

use crate::rt;
use forebay_block::{Error, ErrorKind};

/// The first of several is told, and again one after this time.
const PAUSE: Duration = Duration::from_secs(10);

/// When a volume's failed requests were told.
#[derive(Debug, Default)]
pub struct Told {
    last: Cell<Option<Duration>>,
    untold: Cell<u64>,
}

impl Told {
    /// Logs that a request of a volume failed, unless one was logged just now. Returns whether it did.
    pub fn failure(&self, volume: &str, error: &Error) -> bool {
        if error.kind() == ErrorKind::ShuttingDown {
            return false;
        }
        let now = rt::now();
        if self.last.get().is_some_and(|last| now - last < PAUSE) {
            self.untold.set(self.untold.get() + 1);
            return false;
        }
        self.last.set(Some(now));
        let untold = self.untold.take();
        tracing::error!(volume, untold, "a request failed: {}", error.report());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_the_first_is_told_and_one_every_ten_seconds() {
        rt::block_on_simulated(1, async {
            let (told, error) = (Told::default(), Error::from(ErrorKind::Io));
            assert!(!told.failure("v", &ErrorKind::ShuttingDown.into()));
            assert!(told.failure("v", &error));
            for _ in 0..3 {
                assert!(!told.failure("v", &error));
            }
            assert_eq!(told.untold.get(), 3);
            rt::sleep(PAUSE).await;
            assert!(told.failure("v", &error));
            assert_eq!(told.untold.get(), 0);
        });
    }
}
