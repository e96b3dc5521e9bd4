//! Other processes: the peer of a socket, whether it lives, and its end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use forebay_block::{Context, Error, ErrorKind, Result};

/// A process, by a descriptor. A later process with the same number is another one.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
    fd: OwnedFd,
}

impl Process {
    /// Returns the process that connected `stream`, if it lives. A later process may have its
    /// number. A message that only the peer can send, and only after this call, excludes that.
    ///
    /// # Errors
    /// `Unsupported` if this process cannot see it (another PID namespace), `NotFound` if it has
    /// ended.
    pub fn of_peer(stream: &UnixStream) -> Result<Self> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut len = libc::socklen_t::try_from(size_of_val(&credentials)).expect("a few bytes");
        // SAFETY: the pointers are to values that live through the call, and `len` is their length.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut len,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error()).context(|| "credentials of the peer");
        }
        let pid = u32::try_from(credentials.pid).unwrap_or(0);
        if pid == 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the connected process is in another PID namespace\n\
                 help: run both in one PID namespace",
            ));
        }
        Self::open(pid)
    }

    /// Returns the process with this number.
    ///
    /// # Errors
    /// `NotFound` if there is none, or the system's error.
    pub fn open(pid: u32) -> Result<Self> {
        // SAFETY: a plain system call with integer arguments.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ESRCH) {
                return Err(ended(pid));
            }
            return Err(error).context(|| format!("process {pid}"));
        }
        let fd = i32::try_from(fd).expect("descriptors are small numbers");
        // SAFETY: the call has just returned this descriptor, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let started = start_time(pid);
        // A later process may have the number by now, and another start time.
        if has_ended(&fd) {
            return Err(ended(pid));
        }
        Ok(Self {
            pid,
            started: started?,
            fd,
        })
    }

    /// Returns its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns its start time, in ticks of the kernel since the boot. With the number, it names one
    /// process of a boot.
    #[must_use]
    pub const fn started(&self) -> u64 {
        self.started
    }

    /// Returns whether it has ended: no thread of it runs or will run, and no system call of it
    /// continues.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        has_ended(&self.fd)
    }

    /// Sends SIGKILL to it. [`Process::has_ended`] says when it has ended.
    ///
    /// # Errors
    /// `Permission` if it is another user's.
    pub fn kill(&self) -> Result<()> {
        // SAFETY: a plain system call; the descriptor is open and no information is passed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        let error = io::Error::last_os_error();
        if result < 0 && error.raw_os_error() != Some(libc::ESRCH) {
            return Err(error).context(|| format!("ending process {}", self.pid));
        }
        Ok(())
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor to poll, which lives through the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

fn ended(pid: u32) -> Error {
    Error::new(ErrorKind::NotFound, format!("process {pid}: it has ended"))
}

fn start_time(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).context(|| format!("reading {path}"))?;
    // The name, in parentheses, may hold anything; the start is the twentieth field behind it.
    let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
    let field = behind.split_whitespace().nth(19);
    let parsed = field.and_then(|field| field.parse().ok());
    parsed.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("{path} has no start time")))
}

/// Returns whether a thread that sleeps in the kernel, and is not woken there by signals, has a
/// pending signal that would otherwise wake it. Such a signal is sent to the thread itself, or to
/// the process for its first thread. Any thread may take the process's signals, so they do not
/// count for other threads.
#[must_use]
pub fn is_signalled(thread: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status"));
    text.is_ok_and(|text| has_signal(&text) == Some(true))
}

/// Returns [`is_signalled`] from the `status` of a thread in proc(5).
fn has_signal(status: &str) -> Option<bool> {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let signals = |name| u64::from_str_radix(field(name)?, 16).ok();
    let shared = match field("Pid")? == field("Tgid")? {
        true => signals("ShdPnd")?,
        false => 0,
    };
    Some((signals("SigPnd")? | shared) & !signals("SigBlk")? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_known_until_it_has_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it runs");
        let process = Process::open(child.id()).expect("it is there");
        assert!(!process.has_ended() && process.started() > 0);
        process.kill().expect("it is ours");
        child.wait().expect("a child");
        assert!(process.has_ended());
        process.kill().expect("nothing to do");
    }

    #[test]
    fn a_signal_is_seen_unless_it_is_blocked_or_another_threads() {
        let status = |pid: u32, own: &str, shared: &str, blocked: &str| {
            format!(
                "Name:\tShdPnd: \
                 ff\nTgid:\t7\nPid:\t{pid}\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n"
            )
        };
        let (none, alarm) = ("0000000000000000", "0000000000002000");
        assert_eq!(has_signal(&status(7, none, none, none)), Some(false));
        assert_eq!(has_signal(&status(7, alarm, none, none)), Some(true));
        assert_eq!(has_signal(&status(7, none, alarm, none)), Some(true));
        assert_eq!(has_signal(&status(8, none, alarm, none)), Some(false));
        assert_eq!(has_signal(&status(8, alarm, none, none)), Some(true));
        assert_eq!(has_signal(&status(7, alarm, alarm, alarm)), Some(false));
        assert_eq!(has_signal("Tgid:\t7\n"), None);
        assert!(!is_signalled(std::process::id()));
    }

    #[test]
    fn the_other_end_of_a_socket_has_a_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let process = Process::of_peer(&one).expect("it is this one");
        assert_eq!(process.pid(), std::process::id());
    }
}
