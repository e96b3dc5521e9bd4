//! Servers that show data in one granule that they do not have.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, ErrorKind, Op, Request};
use forebay_io::rt;
use forebay_io::sim::SimDisk;

use super::GRANULE;

/// Whether a request touches what lies at `at`.
fn touches(request: &Request, at: u64) -> bool {
    (request.offset..request.offset + request.len).contains(&at)
}

/// Carries a request out; a read finds the granule at the place that is `shown` full of that byte.
fn carry_out(disk: &SimDisk, shown: Option<(u64, u8)>, request: Request, done: Completion) {
    let shown = shown.filter(|(at, _)| request.op == Op::Read && touches(&request, *at));
    let (offset, buf) = (request.offset, request.buf.clone());
    let io = disk.start(request);
    rt::spawn(async move {
        let result = io.await;
        if let (Some((at, byte)), Some(buf)) = (shown, buf) {
            let at = (at - offset) as usize;
            buf.slice(at..at + GRANULE as usize).fill(byte);
        }
        done.complete(result);
    });
}

/// A server that lost power before the first flush of this session. Until then it shows another
/// session's unflushed writes, and from then on the earlier data. Its client would resend its own
/// writes, but noticed nothing.
pub(super) struct Forgetful {
    pub(super) disk: SimDisk,
    pub(super) shown: Cell<Option<(u64, u8)>>,
    pub(super) flushed: Rc<Cell<bool>>,
}

impl BlockDevice for Forgetful {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op == Op::Flush {
            self.shown.take();
            self.flushed.set(true);
        }
        carry_out(&self.disk, self.shown.get(), request, done);
    }
}

/// A server that shows what it has lost, flushed or not, and will until it loses power itself.
pub(super) struct Showing {
    pub(super) disk: SimDisk,
    pub(super) shown: (u64, u8),
}

impl BlockDevice for Showing {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        carry_out(&self.disk, Some(self.shown), request, done);
    }
}

/// A write-through server: its first write to `at` fails, and from then on it shows what that was
/// to write.
pub(super) struct WriteThrough {
    pub(super) disk: SimDisk,
    pub(super) at: u64,
    pub(super) shown: Cell<Option<u8>>,
}

impl BlockDevice for WriteThrough {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            volatile_cache: false,
            ..self.disk.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        if let (Op::Write { .. }, Some(buf), None) = (request.op, &request.buf, self.shown.get())
            && touches(&request, self.at)
        {
            let mut byte = [0];
            buf.copy_to((self.at - request.offset) as usize, &mut byte);
            self.shown.set(Some(byte[0]));
            return done.complete(Err(ErrorKind::Io.into()));
        }
        let shown = self.shown.get().map(|byte| (self.at, byte));
        carry_out(&self.disk, shown, request, done);
    }
}
