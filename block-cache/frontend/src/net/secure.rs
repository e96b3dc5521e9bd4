//! TLS on a connection. The library keeps the protocol; this moves its bytes.
//!
//! What a connection holds beside the library's state is a buffer for what came in and one record of
//! what goes out. The library itself takes memory for each record, of at most 16 KiB, and gives it back
//! when the record has gone: at most 64 KiB of a handshake message that is not whole yet, one record that
//! was opened, and [`BATCH_RECORDS`] that were sealed.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead as _, Read, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use rustls::{ServerConfig, ServerConnection};

use super::channel::Channel;

/// Most bytes of plaintext in a record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Records that are sealed before they are sent.
const BATCH_RECORDS: usize = 3;
/// Most bytes that one send takes: that many records with what each has around it, an alert and an
/// answer to a change of keys among them. What does not fit goes with the next.
const SEALED_BYTES: usize = 64 << 10;
/// Ciphertext that one receive takes, bytes.
const INCOMING_BYTES: usize = 32 << 10;

/// The server's end of a TLS session on a connection.
///
/// As with a [`Stream`], a receive or send that is dropped before it has ended leaves the connection at an
/// unknown place.
pub(crate) struct Secure {
    stream: Rc<Stream>,
    session: RefCell<ServerConnection>,
    incoming: Buf,
    /// What of `incoming` was received and not given to the session yet.
    unopened: Cell<(usize, usize)>,
    /// The plaintext of a record, put together from the parts of a send.
    record: RefCell<Vec<u8>>,
}

impl Secure {
    /// Waits for the client's handshake.
    ///
    /// # Errors
    /// `Disconnected` if the client ends before; `Permission` if its certificate is missing or not one that
    /// `config` takes; `InvalidInput` if it does not speak TLS as we do. It has been told why.
    pub(crate) async fn accept(stream: Rc<Stream>, config: Arc<ServerConfig>) -> Result<Self> {
        let mut session = ServerConnection::new(config).map_err(|error| broken(&error))?;
        // What is sealed at a time is bounded by us.
        session.set_buffer_limit(None);
        let secure = Self {
            stream,
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
                let gone = "the client went away in the middle of the TLS handshake";
                return Err(Error::new(ErrorKind::Disconnected, gone));
            }
        }
    }

    /// Says that nothing more will come, and sends it.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub(crate) async fn close(&self) -> Result<()> {
        self.session.borrow_mut().send_close_notify();
        self.flush().await
    }

    /// Gives the session what has come, or waits for more. False when the client has ended.
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
            // The session has an alert for the client.
            let _ = self.flush().await;
        }
        opened
    }

    /// Lets the session open what was received, a part at a time. False when it takes no more, since the
    /// client has said that nothing more will come.
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
            .map_err(|error| broken(&error))?;
        Ok(taken > 0)
    }

    /// Moves opened data to `buf`, as much as there is room for; its length, which is zero if the client has
    /// said that nothing more will come. None if nothing is here yet.
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

    /// Sends what the session has to say.
    async fn flush(&self) -> Result<()> {
        while let Some(sealed) = self.sealed()? {
            self.stream.send(&[sealed]).await?;
        }
        Ok(())
    }

    /// The next bytes that are to be sent.
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

    /// Seals the next bytes of `parts`, which [`Place`] marks. False when none are left.
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

/// How far a send has come in its parts.
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
            // A client that ends without a word of TLS has left as one does without TLS: what is not whole
            // is not carried out, and what was acknowledged stays.
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

/// Received bytes, for the session to read.
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

/// What a session's end means.
fn broken(error: &rustls::Error) -> Error {
    let (kind, what) = match error {
        rustls::Error::NoCertificatesPresented => (
            ErrorKind::Permission,
            "the client shows no certificate".to_owned(),
        ),
        rustls::Error::InvalidCertificate(why) => (
            ErrorKind::Permission,
            format!("the client's certificate is refused: {why}"),
        ),
        rustls::Error::AlertReceived(alert) => (
            ErrorKind::Disconnected,
            format!("the client ended TLS with the alert {alert:?}"),
        ),
        _ => (ErrorKind::InvalidInput, format!("TLS: {error}")),
    };
    Error::new(kind, what)
}
