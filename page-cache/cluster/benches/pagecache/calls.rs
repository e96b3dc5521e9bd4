//! Counts the system calls of a piece of code in the kernel: its thread runs under a seccomp filter
//! that reports each call. Each call waits until it is counted.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// No descriptor yet; not a negated error number either.
const NOT_YET: i32 = i32::MIN;

/// Returns the result of `body` and the number of system calls of its thread. Calls of other
/// threads are not counted.
///
/// # Errors
/// If the kernel has no such filters or forbids them.
///
/// # Panics
/// If `body` panics.
pub(crate) fn of<T: Send>(body: impl FnOnce() -> T + Send) -> Result<(T, u64)> {
    let (listener, made) = (AtomicI32::new(NOT_YET), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let reported = report_calls();
            // From here on each call waits for the listener, so only an atomic can pass the
            // descriptor.
            listener.store(reported, Ordering::Release);
            (reported >= 0).then(|| (body(), made.load(Ordering::Acquire)))
        });
        let reported = loop {
            match listener.load(Ordering::Acquire) {
                NOT_YET => std::thread::yield_now(),
                reported => break reported,
            }
        };
        let watched = match reported {
            0.. => {
                // SAFETY: the kernel has just created it for the filter, and no other code knows
                // it.
                let listener = unsafe { OwnedFd::from_raw_fd(reported) };
                watch(&listener, &made)
            }
            error => Err(Error::from_raw_os_error(-error)),
        };
        // The listener is closed: a call that was still waiting has failed.
        let done = worker.join();
        watched?;
        match done {
            Ok(done) => Ok(done.expect("its calls were reported")),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Makes each system call of this thread wait for the listener on the returned descriptor. Returns
/// a negated error number on failure.
fn report_calls() -> i32 {
    let mut filter = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    }];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers; the kernel copies the filter, which lives until then, and no memory of
    // ours is changed.
    let listener = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                std::ptr::from_ref(&program),
            ),
            failed => failed.into(),
        }
    };
    match i32::try_from(listener) {
        Ok(listener @ 0..) => listener,
        _ => -Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Counts calls and lets them continue, until the thread ends.
fn watch(listener: &OwnedFd, made: &AtomicU64) -> Result<()> {
    loop {
        let mut ready = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one struct, which outlives the call.
        match checked(unsafe { libc::poll(&raw mut ready, 1, -1) }) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        if ready.revents & libc::POLLIN == 0 {
            return Ok(());
        }
        // SAFETY: a struct of numbers, which the kernel wants to be zeroes.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes to the struct, which is the request's and outlives the call.
        let received = unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &raw mut call,
            )
        };
        if gone(received)? {
            continue;
        }
        made.fetch_add(1, Ordering::Release);
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the kernel reads the struct, which is the request's and outlives the call.
        let sent = unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw mut answer,
            )
        };
        gone(sent)?;
    }
}

/// Returns whether the reported call no longer exists, because its thread was interrupted.
fn gone(returned: i32) -> Result<bool> {
    match checked(returned) {
        Ok(()) => Ok(false),
        Err(error) if [Some(libc::ENOENT), Some(libc::EINTR)].contains(&error.raw_os_error()) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

fn checked(returned: i32) -> Result<()> {
    match returned {
        0.. => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
