//! The task that receives answers.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_wire::nbd::error_kind;
use forebay_wire::nbd::transmission::{SIMPLE_REPLY_BYTES, SimpleReply};

use super::Session;

/// What is received at a time where no data is awaited, bytes: many answers.
const AHEAD_BYTES: usize = 64 << 10;
/// The rest of the data of a read above this is received in place, bytes.
const DIRECT_BYTES: usize = 8 << 10;

/// Receives answers until the connection ends.
pub(super) async fn receive(session: Rc<Session>) {
    let mut receiver = Receiver {
        buf: Buf::scratch(AHEAD_BYTES),
        start: 0,
        end: 0,
    };
    let error = loop {
        if let Err(error) = receiver.answer(&session).await {
            break error;
        }
    };
    session.break_off(error);
}

struct Receiver {
    buf: Buf,
    start: usize,
    end: usize,
}

impl Receiver {
    async fn answer(&mut self, session: &Session) -> Result<()> {
        self.fill(session, SIMPLE_REPLY_BYTES).await?;
        let mut header = [0; SIMPLE_REPLY_BYTES];
        self.buf.copy_to(self.start, &mut header);
        self.start += header.len();
        let reply = SimpleReply::decode(&header)?;
        // Taken only now: should the data not come, it must still be there to be told.
        let into = {
            let mut waiting = session.waiting.borrow_mut();
            let asked = waiting.slots.get_mut(reply.cookie as u32 as usize);
            let asked = asked
                .and_then(Option::as_mut)
                .filter(|a| a.cookie == reply.cookie);
            let asked = asked.ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, "an answer to what was not asked")
            })?;
            asked.into.clone().filter(|_| reply.error == 0)
        };
        if let Some(into) = into {
            self.data(session, &into).await?;
        }
        let outcome = match reply.error {
            0 => Ok(()),
            number => {
                let what = format!("NBD server {} answered with error {number}", session.server);
                Err(Error::new(error_kind(number), what))
            }
        };
        let asked = session.waiting.borrow_mut().take(reply.cookie);
        if let Some(asked) = asked {
            asked.done.complete(outcome);
        }
        Ok(())
    }

    /// Waits until `want` bytes are here.
    async fn fill(&mut self, session: &Session, want: usize) -> Result<()> {
        while self.end - self.start < want {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.buf.len() - self.start < want {
                let left = self.buf.slice(self.start..self.end).to_vec();
                self.buf.copy_from(0, &left);
                (self.start, self.end) = (0, left.len());
            }
            let space = self.buf.slice(self.end..self.buf.len());
            match session.stream.recv(space).await? {
                0 => {
                    let what = "the server closed it";
                    return Err(Error::new(ErrorKind::Disconnected, what));
                }
                received => self.end += received,
            }
        }
        Ok(())
    }

    /// The data of a read.
    async fn data(&mut self, session: &Session, into: &Buf) -> Result<()> {
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
                return session.stream.recv_exact(rest).await;
            }
            self.fill(session, 1).await?;
        }
        Ok(())
    }
}
