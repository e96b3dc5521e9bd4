//! Locks of programs: a free lock is granted at once, and other requests wait.
//!
//! The end of a lock on another node causes no notification. So one thread retries all waiting
//! requests, in their order. It also checks whether the waiting threads got signals: the kernel
//! reports that, but the FUSE library does not pass it on.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::Result;
use forebay_cluster::locks::{ByteRange, Holder, Lock};
use forebay_io::process::is_signalled;
use fuser::{Errno, FileHandle, INodeNo, LockOwner, ReplyEmpty};

use crate::data;
use crate::errors::errno_of_io;
use crate::handles::Handles;

/// Pause between two attempts to get a lock of another node's program.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Pause between two checks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// A requested lock.
#[derive(Debug)]
pub(crate) struct Wanted {
    holder: Holder,
    range: ByteRange,
    lock: Lock,
}

/// Returns the lock that the kernel requests. `flock` arrives as a lock of the whole file.
pub(crate) fn wanted(
    (number, owner, handle): (INodeNo, LockOwner, FileHandle),
    (start, end): (u64, u64),
    kind: i32,
) -> io::Result<Wanted> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let first = i64::try_from(start).map_err(|_| invalid())?;
    let last = i64::try_from(end).unwrap_or(i64::MAX);
    let lock = match kind {
        libc::F_RDLCK => Lock::Shared,
        libc::F_WRLCK => Lock::Exclusive,
        libc::F_UNLCK => Lock::None,
        _ => return Err(invalid()),
    };
    let holder = Holder {
        number: number.0,
        owner: owner.0,
        handle: handle.0,
    };
    let range = ByteRange { first, last };
    Ok(Wanted {
        holder,
        range,
        lock,
    })
}

/// Locks of the programs on a mount.
#[derive(Debug)]
pub(crate) struct Locking {
    handles: Arc<Handles>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Waiting requests, in order of arrival.
    waiting: Vec<Waiter>,
    /// Whether a request arrived or a lock was released since the last attempt.
    news: bool,
    ended: bool,
}

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    /// Waiting thread, if this process can see it; else 0.
    thread: u32,
    reply: ReplyEmpty,
}

impl Locking {
    /// Starts the retrying thread, which runs until [`Locking::end`].
    pub(crate) fn start(handles: Arc<Handles>) -> Result<(Arc<Self>, JoinHandle<()>)> {
        let locking = Arc::new(Self {
            handles,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let trying = Arc::clone(&locking);
        let thread = std::thread::Builder::new().name("pagecache-locks".into());
        let thread = thread.spawn(move || trying.run())?;
        Ok((locking, thread))
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// Returns a conflicting lock: its range and its type.
    pub(crate) fn conflicting(&self, wanted: &Wanted) -> io::Result<Option<(u64, u64, i32)>> {
        let names = self.handles.names()?;
        let found = names.conflicting_lock(wanted.holder, wanted.range, wanted.lock)?;
        Ok(found.map(|(range, lock)| {
            let kind = match lock {
                Lock::Shared => libc::F_RDLCK,
                Lock::Exclusive => libc::F_WRLCK,
                Lock::None => libc::F_UNLCK,
            };
            (range.first.unsigned_abs(), range.last.unsigned_abs(), kind)
        }))
    }

    /// Locks without waiting.
    pub(crate) fn set(&self, wanted: &Wanted, reply: ReplyEmpty) {
        match self.try_set(wanted) {
            Ok(true) => reply.ok(),
            Ok(false) => reply.error(Errno::EAGAIN),
            Err(error) => reply.error(errno_of_io(&error)),
        }
        // It may have been exclusive before.
        if wanted.lock == Lock::Shared {
            self.unlocked();
        }
    }

    /// Unlocks. The next holder sees the writes of this one, so they are published first.
    pub(crate) fn unlock(&self, wanted: &Wanted, reply: ReplyEmpty) {
        let published = data::publish(&self.handles, wanted.holder.handle);
        match self.try_set(wanted) {
            Ok(_) => data::answer(published, reply),
            Err(error) => reply.error(errno_of_io(&error)),
        }
        self.unlocked();
    }

    /// Locks, and waits if necessary. Not for unlocking.
    pub(crate) fn wait(&self, wanted: Wanted, thread: u32, reply: ReplyEmpty) {
        let mut state = self.state();
        let same = |waiter: &Waiter| waiter.wanted.holder.number == wanted.holder.number;
        // It must not overtake waiting requests.
        if !state.waiting.iter().any(same) {
            match self.try_set(&wanted) {
                Ok(false) => {}
                Ok(true) => return reply.ok(),
                Err(error) => return reply.error(errno_of_io(&error)),
            }
        }
        state.waiting.push(Waiter {
            wanted,
            thread,
            reply,
        });
        state.news = true;
        self.changed.notify_all();
    }

    /// Notes that a process has closed a file.
    pub(crate) fn owner_closed(&self, number: u64, owner: u64) {
        let names = self.handles.names();
        if names.is_ok_and(|names| names.unlock_owner(number, owner)) {
            self.unlocked();
        }
    }

    /// Notes that an open file is closed for good.
    pub(crate) fn handle_closed(&self, number: u64, handle: u64) {
        let names = self.handles.names();
        if names.is_ok_and(|names| names.unlock_handle(number, handle)) {
            self.unlocked();
        }
    }

    fn unlocked(&self) {
        self.state().news = true;
        self.changed.notify_all();
    }

    fn try_set(&self, wanted: &Wanted) -> io::Result<bool> {
        let names = self.handles.names()?;
        names.lock_range(wanted.holder, wanted.range, wanted.lock)
    }

    fn run(&self) {
        let mut looked = Instant::now();
        let mut state = self.state();
        while !state.ended {
            state = if state.waiting.is_empty() {
                self.sleep(state, Duration::MAX)
            } else {
                self.sleep(state, RETRY_INTERVAL)
            };
            let look = looked.elapsed() >= LOOK;
            if look {
                looked = Instant::now();
            }
            for waiter in std::mem::take(&mut state.waiting) {
                match self.try_set(&waiter.wanted) {
                    Ok(true) => waiter.reply.ok(),
                    Ok(false) if look && waiter.is_signalled() => {
                        waiter.reply.error(Errno::EINTR);
                    }
                    Ok(false) => state.waiting.push(waiter),
                    Err(error) => waiter.reply.error(errno_of_io(&error)),
                }
            }
        }
        for waiter in state.waiting.drain(..) {
            waiter.reply.error(Errno::ENOTCONN);
        }
    }

    /// Waits for a change of the state, at most for `longest`.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, longest: Duration) -> MutexGuard<'a, State> {
        let idle = |state: &mut State| !state.news && !state.ended;
        let slept = self.changed.wait_timeout_while(state, longest, idle);
        let mut state = slept.unwrap_or_else(PoisonError::into_inner).0;
        state.news = false;
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn is_signalled(&self) -> bool {
        self.thread != 0 && is_signalled(self.thread)
    }
}
