//! Requests that fail are told to the operator: what is dirty and cannot be read, say, is named there alone, since protocols
//! answer their clients with a number.

use std::cell::Cell;
use std::time::Duration;

use forebay_block::{Error, ErrorKind};
use forebay_io::rt;

/// The first of several is told, and again one after this time.
const PAUSE: Duration = Duration::from_secs(10);

/// When a volume's failed requests were told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    last: Cell<Option<Duration>>,
    untold: Cell<u64>,
}

impl Told {
    pub(crate) fn failure(&self, volume: &str, error: &Error) {
        if error.kind() == ErrorKind::ShuttingDown {
            return;
        }
        let now = rt::now();
        if self.last.get().is_some_and(|last| now - last < PAUSE) {
            self.untold.set(self.untold.get() + 1);
            return;
        }
        self.last.set(Some(now));
        let untold = self.untold.take();
        tracing::error!(volume, untold, "a request failed: {}", error.report());
    }
}
