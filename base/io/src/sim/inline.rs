//! A device that completes inline, on simulated memory, in a world that may stop while it works.

use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Request};

use super::shared::Shared;

/// Passes requests on, and delivers no completion once the world has stopped.
pub(super) struct Inline {
    shared: Rc<Shared>,
    inner: Rc<dyn BlockDevice>,
}

impl Inline {
    pub(super) fn new(shared: Rc<Shared>, inner: Rc<dyn BlockDevice>) -> Self {
        Self { shared, inner }
    }
}

impl BlockDevice for Inline {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if self.shared.is_stopped() {
            return self.shared.abandon(done);
        }
        let mut io = self.inner.start(request);
        let Poll::Ready(result) = Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("{} does not complete inline", self.info().name);
        };
        match self.shared.is_stopped() {
            true => self.shared.abandon(done),
            false => done.complete(result),
        }
    }
}
