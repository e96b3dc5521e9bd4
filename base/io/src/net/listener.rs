//! Sockets that take connections.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Context, Error, ErrorKind, Result};

use super::address::{raw_tcp, raw_unix};
use super::{Address, Incoming, Stream, count, new_socket};
use crate::engine::SocketStep;
use crate::reactor::{Driver, Hold, Socket, current};
use crate::rt::{now, sleep};

/// Connections that the kernel holds ready.
const BACKLOG: libc::c_int = 1024;
/// Pause before the next attempt when descriptors or memory ran out.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two lines of the log that say so.
const EXHAUSTED_LOG_PAUSE: Duration = Duration::from_secs(10);

/// A listening socket.
pub struct Listener {
    socket: Rc<Socket>,
    address: Address,
    /// Device and inode of a Unix socket's file, which is removed with the listener.
    file: Option<(u64, u64)>,
    /// Time at which it was last logged that descriptors or memory ran out.
    logged_at: Cell<Option<Duration>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

impl Listener {
    /// Listens on `address`; port 0 means any free port.
    ///
    /// Only its owner can connect to a Unix socket (mode 0600). A left-over socket file that has no
    /// listener is replaced.
    ///
    /// # Errors
    /// `Busy` if something listens there already. `InvalidInput` if a file that is no socket is in
    /// the way. Otherwise the system's error.
    pub fn bind(address: &Address) -> Result<Self> {
        bind(address).context(|| format!("listening on {address}"))
    }

    /// Waits for a connection. Returns it with a name of the peer, for logs.
    ///
    /// When descriptors or memory run out it logs that, every ten seconds at most, and retries a
    /// little later.
    ///
    /// # Errors
    /// The system's error, if the listener can take no more connections.
    pub async fn accept(&self) -> Result<(Stream, String)> {
        let (incoming, peer) = self.accept_for_any().await?;
        Ok((incoming.open()?, peer))
    }

    /// Like [`Listener::accept`], for a connection that any reactor may serve.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub async fn accept_for_any(&self) -> Result<(Incoming, String)> {
        loop {
            let step = SocketStep::Accept {
                fd: self.socket.fd(),
            };
            let result = self.socket.start(&step, Hold::Nothing).await;
            match -result {
                libc::EINTR | libc::ECONNABORTED | libc::EAGAIN => (),
                libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                    let logged_at = self.logged_at.get();
                    if logged_at.is_none_or(|at| now() - at >= EXHAUSTED_LOG_PAUSE) {
                        self.logged_at.set(Some(now()));
                        tracing::warn!(
                            address = %self.address,
                            "accepting a connection failed, so that clients wait: {}",
                            io::Error::from_raw_os_error(-result)
                        );
                    }
                    sleep(EXHAUSTED_PAUSE).await;
                }
                _ => {
                    count(result).context(|| format!("accepting on {}", self.address))?;
                    // SAFETY: the accept made this descriptor, and it has no other owner.
                    let fd = unsafe { OwnedFd::from_raw_fd(result) };
                    return Ok(Incoming::accepted(fd, &self.address));
                }
            }
        }
    }

    /// Returns its address, with the real port.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address.clone()
    }
}

/// Checks whether one could listen on `address` now. Nothing is bound for longer than the check,
/// and no file is created or removed. A socket file without a listener is not in the way.
///
/// # Errors
/// As [`Listener::bind`]'s.
pub fn check_listen(address: &Address) -> Result<()> {
    match address {
        // Bound without listening, so no client can connect meanwhile.
        Address::Tcp(tcp) => bind_only(tcp),
        Address::Unix(path) => match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => raw_unix(path).map(drop),
            Err(error) => Err(error.into()),
            Ok(_) => stale(path),
        },
    }
    .context(|| format!("listening on {address}"))
}

fn bind_only(address: &std::net::SocketAddr) -> Result<()> {
    let raw = raw_tcp(address);
    let family = match address {
        std::net::SocketAddr::V4(_) => libc::AF_INET,
        std::net::SocketAddr::V6(_) => libc::AF_INET6,
    };
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the call above made this descriptor, and it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    // As for a listener: remains of closed connections are not in the way.
    // SAFETY: the value lives through the call and has the length passed.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR,
            (&raw const on).cast(),
            libc::socklen_t::try_from(size_of_val(&on)).expect("four bytes"),
        )
    };
    // SAFETY: the address lives through the call.
    if set < 0 || unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len) } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (Address::Unix(path), Some(ours)) = (&self.address, self.file)
            && let Ok(metadata) = std::fs::symlink_metadata(path)
            && (metadata.dev(), metadata.ino()) == ours
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind(address: &Address) -> Result<Listener> {
    let driver = current()?;
    match address {
        Address::Tcp(tcp) => {
            let listener = std::net::TcpListener::bind(tcp)?;
            listener.set_nonblocking(driver.wants_nonblocking())?;
            let address = Address::Tcp(listener.local_addr()?);
            let fd = OwnedFd::from(listener);
            listen(fd.as_raw_fd())?;
            Ok(Listener {
                logged_at: Cell::new(None),
                socket: Socket::adopt(&driver, fd),
                address,
                file: None,
            })
        }
        Address::Unix(path) => {
            let fd = match bind_unix(&driver, path) {
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                    clear_stale(path)?;
                    bind_unix(&driver, path)
                }
                other => other,
            }?;
            let metadata = std::fs::symlink_metadata(path)?;
            listen(fd.as_raw_fd())?;
            Ok(Listener {
                logged_at: Cell::new(None),
                socket: Socket::adopt(&driver, fd),
                address: address.clone(),
                file: Some((metadata.dev(), metadata.ino())),
            })
        }
    }
}

fn listen(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::listen(fd, BACKLOG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn bind_unix(driver: &Driver, path: &Path) -> io::Result<OwnedFd> {
    let raw = raw_unix(path).map_err(io::Error::other)?;
    let fd = new_socket(driver, libc::AF_UNIX).map_err(io::Error::other)?;
    // The mode that a socket has before it is bound becomes that of its file, so no other user can
    // connect before it is set.
    // SAFETY: the descriptor is open.
    if unsafe { libc::fchmod(fd.as_raw_fd(), 0o600) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the address lives through the call.
    if unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Removes a socket file that has no listener.
fn clear_stale(path: &Path) -> Result<()> {
    stale(path)?;
    std::fs::remove_file(path)?;
    Ok(())
}

/// Checks that `path` is a socket file that has no listener.
fn stale(path: &Path) -> Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a file exists there that is not a socket\nhelp: move it, or choose another path",
        ));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(()),
        Ok(_) => Err(Error::new(
            ErrorKind::Busy,
            "another program listens there\nhelp: stop that program, or choose another path",
        )),
        Err(error) => Err(error).context(|| "connecting to find a listener"),
    }
}
