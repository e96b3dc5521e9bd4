//! State of a volume that all threads share.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_block::{DeviceInfo, ErrorKind, Request};
use forebay_io::rt::Remote;

use crate::answer::{RemoteAnswer, RemoteRequest};
use crate::mailbox::Mailbox;
use crate::stats::Counters;

/// State of a volume, without its device.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) engine: Remote,
    pub(crate) info: Mutex<DeviceInfo>,
    pub(crate) counters: Counters,
    pub(crate) inbox: Arc<Mailbox<RemoteRequest>>,
}

impl Shared {
    pub(crate) fn info(&self) -> DeviceInfo {
        self.info
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends a request to the engine reactor.
    pub(crate) fn forward(&self, request: Request, answer: RemoteAnswer) {
        let remote = RemoteRequest {
            volume: self.id,
            request,
            answer,
        };
        if let Err(refused) = self.inbox.post(remote) {
            refused.answer.refuse(ErrorKind::ShuttingDown.into());
        }
    }
}
