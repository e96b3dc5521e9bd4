//! Connections in use, and the sender of each.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Error, Op};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_tls::Channel as _;
use forebay_wire::nbd::transmission::{self as wire, command, flag};

use super::Shared;
use super::handshake::Offer;
use super::line::Line;
use crate::remote::slots::{Pending, Slots};

/// Maximum number of requests in one send.
const BATCH: usize = 64;
/// Time limit for the message that ends a connection.
const PARTING: Duration = Duration::from_secs(1);

/// State of all connections that are used together. The end of one is the end of all.
#[derive(Default)]
pub(super) struct Group {
    /// Reason for the end.
    broken: RefCell<Option<Error>>,
    /// Wakes when a connection ends, or a task of one.
    pub(super) changed: WaitList,
}

impl Group {
    pub(super) fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }
}

/// A connection in use.
pub(super) struct Link {
    line: Rc<Line>,
    pub(super) group: Rc<Group>,
    /// Number of this connection among those of the device, from zero.
    number: usize,
    /// Number of connections of the device.
    count: usize,
    /// Whether the server sends structured replies.
    pub(super) structured: bool,
    /// Identifier of `base:allocation`, if the server answers queries for extents.
    pub(super) allocation: Option<u32>,
    outbox: RefCell<VecDeque<u16>>,
    sending: Cell<bool>,
    pub(super) receiving: Cell<bool>,
}

impl Link {
    pub(super) fn new(
        line: Rc<Line>,
        offer: &Offer,
        group: &Rc<Group>,
        number: usize,
        count: usize,
    ) -> Self {
        Self {
            line,
            group: Rc::clone(group),
            number,
            count,
            structured: offer.structured,
            allocation: offer.allocation,
            outbox: RefCell::new(VecDeque::with_capacity(super::DEPTH.into())),
            sending: Cell::new(false),
            receiving: Cell::new(true),
        }
    }

    /// Ends the connection. Bytes that were not sent are dropped. The first reason stays.
    pub(super) fn break_off(&self, why: Error) {
        self.line.abort();
        self.outbox.borrow_mut().clear();
        self.group.broken.borrow_mut().get_or_insert(why);
        self.group.changed.wake_all();
    }

    /// Says to the server that no request follows, and ends the connection.
    pub(super) async fn disconnect(&self) {
        if !self.sending.get() && self.group.broken().is_none() {
            let end = wire::Request {
                flags: 0,
                command: command::DISC,
                cookie: 0,
                offset: 0,
                length: 0,
            };
            let parts = [Buf::copied(&end.encode())];
            let _ = rt::at_most(PARTING, self.line.send(&parts)).await;
        }
        self.line.shutdown();
    }

    /// Returns whether no task touches memory of a request any more.
    pub(super) fn is_quiet(&self) -> bool {
        !self.sending.get() && !self.receiving.get()
    }

    /// Returns whether requests with this identifier are sent on this connection.
    pub(super) const fn has(&self, cid: u16) -> bool {
        Slots::place_number(cid) % self.count == self.number
    }

    pub(super) fn send(self: &Rc<Self>, shared: &Rc<Shared>, cid: u16) {
        if self.group.broken.borrow().is_some() {
            return;
        }
        self.outbox.borrow_mut().push_back(cid);
        if !self.sending.replace(true) {
            rt::spawn(Rc::clone(self).send_all(Rc::clone(shared)));
        }
    }

    /// Sends the outbox until it is empty.
    async fn send_all(self: Rc<Self>, shared: Rc<Shared>) {
        let headers = Buf::scratch(BATCH * wire::REQUEST_BYTES);
        let mut parts = Vec::with_capacity(2 * BATCH + 1);
        loop {
            self.gather(&shared, &headers, &mut parts);
            if parts.is_empty() {
                break;
            }
            let sent = self.line.send(&parts).await;
            parts.clear();
            if let Err(error) = sent {
                self.break_off(error);
                break;
            }
        }
        self.sending.set(false);
        if self.group.broken.borrow().is_some() {
            self.group.changed.wake_all();
        }
    }

    /// Writes the next requests. Adjacent headers without data between them form one part.
    fn gather(&self, shared: &Shared, headers: &Buf, parts: &mut Vec<Buf>) {
        let mut slots = shared.session.slots.borrow_mut();
        let mut outbox = self.outbox.borrow_mut();
        let (mut from, mut to) = (0, 0);
        for _ in 0..BATCH {
            let Some(cid) = outbox.pop_front() else {
                break;
            };
            let Some(pending) = slots.get(cid) else {
                continue;
            };
            headers.copy_from(to, &header(cid, pending).encode());
            to += wire::REQUEST_BYTES;
            if let (Op::Write { .. }, Some(payload)) = (pending.request.op, pending.buf()) {
                parts.push(headers.slice(from..to));
                parts.push(payload.clone());
                from = to;
            }
        }
        if from < to {
            parts.push(headers.slice(from..to));
        }
    }
}

/// Returns the header of a request.
fn header(cid: u16, pending: &Pending) -> wire::Request {
    let request = &pending.request;
    let fua = |fua: bool| if fua { flag::FUA } else { 0 };
    let (command, flags) = match request.op {
        Op::Read if pending.extents.is_some() => (command::BLOCK_STATUS, 0),
        Op::Read => (command::READ, 0),
        Op::Write { fua: set } => (command::WRITE, fua(set)),
        Op::Flush => (command::FLUSH, 0),
        Op::Discard => (command::TRIM, 0),
        Op::WriteZeroes { fua: set, unmap } => {
            let no_hole = if unmap { 0 } else { flag::NO_HOLE };
            (command::WRITE_ZEROES, fua(set) | no_hole)
        }
    };
    // A flush has no range.
    let (offset, len) = match request.op {
        Op::Flush => (0, 0),
        _ => (request.offset, request.len),
    };
    wire::Request {
        flags,
        command,
        cookie: cid.into(),
        offset,
        length: u32::try_from(len).expect("at most 1 GiB"),
    }
}
