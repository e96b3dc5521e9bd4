//! Steps of operations: system calls as data, which an engine carries out.
//!
//! A step holds raw pointers. Its operation keeps the memory and the descriptor alive until the
//! engine has delivered the step's result: a count, or a negated error number.

use std::os::fd::RawFd;

/// Longest single transfer, bytes; longer requests go in several.
pub(crate) const TRANSFER_MAX_BYTES: u64 = 1 << 30;

/// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Flags of a send that takes as many bytes as the socket has room for.
const AT_ONCE: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// An open file as an engine names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) fd: RawFd,
    /// Its number among the ring's registered files, if it has one.
    pub(crate) slot: Option<u32>,
}

/// A step on a file or block device. It may block where it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileStep {
    Read {
        target: Target,
        ptr: *mut u8,
        len: u32,
        offset: u64,
    },
    Write {
        target: Target,
        ptr: *const u8,
        len: u32,
        offset: u64,
        dsync: bool,
    },
    Sync {
        target: Target,
    },
    Allocate {
        target: Target,
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// `BLKDISCARD`, which only exists as a blocking call.
    Discard {
        target: Target,
        offset: u64,
        len: u64,
    },
}

/// A step on a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketStep {
    Recv {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
        flags: i32,
    },
    Send {
        fd: RawFd,
        ptr: *const u8,
        len: u32,
    },
    SendMessage {
        fd: RawFd,
        message: *const libc::msghdr,
    },
    Accept {
        fd: RawFd,
    },
    /// Waits until the descriptor can be read.
    Poll {
        fd: RawFd,
    },
    Connect {
        fd: RawFd,
        address: *const libc::sockaddr,
        len: libc::socklen_t,
    },
    /// A command that io_uring passes through to the driver behind the descriptor.
    Command {
        fd: RawFd,
        number: u32,
        argument: [u8; 16],
    },
}

fn outcome(returned: i64) -> i32 {
    if returned < 0 {
        -std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    } else {
        i32::try_from(returned).unwrap_or(i32::MAX)
    }
}

/// An offset as system calls take it. Sizes come from the kernel, so they fit.
fn signed(offset: u64) -> libc::off_t {
    libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX)
}

impl FileStep {
    /// Returns the file.
    pub(crate) const fn target(&self) -> Target {
        match *self {
            Self::Read { target, .. }
            | Self::Write { target, .. }
            | Self::Sync { target }
            | Self::Allocate { target, .. }
            | Self::Discard { target, .. } => target,
        }
    }

    /// Carries the step out in this thread.
    pub(crate) fn perform(&self) -> i32 {
        let returned = match *self {
            Self::Read {
                target,
                ptr,
                len,
                offset,
            } => {
                // SAFETY: the operation keeps `len` bytes at `ptr` and the descriptor alive.
                unsafe { libc::pread(target.fd, ptr.cast(), len as usize, signed(offset)) as i64 }
            }
            Self::Write {
                target,
                ptr,
                len,
                offset,
                dsync,
            } => {
                let part = libc::iovec {
                    iov_base: ptr.cast_mut().cast(),
                    iov_len: len as usize,
                };
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                // SAFETY: as for a read; the vector is on this stack.
                unsafe {
                    libc::pwritev2(target.fd, &raw const part, 1, signed(offset), flags) as i64
                }
            }
            // SAFETY: the descriptor is open.
            Self::Sync { target } => i64::from(unsafe { libc::fdatasync(target.fd) }),
            Self::Allocate {
                target,
                mode,
                offset,
                len,
            } => {
                // SAFETY: the descriptor is open.
                i64::from(unsafe { libc::fallocate(target.fd, mode, signed(offset), signed(len)) })
            }
            Self::Discard {
                target,
                offset,
                len,
            } => {
                let range = [offset, len];
                // SAFETY: the call reads two numbers from `range`.
                i64::from(unsafe { libc::ioctl(target.fd, BLKDISCARD, range.as_ptr()) })
            }
        };
        outcome(returned)
    }
}

impl SocketStep {
    pub(crate) const fn fd(&self) -> RawFd {
        match *self {
            Self::Recv { fd, .. }
            | Self::Send { fd, .. }
            | Self::SendMessage { fd, .. }
            | Self::Accept { fd }
            | Self::Poll { fd }
            | Self::Connect { fd, .. }
            | Self::Command { fd, .. } => fd,
        }
    }

    /// Returns whether only the driver behind the descriptor ends the step, and the step touches no
    /// memory of this process. Such a step is left behind when the ring is closed.
    pub(crate) const fn is_left_behind(&self) -> bool {
        matches!(self, Self::Command { .. })
    }

    /// Returns whether the step waits for the socket to become readable (else: writable).
    pub(crate) const fn reads(&self) -> bool {
        matches!(
            self,
            Self::Recv { .. } | Self::Accept { .. } | Self::Poll { .. }
        )
    }

    /// Tries the step: a send on any socket, the others on one that does not block. None if it
    /// would block.
    pub(crate) fn attempt(&self) -> Option<i32> {
        let returned = match *self {
            Self::Recv {
                fd,
                ptr,
                len,
                flags,
            } => {
                // SAFETY: the operation keeps `len` bytes at `ptr` and the descriptor alive.
                unsafe { libc::recv(fd, ptr.cast(), len as usize, flags) as i64 }
            }
            Self::Send { fd, ptr, len } => {
                // SAFETY: as above.
                unsafe { libc::send(fd, ptr.cast(), len as usize, AT_ONCE) as i64 }
            }
            Self::SendMessage { fd, message } => {
                // SAFETY: the operation keeps the message, its vector and its parts alive.
                unsafe { libc::sendmsg(fd, message, AT_ONCE) as i64 }
            }
            Self::Accept { fd } => {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                // SAFETY: the peer's address is not asked for.
                i64::from(unsafe {
                    libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags)
                })
            }
            Self::Poll { fd } => {
                let mut look = libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: the call looks at one descriptor, which is open, and does not wait.
                let ready = unsafe { libc::poll(&raw mut look, 1, 0) };
                if ready == 0 {
                    return None;
                }
                i64::from(ready)
            }
            Self::Connect { fd, address, len } => {
                // SAFETY: the operation keeps the address alive.
                i64::from(unsafe { libc::connect(fd, address, len) })
            }
            // There is no other way to a driver than io_uring.
            Self::Command { .. } => return Some(-libc::EOPNOTSUPP),
        };
        match (self, -outcome(returned)) {
            // A unix socket whose listener's queue is full never becomes ready: the caller retries.
            (Self::Connect { .. }, libc::EAGAIN) => Some(-libc::EAGAIN),
            (Self::Connect { .. }, libc::EISCONN) => Some(0),
            (_, libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY) => None,
            (_, result) => Some(-result),
        }
    }
}
