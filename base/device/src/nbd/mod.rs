//! An export of an NBD server as a block device. This is the initiator's side of the protocol in
//! [`forebay_wire::nbd`].
//!
//! It speaks fixed newstyle with `GO` and simple replies, on one connection. One send carries all
//! requests that were queued while the previous send ran. The server may answer in any order.
//!
//! A broken connection is not reestablished. All pending and later requests fail with
//! `Disconnected` and the server's name. So no flush succeeds that might not cover data that the
//! server had and lost. Dropping the device ends the connection.

mod handshake;
mod receive;
mod uri;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{
    BlockDevice, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, Request, Result,
};
use forebay_io::net::Stream;
use forebay_io::rt;
use forebay_wire::nbd::MAX_PAYLOAD_BYTES;
use forebay_wire::nbd::handshake::export;
use forebay_wire::nbd::transmission::{self as wire, command, flag};

use crate::remote::{LONGEST_BYTES, RequestLimits};
pub use uri::Uri;

/// Maximum number of requests in one send.
const BATCH: usize = 64;

/// A connected export. It belongs to the reactor that it was connected on.
pub struct NbdDevice {
    session: Rc<Open>,
    info: DeviceInfo,
    limits: RequestLimits,
}

/// Handle that ends the session with the last device. The tasks that send and receive hold no such
/// handle.
struct Open(Rc<Session>);

impl std::ops::Deref for Open {
    type Target = Rc<Session>;

    fn deref(&self) -> &Rc<Session> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stream.shutdown();
    }
}

/// State that the device shares with the tasks that send and receive.
struct Session {
    stream: Rc<Stream>,
    server: String,
    waiting: RefCell<Waiting>,
    outbox: RefCell<Vec<(wire::Request, Option<Buf>)>>,
    sending: Cell<bool>,
    /// Reason for the end of the connection.
    broken: RefCell<Option<Error>>,
}

/// Pending requests, by the lower half of their cookies.
#[derive(Default)]
struct Waiting {
    slots: Vec<Option<Pending>>,
    free: Vec<u32>,
    next: u32,
}

/// A request without an answer.
struct Pending {
    cookie: u64,
    /// Buffer for the data of a read.
    into: Option<Buf>,
    done: Completion,
}

impl Waiting {
    fn insert(&mut self, into: Option<Buf>, done: Completion) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests")
        });
        self.next = self.next.wrapping_add(1);
        // The upper half distinguishes a late answer from one to the current request of the slot.
        let cookie = u64::from(self.next) << 32 | u64::from(index);
        self.slots[index as usize] = Some(Pending { cookie, into, done });
        cookie
    }

    fn take(&mut self, cookie: u64) -> Option<Pending> {
        let index = cookie as u32;
        let slot = self.slots.get_mut(index as usize)?;
        let pending = slot.take_if(|pending| pending.cookie == cookie)?;
        self.free.push(index);
        Some(pending)
    }
}

impl NbdDevice {
    /// Connects to the export that `uri` names.
    ///
    /// # Errors
    /// - `Disconnected` if the server does not answer.
    /// - `NotFound` if the server has no such export.
    /// - `Unsupported` or `InvalidInput` if the server does not speak the protocol as this device
    ///   does.
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn connect(uri: &Uri) -> Result<Rc<Self>> {
        let greeted = handshake::connect(uri).await;
        let (stream, offer) = greeted.map_err(|error| {
            let what = format!("NBD server {uri}\nhelp: start the server, or name another one");
            error.context(what)
        })?;
        let offers = |bit: u16| offer.flags & bit != 0;
        let block = offer.blocks.minimum_bytes;
        let info = DeviceInfo {
            logical_block_bytes: block,
            physical_block_bytes: offer.blocks.preferred_bytes.max(block),
            volatile_cache: offers(export::SEND_FLUSH),
            fua: offers(export::SEND_FUA),
            discard: offers(export::SEND_TRIM),
            ..DeviceInfo::new(
                uri.to_string(),
                offer.size_bytes / u64::from(block) * u64::from(block),
            )
        };
        let session = Rc::new(Session {
            stream,
            server: uri.to_string(),
            waiting: RefCell::default(),
            outbox: RefCell::default(),
            sending: Cell::new(false),
            broken: RefCell::default(),
        });
        rt::spawn(receive::receive(Rc::clone(&session)));
        let most = offer.blocks.maximum_bytes.min(MAX_PAYLOAD_BYTES) / block * block;
        Ok(Rc::new(Self {
            session: Rc::new(Open(session)),
            info,
            limits: RequestLimits {
                read_only: offers(export::READ_ONLY),
                data_bytes: u64::from(most.max(block)),
                zeroes_bytes: match offers(export::SEND_WRITE_ZEROES) {
                    true => LONGEST_BYTES,
                    false => 0,
                },
            },
        }))
    }

    /// Returns whether the export is read-only.
    #[must_use]
    pub const fn read_only(&self) -> bool {
        self.limits.read_only
    }

    /// Returns a handle for the tasks of requests that are split.
    fn part(&self) -> Self {
        Self {
            session: Rc::clone(&self.session),
            info: self.info.clone(),
            limits: self.limits,
        }
    }
}

impl BlockDevice for NbdDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let broken = self.session.broken.borrow().clone();
        if let Some(broken) = broken {
            return done.complete(Err(broken));
        }
        let whole = self.limits.admit(&self.info, request, done, || self.part());
        if let Some((request, done)) = whole {
            self.session.ask(request, done);
        }
    }
}

impl std::fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdDevice")
            .field("server", &self.session.server)
            .finish_non_exhaustive()
    }
}

impl Session {
    fn ask(self: &Rc<Self>, request: Request, done: Completion) {
        let fua = |fua: bool| if fua { flag::FUA } else { 0 };
        let (command, flags) = match request.op {
            Op::Read => (command::READ, 0),
            Op::Write { fua: set } => (command::WRITE, fua(set)),
            Op::Flush => (command::FLUSH, 0),
            Op::Discard => (command::TRIM, 0),
            Op::WriteZeroes { fua: set, unmap } => {
                let no_hole = if unmap { 0 } else { flag::NO_HOLE };
                (command::WRITE_ZEROES, fua(set) | no_hole)
            }
        };
        let (into, payload) = match request.op {
            Op::Read => (request.buf, None),
            _ => (None, request.buf),
        };
        let asked = wire::Request {
            flags,
            command,
            cookie: self.waiting.borrow_mut().insert(into, done),
            offset: request.offset,
            length: u32::try_from(request.len).expect("at most 1 GiB"),
        };
        self.outbox.borrow_mut().push((asked, payload));
        if !self.sending.replace(true) {
            rt::spawn(Rc::clone(self).send());
        }
    }

    /// Sends the outbox until it is empty.
    async fn send(self: Rc<Self>) {
        let headers = Buf::scratch(BATCH * wire::REQUEST_BYTES);
        let (mut batch, mut parts) = (Vec::new(), Vec::new());
        loop {
            {
                let mut outbox = self.outbox.borrow_mut();
                let some = outbox.len().min(BATCH);
                batch.extend(outbox.drain(..some));
            }
            if batch.is_empty() {
                break self.sending.set(false);
            }
            // Adjacent headers without data between them form one part.
            let (mut from, mut to) = (0, 0);
            for (request, payload) in batch.drain(..) {
                headers.copy_from(to, &request.encode());
                to += wire::REQUEST_BYTES;
                if let Some(payload) = payload {
                    parts.push(headers.slice(from..to));
                    parts.push(payload);
                    from = to;
                }
            }
            if from < to {
                parts.push(headers.slice(from..to));
            }
            let sent = self.stream.send(&parts).await;
            parts.clear();
            if let Err(error) = sent {
                // The receiving task sees the end as well.
                self.break_off(error);
                break;
            }
        }
    }

    /// Ends the connection: all pending and later requests fail with `why`.
    fn break_off(&self, why: Error) {
        self.stream.shutdown();
        let why = {
            let mut broken = self.broken.borrow_mut();
            let what = || {
                format!(
                    "the connection to NBD server {} is lost: UNFLUSHED DATA MAY BE LOST\n\
                     help: restart when the server answers",
                    self.server
                )
            };
            broken
                .get_or_insert_with(|| match why.kind() {
                    ErrorKind::InvalidInput => {
                        Error::with_source(ErrorKind::Disconnected, what(), why)
                    }
                    _ => why.context(what()),
                })
                .clone()
        };
        self.outbox.borrow_mut().clear();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for pending in waiting.slots.into_iter().flatten() {
            pending.done.complete(Err(why.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
