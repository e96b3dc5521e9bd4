//! Requests from threads that run no reactor. Each thread waits in its own slot, so that there is
//! at most one slot a thread.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_block::Result;

/// Slot in which a foreign thread waits for the outcome of its request.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    outcome: Mutex<Option<Result<()>>>,
    arrived: Condvar,
}

thread_local! {
    static SLOT: Arc<Slot> = Arc::default();
}

impl Slot {
    /// Returns the calling thread's slot.
    pub(crate) fn here() -> Arc<Self> {
        SLOT.with(Arc::clone)
    }

    pub(crate) fn put(&self, outcome: Result<()>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.arrived.notify_one();
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = outcome.take() {
                return result;
            }
            outcome = self
                .arrived
                .wait(outcome)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
