//! A host for the tests, written from the specification. It shares no code with the target.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Time after which the target counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut crc = !0_u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    (!crc).to_le_bytes()
}

/// Properties of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// Data alignment in units of 4 bytes, counted from zero.
    pub(crate) alignment: u8,
}

pub(crate) struct Pdu {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Header after the common header.
    pub(crate) header: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// Completion of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// Code and type, without "do not retry".
    pub(crate) status: u16,
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

/// Data of a command.
#[derive(Clone, Copy)]
pub(crate) enum With<'a> {
    Nothing,
    InCapsule(&'a [u8]),
    Data(&'a [u8]),
    /// Room for data.
    Room(usize),
}

/// One connection.
pub(crate) struct Queue {
    pub(crate) stream: TcpStream,
    pub(crate) style: Style,
    max_h2c: usize,
    next_cid: u16,
    /// Data of commands, which is sent on request.
    outgoing: HashMap<u16, Vec<u8>>,
    incoming: HashMap<u16, Vec<u8>>,
    done: HashMap<u16, Done>,
}

pub(crate) fn words(list: &[u32]) -> [u32; 6] {
    let mut out = [0; 6];
    out[..list.len()].copy_from_slice(list);
    out
}

/// A command, without its data's descriptor.
pub(crate) fn command(opcode: u8, nsid: u32, words: [u32; 6]) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[0] = opcode;
    entry[1] = 0x40;
    entry[4..8].copy_from_slice(&nsid.to_le_bytes());
    for (slot, word) in entry[40..].chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    entry
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two"))
}

fn word(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("short").to_le_bytes()
}

impl Queue {
    /// Connects and sends nothing.
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Self {
            stream,
            style: Style::default(),
            max_h2c: 0,
            next_cid: 0,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            done: HashMap::new(),
        }
    }

    /// Connects and exchanges the initialization PDUs.
    pub(crate) fn open(address: SocketAddr, style: Style) -> Self {
        let mut queue = Self::silent(address);
        let mut request = [0; 128];
        request[2] = 128;
        request[4] = 128;
        request[10] = style.alignment;
        request[11] = u8::from(style.header_digest) | u8::from(style.data_digest) << 1;
        queue.say(&request);
        let answer = queue.bytes(128);
        assert_eq!((answer[0], answer[2], u32_at(&answer, 4)), (1, 128, 128));
        assert_eq!(answer[11], request[11], "the digests that were asked for");
        queue.max_h2c = u32_at(&answer, 12) as usize;
        assert!(queue.max_h2c >= 4096);
        queue.style = style;
        queue
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target reads");
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream
            .read_exact(&mut bytes)
            .expect("the target answers");
        bytes
    }

    /// Sends a PDU with the selected digests; `spoil` damages one: the header's (1) or the data's
    /// (2).
    pub(crate) fn send(&mut self, kind: u8, flags: u8, rest: &[u8], data: &[u8], spoil: u8) {
        let Style {
            header_digest,
            data_digest,
            ..
        } = self.style;
        let header_len = 8 + rest.len();
        let offset = header_len + if header_digest { 4 } else { 0 };
        let data_digest = data_digest && !data.is_empty();
        let total = offset + data.len() + if data_digest { 4 } else { 0 };
        let flags = flags | u8::from(header_digest) | u8::from(data_digest) << 1;
        let header_len = u8::try_from(header_len).expect("short");
        let pdo = if data.is_empty() {
            0
        } else {
            u8::try_from(offset).expect("short")
        };
        let mut bytes = vec![kind, flags, header_len, pdo];
        bytes.extend(word(total));
        bytes.extend(rest);
        if header_digest {
            let mut digest = crc32c(&bytes);
            digest[0] ^= spoil & 1;
            bytes.extend(digest);
        }
        bytes.extend(data);
        if data_digest {
            let mut digest = crc32c(data);
            digest[0] ^= spoil & 2;
            bytes.extend(digest);
        }
        self.say(&bytes);
    }

    /// Receives the next PDU.
    pub(crate) fn pdu(&mut self) -> Pdu {
        let common = self.bytes(8);
        let (kind, flags, header_len) = (common[0], common[1], usize::from(common[2]));
        let total = u32_at(&common, 4) as usize;
        let header = self.bytes(header_len - 8);
        let mut at = header_len;
        if flags & 1 != 0 {
            let digest = self.bytes(4);
            assert_eq!(
                digest,
                crc32c(&[&common[..], &header].concat()),
                "the header's digest"
            );
            at += 4;
        }
        let mut data = Vec::new();
        if total > at {
            let offset = usize::from(common[3]);
            if kind == 7 {
                assert_eq!(offset % (usize::from(self.style.alignment + 1) * 4), 0);
            }
            if offset > at {
                self.bytes(offset - at);
                at = offset;
            }
            let digest = if flags & 2 != 0 { 4 } else { 0 };
            data = self.bytes(total - at - digest);
            if digest > 0 {
                assert_eq!(self.bytes(4), crc32c(&data), "the data's digest");
            }
        }
        assert_eq!(self.style.header_digest && kind != 3, flags & 1 != 0);
        Pdu {
            kind,
            flags,
            header,
            data,
        }
    }

    /// Starts a command. Returns its identifier.
    pub(crate) fn start(&mut self, entry: [u8; 64], with: With<'_>) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.start_as(self.next_cid, entry, with)
    }

    pub(crate) fn start_as(&mut self, cid: u16, mut entry: [u8; 64], with: With<'_>) -> u16 {
        entry[2..4].copy_from_slice(&cid.to_le_bytes());
        let (kind, len, data) = match with {
            With::Nothing => (0x5a, 0, &[][..]),
            With::InCapsule(data) => (0x01, data.len(), data),
            With::Data(data) => {
                self.outgoing.insert(cid, data.to_vec());
                (0x5a, data.len(), &[][..])
            }
            With::Room(len) => (0x5a, len, &[][..]),
        };
        // The descriptor: an address of 8 bytes, the length, and at its end the type.
        let mut descriptor = [0; 16];
        descriptor[8..12].copy_from_slice(&word(len));
        descriptor[15] = kind;
        entry[24..40].copy_from_slice(&descriptor);
        self.send(4, 0, &entry, data, 0);
        cid
    }

    /// Sends a part of a command's data.
    pub(crate) fn send_data(
        &mut self,
        cid: u16,
        tag: u16,
        offset: usize,
        data: &[u8],
        last: bool,
        spoil: u8,
    ) {
        let mut rest = [0; 16];
        rest[..2].copy_from_slice(&cid.to_le_bytes());
        rest[2..4].copy_from_slice(&tag.to_le_bytes());
        rest[4..8].copy_from_slice(&word(offset));
        rest[8..12].copy_from_slice(&word(data.len()));
        self.send(6, if last { 4 } else { 0 }, &rest, data, spoil);
    }

    /// Receives the R2T of a command: tag, offset and length.
    pub(crate) fn r2t(&mut self, cid: u16) -> (u16, usize, usize) {
        let pdu = self.pdu();
        assert_eq!((pdu.kind, u16_at(&pdu.header, 0)), (9, cid));
        let at = |at| u32_at(&pdu.header, at) as usize;
        (u16_at(&pdu.header, 2), at(4), at(8))
    }

    /// Waits for a command's completion, and sends the data that is requested.
    pub(crate) fn wait(&mut self, cid: u16) -> Done {
        loop {
            if let Some(done) = self.done.remove(&cid) {
                return done;
            }
            let pdu = self.pdu();
            match pdu.kind {
                5 => {
                    let cid = u16_at(&pdu.header, 12);
                    let done = Done {
                        status: u16_at(&pdu.header, 14) >> 1 & 0x7ff,
                        result: u64::from_le_bytes(pdu.header[..8].try_into().expect("eight")),
                        data: self.incoming.remove(&cid).unwrap_or_default(),
                    };
                    assert!(self.done.insert(cid, done).is_none(), "one end a command");
                }
                7 => {
                    let cid = u16_at(&pdu.header, 0);
                    assert_eq!(u32_at(&pdu.header, 8) as usize, pdu.data.len());
                    assert_eq!(u32_at(&pdu.header, 4), 0, "all at once");
                    if pdu.flags & 8 != 0 {
                        let done = Done {
                            status: 0,
                            result: 0,
                            data: pdu.data,
                        };
                        assert!(self.done.insert(cid, done).is_none(), "one end a command");
                    } else {
                        self.incoming.insert(cid, pdu.data);
                    }
                }
                9 => {
                    let cid = u16_at(&pdu.header, 0);
                    let tag = u16_at(&pdu.header, 2);
                    let from = u32_at(&pdu.header, 4) as usize;
                    let len = u32_at(&pdu.header, 8) as usize;
                    let data = self.outgoing[&cid][from..from + len].to_vec();
                    let mut at = 0;
                    while at < len {
                        // Pieces of an odd length.
                        let piece = (len - at).min(self.max_h2c).min(37_004);
                        let last = at + piece == len;
                        self.send_data(cid, tag, from + at, &data[at..at + piece], last, 0);
                        at += piece;
                    }
                }
                kind => panic!("a PDU of kind {kind:#x}: {:?}", pdu.header),
            }
        }
    }

    pub(crate) fn call(&mut self, entry: [u8; 64], with: With<'_>) -> Done {
        let cid = self.start(entry, with);
        self.wait(cid)
    }

    /// Sends Connect; queue 0 is the admin queue.
    pub(crate) fn connect(&mut self, to: &Identity<'_>, queue: u16, controller: u16) -> Done {
        let mut data = vec![0; 1024];
        data[..16].copy_from_slice(&to.host_id);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + to.subsystem.len()].copy_from_slice(to.subsystem.as_bytes());
        data[512..512 + to.host.len()].copy_from_slice(to.host.as_bytes());
        let size = u32::from(to.queue_size) - 1;
        let flow = if to.flow_control { 0 } else { 1 << 18 };
        let list = [u32::from(queue) << 16, size | flow, to.keep_alive_ms];
        self.call(command(0x7f, 1, words(&list)), With::InCapsule(&data))
    }

    /// Closes this side of the connection.
    pub(crate) fn say_no_more(&self) {
        // The target may have closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits until the target closes the connection. Returns the bytes before that.
    pub(crate) fn closed(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the target does not close: {error}"),
        }
    }
}

/// Names of a Connect.
#[derive(Clone, Copy)]
pub(crate) struct Identity<'a> {
    pub(crate) subsystem: &'a str,
    pub(crate) host: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) queue_size: u16,
    pub(crate) flow_control: bool,
    pub(crate) keep_alive_ms: u32,
}

impl<'a> Identity<'a> {
    pub(crate) const fn to(subsystem: &'a str) -> Self {
        Self {
            subsystem,
            host: "nqn.2014-08.org.nvmexpress:uuid:host",
            host_id: [1; 16],
            queue_size: 32,
            flow_control: false,
            keep_alive_ms: 0,
        }
    }
}

/// A host's association, with an admin queue.
pub(crate) struct Association<'a> {
    address: SocketAddr,
    identity: Identity<'a>,
    style: Style,
    pub(crate) admin: Queue,
    pub(crate) controller: u16,
}

impl<'a> Association<'a> {
    pub(crate) fn new(address: SocketAddr, identity: Identity<'a>, style: Style) -> Self {
        let mut admin = Queue::open(address, style);
        let done = admin.connect(&identity, 0, 0xffff);
        assert_eq!(done.status, 0, "Connect");
        let controller = u16::try_from(done.result & 0xffff).expect("16 bits");
        // CC: entries of 64 and 16 bytes, enabled; then CSTS.
        let set = command(0x7f, 0, words(&[0, 0x14, 0x46_0001]));
        assert_eq!(admin.call(set, With::Nothing).status, 0);
        let get = command(0x7f, 4, words(&[0, 0x1c]));
        assert_eq!(admin.call(get, With::Nothing).result, 1, "ready");
        Self {
            address,
            identity,
            style,
            admin,
            controller,
        }
    }

    /// Creates an I/O queue.
    pub(crate) fn queue(&self, number: u16) -> Queue {
        let mut queue = Queue::open(self.address, self.style);
        let done = queue.connect(&self.identity, number, self.controller);
        assert_eq!(done.status, 0, "Connect of queue {number}");
        queue
    }

    /// Identify.
    pub(crate) fn identify(&mut self, cns: u32, nsid: u32) -> Done {
        let entry = command(6, nsid, words(&[cns]));
        self.admin.call(entry, With::Room(4096))
    }

    /// Get Log Page.
    pub(crate) fn log(&mut self, lid: u32, nsid: u32, len: usize) -> Done {
        let dwords = u32::try_from(len / 4 - 1).expect("short");
        let entry = command(2, nsid, words(&[lid | dwords << 16]));
        self.admin.call(entry, With::Room(len))
    }
}

/// A command on blocks.
pub(crate) fn on_blocks(opcode: u8, first: u64, blocks: u32, flags: u32) -> [u8; 64] {
    let low = u32::try_from(first & 0xffff_ffff).expect("32 bits");
    let high = u32::try_from(first >> 32).expect("32 bits");
    command(opcode, 1, words(&[low, high, (blocks - 1) | flags]))
}
