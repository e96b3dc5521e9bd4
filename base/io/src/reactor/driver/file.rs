//! Files of a driver, and their operations from the first system call to the last.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_block::{Buf, Completion, Context, Error, ErrorKind, Op, Request, Result};

use super::{Driver, Faults};
use crate::engine::{FileStep, TRANSFER_MAX_BYTES, Target};
use crate::lock::unlock;

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// Constraints of a file on its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoLimits {
    /// Whether the file is a block device.
    pub(crate) block_device: bool,
    /// Unit of direct I/O, in bytes.
    pub(crate) logical_block_bytes: u32,
    /// Alignment of buffers in memory, in bytes. Other buffers are bounced.
    pub(crate) memory_align: usize,
}

/// An open file or block device. Operations in flight hold it open.
pub(crate) struct OpenFile {
    driver: Rc<Driver>,
    target: Target,
    fd: OwnedFd,
    path: PathBuf,
    limits: IoLimits,
    /// Whether this process holds the file's locks.
    locked: bool,
    faults: Rc<Faults>,
    /// Whether `FALLOC_FL_PUNCH_HOLE` is not known to be refused.
    punches: Cell<bool>,
    /// Whether `FALLOC_FL_ZERO_RANGE` is not known to be refused.
    zeroes: Cell<bool>,
}

impl OpenFile {
    /// Takes over an open file. `locked` says that its locks are released with it.
    pub(crate) fn adopt(
        driver: Rc<Driver>,
        fd: OwnedFd,
        path: &Path,
        limits: IoLimits,
        locked: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            target: driver.register(fd.as_raw_fd()),
            driver,
            fd,
            path: path.to_owned(),
            limits,
            locked,
            faults: Rc::default(),
            punches: Cell::new(true),
            zeroes: Cell::new(true),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the path that the file was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the faults since the file was opened.
    pub(crate) fn faults(&self) -> &Rc<Faults> {
        &self.faults
    }

    /// Starts a request that was checked. `done` gets the outcome.
    pub(crate) fn start(self: &Rc<Self>, request: Request, done: Completion) {
        self.driver.start_file(FileOp::new(self, request, done));
    }

    /// Returns the error for a request past the end of a truncated file.
    pub(crate) fn truncation_error(&self, request: &Request) -> Error {
        let what = "the file ends before that range (was it truncated?)";
        Error::new(ErrorKind::Io, what).context(describe(self, request))
    }

    /// Behaves like a file on a file system that has no calls to zero a range.
    #[cfg(test)]
    pub(crate) fn refuse_zeroing(&self) {
        self.punches.set(false);
        self.zeroes.set(false);
    }

    /// Behaves like a file on a device that takes buffers at multiples of `bytes`.
    #[cfg(test)]
    pub(crate) fn set_memory_align(&mut self, bytes: usize) {
        self.limits.memory_align = bytes;
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.driver.unregister(self.target);
        if self.locked {
            // The ring may hold the file a moment longer; the next opener need not wait for that.
            unlock(self.fd.as_raw_fd());
        }
    }
}

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
    file: Rc<OpenFile>,
    request: Request,
    done: Completion,
    stage: Stage,
    progress: u64,
    /// Stands in for a buffer whose address direct I/O on this file does not take.
    bounce: Option<Buf>,
}

impl FileOp {
    /// The request must have been checked.
    pub(crate) fn new(file: &Rc<OpenFile>, request: Request, done: Completion) -> Self {
        let stage = match request.op {
            Op::Read | Op::Write { .. } => Stage::Transfer,
            Op::Flush => Stage::Sync,
            Op::Discard if file.limits.block_device => Stage::Discard,
            Op::Discard => Stage::Allocate(PUNCH_HOLE),
            Op::WriteZeroes { unmap, .. } => zeroing(file, unmap),
        };
        let bounce = request
            .buf
            .as_ref()
            .filter(|buf| buf.as_ptr().addr() % file.limits.memory_align != 0)
            .map(|buf| {
                let bounce = Buf::scratch(buf.len());
                if request.op != Op::Read {
                    bounce.copy_from_buf(buf);
                }
                bounce
            });
        Self {
            file: Rc::clone(file),
            request,
            done,
            stage,
            progress: 0,
            bounce,
        }
    }

    /// Separates the completion from what must be dropped before it is used.
    pub(crate) fn into_parts(self) -> (Completion, impl Sized) {
        (self.done, (self.file, self.request, self.bounce))
    }

    /// Returns the next step.
    pub(crate) fn step(&self) -> FileStep {
        let target = self.file.target;
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
                let zeroes = self.file.driver.zeroes();
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
            self.file.faults.note(error);
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
            // Direct I/O continues from a block's start.
            let block = u64::from(self.file.limits.logical_block_bytes);
            self.progress -= self.progress % block;
            if self.progress > before {
                return None;
            }
            let (file, request) = (&self.file, &self.request);
            return Some(Err(match request.op {
                Op::Read => file.truncation_error(request),
                _ => {
                    let error = Error::new(ErrorKind::Io, "nothing was written");
                    error.context(describe(file, request))
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
                    self.file.punches.set(false);
                } else {
                    self.file.zeroes.set(false);
                }
                self.stage = zeroing(&self.file, mode == PUNCH_HOLE);
                return None;
            }
            _ => (),
        }
        let error = std::io::Error::from_raw_os_error(errno);
        Some(Err(error).context(|| describe(&self.file, &self.request)))
    }
}

fn describe(file: &OpenFile, request: &Request) -> String {
    let path = file.path.display();
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

/// Returns the best way to zero a range that this file is not known to refuse.
fn zeroing(file: &OpenFile, unmap: bool) -> Stage {
    if unmap && file.punches.get() {
        Stage::Allocate(PUNCH_HOLE)
    } else if file.zeroes.get() {
        Stage::Allocate(ZERO_RANGE)
    } else {
        Stage::Zeroes
    }
}
