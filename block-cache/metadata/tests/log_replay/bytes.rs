//! Media for what is read when a cache is opened: bytes that can be damaged.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request};

/// A device of plain bytes that completes at once.
#[derive(Clone)]
pub(crate) struct Bytes(pub(crate) Rc<RefCell<Vec<u8>>>);

impl Bytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(bytes)))
    }
}

impl BlockDevice for Bytes {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("bytes", self.0.borrow().len() as u64)
    }

    fn submit(&self, request: Request, done: Completion) {
        // Lines are smaller than a sector.
        let size_bytes = self.info().size_bytes;
        if let Err(error) = request.check(size_bytes, 1) {
            return done.complete(Err(error));
        }
        let at = request.offset as usize;
        let mut bytes = self.0.borrow_mut();
        match (request.op, request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &bytes[at..at + buf.len()]),
            (Op::Write { .. }, Some(buf)) => {
                let len = buf.len();
                buf.copy_to(0, &mut bytes[at..at + len]);
            }
            (Op::Flush, _) => {}
            _ => return done.complete(Err(ErrorKind::Unsupported.into())),
        }
        done.complete(Ok(()));
    }
}

/// Returns the result of a future that waits for nothing but [`Bytes`].
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the device completes at once"),
    }
}
