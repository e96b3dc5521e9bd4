//! One connection of a host that may say anything, and that expects nothing of the target but an end.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_wire::nvme_tcp::digest;

use super::initiator::{command, words};

/// Time that an answer has which the target owes; it may owe none.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Time to look for what has come.
const LOOK_TIME: Duration = Duration::from_millis(1);

/// Data that the target has asked for.
pub(crate) struct Asked {
    pub(crate) cid: u16,
    pub(crate) tag: u16,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

pub(crate) struct Line {
    stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    received: Vec<u8>,
    pub(crate) asked: VecDeque<Asked>,
    /// Commands that ended, and that ended well.
    ended: usize,
    answered: usize,
    controller: Option<u16>,
    closed: bool,
}

impl Line {
    /// Connects and says nothing.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_nodelay(true).expect("an option");
        Self {
            stream,
            header_digest: false,
            data_digest: false,
            received: Vec::new(),
            asked: VecDeque::new(),
            ended: 0,
            answered: 0,
            controller: None,
            closed: false,
        }
    }

    /// Says something. The target may have ended the connection.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.closed |= self.stream.write_all(bytes).is_err();
    }

    /// The first words.
    pub(crate) fn initialize(&mut self, header_digest: bool, data_digest: bool) {
        let mut request = [0; 128];
        (request[2], request[4]) = (128, 128);
        request[11] = u8::from(header_digest) | u8::from(data_digest) << 1;
        self.say(&request);
        (self.header_digest, self.data_digest) = (header_digest, data_digest);
    }

    /// Makes a queue; the controller's number, if the target agrees.
    pub(crate) fn connect(
        &mut self,
        (host, nqn, name): (u8, &str, &str),
        queue: u16,
        controller: u16,
    ) -> Option<u16> {
        let mut data = vec![0; 1024];
        data[0] = host.wrapping_add(1);
        data[1] = 1;
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        data[512..512 + name.len()].copy_from_slice(name.as_bytes());
        let mut entry = command(0x7f, 1, words(&[u32::from(queue) << 16, 15]));
        entry[33] = 4;
        entry[39] = 1;
        self.command(entry, &data, None);
        let begin = Instant::now();
        while self.ended == 0 && !self.closed && begin.elapsed() < ANSWER_TIME {
            self.pump();
        }
        self.controller
    }

    /// Sends a PDU, with a bit of a byte turned over if wanted.
    fn send(&mut self, kind: u8, flags: u8, rest: &[u8], data: &[u8], spoil: Option<(u8, usize)>) {
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
        if let Some((at, bit)) = spoil {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        self.say(&bytes);
    }

    pub(crate) fn command(&mut self, entry: [u8; 64], data: &[u8], spoil: Option<(u8, usize)>) {
        self.send(4, 0, &entry, data, spoil);
    }

    fn data_header(cid: u16, tag: u16, offset: u32, length: u32) -> [u8; 16] {
        let mut rest = [0; 16];
        rest[..2].copy_from_slice(&cid.to_le_bytes());
        rest[2..4].copy_from_slice(&tag.to_le_bytes());
        rest[4..8].copy_from_slice(&offset.to_le_bytes());
        rest[8..12].copy_from_slice(&length.to_le_bytes());
        rest
    }

    /// Sends data of a command.
    pub(crate) fn data(&mut self, cid: u16, tag: u16, offset: u32, length: u32, last: bool) {
        let rest = Self::data_header(cid, tag, offset, length);
        let data = vec![9; length as usize];
        self.send(6, if last { 4 } else { 0 }, &rest, &data, None);
    }

    /// Begins to send data of a command, and then says no more.
    pub(crate) fn data_cut_off(&mut self, cid: u16, tag: u16, length: u32) {
        let mut bytes = vec![6, 4, 24, 24];
        bytes.extend((24 + length).to_le_bytes());
        bytes.extend(Self::data_header(cid, tag, 0, length));
        bytes.resize(bytes.len() + length as usize / 2, 9);
        self.say(&bytes);
        self.say_no_more();
    }

    /// Takes what has come.
    pub(crate) fn pump(&mut self) {
        self.receive(LOOK_TIME);
        while let Some(pdu) = self.next_pdu() {
            self.look(&pdu);
        }
    }

    fn receive(&mut self, time: Duration) {
        let begin = Instant::now();
        // A time limit of the socket's own would be rounded up to the kernel's clock.
        self.stream.set_nonblocking(true).expect("an option");
        let mut some = [0; 16 << 10];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => break self.closed = true,
                Ok(count) => self.received.extend(&some[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if begin.elapsed() >= time {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(_) => break self.closed = true,
            }
        }
        self.stream.set_nonblocking(false).expect("an option");
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

    fn look(&mut self, pdu: &[u8]) {
        let u16_at = |at: usize| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(pdu[at..at + 4].try_into().expect("four"));
        match pdu[0] {
            // ICResp, C2HTermReq.
            1 | 3 => {}
            5 => {
                self.ended += 1;
                if u16_at(22) >> 1 == 0 {
                    self.answered += 1;
                    self.controller.get_or_insert(u16_at(8));
                }
            }
            7 => self.answered += usize::from(pdu[1] & 8 != 0),
            9 => self.asked.push_back(Asked {
                cid: u16_at(8),
                tag: u16_at(10),
                offset: u32_at(12),
                length: u32_at(16),
            }),
            kind => panic!("the target says a PDU of kind {kind:#x}"),
        }
    }

    /// Nothing more comes from here.
    pub(crate) fn say_no_more(&self) {
        // It may be over already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits for the target to end the connection as well. Returns how many commands ended well.
    pub(crate) fn end(mut self, patience: Duration) -> usize {
        let begin = Instant::now();
        while !self.closed {
            assert!(begin.elapsed() < patience, "a connection does not end");
            self.receive(Duration::from_millis(20));
        }
        while let Some(pdu) = self.next_pdu() {
            self.look(&pdu);
        }
        self.answered
    }

    /// Goes away without a word.
    pub(crate) fn end_at_once(self) {
        drop(self.stream);
    }
}
