//! What a connection has received and not looked at yet. Many small requests come in one system
//! call; a large payload goes straight to its own buffer.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;

use super::channel::Channel;

/// Size of the buffer of a connection that says little, bytes.
const SMALL_BYTES: usize = 16 << 10;
/// Size that it grows to on a connection that fills it, bytes: no more, since the first of the requests
/// that come together waits until the last has been copied.
const LARGE_BYTES: usize = 64 << 10;
/// The rest of a payload above this is received in place, bytes.
const DIRECT_BYTES: usize = 32 << 10;

/// How far a connection's receiving has come, for others on its reactor.
#[derive(Default)]
pub(crate) struct Progress {
    received_bytes: Cell<u64>,
    taken_bytes: Cell<u64>,
    waiting: Cell<bool>,
}

impl Progress {
    /// Bytes that were received so far, looked at or not.
    pub(crate) const fn received_bytes(&self) -> u64 {
        self.received_bytes.get()
    }

    /// Whether all that came within the first `bytes` has been looked at, but for the begin of a message
    /// whose rest has not come.
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
    /// The last receive filled the buffer: there was more.
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

    /// How far receiving has come, also later.
    pub(crate) fn progress(&self) -> Rc<Progress> {
        Rc::clone(&self.progress)
    }

    /// Marks the next bytes as looked at.
    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        let taken = &self.progress.taken_bytes;
        taken.set(taken.get() + bytes as u64);
    }

    fn count(&self, bytes: usize) {
        let received = &self.progress.received_bytes;
        received.set(received.get() + bytes as u64);
    }

    /// Whether nothing has come that was not looked at yet.
    pub(crate) const fn is_empty(&self) -> bool {
        self.available() == 0
    }

    /// Bytes that are here.
    const fn available(&self) -> usize {
        self.end - self.start
    }

    /// Waits until `want` bytes are here. False if the peer ended before the first of them.
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
                        "the client went away after {} of {want} bytes",
                        self.available()
                    ),
                ));
            }
            self.end += received;
            self.crowded = received == room;
        }
        Ok(true)
    }

    /// Makes room for at least `want` bytes in all, and for a good deal more.
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

    /// The next `N` bytes. None if the peer ended before the first of them.
    pub(crate) async fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        if !self.fill(N).await? {
            return Ok(None);
        }
        let mut out = [0; N];
        self.buf.copy_to(self.start, &mut out);
        self.advance(N);
        Ok(Some(out))
    }

    /// The next `len` bytes; few, as in a handshake.
    pub(crate) async fn take_vec(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        if len > 0 {
            self.must_fill(len).await?;
            self.buf.copy_to(self.start, &mut out);
            self.advance(len);
        }
        Ok(out)
    }

    /// The next bytes, as many as `into` holds.
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
            format!("the client went away before {want} bytes that it announced"),
        ))
    }
}
