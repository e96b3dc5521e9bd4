//! A target of the tests' own, which does wrong when it is told to.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_block::ErrorKind;
use forebay_wire::nvme::admin::{cns, opcode as admin};
use forebay_wire::nvme::command::COMMAND_BYTES;
use forebay_wire::nvme::fabrics::{self, Property, connected, fctype, property};
use forebay_wire::nvme::io::opcode;
use forebay_wire::nvme::{Command, Completion, Data, Status, identify};
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, DataHeader, Digests, Initialize, Kind, flag};

const BLOCK_SHIFT: u32 = 12;
const BLOCKS: u64 = 1024;
/// Of data for it: 16 bytes.
const ALIGNMENT: u8 = 3;

/// What becomes of an I/O command.
pub(super) enum Act {
    Answer,
    Fail(Status),
    /// Nothing, and the connection stays.
    Silence,
    /// The end of the connection.
    Cut,
    /// The same, and nothing stays of what was not flushed.
    PowerLoss,
    /// These bytes, made for the command, and then the end.
    Say(fn(&Command) -> Vec<u8>),
}

type Script = dyn Fn(u32, u8) -> Act + Send + Sync;

/// What is answered to a host that asks for a message of authentication.
pub(super) enum Word {
    Message(Vec<u8>),
    /// As much of a page.
    Short(Vec<u8>, usize),
    Fail(Status),
    Silence,
    Cut,
}

/// Says what is answered on a connection, by its number (from 0) and the messages that its host has sent.
type Speaker = dyn Fn(usize, &[Vec<u8>]) -> Word + Send + Sync;

/// What is wrong with a target, the kind of the error, and a word of it.
pub(super) const WRONG: [(Wrong, ErrorKind, &str); 10] = [
    (
        Wrong::FirstWords,
        ErrorKind::Disconnected,
        "breaks the protocol",
    ),
    (Wrong::DataLimit, ErrorKind::Disconnected, "limit on data"),
    (Wrong::Host, ErrorKind::Permission, "?host=NQN"),
    (
        Wrong::Subsystem,
        ErrorKind::NotFound,
        "no subsystem nqn.test",
    ),
    (Wrong::Secrets, ErrorKind::Permission, "authenticate"),
    (Wrong::Failed, ErrorKind::Io, "has failed"),
    (Wrong::NotReady, ErrorKind::TimedOut, "become ready"),
    (Wrong::NoNamespace, ErrorKind::NotFound, "no namespace"),
    (
        Wrong::Blocks,
        ErrorKind::Unsupported,
        "64 KiB without metadata",
    ),
    (Wrong::HalfPage, ErrorKind::Disconnected, "missing"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    FirstWords,
    DataLimit,
    Host,
    Subsystem,
    Secrets,
    Failed,
    NotReady,
    NoNamespace,
    Blocks,
    HalfPage,
}

struct Shared {
    script: Box<Script>,
    /// I/O commands so far.
    count: AtomicU32,
    /// The flush with which the first device begins was answered; it does not count.
    begun: AtomicBool,
    asked: Mutex<Vec<(u8, u64)>>,
    /// What asks its hosts to authenticate themselves.
    speaker: Mutex<Option<Box<Speaker>>>,
    /// What hosts have sent of authentication.
    heard: Mutex<Vec<Vec<u8>>>,
    /// Commands so far, of all queues: the opcode, and the kind of one of Fabrics.
    commands: Mutex<Vec<(u8, u8)>>,
    data: Mutex<Vec<u8>>,
    /// What a power loss leaves of it.
    durable: Mutex<Vec<u8>>,
    wrong: Mutex<Option<Wrong>>,
    /// Connections so far.
    connections: AtomicUsize,
    changes: AtomicBool,
    deaf: AtomicBool,
    /// Nobody is let in but the first.
    absent: AtomicBool,
}

impl Shared {
    fn lose_power(&self) {
        let left = self.durable.lock().expect("sound").clone();
        *self.data.lock().expect("sound") = left;
    }
}

pub(super) struct Target {
    port: u16,
    shared: Arc<Shared>,
}

pub(super) struct Absence(Arc<Shared>);

impl Absence {
    pub(super) fn set(&self, absent: bool) {
        self.0.absent.store(absent, Ordering::SeqCst);
    }
}

impl Target {
    /// `script` says what becomes of an I/O command, by its number (from 1) and its opcode.
    pub(super) fn start(script: impl Fn(u32, u8) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let size = usize::try_from(BLOCKS << BLOCK_SHIFT).expect("small");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            count: AtomicU32::new(0),
            begun: AtomicBool::new(false),
            asked: Mutex::default(),
            speaker: Mutex::default(),
            heard: Mutex::default(),
            commands: Mutex::default(),
            data: Mutex::new(vec![0; size]),
            durable: Mutex::new(vec![0; size]),
            wrong: Mutex::default(),
            connections: AtomicUsize::new(0),
            changes: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            absent: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        // It goes with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let number = served.connections.fetch_add(1, Ordering::SeqCst);
                if number > 1 && served.absent.load(Ordering::SeqCst) {
                    continue;
                }
                let shared = Arc::clone(&served);
                std::thread::spawn(move || {
                    let mut peer = Peer {
                        stream,
                        shared,
                        number,
                        heard: Vec::new(),
                    };
                    while peer.pdu().is_some() {}
                });
            }
        });
        Self { port, shared }
    }

    pub(super) fn uri(&self) -> String {
        format!("nvme-tcp://127.0.0.1:{}/nqn.test", self.port)
    }

    /// The I/O commands so far, and their first byte.
    pub(super) fn asked(&self) -> Vec<(u8, u64)> {
        self.shared.asked.lock().expect("sound").clone()
    }

    /// What is there.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.shared.data.lock().expect("sound")[at]
    }

    /// Nothing stays of what was not flushed.
    pub(super) fn lose_power(&self) {
        self.shared.lose_power();
    }

    pub(super) fn ignore_keep_alive(&self) {
        self.shared.deaf.store(true, Ordering::SeqCst);
    }

    pub(super) fn absence(&self) -> Absence {
        Absence(Arc::clone(&self.shared))
    }

    /// Those who come back find another namespace.
    pub(super) fn change_later(&self) {
        self.shared.changes.store(true, Ordering::SeqCst);
    }

    /// Hosts have to authenticate themselves, and are told this.
    pub(super) fn authenticate(
        &self,
        speaker: impl Fn(usize, &[Vec<u8>]) -> Word + Send + Sync + 'static,
    ) {
        *self.shared.speaker.lock().expect("sound") = Some(Box::new(speaker));
    }

    /// The messages of authentication so far.
    pub(super) fn heard(&self) -> Vec<Vec<u8>> {
        self.shared.heard.lock().expect("sound").clone()
    }

    /// The commands so far, of all queues: the opcode, and the kind of one of Fabrics.
    pub(super) fn commands(&self) -> Vec<(u8, u8)> {
        self.shared.commands.lock().expect("sound").clone()
    }

    pub(super) fn wrong(&self, what: Wrong) {
        *self.shared.wrong.lock().expect("sound") = Some(what);
    }
}

/// The target's side of a connection.
struct Peer {
    stream: TcpStream,
    shared: Arc<Shared>,
    /// Of the connection, from 0.
    number: usize,
    heard: Vec<Vec<u8>>,
}

/// A PDU of this target, without digests.
pub(super) fn said(kind: Kind, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    let common = Common::new(kind, flags, length, Digests::default(), 0);
    [&common.encode()[..], rest, data].concat()
}

pub(super) fn ended(cid: u16, result: u64, status: Status) -> Vec<u8> {
    let completion = Completion {
        result,
        sq_head: 0,
        sq_id: 0,
        cid,
        status,
    };
    said(Kind::CapsuleResp, 0, &completion.encode(), &[])
}

pub(super) fn data(cid: u16, flags: u8, offset: u32, data: &[u8]) -> Vec<u8> {
    let header = DataHeader {
        cid,
        tag: 0,
        offset,
        length: u32::try_from(data.len()).expect("short"),
    };
    said(Kind::C2hData, flags, &header.encode(), data)
}

/// The target is ready for data.
pub(super) fn ready(cid: u16, offset: u32, length: u32) -> Vec<u8> {
    let header = DataHeader {
        cid,
        tag: 5,
        offset,
        length,
    };
    said(Kind::R2t, 0, &header.encode(), &[])
}

impl Peer {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn vec(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn say(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    fn is(&self, what: Wrong) -> bool {
        *self.shared.wrong.lock().expect("sound") == Some(what)
    }

    fn pdu(&mut self) -> Option<()> {
        let common = Common::decode(self.bytes::<COMMON_BYTES>()?);
        let layout = common.check(Digests::default(), ALIGNMENT);
        let layout = layout.expect("what makes sense");
        match layout.kind {
            Kind::IcReq => {
                Initialize::decode(self.bytes()?).expect("what makes sense");
                let limit = if self.is(Wrong::DataLimit) {
                    4095
                } else {
                    4096
                };
                let answer = Initialize {
                    version: 0,
                    alignment: ALIGNMENT,
                    digests: Digests::default(),
                    limit,
                };
                match self.is(Wrong::FirstWords) {
                    true => self.say(b"HTTP/1.1 400 Bad Request\r\n"),
                    false => self.say(&said(Kind::IcResp, 0, &answer.encode(), &[])),
                }
            }
            Kind::CapsuleCmd => {
                let command = Command::decode(self.bytes::<COMMAND_BYTES>()?);
                let _ = self.vec(layout.padding_bytes as usize)?;
                let data = self.vec(layout.data_bytes as usize)?;
                self.command(command, data)
            }
            kind => panic!("{kind:?} was not asked for"),
        }
    }

    fn command(&mut self, command: Command, with: Vec<u8>) -> Option<()> {
        let cid = command.cid;
        let status = |peer: &mut Self, result, status| peer.say(&ended(cid, result, status));
        let kind = (command.opcode, command.nsid.to_le_bytes()[0]);
        self.shared.commands.lock().expect("sound").push(kind);
        match kind {
            (fabrics::OPCODE, fctype::CONNECT) => match () {
                () if self.is(Wrong::Host) => status(self, 0, Status::CONNECT_INVALID_HOST),
                () if self.is(Wrong::Subsystem) => {
                    status(self, 0x1_0100, Status::CONNECT_INVALID_PARAMETERS)
                }
                () => {
                    let speaks = self.shared.speaker.lock().expect("sound").is_some();
                    let asks = speaks || self.is(Wrong::Secrets);
                    status(self, connected(1, asks), Status::SUCCESS)
                }
            },
            (fabrics::OPCODE, fctype::AUTHENTICATION_SEND) => {
                self.shared.heard.lock().expect("sound").push(with.clone());
                self.heard.push(with);
                status(self, 0, Status::SUCCESS)
            }
            (fabrics::OPCODE, fctype::AUTHENTICATION_RECEIVE) => self.speak(cid),
            (fabrics::OPCODE, fctype::PROPERTY_GET) => {
                let value = match Property::of(&command).offset {
                    // 8 entries; ready within half a second.
                    property::CAP => 7 | 1 << 24,
                    _ if self.is(Wrong::Failed) => 0b11,
                    _ => u64::from(!self.is(Wrong::NotReady)),
                };
                status(self, value, Status::SUCCESS)
            }
            (fabrics::OPCODE, _) => status(self, 0, Status::SUCCESS),
            (admin::IDENTIFY, _) if with.is_empty() && command.words[0] < 4 => {
                let page = self.page(command.words[0].to_le_bytes()[0]);
                let half = if self.is(Wrong::HalfPage) { 2048 } else { 4096 };
                self.say(&data(cid, flag::LAST, 0, &page[..half]))?;
                status(self, 0, Status::SUCCESS)
            }
            (admin::KEEP_ALIVE, _) => match self.shared.deaf.load(Ordering::SeqCst) {
                true => Some(()),
                false => status(self, 0, Status::SUCCESS),
            },
            _ => self.io(command, with),
        }
    }

    /// The next message of authentication.
    fn speak(&mut self, cid: u16) -> Option<()> {
        let word = match &*self.shared.speaker.lock().expect("sound") {
            Some(speaker) => speaker(self.number, &self.heard),
            None => panic!("the host was not asked to authenticate itself"),
        };
        let (mut page, len) = match word {
            Word::Message(message) => (message, identify::PAGE_BYTES),
            Word::Short(message, len) => (message, len),
            Word::Fail(status) => return self.say(&ended(cid, 0, status)),
            Word::Silence => return Some(()),
            Word::Cut => return None,
        };
        page.resize(len, 0);
        self.say(&data(cid, flag::LAST | flag::SUCCESS, 0, &page))
    }

    fn page(&self, structure: u8) -> identify::Page {
        match structure {
            cns::CONTROLLER => {
                let mut page = [0; identify::PAGE_BYTES];
                // 64 KiB at a time; Dataset Management, no Write Zeroes; a cache; 4 KiB in a capsule.
                (page[77], page[520], page[525]) = (4, 1 << 2, 1);
                page[1792..1794].copy_from_slice(&((4096_u16 + 64) / 16).to_le_bytes());
                page
            }
            cns::ACTIVE_NAMESPACES => {
                let none = self.is(Wrong::NoNamespace);
                identify::namespace_list((!none).then_some(1).into_iter(), 0)
            }
            cns::NAMESPACE => identify::Namespace {
                blocks: BLOCKS,
                block_shift: if self.is(Wrong::Blocks) {
                    8
                } else {
                    BLOCK_SHIFT as u8
                },
                preferred_blocks: 2,
                atomic_blocks: 1,
                read_only: false,
            }
            .encode(),
            _ => {
                let changed = self.number > 1 && self.shared.changes.load(Ordering::SeqCst);
                identify::descriptors(&[1 + u8::from(changed); 16])
            }
        }
    }

    fn io(&mut self, command: Command, with: Vec<u8>) -> Option<()> {
        let cid = command.cid;
        let begins = || !self.shared.begun.swap(true, Ordering::SeqCst);
        if command.opcode == opcode::FLUSH && begins() {
            return self.say(&ended(cid, 0, Status::SUCCESS));
        }
        let first = match command.opcode {
            opcode::READ | opcode::WRITE => command.first_block() << BLOCK_SHIFT,
            _ => 0,
        };
        let entry = (command.opcode, first);
        self.shared.asked.lock().expect("sound").push(entry);
        let number = self.shared.count.fetch_add(1, Ordering::SeqCst) + 1;
        match (self.shared.script)(number, command.opcode) {
            Act::Answer => {}
            Act::Fail(status) => return self.say(&ended(cid, 0, status)),
            Act::Silence => return Some(()),
            Act::Cut => return None,
            Act::PowerLoss => {
                self.shared.lose_power();
                return None;
            }
            Act::Say(what) => {
                self.say(&what(&command))?;
                return None;
            }
        }
        let at = usize::try_from(first).expect("small");
        let len = command.data().expect("a descriptor").length() as usize;
        match command.opcode {
            opcode::READ => {
                let bytes = self.shared.data.lock().expect("sound")[at..at + len].to_vec();
                let half = len / 2;
                self.say(&data(cid, 0, 0, &bytes[..half]))?;
                let end = flag::LAST | flag::SUCCESS;
                let half_at = u32::try_from(half).expect("small");
                return self.say(&data(cid, end, half_at, &bytes[half..]));
            }
            opcode::WRITE => {
                let bytes = match command.data() {
                    Ok(Data::InCapsule { .. }) => with,
                    _ => self.fetch(cid, len)?,
                };
                self.shared.data.lock().expect("sound")[at..at + len].copy_from_slice(&bytes);
                if command.fua() {
                    self.shared.durable.lock().expect("sound")[at..at + len]
                        .copy_from_slice(&bytes);
                }
            }
            opcode::FLUSH => {
                let now = self.shared.data.lock().expect("sound").clone();
                *self.shared.durable.lock().expect("sound") = now;
            }
            opcode::DATASET_MANAGEMENT => assert_eq!(with.len(), 16, "one range"),
            other => panic!("{other:#x} was not offered"),
        }
        self.say(&ended(cid, 0, Status::SUCCESS))
    }

    /// Asks for a command's data, in two pieces.
    fn fetch(&mut self, cid: u16, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let cut = len / 3 / 4 * 4;
        for range in [0..cut, cut..len] {
            let number = |at: usize| u32::try_from(at).expect("small");
            self.say(&ready(cid, number(range.start), number(range.len())))?;
            while bytes.len() < range.end {
                let common = Common::decode(self.bytes()?);
                let layout = common
                    .check(Digests::default(), ALIGNMENT)
                    .expect("aligned");
                let rest: [u8; DataHeader::BYTES] = self.bytes()?;
                let header = DataHeader::decode(rest);
                if layout.kind != Kind::H2cData {
                    panic!("only the data that was asked for: one command at a time");
                }
                assert_eq!((header.cid, header.tag), (cid, 5));
                assert_eq!(header.offset as usize, bytes.len());
                assert!(header.length <= 4096, "no more than the limit");
                let _ = self.vec(layout.padding_bytes as usize)?;
                bytes.extend(self.vec(layout.data_bytes as usize)?);
                assert_eq!(common.flags & flag::LAST != 0, bytes.len() == range.end);
            }
        }
        Some(bytes)
    }
}
