//! Receive buffer of an initiator. One system call receives many answers. The data of a long read
//! is received directly into its own buffer.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_tls::Channel;

/// Maximum bytes of one receive while no data is expected: many answers.
const AHEAD_BYTES: usize = 64 << 10;
/// Minimum rest of a read's data that is received in place, bytes.
const DIRECT_BYTES: usize = 8 << 10;

pub(crate) struct Receiver<C = Stream> {
    stream: Rc<C>,
    buf: Buf,
    start: usize,
    end: usize,
}

impl<C: Channel> Receiver<C> {
    pub(crate) fn new(stream: Rc<C>) -> Self {
        Self {
            stream,
            buf: Buf::scratch(AHEAD_BYTES),
            start: 0,
            end: 0,
        }
    }

    /// Receives the next `N` bytes; for short values, such as headers.
    ///
    /// # Errors
    /// `Disconnected` if the peer closes the connection before the last byte, or an error of the
    /// system.
    pub(crate) async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.fill(N).await?;
        let mut bytes = [0; N];
        self.buf.copy_to(self.start, &mut bytes);
        self.start += N;
        Ok(bytes)
    }

    /// Waits until `want` bytes are in the buffer.
    async fn fill(&mut self, want: usize) -> Result<()> {
        while self.end - self.start < want {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.buf.len() - self.start < want {
                let left = self.buf.slice(self.start..self.end);
                self.buf.slice(0..left.len()).copy_from_buf(&left);
                (self.start, self.end) = (0, left.len());
            }
            let space = self.buf.slice(self.end..self.buf.len());
            match self.stream.recv(space).await? {
                0 => {
                    let what = "the server closed the connection";
                    return Err(Error::new(ErrorKind::Disconnected, what));
                }
                received => self.end += received,
            }
        }
        Ok(())
    }

    /// Receives the next bytes, as many as `into` holds.
    ///
    /// # Errors
    /// As for [`Receiver::take`].
    pub(crate) async fn data(&mut self, into: &Buf) -> Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let here = (self.end - self.start).min(into.len() - filled);
            if here > 0 {
                let part = self.buf.slice(self.start..self.start + here);
                into.slice(filled..filled + here).copy_from_buf(&part);
                self.start += here;
                filled += here;
                continue;
            }
            if into.len() - filled > DIRECT_BYTES {
                let rest = into.slice(filled..into.len());
                return self.stream.recv_exact(rest).await;
            }
            self.fill(1).await?;
        }
        Ok(())
    }
}
