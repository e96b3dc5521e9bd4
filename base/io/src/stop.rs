//! A request from another thread to stop a long step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::{Error, ErrorKind, Result};

/// A flag that one thread sets and that long steps of others look at. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks all who look at it to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a stop was requested.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends a step if a stop was requested.
    ///
    /// # Errors
    /// `ShuttingDown` if it was.
    pub fn check(&self) -> Result<()> {
        match self.is_asked() {
            true => Err(Error::new(
                ErrorKind::ShuttingDown,
                "stopped on request before it was complete",
            )),
            false => Ok(()),
        }
    }
}
