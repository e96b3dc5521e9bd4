//! Refusal of all requests of a volume.

use forebay_block::{Error, ErrorKind};

use super::{Local, Volume};

impl Volume {
    /// Refuses new requests with `error`, for good: another machine may have changed the data. So a
    /// client gets no older data, and no acknowledgement of a write that reaches nothing.
    pub fn fence(&self, error: Error) {
        self.local.fence.borrow_mut().get_or_insert(error);
        self.local.refusing.set(true);
    }
}

impl Local {
    /// Error of requests that come while requests are refused.
    #[cold]
    pub(super) fn refusal(&self) -> Error {
        let fence = self.fence.borrow();
        fence
            .clone()
            .unwrap_or_else(|| ErrorKind::ShuttingDown.into())
    }
}
