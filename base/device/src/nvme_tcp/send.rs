//! Sender of an I/O queue: commands, and the data that the target requests.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_block::{Buf, Error, Op, Request};
use forebay_io::net::Stream;
use forebay_io::sync::WaitList;
use forebay_wire::nvme::io::{RANGE_BYTES, Range, opcode};
use forebay_wire::nvme::{Command, Data};
use forebay_wire::nvme_tcp::{
    COMMON_BYTES, Common, DIGEST_BYTES, DataHeader, Kind, MAX_ALIGNMENT, digest, flag,
};

use super::Shared;
use super::associate::Offer;
use super::queue::Style;

/// Maximum number of PDUs in one send.
const BATCH: usize = 64;
/// Bytes of a PDU without the data of a write. They are the header of a command with its digest and
/// padding, a range, and the data digest.
const HEADER_BYTES: usize = 128 + RANGE_BYTES + DIGEST_BYTES;
const _: () = assert!((MAX_ALIGNMENT as usize + 1) * 4 <= 128);

/// Queued item of the outbox.
#[derive(Clone, Copy)]
enum Item {
    Command(u16),
    /// Data that the target requested by an R2T.
    Data(DataHeader),
}

/// An I/O queue in use.
pub(super) struct Link {
    pub(super) stream: Rc<Stream>,
    pub(super) style: Style,
    outbox: RefCell<VecDeque<Item>>,
    sending: Cell<bool>,
    pub(super) receiving: Cell<bool>,
    /// Reason for the end of the connection.
    broken: RefCell<Option<Error>>,
    page: RefCell<Page>,
    /// Wakes when any field above changes.
    pub(super) changed: WaitList,
}

impl Link {
    pub(super) fn new(stream: Rc<Stream>, style: Style, depth: u16) -> Self {
        Self {
            stream,
            style,
            // Each slot has a command or one R2T.
            outbox: RefCell::new(VecDeque::with_capacity(depth.into())),
            sending: Cell::new(false),
            receiving: Cell::new(true),
            broken: RefCell::default(),
            page: RefCell::new(Page::new()),
            changed: WaitList::new(),
        }
    }

    /// Ends the connection. The first reason stays.
    pub(super) fn break_off(&self, why: Error) {
        self.stream.shutdown();
        self.outbox.borrow_mut().clear();
        self.broken.borrow_mut().get_or_insert(why);
        self.changed.wake_all();
    }

    pub(super) fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }

    /// Returns whether no task touches memory of a request any more.
    pub(super) fn is_quiet(&self) -> bool {
        !self.sending.get() && !self.receiving.get()
    }

    pub(super) fn send_command(self: &Rc<Self>, shared: &Rc<Shared>, cid: u16) {
        self.push(shared, Item::Command(cid));
    }

    pub(super) fn send_data(self: &Rc<Self>, shared: &Rc<Shared>, wanted: DataHeader) {
        self.push(shared, Item::Data(wanted));
    }

    fn push(self: &Rc<Self>, shared: &Rc<Shared>, item: Item) {
        if self.broken.borrow().is_some() {
            return;
        }
        self.outbox.borrow_mut().push_back(item);
        if !self.sending.replace(true) {
            forebay_io::rt::spawn(Rc::clone(self).send(Rc::clone(shared)));
        }
    }

    /// Sends the outbox until it is empty.
    async fn send(self: Rc<Self>, shared: Rc<Shared>) {
        loop {
            {
                let mut page = self.page.borrow_mut();
                let mut outbox = self.outbox.borrow_mut();
                for _ in 0..BATCH {
                    let Some(item) = outbox.pop_front() else {
                        break;
                    };
                    if let Some(rest) = self.put(&shared, &mut page, item) {
                        outbox.push_front(rest);
                    }
                }
                page.cut();
            }
            let parts = std::mem::take(&mut self.page.borrow_mut().parts);
            if parts.is_empty() {
                self.page.borrow_mut().reset(parts);
                break;
            }
            let sent = self.stream.send(&parts).await;
            self.page.borrow_mut().reset(parts);
            if let Err(error) = sent {
                self.break_off(error);
                break;
            }
        }
        self.sending.set(false);
        if self.broken.borrow().is_some() {
            self.changed.wake_all();
        }
    }

    /// Writes one PDU. Returns the rest of the requested data if it needs more than one PDU.
    fn put(&self, shared: &Shared, page: &mut Page, item: Item) -> Option<Item> {
        let mut slots = shared.session.slots.borrow_mut();
        match item {
            Item::Command(cid) => {
                let pending = slots.get(cid)?;
                let (command, with) = command(cid, &pending.request, &shared.offer);
                match with {
                    Payload::None => self.put_pdu(page, &command.encode(), Pdu::COMMAND, None),
                    Payload::Range(range) => {
                        self.put_pdu(
                            page,
                            &command.encode(),
                            Pdu::COMMAND,
                            Some(Part::Here(&range)),
                        );
                    }
                    Payload::Buf(buf) => {
                        pending.moved = command.sgl_length;
                        self.put_pdu(page, &command.encode(), Pdu::COMMAND, Some(Part::Buf(buf)));
                    }
                }
                None
            }
            Item::Data(wanted) => {
                let data = slots.get(wanted.cid)?.buf()?;
                let length = wanted.length.min(self.style.max_data_bytes);
                let now = DataHeader { length, ..wanted };
                let last = length == wanted.length;
                let from = wanted.offset as usize;
                let part = data.slice(from..from + length as usize);
                let pdu = Pdu {
                    kind: Kind::H2cData,
                    flags: if last { flag::LAST } else { 0 },
                };
                self.put_pdu(page, &now.encode(), pdu, Some(Part::Buf(part)));
                (!last).then(|| {
                    Item::Data(DataHeader {
                        offset: wanted.offset + length,
                        length: wanted.length - length,
                        ..wanted
                    })
                })
            }
        }
    }

    fn put_pdu(&self, page: &mut Page, rest: &[u8], pdu: Pdu, data: Option<Part<'_>>) {
        let length = match &data {
            None => 0,
            Some(Part::Here(bytes)) => bytes.len(),
            Some(Part::Buf(buf)) => buf.len(),
        };
        let length = u32::try_from(length).expect("at most the longest transfer");
        let Style {
            digests, alignment, ..
        } = self.style;
        let common = Common::new(pdu.kind, pdu.flags, length, digests, alignment);
        let mut header = [0; 128];
        let end = COMMON_BYTES + rest.len();
        header[..COMMON_BYTES].copy_from_slice(&common.encode());
        header[COMMON_BYTES..end].copy_from_slice(rest);
        let mut to = end;
        if common.flags & flag::HEADER_DIGEST != 0 {
            let sum = digest(&header[..end]);
            header[end..end + DIGEST_BYTES].copy_from_slice(&sum);
            to += DIGEST_BYTES;
        }
        // Zeroes up to the data.
        page.put(&header[..to.max(common.data_offset.into())]);
        let sum = match data {
            None => return,
            Some(Part::Here(bytes)) => {
                page.put(bytes);
                digests.data.then(|| digest(bytes))
            }
            Some(Part::Buf(buf)) => {
                page.cut();
                // SAFETY: the buffer belongs to its write until the answer, and nothing writes to
                // it meanwhile.
                let sum = digests.data.then(|| digest(unsafe { buf.bytes() }));
                page.parts.push(buf);
                sum
            }
        };
        if let Some(sum) = sum {
            page.put(&sum);
        }
    }
}

/// Kind and flags of a PDU.
#[derive(Clone, Copy)]
struct Pdu {
    kind: Kind,
    flags: u8,
}

impl Pdu {
    const COMMAND: Self = Self {
        kind: Kind::CapsuleCmd,
        flags: 0,
    };
}

/// Data of a PDU.
enum Part<'a> {
    Here(&'a [u8]),
    Buf(Buf),
}

/// Data of a capsule.
enum Payload {
    None,
    Range([u8; RANGE_BYTES]),
    Buf(Buf),
}

/// Encodes a request as a command.
fn command(cid: u16, request: &Request, offer: &Offer) -> (Command, Payload) {
    let first = request.offset >> offer.block_shift;
    let blocks = u32::try_from(request.len >> offer.block_shift).expect("no longer than one takes");
    let length = u32::try_from(request.len).unwrap_or(0);
    let nsid = offer.nsid;
    let transport = Data::Transport { length };
    let (command, payload) = match request.op {
        Op::Flush => (Command::new(opcode::FLUSH, nsid, [0; 6]), Payload::None),
        Op::Read => {
            let command = Command::on_range(opcode::READ, nsid, first, blocks, false);
            (command.with_data(transport), Payload::None)
        }
        Op::Write { fua } => {
            let command = Command::on_range(opcode::WRITE, nsid, first, blocks, fua);
            let fits = length <= offer.in_capsule_bytes;
            match request.buf.clone().filter(|_| fits) {
                Some(buf) => {
                    let data = Data::InCapsule { offset: 0, length };
                    (command.with_data(data), Payload::Buf(buf))
                }
                None => (command.with_data(transport), Payload::None),
            }
        }
        Op::WriteZeroes { fua, unmap } => {
            let command = Command::on_range(opcode::WRITE_ZEROES, nsid, first, blocks, fua);
            (command.deallocating(unmap), Payload::None)
        }
        Op::Discard => {
            let range = Range {
                attributes: 0,
                blocks,
                first_block: first,
            };
            let data = Data::InCapsule {
                offset: 0,
                length: RANGE_BYTES as u32,
            };
            let command = Command::deallocate(nsid, 1).with_data(data);
            (command, Payload::Range(range.encode()))
        }
    };
    (Command { cid, ..command }, payload)
}

/// Headers of one send. Headers without data between them form one part.
struct Page {
    headers: Buf,
    from: usize,
    to: usize,
    parts: Vec<Buf>,
}

impl Page {
    fn new() -> Self {
        Self {
            headers: Buf::scratch(BATCH * HEADER_BYTES),
            from: 0,
            to: 0,
            parts: Vec::with_capacity(2 * BATCH + 1),
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.headers.copy_from(self.to, bytes);
        self.to += bytes.len();
    }

    fn cut(&mut self) {
        if self.from < self.to {
            self.parts.push(self.headers.slice(self.from..self.to));
            self.from = self.to;
        }
    }

    /// Empties the page after a send of `parts`, and reuses the list.
    fn reset(&mut self, mut parts: Vec<Buf>) {
        parts.clear();
        (self.from, self.to, self.parts) = (0, 0, parts);
    }
}
