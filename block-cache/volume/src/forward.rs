//! A volume as a device of reactors other than the engine reactor.

use std::ops::Range;
use std::sync::Arc;

use forebay_block::{
    BlockDevice, Completion, DeviceInfo, ErrorKind, Extents, ExtentsFuture, Request, Result,
};
use forebay_io::answer::Answer;

use crate::answer::{self, ExtentsAnswer};
use crate::local;
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

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(ask(&self.shared, range))
    }
}

/// Asks the engine reactor of a volume for the allocation of `range`.
async fn ask(shared: &Shared, range: Range<u64>) -> Result<Extents> {
    if shared.inbox.is_closed() {
        return Err(ErrorKind::ShuttingDown.into());
    }
    let answer = Answer::default();
    let (id, given) = (shared.id, ExtentsAnswer::new(answer.clone()));
    shared
        .engine
        .call(move || local::answer_extents(id, range, given));
    answer.get().await
}
