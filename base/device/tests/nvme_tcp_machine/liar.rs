//! A target that knows the protocol, and breaks it as its script says.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_wire::nvme::admin::{cns, opcode as admin};
use forebay_wire::nvme::auth::{ControllerMessage, Group, Hash, HostMessage};
use forebay_wire::nvme::command::COMMAND_BYTES;
use forebay_wire::nvme::fabrics::{self, Property, connected, fctype, property};
use forebay_wire::nvme::io::opcode;
use forebay_wire::nvme::{Command, Completion, Data, Status, identify};
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, DataHeader, Digests, Initialize, Kind, flag};

pub(crate) const SIZE_BYTES: usize = 1 << 20;
const BLOCK_SHIFT: u8 = 12;
/// Maximum message of a host, bytes. A host that is tricked into sending more is disconnected.
const MOST_BYTES: u32 = 256 << 10;
/// Script bytes from here on are a lie each; those below are the truth.
const LIE: u8 = 0xa0;
/// Most changed bytes lie within this length: the header, and the used part of a page or message.
const HEADER_BYTES: usize = 32;

/// Source of lies; the truth follows the last one.
#[derive(Default)]
struct Script {
    bytes: Vec<u8>,
    at: usize,
    lies: usize,
}

impl Script {
    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn below(&mut self, below: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % below.max(1)
    }
}

struct Shared {
    script: Mutex<Script>,
    data: Mutex<Vec<u8>>,
    /// Whether hosts must authenticate themselves.
    asks: bool,
    /// Open connections. `None` stops the target from accepting more.
    open: Mutex<Option<Vec<TcpStream>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Liar {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

impl Liar {
    /// Starts a target that lies as `script` says.
    pub(crate) fn start(script: &[u8], asks: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            script: Mutex::new(Script {
                bytes: script.to_vec(),
                ..Script::default()
            }),
            data: Mutex::new(vec![0; SIZE_BYTES]),
            asks,
            open: Mutex::new(Some(Vec::new())),
        });
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                match (&mut *lock(&served.open), stream.try_clone()) {
                    (Some(open), Ok(copy)) => open.push(copy),
                    _ => return,
                }
                let shared = Arc::clone(&served);
                std::thread::spawn(move || {
                    let mut peer = Peer {
                        stream,
                        shared,
                        heard: Vec::new(),
                    };
                    while peer.pdu().is_some() {}
                    let _ = peer.stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, shared }
    }

    /// Returns the number of lies so far.
    pub(crate) fn lies(&self) -> usize {
        lock(&self.shared.script).lies
    }

    /// Stops lying.
    pub(crate) fn repent(&self) {
        lock(&self.shared.script).bytes.clear();
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        for stream in lock(&self.shared.open).take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // One more connection wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

struct Peer {
    stream: TcpStream,
    shared: Arc<Shared>,
    /// Transaction of each authentication message.
    heard: Vec<u16>,
}

/// Encodes a PDU, without digests.
fn said(kind: Kind, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    let common = Common::new(kind, flags, length, Digests::default(), 0);
    [&common.encode()[..], rest, data].concat()
}

fn header(cid: u16, offset: usize, length: usize) -> [u8; DataHeader::BYTES] {
    let number = |number: usize| u32::try_from(number).expect("small");
    DataHeader {
        cid,
        tag: 5,
        offset: number(offset),
        length: number(length),
    }
    .encode()
}

impl Peer {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn vec(&mut self, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len.min(MOST_BYTES)).ok()?];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Sends a PDU, or the lie that the script makes of it.
    fn say(&mut self, mut pdu: Vec<u8>) -> Option<()> {
        let goes_on = {
            let mut script = lock(&self.shared.script);
            match script.byte() {
                ..LIE => true,
                how => {
                    script.lies += 1;
                    lie(how, &mut pdu, &mut script)
                }
            }
        };
        self.stream.write_all(&pdu).ok()?;
        goes_on.then_some(())
    }

    fn end(&mut self, cid: u16, result: u64, status: Status) -> Option<()> {
        let completion = Completion {
            result,
            sq_head: 0,
            sq_id: 0,
            cid,
            status,
        };
        self.say(said(Kind::CapsuleResp, 0, &completion.encode(), &[]))
    }

    fn page(&mut self, cid: u16, page: &[u8]) -> Option<()> {
        let header = header(cid, 0, page.len());
        self.say(said(Kind::C2hData, flag::LAST, &header, page))?;
        self.end(cid, 0, Status::SUCCESS)
    }

    fn pdu(&mut self) -> Option<()> {
        let common = Common::decode(self.bytes::<COMMON_BYTES>()?);
        let layout = common.check(Digests::default(), 0).ok()?;
        match layout.kind {
            Kind::IcReq => {
                let _ = self.bytes::<{ Initialize::BYTES }>()?;
                let answer = Initialize {
                    version: 0,
                    alignment: 0,
                    digests: Digests::default(),
                    limit: 4096,
                };
                self.say(said(Kind::IcResp, 0, &answer.encode(), &[]))
            }
            Kind::CapsuleCmd => {
                let command = Command::decode(self.bytes::<COMMAND_BYTES>()?);
                let _ = self.vec(layout.padding_bytes)?;
                let with = self.vec(layout.data_bytes)?;
                self.command(command, with)
            }
            // Data that was requested by a lie, or the last PDU of the host.
            _ => None,
        }
    }

    fn command(&mut self, command: Command, with: Vec<u8>) -> Option<()> {
        let cid = command.cid;
        match (command.opcode, command.nsid.to_le_bytes()[0]) {
            (fabrics::OPCODE, fctype::CONNECT) => {
                self.end(cid, connected(1, self.shared.asks), Status::SUCCESS)
            }
            (fabrics::OPCODE, fctype::PROPERTY_GET) => {
                let value = match Property::of(&command).offset {
                    property::CAP => 7 | 1 << 24,
                    _ => 1,
                };
                self.end(cid, value, Status::SUCCESS)
            }
            (fabrics::OPCODE, fctype::AUTHENTICATION_SEND) => {
                self.heard.push(HostMessage::decode(&with).ok()?.0);
                self.end(cid, 0, Status::SUCCESS)
            }
            (fabrics::OPCODE, fctype::AUTHENTICATION_RECEIVE) => {
                let hash = Hash::Sha256;
                let message = match self.heard.len() {
                    0 | 1 => ControllerMessage::Challenge {
                        hash,
                        group: Group::Null,
                        sequence: 1,
                        value: &[1; 32],
                        public: &[],
                    },
                    _ => ControllerMessage::Success1 {
                        hash,
                        response: None,
                    },
                };
                let mut page = message.encode(*self.heard.first()?);
                page.resize(identify::PAGE_BYTES, 0);
                self.page(cid, &page)
            }
            (fabrics::OPCODE, _) => self.end(cid, 0, Status::SUCCESS),
            (admin::IDENTIFY, _) if with.is_empty() && command.words[0] < 4 => {
                let page = identified(command.words[0].to_le_bytes()[0]);
                self.page(cid, &page)
            }
            (admin::KEEP_ALIVE, _) => self.end(cid, 0, Status::SUCCESS),
            _ => self.io(&command, &with),
        }
    }

    fn io(&mut self, command: &Command, with: &[u8]) -> Option<()> {
        let cid = command.cid;
        let at = usize::try_from(command.first_block() << BLOCK_SHIFT).ok()?;
        let len = command.data().ok()?.length() as usize;
        let range = at..at.checked_add(len)?;
        match command.opcode {
            opcode::READ => {
                let bytes = lock(&self.shared.data).get(range)?.to_vec();
                let half = len / 2;
                let first = said(Kind::C2hData, 0, &header(cid, 0, half), &bytes[..half]);
                self.say(first)?;
                let end = flag::LAST | flag::SUCCESS;
                let rest = header(cid, half, len - half);
                return self.say(said(Kind::C2hData, end, &rest, &bytes[half..]));
            }
            opcode::WRITE => {
                let bytes = match command.data() {
                    Ok(Data::InCapsule { .. }) => with.to_vec(),
                    _ => self.fetch(cid, len)?,
                };
                lock(&self.shared.data)
                    .get_mut(range)?
                    .copy_from_slice(bytes.get(..len)?);
            }
            _ => {}
        }
        self.end(cid, 0, Status::SUCCESS)
    }

    /// Requests a command's data, in two pieces.
    fn fetch(&mut self, cid: u16, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let cut = len / 3 / 4 * 4;
        for (from, to) in [(0, cut), (cut, len)] {
            self.say(said(Kind::R2t, 0, &header(cid, from, to - from), &[]))?;
            while bytes.len() < to {
                let layout = Common::decode(self.bytes()?).check(Digests::default(), 0);
                let layout = layout.ok().filter(|it| it.kind == Kind::H2cData)?;
                let _ = self.bytes::<{ DataHeader::BYTES }>()?;
                let _ = self.vec(layout.padding_bytes)?;
                bytes.extend(self.vec(layout.data_bytes)?);
            }
        }
        Some(bytes)
    }
}

fn identified(structure: u8) -> identify::Page {
    match structure {
        cns::CONTROLLER => {
            let mut page = [0; identify::PAGE_BYTES];
            // 64 KiB at most; Dataset Management, no Write Zeroes; a cache; 4 KiB in a capsule.
            (page[77], page[520], page[525]) = (4, 1 << 2, 1);
            page[1792..1794].copy_from_slice(&((4096_u16 + 64) / 16).to_le_bytes());
            page
        }
        cns::ACTIVE_NAMESPACES => identify::namespace_list(Some(1).into_iter(), 0),
        cns::NAMESPACE => identify::Namespace {
            blocks: (SIZE_BYTES >> BLOCK_SHIFT) as u64,
            block_shift: BLOCK_SHIFT,
            preferred_blocks: 1,
            atomic_blocks: 1,
            read_only: false,
        }
        .encode(),
        _ => identify::descriptors(&[1; 16]),
    }
}

/// Turns a PDU into a lie. Returns whether the connection continues.
fn lie(how: u8, pdu: &mut Vec<u8>, script: &mut Script) -> bool {
    let near = script.below(pdu.len().min(HEADER_BYTES));
    let far = script.below(pdu.len());
    match how % 12 {
        0..5 => pdu[near] ^= script.byte().max(1),
        5 => pdu[far] ^= script.byte().max(1),
        6 => {
            pdu.truncate(far);
            return false;
        }
        7 => pdu.extend_from_within(..),
        8 => pdu.splice(near..near, [script.byte(); 4]).for_each(drop),
        // Nothing is sent, and the connection stays.
        9 => pdu.clear(),
        10 => pdu.fill(script.byte()),
        _ => {
            pdu.clear();
            return false;
        }
    }
    true
}
