//! Receive buffer of a connection. One system call receives many small requests. A large payload is
//! received directly into its own buffer.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_tls::Channel;

/// Initial size of the buffer, bytes.
const SMALL_BYTES: usize = 16 << 10;
/// Size of the buffer on a connection that fills it, bytes. A larger buffer would delay the first
/// of many requests until the last is copied.
const LARGE_BYTES: usize = 64 << 10;
/// Minimum rest of a payload that is received in place, bytes.
const DIRECT_BYTES: usize = 32 << 10;

/// Progress of a connection's receiver, for other tasks of its reactor.
#[derive(Default)]
pub(crate) struct Progress {
    received_bytes: Cell<u64>,
    taken_bytes: Cell<u64>,
    waiting: Cell<bool>,
}

impl Progress {
    /// Returns the number of received bytes, parsed or not.
    pub(crate) const fn received_bytes(&self) -> u64 {
        self.received_bytes.get()
    }

    /// Returns whether all of the first `bytes` were parsed, except the start of a message whose
    /// rest has not arrived.
    pub(crate) fn has_seen(&self, bytes: u64) -> bool {
        self.taken_bytes.get() >= bytes
            || (self.waiting.get() && self.received_bytes.get() >= bytes)
    }
}

pub(crate) struct Receiver<C = Stream> {
    channel: Rc<C>,
    progress: Rc<Progress>,
    buf: Buf,
    start: usize,
    end: usize,
    /// Whether the last receive filled the buffer: more was available.
    crowded: bool,
}

impl<C: Channel> Receiver<C> {
    pub(crate) fn new(channel: Rc<C>) -> Self {
        Self {
            channel,
            progress: Rc::default(),
            buf: Buf::scratch(SMALL_BYTES),
            start: 0,
            end: 0,
            crowded: false,
        }
    }

    /// Returns the progress of this receiver, which is updated later.
    pub(crate) fn progress(&self) -> Rc<Progress> {
        Rc::clone(&self.progress)
    }

    /// Marks the next bytes as parsed.
    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        let taken = &self.progress.taken_bytes;
        taken.set(taken.get() + bytes as u64);
    }

    fn count(&self, bytes: usize) {
        let received = &self.progress.received_bytes;
        received.set(received.get() + bytes as u64);
    }

    /// Returns whether all received bytes were parsed.
    pub(crate) const fn is_empty(&self) -> bool {
        self.available() == 0
    }

    /// Returns the number of bytes in the buffer.
    const fn available(&self) -> usize {
        self.end - self.start
    }

    /// Waits until `want` bytes are in the buffer. Returns false if the peer closed the connection
    /// before the first of them.
    async fn fill(&mut self, want: usize) -> Result<bool> {
        while self.available() < want {
            self.make_room(want);
            let space = self.buf.slice(self.end..self.buf.len());
            let room = space.len();
            self.progress.waiting.set(true);
            let received = self.channel.recv(space).await;
            self.progress.waiting.set(false);
            let received = received?;
            self.count(received);
            if received == 0 {
                if self.available() == 0 {
                    return Ok(false);
                }
                return Err(Error::new(
                    ErrorKind::Disconnected,
                    format!(
                        "the client disconnected after {} of {want} bytes",
                        self.available()
                    ),
                ));
            }
            self.end += received;
            self.crowded = received == room;
        }
        Ok(true)
    }

    /// Makes room for at least `want` bytes in total, with a reserve.
    fn make_room(&mut self, want: usize) {
        let here = self.available();
        let mut target = None;
        if self.crowded && self.buf.len() < LARGE_BYTES {
            target = Some(Buf::scratch(LARGE_BYTES));
            self.crowded = false;
        } else if here == 0 {
            (self.start, self.end) = (0, 0);
        } else if self.buf.len() - self.start < want.max(self.buf.len() / 2) {
            target = Some(self.buf.clone());
        }
        if let Some(target) = target {
            let left = self.buf.slice(self.start..self.end);
            target.slice(0..here).copy_from_buf(&left);
            self.buf = target;
            (self.start, self.end) = (0, here);
        }
        debug_assert!(want <= self.buf.len());
    }

    /// Receives the next `N` bytes. Returns `None` if the peer closed the connection before the
    /// first of them.
    pub(crate) async fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        if !self.fill(N).await? {
            return Ok(None);
        }
        let mut out = [0; N];
        self.buf.copy_to(self.start, &mut out);
        self.advance(N);
        Ok(Some(out))
    }

    /// Receives the next `len` bytes; for short messages, such as those of a handshake.
    pub(crate) async fn take_vec(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        if len > 0 {
            self.must_fill(len).await?;
            self.buf.copy_to(self.start, &mut out);
            self.advance(len);
        }
        Ok(out)
    }

    /// Receives the next bytes, as many as `into` holds.
    pub(crate) async fn take_payload(&mut self, into: &Buf) -> Result<()> {
        let here = self.available().min(into.len());
        self.move_out(into, 0, here);
        let rest = into.len() - here;
        if rest > DIRECT_BYTES {
            self.progress.waiting.set(true);
            let received = self.channel.recv_exact(into.slice(here..into.len())).await;
            self.progress.waiting.set(false);
            self.count(rest);
            let taken = &self.progress.taken_bytes;
            taken.set(taken.get() + rest as u64);
            return received;
        }
        if rest > 0 {
            if self.buf.len() < rest {
                self.crowded = true;
            }
            self.must_fill(rest).await?;
            self.move_out(into, here, rest);
        }
        Ok(())
    }

    fn move_out(&mut self, into: &Buf, at: usize, len: usize) {
        if len > 0 {
            let from = self.buf.slice(self.start..self.start + len);
            into.slice(at..at + len).copy_from_buf(&from);
            self.advance(len);
        }
    }

    async fn must_fill(&mut self, want: usize) -> Result<()> {
        if self.fill(want).await? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Disconnected,
            format!("the client disconnected before it sent {want} announced bytes"),
        ))
    }
}
