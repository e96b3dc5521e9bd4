//! One connection of an arbitrary host. Received data must be well-formed, and must answer a
//! request.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::nvme_tcp::digest;

use super::initiator::{command, words};
use super::model::{Model, Write};
use super::{PATIENCE, Partner};

/// Interval of polls for received data.
const LOOK_TIME: Duration = Duration::from_millis(1);

/// Data that the target has requested.
pub(crate) struct Asked {
    pub(crate) cid: u16,
    pub(crate) tag: u16,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Effect of a command on blocks.
#[derive(Clone)]
enum Effect {
    None,
    Write(Write),
    /// From a block on, at a moment.
    Read(u64, u64),
}

/// A command without an answer.
struct Pending {
    effect: Effect,
    /// Its data: bytes, or many of one value.
    data: Result<Vec<u8>, u8>,
    received: u32,
}

pub(crate) struct Line<'t> {
    partner: &'t dyn Partner,
    model: Rc<RefCell<Model>>,
    stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    received: Vec<u8>,
    pending: HashMap<u16, Pending>,
    /// Whether it has sent raw bytes, or used an identifier twice: any answer is possible then.
    pub(crate) wild: bool,
    pub(crate) asked: VecDeque<Asked>,
    /// Last received authentication message.
    pub(crate) heard: Vec<u8>,
    /// Number of completed, and of successful commands.
    ended: usize,
    answered: usize,
    controller: Option<u16>,
    /// Queue number, after a successful Connect.
    queue: Option<u16>,
    closed: bool,
}

impl<'t> Line<'t> {
    /// Connects and sends nothing.
    pub(crate) fn open(partner: &'t dyn Partner, model: &Rc<RefCell<Model>>) -> Self {
        let stream = partner.call();
        stream.set_nonblocking(true).expect("an option");
        Self {
            partner,
            model: Rc::clone(model),
            stream,
            header_digest: false,
            data_digest: false,
            received: Vec::new(),
            pending: HashMap::new(),
            wild: false,
            asked: VecDeque::new(),
            heard: Vec::new(),
            ended: 0,
            answered: 0,
            controller: None,
            queue: None,
            closed: false,
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        let begin = self.partner.now();
        while !bytes.is_empty() && !self.closed {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waited = self.partner.now() - begin;
                    assert!(waited < PATIENCE, "the target takes no more");
                    self.partner.pause();
                    self.read();
                }
                // The target may have ended the connection.
                Err(_) => self.closed = true,
            }
        }
    }

    /// Sends raw bytes.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.wild = true;
        self.model.borrow_mut().anything = true;
        self.write(bytes);
    }

    /// Sends the initialization PDU.
    pub(crate) fn initialize(&mut self, header_digest: bool, data_digest: bool) {
        let mut request = [0; 128];
        (request[2], request[4]) = (128, 128);
        request[11] = u8::from(header_digest) | u8::from(data_digest) << 1;
        self.write(&request);
        (self.header_digest, self.data_digest) = (header_digest, data_digest);
    }

    /// Creates a queue. Returns the controller's number on success.
    pub(crate) fn connect(
        &mut self,
        (host, nqn, name): (u8, &str, &str),
        (queue, controller, keep_alive_ms): (u16, u16, u32),
    ) -> Option<u16> {
        let mut data = vec![0; 1024];
        data[0] = host.wrapping_add(1);
        data[1] = 1;
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        data[512..512 + name.len()].copy_from_slice(name.as_bytes());
        let list = [u32::from(queue) << 16, 15, keep_alive_ms];
        let mut entry = command(0x7f, 1, words(&list));
        entry[33] = 4;
        entry[39] = 1;
        self.command(entry, &data);
        let before = self.ended;
        self.until(|line| line.ended > before);
        self.queue = self.controller.map(|_| queue);
        self.controller
    }

    /// Waits for a required message of the target, or the end.
    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let begin = self.partner.now();
        while !done(self) && !self.closed && self.partner.now() - begin < self.partner.answer_time()
        {
            self.pump();
        }
    }

    /// Reads a block. Returns its content.
    pub(crate) fn is_served(&mut self, entry: [u8; 64]) -> bool {
        let before = self.answered;
        self.command(entry, &[]);
        self.until(|line| line.answered > before);
        self.answered > before
    }

    fn pdu(&self, kind: u8, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
        let header_len = 8 + rest.len();
        let offset = header_len + if self.header_digest { 4 } else { 0 };
        let data_digest = self.data_digest && !data.is_empty();
        let total = offset + data.len() + if data_digest { 4 } else { 0 };
        let byte = |value: usize| u8::try_from(value).expect("short");
        let begin = if data.is_empty() { 0 } else { byte(offset) };
        let flags = flags | u8::from(self.header_digest) | u8::from(data_digest) << 1;
        let mut bytes = vec![kind, flags, byte(header_len), begin];
        bytes.extend(u32::try_from(total).expect("short").to_le_bytes());
        bytes.extend(rest);
        if self.header_digest {
            bytes.extend(digest(&bytes));
        }
        bytes.extend(data);
        if data_digest {
            bytes.extend(digest(data));
        }
        bytes
    }

    /// Sends a command with in-capsule `data`.
    pub(crate) fn command(&mut self, entry: [u8; 64], data: &[u8]) {
        self.ask(entry, data, Effect::None, Ok(Vec::new()));
    }

    /// Sends a command that fills blocks with `value`.
    pub(crate) fn write_blocks(
        &mut self,
        entry: [u8; 64],
        (first, count): (u64, u64),
        (value, data): (u8, Result<Vec<u8>, u8>),
        in_capsule: &[u8],
    ) {
        let write = self.model.borrow_mut().begin(first, count, value);
        self.ask(entry, in_capsule, Effect::Write(write), data);
    }

    /// Sends a command that reads blocks from `first` on.
    pub(crate) fn read_blocks(&mut self, entry: [u8; 64], first: u64) {
        let now = self.model.borrow().moment();
        self.ask(entry, &[], Effect::Read(first, now), Ok(Vec::new()));
    }

    fn ask(
        &mut self,
        entry: [u8; 64],
        in_capsule: &[u8],
        effect: Effect,
        data: Result<Vec<u8>, u8>,
    ) {
        // On other queues the same opcodes are other commands.
        let effect = match self.queue {
            Some(1..) => effect,
            _ => Effect::None,
        };
        let cid = u16::from_le_bytes([entry[2], entry[3]]);
        let one = Pending {
            effect,
            data,
            received: 0,
        };
        // It is unknown which of the two is answered.
        self.wild |= self.pending.insert(cid, one).is_some();
        let bytes = self.pdu(4, 0, &entry, in_capsule);
        self.write(&bytes);
    }

    /// Sends a command with one flipped bit.
    pub(crate) fn spoilt(&mut self, entry: [u8; 64], data: &[u8], (at, bit): (u8, usize)) {
        let mut bytes = self.pdu(4, 0, &entry, data);
        let at = usize::from(at) % bytes.len();
        bytes[at] ^= 1 << bit;
        self.say(&bytes);
    }

    fn data_header(cid: u16, tag: u16, offset: u32, length: u32) -> [u8; 16] {
        let mut rest = [0; 16];
        rest[..2].copy_from_slice(&cid.to_le_bytes());
        rest[2..4].copy_from_slice(&tag.to_le_bytes());
        rest[4..8].copy_from_slice(&offset.to_le_bytes());
        rest[8..12].copy_from_slice(&length.to_le_bytes());
        rest
    }

    /// Returns the data of a command from a byte on, padded with zeroes.
    fn payload(&self, cid: u16, offset: u32, length: u32) -> Vec<u8> {
        let (offset, length) = (offset as usize, length as usize);
        match self.pending.get(&cid).map(|one| &one.data) {
            Some(Ok(bytes)) => {
                let rest = bytes.iter().copied().skip(offset);
                rest.chain(std::iter::repeat(0)).take(length).collect()
            }
            Some(Err(value)) => vec![*value; length],
            None => vec![0; length],
        }
    }

    /// Sends data of a command in one or several PDUs.
    pub(crate) fn data(&mut self, cid: u16, range: Asked, last: bool) {
        let rest = Self::data_header(range.cid, range.tag, range.offset, range.length);
        let data = self.payload(cid, range.offset, range.length);
        let bytes = self.pdu(6, if last { 4 } else { 0 }, &rest, &data);
        self.write(&bytes);
    }

    /// Starts to send data of a command, and stops in the middle.
    pub(crate) fn data_cut_off(&mut self, cid: u16, tag: u16, length: u32) {
        let rest = Self::data_header(cid, tag, 0, length);
        let bytes = self.pdu(6, 4, &rest, &self.payload(cid, 0, length));
        self.write(&bytes[..bytes.len() - length as usize / 2]);
        self.say_no_more();
    }

    /// Processes received data.
    pub(crate) fn pump(&mut self) {
        self.receive(LOOK_TIME);
        while let Some(pdu) = self.next_pdu() {
            self.look(&pdu);
        }
    }

    /// Receives available data. Returns whether there was any.
    fn read(&mut self) -> bool {
        let mut some = [0; 4 << 10];
        let before = self.received.len();
        while !self.closed {
            match self.stream.read(&mut some) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend(&some[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        self.received.len() > before
    }

    fn receive(&mut self, time: Duration) {
        let begin = self.partner.now();
        while !self.closed && self.partner.now() - begin < time {
            self.partner.pause();
            self.read();
        }
    }

    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let length = self.received.get(4..8)?.try_into().expect("four");
        let length = u32::from_le_bytes(length) as usize;
        assert!(
            (8..2 << 20).contains(&length),
            "the target says a PDU of {length} bytes"
        );
        if self.received.len() < length {
            return None;
        }
        Some(self.received.drain(..length).collect())
    }

    /// Returns the header and the data of a PDU, after checking its digests.
    fn parts<'p>(&self, pdu: &'p [u8]) -> (&'p [u8], &'p [u8]) {
        let (kind, flags, header_len, begin) = (pdu[0], pdu[1], usize::from(pdu[2]), pdu[3]);
        let lengths: &[usize] = match kind {
            1 => &[128],
            3 => &[24],
            5 | 7 | 9 => &[24],
            kind => panic!("the target says a PDU of kind {kind:#x}"),
        };
        assert!(lengths.contains(&header_len), "{header_len} of {kind}");
        let digests = kind != 1 && kind != 3;
        let has_digest = (flags & 1 != 0, flags & 2 != 0);
        let data = usize::from(begin);
        assert_eq!(has_digest.0, digests && self.header_digest, "of {kind}");
        assert_eq!(has_digest.1, kind == 7 && self.data_digest, "of {kind}");
        if has_digest.0 {
            let sum = &pdu[header_len..header_len + 4];
            assert_eq!(digest(&pdu[..header_len]), sum, "the header's digest");
        }
        if kind != 7 {
            assert!(kind == 3 || data == 0, "data with a PDU of kind {kind}");
            return (&pdu[..header_len], &[]);
        }
        let end = pdu.len() - if has_digest.1 { 4 } else { 0 };
        let data = &pdu[data..end];
        if has_digest.1 {
            assert_eq!(digest(data), pdu[end..], "the data's digest");
        }
        (&pdu[..header_len], data)
    }

    fn look(&mut self, pdu: &[u8]) {
        let (header, data) = self.parts(pdu);
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        match header[0] {
            5 => {
                let well = u16_at(22) >> 1 == 0;
                self.ended += 1;
                if well {
                    self.answered += 1;
                    self.controller.get_or_insert(u16_at(8));
                }
                let ended = self.pending.remove(&u16_at(20));
                assert!(self.wild || ended.is_some(), "an answer to nothing");
                if let Some(Effect::Write(write)) = ended.map(|one| one.effect)
                    && well
                    && !self.wild
                {
                    self.model.borrow_mut().succeeded(&write);
                }
            }
            7 => {
                let (offset, length) = (u32_at(12), u32_at(16));
                assert_eq!(length as usize, data.len(), "what it says of its data");
                self.take_data(u16_at(8), offset, data);
                if header[1] & 8 != 0 {
                    self.answered += 1;
                    self.pending.remove(&u16_at(8));
                }
            }
            9 => {
                let (cid, length) = (u16_at(8), u32_at(16));
                let known = self.wild || self.pending.contains_key(&cid);
                assert!(known && length > 0, "data is asked for of no command");
                self.asked.push_back(Asked {
                    cid,
                    tag: u16_at(10),
                    offset: u32_at(12),
                    length,
                });
            }
            // ICResp, C2HTermReq.
            _ => {}
        }
    }

    /// Checks received data of a command: its order, and the possible content of the blocks.
    fn take_data(&mut self, cid: u16, offset: u32, data: &[u8]) {
        let Some(one) = self.pending.get_mut(&cid) else {
            assert!(self.wild, "data of no command");
            return;
        };
        if self.wild {
            return;
        }
        assert_eq!(one.received, offset, "data in order");
        one.received += u32::try_from(data.len()).expect("short");
        match one.effect {
            Effect::Read(first, since) => {
                let model = self.model.borrow();
                let first = first + u64::from(offset) / 512;
                for (block, bytes) in (first..).zip(data.chunks(512)) {
                    let may = model.may_be(block, bytes, since);
                    assert!(may, "block {block} cannot hold {:?}", &bytes[..8]);
                }
            }
            _ => self.heard = data.to_vec(),
        }
    }

    /// Closes the sending side.
    pub(crate) fn say_no_more(&self) {
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits until the target closes the connection as well. Returns the number of successful
    /// commands.
    pub(crate) fn end(mut self) -> usize {
        let begin = self.partner.now();
        while !self.closed {
            let waited = self.partner.now() - begin;
            assert!(waited < PATIENCE, "a connection does not end");
            self.receive(LOOK_TIME);
        }
        while let Some(pdu) = self.next_pdu() {
            self.look(&pdu);
        }
        self.answered
    }

    /// Disconnects at once.
    pub(crate) fn end_at_once(self) {
        drop(self.stream);
    }
}
