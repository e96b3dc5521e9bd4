//! Sockets that take connections.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Context, Error, ErrorKind, Result};

use super::address::raw_unix;
use super::{Address, Incoming, Socket, Stream, count, new_socket};
use crate::reactor::{Driver, Hold, SocketStep, current};
use crate::rt::sleep;

/// Connections that the kernel holds ready.
const BACKLOG: libc::c_int = 1024;
/// Pause before the next attempt when descriptors or memory ran out.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
pub struct Listener {
    socket: Rc<Socket>,
    address: Address,
    /// Device and inode of a Unix socket's file, which is removed with the listener.
    file: Option<(u64, u64)>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

impl Listener {
    /// Listens on `address`; port 0 means any free port.
    ///
    /// A Unix socket can be connected to by its owner only (mode 0600). A socket file that is left
    /// over, on which nobody answers, is replaced.
    ///
    /// # Errors
    /// `Busy` if something listens there already or a file that is no socket is in the way, or what
    /// the system says.
    pub fn bind(address: &Address) -> Result<Self> {
        bind(address).context(|| format!("listening on {address}"))
    }

    /// Waits for a connection. Returns it with a name of the peer, for logs.
    ///
    /// When descriptors or memory run out it logs that and tries again a little later.
    ///
    /// # Errors
    /// What the system says, if the listener can take no more connections.
    pub async fn accept(&self) -> Result<(Stream, String)> {
        let (incoming, peer) = self.accept_for_any().await?;
        Ok((incoming.open()?, peer))
    }

    /// Like [`Listener::accept`], for a connection that any reactor may serve.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub async fn accept_for_any(&self) -> Result<(Incoming, String)> {
        let mut told = false;
        loop {
            let step = SocketStep::Accept {
                fd: self.socket.fd(),
            };
            let result = self.socket.start(&step, Hold::Nothing).await;
            match -result {
                libc::EINTR | libc::ECONNABORTED | libc::EAGAIN => (),
                libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            address = %self.address,
                            "connections wait: {}",
                            io::Error::from_raw_os_error(-result)
                        );
                    }
                    sleep(EXHAUSTED_PAUSE).await;
                }
                _ => {
                    count(result).context(|| format!("accepting on {}", self.address))?;
                    // SAFETY: the accept made this descriptor and nobody else has it.
                    let fd = unsafe { OwnedFd::from_raw_fd(result) };
                    return Ok(Incoming::accepted(fd, &self.address));
                }
            }
        }
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address.clone()
    }
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
    // The mode that a socket has before it is bound is that of its file: nobody else can slip in.
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

/// Removes a socket file on which nobody answers.
fn clear_stale(path: &Path) -> Result<()> {
    let in_the_way = |why: &str| Err(Error::new(ErrorKind::Busy, why));
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return in_the_way(
            "a file that is no socket is in the way: move it or choose another path",
        );
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
            std::fs::remove_file(path)?;
            Ok(())
        }
        Ok(_) => in_the_way("another program answers there: stop it or choose another path"),
        Err(error) => Err(error).context(|| "finding out who listens there"),
    }
}
