//! Counts the failed requests of a device, for monitoring. A [`mod@crate::file`] counts its own.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, ErrorKind, Request};
use forebay_io::file::Faults;
use forebay_io::rt;

/// A device that counts the failures of its inner device. Each request costs a task: a small cost
/// compared with the round trip of a remote device.
pub struct Faulted {
    inner: Rc<dyn BlockDevice>,
    faults: Rc<Faults>,
}

impl Faulted {
    /// Wraps `inner` and counts its failures.
    #[must_use]
    pub fn wrap(inner: Rc<dyn BlockDevice>) -> (Rc<dyn BlockDevice>, Rc<Faults>) {
        let faults = Rc::<Faults>::default();
        let device = Rc::new(Self {
            inner,
            faults: Rc::clone(&faults),
        });
        (device, faults)
    }
}

impl BlockDevice for Faulted {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let outcome = self.inner.start(request);
        let faults = Rc::clone(&self.faults);
        rt::spawn(async move {
            let outcome = outcome.await;
            if let Err(error) = &outcome
                && !matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::OutOfRange
                )
            {
                faults.note(error);
            }
            done.complete(outcome);
        });
    }

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }
}

impl std::fmt::Debug for Faulted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulted")
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDevice;
    use forebay_block::{Buf, Error};
    use forebay_io::rt::block_on_simulated;

    /// A device whose flushes fail.
    struct NoFlush(Rc<dyn BlockDevice>);

    impl BlockDevice for NoFlush {
        fn info(&self) -> DeviceInfo {
            self.0.info()
        }

        fn submit(&self, request: Request, done: Completion) {
            match request.op {
                forebay_block::Op::Flush => {
                    done.complete(Err(Error::new(ErrorKind::Disconnected, "no server")));
                }
                _ => self.0.submit(request, done),
            }
        }
    }

    #[test]
    fn failures_are_counted_and_refusals_of_invalid_requests_are_not() {
        block_on_simulated(1, async {
            let inner = Rc::new(NoFlush(MemDevice::new("m", 1 << 20)));
            let (device, faults) = Faulted::wrap(inner);
            let read = |offset| device.start(Request::read(offset, Buf::scratch(512)));
            read(0).await.expect("no error");
            assert_eq!(faults.count(), 0);
            let refused = read(1 << 20).await.expect_err("beyond the end");
            assert_eq!(refused.kind(), ErrorKind::OutOfRange);
            assert_eq!(faults.count(), 0, "{refused}");
            for number in 1..3 {
                let failed = device.start(Request::flush()).await;
                assert_eq!(
                    failed.expect_err("it fails").kind(),
                    ErrorKind::Disconnected
                );
                assert_eq!(faults.count(), number);
            }
            let last = faults.last().expect("a failure");
            assert!(last.report().contains("no server"), "{last}");
        });
    }
}
