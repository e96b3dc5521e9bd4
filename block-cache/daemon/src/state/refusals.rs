//! Writes that are refused, since the state directory cannot record them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_block::Result;

use super::StateDirectory;

/// Reasons by volume, each from the last attempt to record a write.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<String, String>>);

impl Refusals {
    /// Keeps the result of an attempt to record a write to `volume`.
    pub(crate) fn note<T>(&self, volume: &str, recorded: &Result<T>) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match recorded {
            Ok(_) => reasons.remove(volume),
            Err(error) => reasons.insert(volume.to_owned(), error.report()),
        };
    }

    /// Returns the reason why the last write to `volume` was refused; `None` if it was recorded.
    pub(crate) fn of(&self, volume: &str) -> Option<String> {
        let reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.get(volume).cloned()
    }
}

impl StateDirectory {
    /// Returns the refusals of the volumes whose writes this directory records.
    #[must_use]
    pub const fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }
}
