//! The connection of a FUSE mount: open files that it holds, and requests that wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `struct fuse_backing_map` of linux/fuse.h.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`: a write of 16 bytes, type 229, number 1.
const OPEN: libc::c_ulong = 1 << 30 | 16 << 16 | 229 << 8 | 1;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: a write of 4 bytes, type 229, number 2.
const CLOSE: libc::c_ulong = 1 << 30 | 4 << 16 | 229 << 8 | 2;

/// A mount, by its device.
#[derive(Debug)]
pub struct Connection {
    device: OwnedFd,
    left: AtomicBool,
}

/// An open file that a mount holds until this is dropped. If this process ends before, or leaves
/// the mount ([`Connection::leave`]), the mount holds it as long as the mount exists. The mount
/// ends when it is unmounted and no program has one of its files open or mapped.
#[derive(Debug)]
pub struct Held {
    connection: Arc<Connection>,
    number: u32,
}

impl Connection {
    /// The mount of a device, `/dev/fuse`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(device: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self {
            device: device.try_clone_to_owned()?,
            left: AtomicBool::new(false),
        })
    }

    /// Makes the mount hold its present files to its own end.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Returns whether a request of the kernel waits for a thread that reads it.
    #[must_use]
    pub fn has_request(&self) -> bool {
        let mut device = libc::pollfd {
            fd: self.device.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure that lives through the call.
        let found = unsafe { libc::poll(&raw mut device, 1, 0) };
        found == 1 && device.revents == libc::POLLIN
    }

    /// Makes the mount hold an open file.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`, or if the mount has no passthrough. `ELOOP` if the file's
    /// own file system lies on another one. Otherwise the system's error.
    pub fn hold(self: &Arc<Self>, file: &File) -> io::Result<Held> {
        let map = BackingMap {
            fd: file.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: the description lives through the call, which only reads it.
        let number = unsafe { libc::ioctl(self.device.as_raw_fd(), OPEN, &raw const map) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        Ok(Held {
            connection: Arc::clone(self),
            number,
        })
    }
}

impl Held {
    /// Returns its number in the mount. It is valid until this is dropped.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.connection.left.load(Ordering::Relaxed) {
            return;
        }
        let device = self.connection.device.as_raw_fd();
        // SAFETY: the number lives through the call, which only reads it. Of a mount that is gone
        // nothing is held.
        unsafe { libc::ioctl(device, CLOSE, &raw const self.number) };
    }
}
