//! How other threads wake a reactor that sleeps in its driver.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use forebay_block::{Context, Result};

/// An eventfd that is written only when the reactor may be asleep.
///
/// The reactor announces that it is about to sleep, then looks for work once more. A producer
/// queues its work, then checks whether the reactor sleeps. The two fences ensure that at least one
/// of them sees the other.
#[derive(Debug)]
pub(crate) struct Parker {
    asleep: AtomicBool,
    event: OwnedFd,
}

impl Parker {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context(|| "eventfd for a reactor");
        }
        Ok(Self {
            asleep: AtomicBool::new(false),
            // SAFETY: the call above made this descriptor, and it has no other owner.
            event: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Says that the reactor is about to sleep; it must look for work after this.
    pub(crate) fn prepare(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Says that the reactor is awake.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the reactor if it may be asleep. The work must be in place before.
    pub(crate) fn unpark(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.interrupt();
        }
    }

    /// Ends the reactor's sleep, or the next one.
    pub(crate) fn interrupt(&self) {
        let one = 1u64.to_ne_bytes();
        // The counter is never read (the driver looks for edges); it would take 2^64 wake-ups to
        // fill it.
        // SAFETY: eight live bytes and an open descriptor.
        let _ = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }
}
