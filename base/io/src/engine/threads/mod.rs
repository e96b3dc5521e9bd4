//! The engine for places where io_uring is forbidden: epoll for sockets, on the reactor's thread,
//! and a pool of worker threads for files.

mod jobs;
mod pool;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Context, Result};

use super::{Parker, SocketStep, Token, Wait};
pub(crate) use pool::Pool;

const EVENTS: usize = 256;
/// Token of the eventfd in epoll; no descriptor has this number.
const WAKE: u64 = u64::MAX;

/// Steps that wait for one socket.
#[derive(Default)]
struct Watch {
    registered: bool,
    reads: VecDeque<(Token, SocketStep)>,
    writes: VecDeque<(Token, SocketStep)>,
}

/// Sockets by epoll, edge-triggered. A step is tried at once, and at each edge as long as it would
/// block.
pub(crate) struct Epoll {
    fd: OwnedFd,
    /// By descriptor.
    watches: Vec<Watch>,
    events: Vec<libc::epoll_event>,
    _parker: Arc<Parker>,
    /// Whether the kernel has `epoll_pwait2`, which takes a timeout in nanoseconds.
    fine_timeout: bool,
}

impl Epoll {
    pub(crate) fn new(parker: &Arc<Parker>) -> Result<Self> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context(|| "epoll_create1 for a reactor");
        }
        let this = Self {
            // SAFETY: the call above made this descriptor, and it has no other owner.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            watches: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            _parker: Arc::clone(parker),
            fine_timeout: true,
        };
        this.add(parker.fd(), WAKE)
            .context(|| "epoll_ctl for a reactor's eventfd")?;
        Ok(this)
    }

    fn add(&self, fd: RawFd, name: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: name,
        };
        // SAFETY: both descriptors are open, and the event lives through the call.
        let result = unsafe {
            libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Tries a step. If it would block, it waits until the socket is ready.
    pub(crate) fn start(&mut self, token: Token, step: &SocketStep) -> Option<i32> {
        let fd = step.fd();
        let index = usize::try_from(fd).expect("an open descriptor");
        if index >= self.watches.len() {
            self.watches.resize_with(index + 1, Watch::default);
        }
        let watch = &self.watches[index];
        let queued = if step.reads() {
            &watch.reads
        } else {
            &watch.writes
        };
        if queued.is_empty()
            && let Some(result) = step.attempt()
        {
            return Some(result);
        }
        if !watch.registered {
            if let Err(error) = self.add(fd, u64::from(fd.cast_unsigned())) {
                return Some(-error.raw_os_error().unwrap_or(libc::EIO));
            }
            self.watches[index].registered = true;
        }
        let watch = &mut self.watches[index];
        let queue = if step.reads() {
            &mut watch.reads
        } else {
            &mut watch.writes
        };
        queue.push_back((token, *step));
        None
    }

    /// Drops a step that waits. Whether there was one.
    pub(crate) fn cancel(&mut self, token: Token, fd: RawFd) -> bool {
        let Some(watch) = self.watch(fd) else {
            return false;
        };
        let before = watch.reads.len() + watch.writes.len();
        watch.reads.retain(|waiting| waiting.0 != token);
        watch.writes.retain(|waiting| waiting.0 != token);
        watch.reads.len() + watch.writes.len() < before
    }

    /// Handles the coming close of a descriptor. The kernel forgets it by itself only if no other
    /// copy of it exists; the monitor of a virtual machine has copies of its events. Otherwise a
    /// later descriptor with the same number could not be waited for.
    pub(crate) fn forget(&mut self, fd: RawFd) {
        let epoll = self.fd.as_raw_fd();
        if let Some(watch) = self.watch(fd) {
            debug_assert!(watch.reads.is_empty() && watch.writes.is_empty());
            if std::mem::take(&mut watch.registered) {
                let none = std::ptr::null_mut();
                // SAFETY: both descriptors are open; nothing is read for a removal.
                unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, none) };
            }
        }
    }

    fn watch(&mut self, fd: RawFd) -> Option<&mut Watch> {
        self.watches.get_mut(usize::try_from(fd).ok()?)
    }

    pub(crate) fn turn(&mut self, wait: Wait, results: &mut Vec<(Token, i32)>) {
        let count = self.wait(wait);
        for event in 0..count {
            let libc::epoll_event { events, u64: name } = self.events[event];
            let watch = usize::try_from(name).ok();
            let Some(watch) = watch.and_then(|index| self.watches.get_mut(index)) else {
                continue; // A wake-up: it has done its work.
            };
            let ended = libc::EPOLLHUP | libc::EPOLLERR;
            if events & (libc::EPOLLIN | libc::EPOLLRDHUP | ended).cast_unsigned() != 0 {
                retry(&mut watch.reads, results);
            }
            if events & (libc::EPOLLOUT | ended).cast_unsigned() != 0 {
                retry(&mut watch.writes, results);
            }
        }
    }

    /// Returns how many events there are.
    fn wait(&mut self, wait: Wait) -> usize {
        let capacity = i32::try_from(EVENTS).expect("a small constant");
        if let (Wait::Until(Some(timeout)), true) = (wait, self.fine_timeout) {
            let timeout = libc::timespec {
                tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // SAFETY: the events are live, and the signal mask is not given.
            let count = unsafe {
                libc::epoll_pwait2(
                    self.fd.as_raw_fd(),
                    self.events.as_mut_ptr(),
                    capacity,
                    &raw const timeout,
                    std::ptr::null(),
                )
            };
            if count >= 0 {
                return count.cast_unsigned() as usize;
            }
            if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
                return 0;
            }
            self.fine_timeout = false; // Linux before 5.11, or forbidden.
        }
        let timeout_ms = match wait {
            Wait::No => 0,
            Wait::Until(None) => -1,
            Wait::Until(Some(timeout)) => round_up_ms(timeout),
        };
        // SAFETY: the events are live.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                capacity,
                timeout_ms,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            assert!(
                error.raw_os_error() == Some(libc::EINTR),
                "epoll_wait failed, and the reactor cannot continue: {error}"
            );
            return 0;
        }
        count.cast_unsigned() as usize
    }
}

fn round_up_ms(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

fn retry(queue: &mut VecDeque<(Token, SocketStep)>, results: &mut Vec<(Token, i32)>) {
    while let Some((token, step)) = queue.front() {
        let Some(result) = step.attempt() else { return };
        results.push((*token, result));
        queue.pop_front();
    }
}
