//! A target for tests that misbehaves on request. It shares a reactor and a virtual clock with its
//! hosts, so that a busy machine does not exceed time limits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::Buf;
use forebay_io::net::{Address, Listener, Stream};
use forebay_io::{Engine, Reactor, rt};
use forebay_wire::nvme::admin::{cns, opcode as admin};
use forebay_wire::nvme::command::COMMAND_BYTES;
use forebay_wire::nvme::fabrics::{self, Property, connected, fctype, property};
use forebay_wire::nvme::io::opcode;
use forebay_wire::nvme::{Command, Data, Status, identify};
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, DataHeader, Digests, Initialize, Kind, flag};

use super::pdu::{data, ended, ready, said};
use super::wrong::Wrong;

const BLOCK_SHIFT: u32 = 12;
const BLOCKS: u64 = 1024;
/// Alignment of data to the target: 16 bytes.
const ALIGNMENT: u8 = 3;

/// Answer of the target to an I/O command.
pub(super) enum Act {
    Answer,
    Fail(Status),
    /// No answer; the connection stays.
    Silence,
    /// The connection ends.
    Cut,
    /// The connection ends, and unflushed changes are lost.
    PowerLoss,
    /// The target sends these bytes and ends the connection.
    Say(fn(&Command) -> Vec<u8>),
}

type Script = dyn Fn(u32, u8) -> Act;

/// Answer to a host that requests an authentication message.
pub(super) enum Word {
    Message(Vec<u8>),
    /// This many bytes of a page.
    Short(Vec<u8>, usize),
    Fail(Status),
    Silence,
    Cut,
}

/// Answers on a connection, by its number (from 0) and the messages of its host.
type Speaker = dyn Fn(usize, &[Vec<u8>]) -> Word;

struct Shared {
    script: Box<Script>,
    /// Number of I/O commands so far.
    count: Cell<u32>,
    /// Whether the flush with which the first device begins was answered. It does not count.
    begun: Cell<bool>,
    asked: RefCell<Vec<(u8, u64)>>,
    /// Authentication side of the target, if it asks for any.
    speaker: RefCell<Option<Box<Speaker>>>,
    /// Authentication messages of the hosts.
    received: RefCell<Vec<Vec<u8>>>,
    /// Commands so far on all queues: the opcode, and the type of a Fabrics command.
    commands: RefCell<Vec<(u8, u8)>>,
    data: RefCell<Vec<u8>>,
    /// Content after a power loss.
    durable: RefCell<Vec<u8>>,
    wrong: Cell<Option<Wrong>>,
    /// Number of connections so far.
    connections: Cell<usize>,
    changes: Cell<bool>,
    deaf: Cell<bool>,
    /// Whether all connections but the first are refused.
    absent: Cell<bool>,
}

impl Shared {
    fn lose_power(&self) {
        let left = self.durable.borrow().clone();
        self.data.replace(left);
    }
}

pub(super) struct Target {
    reactor: Rc<Reactor>,
    port: u16,
    shared: Rc<Shared>,
}

pub(super) struct Absence(Rc<Shared>);

impl Absence {
    pub(super) fn set(&self, absent: bool) {
        self.0.absent.set(absent);
    }
}

impl Target {
    /// Starts a target. `script` decides about each I/O command by its number (from 1) and opcode.
    pub(super) fn start(script: impl Fn(u32, u8) -> Act + 'static) -> Self {
        let reactor = Reactor::simulated(Engine::Threads, 1).expect("a reactor");
        let size = usize::try_from(BLOCKS << BLOCK_SHIFT).expect("small");
        let shared = Rc::new(Shared {
            script: Box::new(script),
            count: Cell::new(0),
            begun: Cell::new(false),
            asked: RefCell::default(),
            speaker: RefCell::default(),
            received: RefCell::default(),
            commands: RefCell::default(),
            data: RefCell::new(vec![0; size]),
            durable: RefCell::new(vec![0; size]),
            wrong: Cell::new(None),
            connections: Cell::new(0),
            changes: Cell::new(false),
            deaf: Cell::new(false),
            absent: Cell::new(false),
        });
        let served = Rc::clone(&shared);
        let port = reactor.within(|| {
            let any = "127.0.0.1:0".parse().expect("an address");
            let listener = Listener::bind(&any).expect("a port");
            let Address::Tcp(address) = listener.address() else {
                unreachable!("it was bound to one");
            };
            rt::spawn(accept(listener, served));
            address.port()
        });
        Self {
            reactor,
            port,
            shared,
        }
    }

    /// Runs `client` and the target on one reactor.
    pub(super) fn run<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> T {
        self.reactor.run_simulated(client)
    }

    pub(super) fn uri(&self) -> String {
        format!("nvme-tcp://127.0.0.1:{}/nqn.test", self.port)
    }

    /// Returns the I/O commands so far, with their first byte.
    pub(super) fn asked(&self) -> Vec<(u8, u64)> {
        self.shared.asked.borrow().clone()
    }

    /// Returns the byte at `at`.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.shared.data.borrow()[at]
    }

    /// Drops all unflushed changes.
    pub(super) fn lose_power(&self) {
        self.shared.lose_power();
    }

    pub(super) fn ignore_keep_alive(&self) {
        self.shared.deaf.set(true);
    }

    pub(super) fn absence(&self) -> Absence {
        Absence(Rc::clone(&self.shared))
    }

    /// Serves another namespace on later connections.
    pub(super) fn change_later(&self) {
        self.shared.changes.set(true);
    }

    /// Returns a switch for [`Target::change_later`] while a client runs.
    pub(super) fn changes(&self) -> impl Fn(bool) + 'static {
        let shared = Rc::clone(&self.shared);
        move |changes| shared.changes.set(changes)
    }

    /// Asks hosts for authentication, with the answers of `speaker`.
    pub(super) fn authenticate(&self, speaker: impl Fn(usize, &[Vec<u8>]) -> Word + 'static) {
        self.shared.speaker.replace(Some(Box::new(speaker)));
    }

    /// Returns the authentication messages so far.
    pub(super) fn received(&self) -> Vec<Vec<u8>> {
        self.shared.received.borrow().clone()
    }

    /// Returns the commands so far on all queues: the opcode, and the type of a Fabrics command.
    pub(super) fn commands(&self) -> Vec<(u8, u8)> {
        self.shared.commands.borrow().clone()
    }

    pub(super) fn wrong(&self, what: Wrong) {
        self.shared.wrong.set(Some(what));
    }
}

async fn accept(listener: Listener, shared: Rc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let number = shared.connections.get();
        shared.connections.set(number + 1);
        if number > 1 && shared.absent.get() {
            continue;
        }
        let mut peer = Peer {
            stream,
            shared: Rc::clone(&shared),
            number,
            received: Vec::new(),
        };
        rt::spawn(async move { while peer.pdu().await.is_some() {} });
    }
}

/// Target side of a connection.
struct Peer {
    stream: Stream,
    shared: Rc<Shared>,
    /// Number of the connection, from 0.
    number: usize,
    received: Vec<Vec<u8>>,
}

impl Peer {
    async fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.vec(N).await?;
        Some(bytes.try_into().expect("as many"))
    }

    async fn vec(&mut self, len: usize) -> Option<Vec<u8>> {
        if len == 0 {
            return Some(Vec::new());
        }
        let buf = Buf::zeroed(len);
        self.stream.recv_exact(buf.clone()).await.ok()?;
        Some(buf.to_vec())
    }

    async fn say(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.send(&[Buf::copied(bytes)]).await.ok()
    }

    fn is(&self, what: Wrong) -> bool {
        self.shared.wrong.get() == Some(what)
    }

    async fn pdu(&mut self) -> Option<()> {
        let common = Common::decode(self.bytes::<COMMON_BYTES>().await?);
        let layout = common.check(Digests::default(), ALIGNMENT);
        let layout = layout.expect("what makes sense");
        match layout.kind {
            Kind::IcReq => {
                Initialize::decode(self.bytes().await?).expect("what makes sense");
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
                    true => self.say(b"HTTP/1.1 400 Bad Request\r\n").await,
                    false => {
                        self.say(&said(Kind::IcResp, 0, &answer.encode(), &[]))
                            .await
                    }
                }
            }
            Kind::CapsuleCmd => {
                let command = Command::decode(self.bytes::<COMMAND_BYTES>().await?);
                let _ = self.vec(layout.padding_bytes as usize).await?;
                let data = self.vec(layout.data_bytes as usize).await?;
                self.command(command, data).await
            }
            kind => panic!("{kind:?} was not asked for"),
        }
    }

    async fn end(&mut self, cid: u16, result: u64, status: Status) -> Option<()> {
        self.say(&ended(cid, result, status)).await
    }

    async fn command(&mut self, command: Command, with: Vec<u8>) -> Option<()> {
        let cid = command.cid;
        let kind = (command.opcode, command.nsid.to_le_bytes()[0]);
        self.shared.commands.borrow_mut().push(kind);
        match kind {
            (fabrics::OPCODE, fctype::CONNECT) => match () {
                () if self.is(Wrong::Host) => self.end(cid, 0, Status::CONNECT_INVALID_HOST).await,
                () if self.is(Wrong::Subsystem) => {
                    self.end(cid, 0x1_0100, Status::CONNECT_INVALID_PARAMETERS)
                        .await
                }
                () => {
                    let speaks = self.shared.speaker.borrow().is_some();
                    let asks = speaks || self.is(Wrong::Secrets);
                    self.end(cid, connected(1, asks), Status::SUCCESS).await
                }
            },
            (fabrics::OPCODE, fctype::AUTHENTICATION_SEND) => {
                self.shared.received.borrow_mut().push(with.clone());
                self.received.push(with);
                self.end(cid, 0, Status::SUCCESS).await
            }
            (fabrics::OPCODE, fctype::AUTHENTICATION_RECEIVE) => self.speak(cid).await,
            (fabrics::OPCODE, fctype::PROPERTY_GET) => {
                let value = match Property::of(&command).offset {
                    // 8 entries; ready within half a second.
                    property::CAP => 7 | 1 << 24,
                    _ if self.is(Wrong::Failed) => 0b11,
                    _ => u64::from(!self.is(Wrong::NotReady)),
                };
                self.end(cid, value, Status::SUCCESS).await
            }
            (fabrics::OPCODE, _) => self.end(cid, 0, Status::SUCCESS).await,
            (admin::IDENTIFY, _) if with.is_empty() && command.words[0] < 4 => {
                let page = self.page(command.words[0].to_le_bytes()[0]);
                let half = if self.is(Wrong::HalfPage) { 2048 } else { 4096 };
                self.say(&data(cid, flag::LAST, 0, &page[..half])).await?;
                self.end(cid, 0, Status::SUCCESS).await
            }
            (admin::KEEP_ALIVE, _) => match self.shared.deaf.get() {
                true => Some(()),
                false => self.end(cid, 0, Status::SUCCESS).await,
            },
            _ => self.io(command, with).await,
        }
    }

    /// Sends the next authentication message.
    async fn speak(&mut self, cid: u16) -> Option<()> {
        let word = match &*self.shared.speaker.borrow() {
            Some(speaker) => speaker(self.number, &self.received),
            None => panic!("the host was not asked to authenticate itself"),
        };
        let (mut page, len) = match word {
            Word::Message(message) => (message, identify::PAGE_BYTES),
            Word::Short(message, len) => (message, len),
            Word::Fail(status) => return self.say(&ended(cid, 0, status)).await,
            Word::Silence => return Some(()),
            Word::Cut => return None,
        };
        page.resize(len, 0);
        self.say(&data(cid, flag::LAST | flag::SUCCESS, 0, &page))
            .await
    }

    fn page(&self, structure: u8) -> identify::Page {
        match structure {
            cns::CONTROLLER => {
                let mut page = [0; identify::PAGE_BYTES];
                // 64 KiB at most; Dataset Management, no Write Zeroes; a cache; 4 KiB in a capsule.
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
                let changed = self.number > 1 && self.shared.changes.get();
                identify::descriptors(&[1 + u8::from(changed); 16])
            }
        }
    }

    async fn io(&mut self, command: Command, with: Vec<u8>) -> Option<()> {
        let cid = command.cid;
        let begins = || !self.shared.begun.replace(true);
        if command.opcode == opcode::FLUSH && begins() {
            return self.say(&ended(cid, 0, Status::SUCCESS)).await;
        }
        let first = match command.opcode {
            opcode::READ | opcode::WRITE => command.first_block() << BLOCK_SHIFT,
            _ => 0,
        };
        let entry = (command.opcode, first);
        self.shared.asked.borrow_mut().push(entry);
        let number = self.shared.count.get() + 1;
        self.shared.count.set(number);
        match (self.shared.script)(number, command.opcode) {
            Act::Answer => {}
            Act::Fail(status) => return self.say(&ended(cid, 0, status)).await,
            Act::Silence => return Some(()),
            Act::Cut => return None,
            Act::PowerLoss => {
                self.shared.lose_power();
                return None;
            }
            Act::Say(what) => {
                self.say(&what(&command)).await?;
                return None;
            }
        }
        let at = usize::try_from(first).expect("small");
        let len = command.data().expect("a descriptor").length() as usize;
        match command.opcode {
            opcode::READ => {
                let bytes = self.shared.data.borrow()[at..at + len].to_vec();
                let half = len / 2;
                self.say(&data(cid, 0, 0, &bytes[..half])).await?;
                let end = flag::LAST | flag::SUCCESS;
                let half_at = u32::try_from(half).expect("small");
                return self.say(&data(cid, end, half_at, &bytes[half..])).await;
            }
            opcode::WRITE => {
                let bytes = match command.data() {
                    Ok(Data::InCapsule { .. }) => with,
                    _ => self.fetch(cid, len).await?,
                };
                self.shared.data.borrow_mut()[at..at + len].copy_from_slice(&bytes);
                if command.fua() {
                    self.shared.durable.borrow_mut()[at..at + len].copy_from_slice(&bytes);
                }
            }
            opcode::FLUSH => {
                let now = self.shared.data.borrow().clone();
                self.shared.durable.replace(now);
            }
            opcode::DATASET_MANAGEMENT => assert_eq!(with.len(), 16, "one range"),
            other => panic!("{other:#x} was not offered"),
        }
        self.say(&ended(cid, 0, Status::SUCCESS)).await
    }

    /// Requests a command's data, in two pieces.
    async fn fetch(&mut self, cid: u16, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let cut = len / 3 / 4 * 4;
        for range in [0..cut, cut..len] {
            let number = |at: usize| u32::try_from(at).expect("small");
            self.say(&ready(cid, number(range.start), number(range.len())))
                .await?;
            while bytes.len() < range.end {
                let common = Common::decode(self.bytes().await?);
                let layout = common
                    .check(Digests::default(), ALIGNMENT)
                    .expect("aligned");
                let rest: [u8; DataHeader::BYTES] = self.bytes().await?;
                let header = DataHeader::decode(rest);
                if layout.kind != Kind::H2cData {
                    panic!("only the data that was asked for: one command at a time");
                }
                assert_eq!((header.cid, header.tag), (cid, 5));
                assert_eq!(header.offset as usize, bytes.len());
                assert!(header.length <= 4096, "no more than the limit");
                let _ = self.vec(layout.padding_bytes as usize).await?;
                bytes.extend(self.vec(layout.data_bytes as usize).await?);
                assert_eq!(common.flags & flag::LAST != 0, bytes.len() == range.end);
            }
        }
        Some(bytes)
    }
}
