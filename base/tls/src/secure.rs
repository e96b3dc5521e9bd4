//! TLS on a connection. The library implements the protocol; this module moves its bytes.
//!
//! Beside the library's state, a connection has a buffer for received bytes and one for a record to
//! send. The library allocates memory for each record, of at most 16 KiB, and frees it when the
//! record is processed. It holds at most 64 KiB of an incomplete handshake message, one opened
//! record, and [`BATCH_RECORDS`] sealed ones.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead as _, Read, Write};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::channel::Channel;
use super::{ClientTls, Tls};

/// Maximum bytes of plaintext in a record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Number of records that are sealed before a send.
const BATCH_RECORDS: usize = 3;
/// Maximum bytes of one send: that many records with their overhead, an alert and the answer to a
/// key update. The rest follows in the next send.
const SEALED_BYTES: usize = 64 << 10;
/// Ciphertext of one receive, bytes.
const INCOMING_BYTES: usize = 32 << 10;

/// One side of a TLS session on a connection.
///
/// As with a [`Stream`], a receive or send that is dropped before its end leaves the connection at
/// an unknown position.
pub struct Secure {
    stream: Rc<Stream>,
    /// The other side in errors: client or server.
    peer: &'static str,
    session: RefCell<Connection>,
    incoming: Buf,
    /// Range of `incoming` that was received and not yet passed to the session.
    unopened: Cell<(usize, usize)>,
    /// Plaintext of a record, assembled from the parts of a send.
    record: RefCell<Vec<u8>>,
}

impl Secure {
    /// Waits for the client's handshake.
    ///
    /// # Errors
    /// - `Disconnected` if the client disconnects during the handshake.
    /// - `Permission` if its certificate is missing or refused by `config`.
    /// - `InvalidInput` if it does not speak a supported TLS.
    ///
    /// The client gets the reason as an alert.
    pub async fn accept(stream: Rc<Stream>, tls: &Tls) -> Result<Self> {
        let session = ServerConnection::new(tls.config());
        let session = session.map_err(|error| broken("client", &error))?;
        Self::shake_hands(stream, "client", session.into()).await
    }

    /// Begins the handshake with the server.
    ///
    /// # Errors
    /// - `Disconnected` if the server disconnects during the handshake, or refuses this side.
    /// - `Permission` if its certificate is refused by `tls`.
    /// - `InvalidInput` if it does not speak a supported TLS.
    pub async fn connect(stream: Rc<Stream>, tls: &ClientTls) -> Result<Self> {
        let session = ClientConnection::new(tls.config(), tls.name());
        let session = session.map_err(|error| broken("server", &error))?;
        Self::shake_hands(stream, "server", session.into()).await
    }

    async fn shake_hands(
        stream: Rc<Stream>,
        peer: &'static str,
        mut session: Connection,
    ) -> Result<Self> {
        // This module bounds the amount that is sealed at a time.
        session.set_buffer_limit(None);
        let secure = Self {
            stream,
            peer,
            session: RefCell::new(session),
            incoming: Buf::scratch(INCOMING_BYTES),
            unopened: Cell::new((0, 0)),
            record: RefCell::new(Vec::with_capacity(RECORD_BYTES)),
        };
        loop {
            secure.flush().await?;
            if !secure.session.borrow().is_handshaking() {
                return Ok(secure);
            }
            if !secure.receive().await? {
                let gone = format!("the {peer} disconnected during the TLS handshake");
                return Err(Error::new(ErrorKind::Disconnected, gone));
            }
        }
    }

    /// Sends the end of the session.
    ///
    /// # Errors
    /// As for [`Channel::send`].
    pub async fn close(&self) -> Result<()> {
        self.session.borrow_mut().send_close_notify();
        self.flush().await
    }

    /// Passes received bytes to the session, or waits for more. Returns false if the peer has
    /// closed the connection.
    async fn receive(&self) -> Result<bool> {
        if self.unopened.get().0 == self.unopened.get().1 {
            let received = self.stream.recv(self.incoming.clone()).await?;
            self.unopened.set((0, received));
            if received == 0 {
                return Ok(false);
            }
        }
        let opened = self.open();
        if opened.is_err() {
            // The session has an alert for the peer.
            let _ = self.flush().await;
        }
        opened
    }

    /// Lets the session open received bytes, one part at a time. Returns false if it accepts no
    /// more, since the peer has ended the session.
    fn open(&self) -> Result<bool> {
        let session = &mut *self.session.borrow_mut();
        let (start, end) = self.unopened.get();
        let mut unopened = Unopened {
            bytes: &self.incoming,
            left: start..end,
        };
        let taken = session.read_tls(&mut unopened)?;
        self.unopened.set((unopened.left.start, end));
        session
            .process_new_packets()
            .map_err(|error| broken(self.peer, &error))?;
        Ok(taken > 0)
    }

    /// Moves opened data to `buf`, as much as fits. Returns its length, which is zero if the peer
    /// has ended the session. Returns `None` if no data is available yet.
    fn take(&self, buf: &Buf) -> Result<Option<usize>> {
        let mut session = self.session.borrow_mut();
        let mut reader = session.reader();
        let opened = match reader.fill_buf() {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = opened.len().min(buf.len());
        if len > 0 {
            buf.copy_from(0, &opened[..len]);
            reader.consume(len);
        }
        Ok(Some(len))
    }

    /// Sends the pending bytes of the session.
    async fn flush(&self) -> Result<()> {
        while let Some(sealed) = self.sealed()? {
            self.stream.send(&[sealed]).await?;
        }
        Ok(())
    }

    /// Returns the next bytes to send.
    fn sealed(&self) -> Result<Option<Buf>> {
        let session = &mut *self.session.borrow_mut();
        if !session.wants_write() {
            return Ok(None);
        }
        let mut sealed = Sealed {
            bytes: Buf::scratch(SEALED_BYTES),
            len: 0,
        };
        while session.wants_write() && sealed.len < SEALED_BYTES {
            session.write_tls(&mut sealed)?;
        }
        Ok(Some(sealed.bytes.slice(0..sealed.len)))
    }

    /// Seals the next bytes of `parts`, from `place` on. Returns false if none are left.
    fn seal(&self, parts: &[Buf], place: &mut Place) -> Result<bool> {
        let record = &mut *self.record.borrow_mut();
        for _ in 0..BATCH_RECORDS {
            record.clear();
            while record.len() < RECORD_BYTES
                && let Some(part) = parts.get(place.part)
            {
                let len = (part.len() - place.at).min(RECORD_BYTES - record.len());
                let start = record.len();
                record.resize(start + len, 0);
                part.copy_to(place.at, &mut record[start..]);
                place.at += len;
                if place.at == part.len() {
                    *place = Place {
                        part: place.part + 1,
                        at: 0,
                    };
                }
            }
            if record.is_empty() {
                return Ok(false);
            }
            self.session.borrow_mut().writer().write_all(record)?;
        }
        Ok(true)
    }
}

/// Position of a send within its parts.
#[derive(Default)]
struct Place {
    part: usize,
    at: usize,
}

impl Channel for Secure {
    async fn recv(&self, buf: Buf) -> Result<usize> {
        loop {
            if let Some(len) = self.take(&buf)? {
                return Ok(len);
            }
            // A connection that closes without a TLS close counts as closed, as without TLS.
            // Incomplete requests are dropped, and acknowledged ones stay valid.
            if !self.receive().await? {
                return Ok(0);
            }
        }
    }

    async fn recv_exact(&self, buf: Buf) -> Result<()> {
        let mut received = 0;
        while received < buf.len() {
            let more = self.recv(buf.slice(received..buf.len())).await?;
            if more == 0 {
                let gone = format!(
                    "the peer closed the connection after {received} of {} bytes",
                    buf.len()
                );
                return Err(Error::new(ErrorKind::Disconnected, gone));
            }
            received += more;
        }
        Ok(())
    }

    async fn send(&self, parts: &[Buf]) -> Result<()> {
        let mut place = Place::default();
        while self.seal(parts, &mut place)? {
            self.flush().await?;
        }
        self.flush().await
    }

    fn shutdown(&self) {
        self.stream.shutdown();
    }
}

/// Received bytes that the session reads.
struct Unopened<'a> {
    bytes: &'a Buf,
    left: Range<usize>,
}

impl Read for Unopened<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.left.len().min(into.len());
        if len > 0 {
            self.bytes.copy_to(self.left.start, &mut into[..len]);
            self.left.start += len;
        }
        Ok(len)
    }
}

/// Bytes to send, written by the session.
struct Sealed {
    bytes: Buf,
    len: usize,
}

impl Write for Sealed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let len = (self.bytes.len() - self.len).min(from.len());
        if len > 0 {
            self.bytes.copy_from(self.len, &from[..len]);
            self.len += len;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Translates an error of a session.
fn broken(peer: &str, error: &rustls::Error) -> Error {
    let (kind, what) = match error {
        rustls::Error::NoCertificatesPresented => (
            ErrorKind::Permission,
            format!("the {peer} shows no certificate\nhelp: give it one"),
        ),
        rustls::Error::InvalidCertificate(why) => (
            ErrorKind::Permission,
            format!(
                "the {peer}'s certificate is refused: {why}\n\
                 help: see its authority, names and dates"
            ),
        ),
        rustls::Error::AlertReceived(alert) => (
            ErrorKind::Disconnected,
            format!(
                "the {peer} ended TLS with the alert {alert:?}\n\
                 help: see its log; it may want a certificate, or another one"
            ),
        ),
        _ => (ErrorKind::InvalidInput, format!("TLS: {error}")),
    };
    Error::new(kind, what)
}
