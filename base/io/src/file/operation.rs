//! One request on a file, from its first system call to its last.

use std::rc::Rc;

use forebay_block::{Buf, Completion, Context, Error, ErrorKind, Op, Request, Result};

use super::Handle;
use crate::reactor::{FileStep, TRANSFER_MAX_BYTES};

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Reading or writing; short transfers are continued.
    Transfer,
    /// fdatasync.
    Sync,
    /// fallocate with this mode.
    Allocate(i32),
    /// `BLKDISCARD`.
    Discard,
    /// Writing zeroes.
    Zeroes,
}

/// A request in flight.
pub(crate) struct FileOp {
    handle: Rc<Handle>,
    request: Request,
    done: Completion,
    stage: Stage,
    progress: u64,
    /// Stands in for a buffer whose address direct I/O on this file does not take.
    bounce: Option<Buf>,
}

impl FileOp {
    /// The request must have been checked.
    pub(super) fn new(handle: &Rc<Handle>, request: Request, done: Completion) -> Self {
        let stage = match request.op {
            Op::Read | Op::Write { .. } => Stage::Transfer,
            Op::Flush => Stage::Sync,
            Op::Discard if handle.geometry.block_device => Stage::Discard,
            Op::Discard => Stage::Allocate(PUNCH_HOLE),
            Op::WriteZeroes { unmap, .. } => zeroing(handle, unmap),
        };
        let bounce = request
            .buf
            .as_ref()
            .filter(|buf| buf.as_ptr().addr() % handle.memory_align != 0)
            .map(|buf| {
                let bounce = Buf::scratch(buf.len());
                if request.op != Op::Read {
                    bounce.copy_from_buf(buf);
                }
                bounce
            });
        Self {
            handle: Rc::clone(handle),
            request,
            done,
            stage,
            progress: 0,
            bounce,
        }
    }

    /// Separates the completion from what must be dropped before it is used.
    pub(crate) fn into_parts(self) -> (Completion, impl Sized) {
        (self.done, (self.handle, self.request, self.bounce))
    }

    /// Returns the next step.
    pub(crate) fn step(&self) -> FileStep {
        let target = self.handle.target;
        let offset = self.request.offset + self.progress;
        let left = self.request.len - self.progress;
        let len = |most: u64| u32::try_from(left.min(most)).expect("at most 2^30");
        match self.stage {
            Stage::Transfer => {
                let buf = self.bounce.as_ref().or(self.request.buf.as_ref());
                let start = buf.expect("a transfer has a buffer").as_ptr();
                let progress = usize::try_from(self.progress).expect("within the buffer");
                let ptr = start.wrapping_add(progress);
                let len = len(TRANSFER_MAX_BYTES);
                match self.request.op {
                    Op::Write { fua } => FileStep::Write {
                        target,
                        ptr,
                        len,
                        offset,
                        dsync: fua,
                    },
                    _ => FileStep::Read {
                        target,
                        ptr,
                        len,
                        offset,
                    },
                }
            }
            Stage::Zeroes => {
                let zeroes = self.handle.driver.zeroes();
                FileStep::Write {
                    target,
                    ptr: zeroes.as_ptr(),
                    len: len(zeroes.len() as u64),
                    offset,
                    dsync: self.wants_fua(),
                }
            }
            Stage::Sync => FileStep::Sync { target },
            Stage::Allocate(mode) => FileStep::Allocate {
                target,
                mode,
                offset,
                len: left,
            },
            Stage::Discard => FileStep::Discard {
                target,
                offset,
                len: left,
            },
        }
    }

    const fn wants_fua(&self) -> bool {
        matches!(
            self.request.op,
            Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. }
        )
    }

    /// Takes the result of a step. None if another step follows.
    pub(crate) fn advance(&mut self, result: i32) -> Option<Result<()>> {
        let outcome = self.take(result);
        if let Some(Err(error)) = &outcome {
            self.handle.faults.note(error);
        }
        outcome
    }

    fn take(&mut self, result: i32) -> Option<Result<()>> {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return None;
        }
        if result < 0 {
            return self.refused(-result);
        }
        match self.stage {
            Stage::Transfer | Stage::Zeroes => self.moved(u64::from(result.cast_unsigned())),
            Stage::Allocate(_) if self.wants_fua() => {
                self.stage = Stage::Sync;
                None
            }
            Stage::Sync | Stage::Allocate(_) | Stage::Discard => Some(Ok(())),
        }
    }

    fn moved(&mut self, bytes: u64) -> Option<Result<()>> {
        let before = self.progress;
        self.progress += bytes;
        if self.progress < self.request.len {
            // Direct I/O goes on from a block's start.
            let block = u64::from(self.handle.geometry.logical_block_bytes);
            self.progress -= self.progress % block;
            if self.progress > before {
                return None;
            }
            let (handle, request) = (&self.handle, &self.request);
            return Some(Err(match request.op {
                Op::Read => truncation_error(handle, request),
                _ => {
                    let error = Error::new(ErrorKind::Io, "nothing was written");
                    error.context(describe(handle, request))
                }
            }));
        }
        if let (Op::Read, Some(bounce), Some(buf)) =
            (self.request.op, &self.bounce, &self.request.buf)
        {
            buf.copy_from_buf(bounce);
        }
        Some(Ok(()))
    }

    /// Decides on an error: another way, if there is one.
    fn refused(&mut self, errno: i32) -> Option<Result<()>> {
        let unsupported = errno == libc::EOPNOTSUPP || errno == libc::ENOSYS;
        match (self.stage, self.request.op) {
            // A discard is advice.
            (Stage::Discard | Stage::Allocate(_), Op::Discard) if unsupported => {
                return Some(Ok(()));
            }
            (Stage::Allocate(mode), Op::WriteZeroes { .. }) if unsupported => {
                if mode == PUNCH_HOLE {
                    self.handle.punches.set(false);
                } else {
                    self.handle.zeroes.set(false);
                }
                self.stage = zeroing(&self.handle, mode == PUNCH_HOLE);
                return None;
            }
            _ => (),
        }
        let error = std::io::Error::from_raw_os_error(errno);
        Some(Err(error).context(|| describe(&self.handle, &self.request)))
    }
}

fn describe(handle: &Handle, request: &Request) -> String {
    let path = handle.path.display();
    let verb = match request.op {
        Op::Read => "read",
        Op::Write { .. } => "write",
        Op::Flush => return format!("flush of {path}"),
        Op::Discard => "discard",
        Op::WriteZeroes { .. } => "write of zeroes",
    };
    let Request { len, offset, .. } = request;
    format!("{verb} of {len} bytes at byte {offset} of {path}")
}

/// Returns the error for a request past the end of a truncated file.
pub(super) fn truncation_error(handle: &Handle, request: &Request) -> Error {
    let what = "the file ends before that: was it truncated?";
    Error::new(ErrorKind::Io, what).context(describe(handle, request))
}

/// The best way to zero a range that this file is not known to refuse.
fn zeroing(handle: &Handle, unmap: bool) -> Stage {
    if unmap && handle.punches.get() {
        Stage::Allocate(PUNCH_HOLE)
    } else if handle.zeroes.get() {
        Stage::Allocate(ZERO_RANGE)
    } else {
        Stage::Zeroes
    }
}
