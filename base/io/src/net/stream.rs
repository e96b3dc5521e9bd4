//! Connections.

use std::cell::Cell;
use std::future::Future;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Context, Error, ErrorKind, Result};

use super::address::{Raw, raw_tcp, raw_unix};
use super::{Address, count, new_socket};
use crate::engine::{Message, SocketStep, TRANSFER_MAX_BYTES};
use crate::reactor::{Hold, Socket, current};
use crate::rt::sleep;
use crate::sync::Semaphore;

/// Parts that one system call takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;
/// Maximum number of attempts to connect to a Unix socket whose listener's queue is full.
const CONNECT_ATTEMPTS: u32 = 500;
/// Pause between two such attempts.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// A connected stream socket.
///
/// A receive or send that is dropped before its end leaves the stream at an unknown place in its
/// data. After a dropped send, the stream refuses to send more.
pub struct Stream {
    socket: Rc<Socket>,
    message: Rc<Message>,
    /// One send at a time, in the order of their calls.
    turn: Semaphore,
    broken: Cell<bool>,
}

/// A connection that no reactor serves yet; it may go to another thread.
#[derive(Debug)]
pub struct Incoming(OwnedFd);

impl Incoming {
    /// A connection that was accepted at `at`, and a name of the peer.
    pub(super) fn accepted(fd: OwnedFd, at: &Address) -> (Self, String) {
        match at {
            Address::Tcp(_) => {
                let stream = TcpStream::from(fd);
                // If the peer is gone already, the first receive says so.
                let _ = stream.set_nodelay(true);
                keep_alive(&stream);
                let peer = stream.peer_addr().map_or_else(
                    |_| "a closed connection".to_owned(),
                    |peer| peer.to_string(),
                );
                (Self(stream.into()), peer)
            }
            Address::Unix(_) => {
                let peer = unix_peer(&fd);
                (Self(fd), peer)
            }
        }
    }

    /// The connection as one of the calling thread's reactor.
    ///
    /// # Errors
    /// `InvalidInput` on a thread that runs no reactor, or the system's error.
    pub fn open(self) -> Result<Stream> {
        let driver = current()?;
        let stream = TcpStream::from(self.0);
        // The reactor that accepted it may have another engine.
        stream.set_nonblocking(driver.wants_nonblocking())?;
        Ok(Stream::new(Socket::adopt(&driver, stream.into())))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stream").field(&self.socket.fd()).finish()
    }
}

impl Stream {
    fn new(socket: Rc<Socket>) -> Self {
        Self {
            socket,
            message: Rc::new(Message::new()),
            turn: Semaphore::new(1),
            broken: Cell::new(false),
        }
    }

    /// Connects to `address`.
    ///
    /// # Errors
    /// `Disconnected` if there is no listener, or the system's error.
    pub async fn connect(address: &Address) -> Result<Self> {
        Self::connect_raw(address)
            .await
            .context(|| format!("connecting to {address}"))
    }

    async fn connect_raw(address: &Address) -> Result<Self> {
        let driver = current()?;
        let family = match address {
            Address::Tcp(tcp) if tcp.is_ipv4() => libc::AF_INET,
            Address::Tcp(_) => libc::AF_INET6,
            Address::Unix(_) => libc::AF_UNIX,
        };
        let mut fd = new_socket(&driver, family)?;
        if family != libc::AF_UNIX {
            let stream = TcpStream::from(fd);
            stream.set_nodelay(true)?;
            fd = stream.into();
        }
        let socket = Socket::adopt(&driver, fd);
        for _ in 0..CONNECT_ATTEMPTS {
            let Raw { storage, len } = match address {
                Address::Tcp(tcp) => raw_tcp(tcp),
                Address::Unix(path) => raw_unix(path)?,
            };
            let step = SocketStep::Connect {
                fd: socket.fd(),
                address: (&raw const *storage).cast(),
                len,
            };
            let result = socket.start(&step, Hold::Address(storage)).await;
            if -result != libc::EAGAIN && -result != libc::EINTR {
                count(result)?;
                return Ok(Self::new(socket));
            }
            sleep(CONNECT_PAUSE).await;
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            "the listener takes no connections",
        ))
    }

    /// Receives at most `buf.len()` bytes, at least one. Zero means that the peer has ended.
    ///
    /// # Errors
    /// `Disconnected` if the connection broke, or the system's error.
    pub async fn recv(&self, buf: Buf) -> Result<usize> {
        loop {
            let result = self.receive(&buf, 0, 0).await;
            if result != -libc::EINTR {
                return count(result);
            }
        }
    }

    /// Receives exactly `buf.len()` bytes.
    ///
    /// # Errors
    /// As [`Stream::recv`]; `Disconnected` too if the peer ends before that.
    pub async fn recv_exact(&self, buf: Buf) -> Result<()> {
        let mut received = 0;
        while received < buf.len() {
            let result = self.receive(&buf, received, libc::MSG_WAITALL).await;
            if result == -libc::EINTR {
                continue;
            }
            match count(result)? {
                0 => {
                    return Err(Error::new(
                        ErrorKind::Disconnected,
                        format!(
                            "the peer closed the connection after {received} of {} bytes",
                            buf.len()
                        ),
                    ));
                }
                more => received += more,
            }
        }
        Ok(())
    }

    fn receive(&self, buf: &Buf, start: usize, flags: i32) -> impl Future<Output = i32> + use<> {
        let step = SocketStep::Recv {
            fd: self.socket.fd(),
            ptr: buf.as_ptr().wrapping_add(start),
            len: transfer_len(buf.len() - start),
            flags,
        };
        self.socket.start(&step, Hold::Buf(buf.clone()))
    }

    /// Sends all of all parts, in one system call where possible: at once as far as the socket has
    /// room, the rest when it has. Sends of several tasks go out whole, in the order of their
    /// calls.
    ///
    /// # Errors
    /// `Disconnected` if the connection broke, or the system's error. After an error the stream
    /// sends no more, since the peer may have got a part.
    pub async fn send(&self, parts: &[Buf]) -> Result<()> {
        self.turn.acquire(1).await;
        let turn = Turn(self);
        if self.broken.get() {
            return Err(Error::new(
                ErrorKind::Disconnected,
                "an earlier send on this connection failed",
            ));
        }
        self.broken.set(true);
        match parts {
            [] => (),
            [part] => self.send_part(part).await?,
            _ => {
                for some in parts.chunks(PARTS_MAX) {
                    self.send_gathered(some).await?;
                }
            }
        }
        self.broken.set(false);
        drop(turn);
        Ok(())
    }

    async fn send_part(&self, part: &Buf) -> Result<()> {
        let mut sent = 0;
        while sent < part.len() {
            let step = SocketStep::Send {
                fd: self.socket.fd(),
                ptr: part.as_ptr().wrapping_add(sent),
                len: transfer_len(part.len() - sent),
            };
            let result = match step.attempt() {
                Some(result) => result,
                None => self.socket.start(&step, Hold::Buf(part.clone())).await,
            };
            if result != -libc::EINTR {
                sent += count(result)?;
            }
        }
        Ok(())
    }

    async fn send_gathered(&self, parts: &[Buf]) -> Result<()> {
        self.message.load(parts);
        while let Some(header) = self.message.header() {
            let step = SocketStep::SendMessage {
                fd: self.socket.fd(),
                message: header,
            };
            let result = match step.attempt() {
                Some(result) => result,
                None => {
                    let hold = Hold::Message(Rc::clone(&self.message));
                    self.socket.start(&step, hold).await
                }
            };
            if result != -libc::EINTR {
                self.message.advance(count(result)?);
            }
        }
        self.message.unload();
        Ok(())
    }

    /// This end's address; none of a Unix socket.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        let stream = TcpStream::from(self.socket.duplicate().ok()?);
        stream.local_addr().ok()
    }

    /// A descriptor of its own for the same connection, for a thread that receives by itself. It
    /// may or may not block.
    ///
    /// # Errors
    /// The system's error.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        Ok(self.socket.duplicate()?)
    }

    /// Returns the number of bytes that have arrived and were not received yet.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        let mut unread: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the answer is the integer that this call writes.
        let asked = unsafe { libc::ioctl(self.socket.fd(), libc::FIONREAD, &raw mut unread) };
        if asked < 0 {
            return 0;
        }
        u64::try_from(unread).unwrap_or(0)
    }

    /// Ends the connection in both directions. Waiting operations, here and at the peer, see the
    /// end.
    pub fn shutdown(&self) {
        // SAFETY: the descriptor is open.
        unsafe { libc::shutdown(self.socket.fd(), libc::SHUT_RDWR) };
    }

    /// Ends the connection as [`Stream::shutdown`] does. When the stream is dropped, bytes that the
    /// system has not sent yet are dropped too, so that the peer gets none of them later.
    pub fn abort(&self) {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let len = libc::socklen_t::try_from(size_of::<libc::linger>()).expect("a small size");
        // SAFETY: the descriptor is open, and the value has the length passed to the call. An error
        // is impossible for these arguments.
        unsafe {
            libc::setsockopt(
                self.socket.fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                len,
            );
        }
        self.shutdown();
    }
}

/// Has the kernel end a connection whose peer's machine has not answered for two minutes. A server
/// that only waits for requests would not notice that the machine has gone.
fn keep_alive(stream: &TcpStream) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6),
    ];
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("a small size");
    for (level, name, value) in options {
        let value: libc::c_int = value;
        // SAFETY: the descriptor is open, and the value has the length passed to the call. Without
        // the option, the connection only stays longer.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                len,
            );
        }
    }
}

/// The right to send, given back on drop.
struct Turn<'a>(&'a Stream);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.release(1);
    }
}

fn transfer_len(bytes: usize) -> u32 {
    u32::try_from((bytes as u64).min(TRANSFER_MAX_BYTES)).expect("at most 2^30")
}

/// The process at the other end of a Unix socket.
fn unix_peer(fd: &OwnedFd) -> String {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a small size");
    // SAFETY: the answer has the length passed to the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return "an unknown process".to_owned();
    }
    format!("process {} of user {}", peer.pid, peer.uid)
}
