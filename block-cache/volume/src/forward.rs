//! A volume as a device of reactors other than the engine reactor.

use std::sync::Arc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request};

use crate::answer;
use crate::shared::Shared;

/// A volume as a device of another reactor.
pub(crate) struct ForwardDevice {
    shared: Arc<Shared>,
}

impl ForwardDevice {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl BlockDevice for ForwardDevice {
    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.shared.forward(request, answer::remote_answer(done));
    }
}
