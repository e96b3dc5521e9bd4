//! A server for tests that misbehaves on request. It shares a reactor and a virtual clock with its
//! clients, so that a busy machine does not exceed time limits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Buf;
use forebay_io::net::{Address, Listener, Stream};
use forebay_io::{Engine, Reactor, rt};
use forebay_tls::{Channel, Secure, Tls};
use forebay_wire::nbd::context::{BASE_ALLOCATION, BlockStatus, Context, Descriptor};
use forebay_wire::nbd::handshake::{
    Greeting, Info, InfoRequest, OPTION_HEADER_BYTES, OptionHeader, OptionReply, export, flags,
    option, reply,
};
use forebay_wire::nbd::transmission::{
    CHUNK_MAGIC, Chunk, REQUEST_BYTES, Request, SimpleReply, chunk, command, flag,
};

pub(super) const SIZE_BYTES: usize = 4 << 20;
const OFFERED: u16 = export::HAS_FLAGS
    | export::SEND_FLUSH
    | export::SEND_FUA
    | export::SEND_TRIM
    | export::SEND_WRITE_ZEROES;
/// Maximum payload, bytes.
pub(super) const MAX_BYTES: u32 = 64 << 10;

/// Identifier of the context `base:allocation`.
pub(super) const CONTEXT: u32 = 7;

/// Answer of the server to a request.
pub(super) enum Act {
    Answer,
    /// The answer comes after this time, behind others.
    Delay(Duration),
    Fail(u32),
    /// No answer; the connection stays.
    Silence,
    /// The connection ends, and the request is not carried out.
    Cut,
    /// The request is carried out after this time, and then answered if the connection is still
    /// there.
    Slow(Duration),
    /// The connection ends, and the request is carried out after this time.
    Late(Duration),
    /// All connections end, and unflushed changes are lost.
    PowerLoss,
    /// These bytes in place of an answer.
    Say(fn(&Request) -> Vec<u8>),
}

type Script = dyn Fn(u32, u16) -> Act;

/// Properties of the export and the server, which a test may change while clients run.
pub(super) struct Offer {
    pub(super) size_bytes: Cell<u64>,
    pub(super) flags: Cell<u16>,
    pub(super) preferred: Cell<u32>,
    pub(super) structured: Cell<bool>,
    /// Whether the server answers queries for extents, with structured replies.
    pub(super) allocation: Cell<bool>,
    /// Whether all connections are refused.
    pub(super) absent: Cell<bool>,
    /// TLS, which all clients must use then.
    pub(super) tls: RefCell<Option<Tls>>,
}

struct Shared {
    script: Box<Script>,
    /// Number of requests so far.
    count: Cell<u32>,
    /// Whether the flush with which the first device begins was answered. It does not count.
    begun: Cell<bool>,
    asked: RefCell<Vec<(u16, u64)>>,
    data: RefCell<Vec<u8>>,
    /// Content after a power loss.
    durable: RefCell<Vec<u8>>,
    offer: Rc<Offer>,
    open: RefCell<Vec<Rc<Stream>>>,
    /// Number of power losses so far.
    life: Cell<u32>,
    /// Number of connections that carried a request.
    used: Cell<usize>,
}

pub(super) struct Server {
    reactor: Rc<Reactor>,
    port: u16,
    shared: Rc<Shared>,
}

impl Server {
    /// Starts a server. `script` decides about each request by its number (from 1) and command.
    pub(super) fn start(script: impl Fn(u32, u16) -> Act + 'static) -> Self {
        Self::with_seed(1, script)
    }

    /// Like [`Server::start`], with a seed for the order of tasks.
    pub(super) fn with_seed(seed: u64, script: impl Fn(u32, u16) -> Act + 'static) -> Self {
        let reactor = Reactor::simulated(Engine::Threads, seed).expect("a reactor");
        let shared = Rc::new(Shared {
            script: Box::new(script),
            count: Cell::new(0),
            begun: Cell::new(false),
            asked: RefCell::default(),
            data: RefCell::new(vec![0; SIZE_BYTES]),
            durable: RefCell::new(vec![0; SIZE_BYTES]),
            offer: Rc::new(Offer {
                size_bytes: Cell::new(SIZE_BYTES as u64),
                flags: Cell::new(OFFERED),
                preferred: Cell::new(4096),
                structured: Cell::new(false),
                allocation: Cell::new(true),
                absent: Cell::new(false),
                tls: RefCell::default(),
            }),
            open: RefCell::default(),
            life: Cell::new(0),
            used: Cell::new(0),
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

    /// Runs `client` and the server on one reactor.
    pub(super) fn run<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> T {
        self.reactor.run_simulated(client)
    }

    pub(super) fn uri(&self) -> String {
        format!("nbd://127.0.0.1:{}/db", self.port)
    }

    pub(super) fn offer(&self) -> Rc<Offer> {
        Rc::clone(&self.shared.offer)
    }

    /// Returns the requests so far, with their first byte.
    pub(super) fn asked(&self) -> Vec<(u16, u64)> {
        self.shared.asked.borrow().clone()
    }

    /// Returns the number of connections that carried a request.
    pub(super) fn used(&self) -> usize {
        self.shared.used.get()
    }

    /// Returns the byte at `at`.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.shared.data.borrow()[at]
    }

    /// Drops all unflushed changes.
    pub(super) fn lose_power(&self) {
        self.shared.lose_power();
    }
}

impl Shared {
    fn lose_power(&self) {
        self.life.set(self.life.get() + 1);
        let left = self.durable.borrow().clone();
        self.data.replace(left);
    }

    /// Carries out a request. Returns the data of a read.
    fn carry_out(&self, request: &Request, payload: &[u8]) -> Vec<u8> {
        let from = usize::try_from(request.offset).expect("small");
        let range = from..from + request.length as usize;
        let mut data = self.data.borrow_mut();
        match request.command {
            command::READ => return data[range].to_vec(),
            command::BLOCK_STATUS => return status(&data[range]),
            command::WRITE => data[range.clone()].copy_from_slice(payload),
            command::FLUSH => self.durable.borrow_mut().clone_from(&data),
            _ => data[range.clone()].fill(0),
        }
        if request.flags & flag::FUA != 0 {
            self.durable.borrow_mut()[range.clone()].copy_from_slice(&data[range]);
        }
        Vec::new()
    }
}

async fn accept(listener: Listener, shared: Rc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        if shared.offer.absent.get() {
            continue;
        }
        let stream = Rc::new(stream);
        shared.open.borrow_mut().push(Rc::clone(&stream));
        rt::spawn(serve(stream, Rc::clone(&shared)));
    }
}

async fn receive(stream: &impl Channel, len: usize) -> Option<Vec<u8>> {
    if len == 0 {
        return Some(Vec::new());
    }
    let buf = Buf::zeroed(len);
    stream.recv_exact(buf.clone()).await.ok()?;
    Some(buf.to_vec())
}

async fn send(stream: &impl Channel, bytes: &[u8]) -> Option<()> {
    stream.send(&[Buf::copied(bytes)]).await.ok()
}

/// Choice of a client.
enum Chosen {
    Tls,
    /// The export, and whether replies are structured.
    Export(bool),
}

async fn serve(stream: Rc<Stream>, shared: Rc<Shared>) {
    let chosen = match greet(&stream).await {
        Some(()) => negotiate(&*stream, &shared.offer, false).await,
        None => None,
    };
    match chosen {
        Some(Chosen::Export(structured)) => {
            converse(Rc::clone(&stream), &shared, structured).await;
        }
        Some(Chosen::Tls) => serve_securely(&stream, &shared).await,
        None => {}
    }
    stream.shutdown();
}

async fn serve_securely(stream: &Rc<Stream>, shared: &Rc<Shared>) {
    let tls = shared.offer.tls.borrow().clone().expect("it was offered");
    let Ok(secure) = Secure::accept(Rc::clone(stream), &tls).await else {
        return;
    };
    let secure = Rc::new(secure);
    if let Some(Chosen::Export(structured)) = negotiate(&*secure, &shared.offer, true).await {
        converse(secure, shared, structured).await;
    }
}

async fn converse<C: Channel>(channel: Rc<C>, shared: &Rc<Shared>, structured: bool) {
    let mut first = true;
    while transmit(&channel, shared, structured, &mut first)
        .await
        .is_some()
    {}
}

async fn greet(stream: &Stream) -> Option<()> {
    let flags = flags::FIXED_NEWSTYLE | flags::NO_ZEROES;
    send(stream, &Greeting { flags }.encode()).await?;
    receive(stream, 4).await?;
    Some(())
}

/// Negotiates until the client has chosen.
async fn negotiate(channel: &impl Channel, offer: &Offer, is_secure: bool) -> Option<Chosen> {
    let mut structured = false;
    loop {
        let header = receive(channel, OPTION_HEADER_BYTES).await?;
        let header = OptionHeader::decode(&header).expect("an option");
        let data = receive(channel, header.length as usize).await?;
        let (mut out, mut chosen) = (Vec::new(), None);
        let mut say = |kind, data: &[u8]| {
            OptionReply::append(&mut out, header.option, kind, data);
        };
        let wants_tls = offer.tls.borrow().is_some() && !is_secure;
        match header.option {
            option::STARTTLS if wants_tls => {
                say(reply::ACK, &[]);
                chosen = Some(Chosen::Tls);
            }
            _ if wants_tls => say(reply::ERR_TLS_REQD, &[]),
            option::STRUCTURED_REPLY if offer.structured.get() => {
                structured = true;
                say(reply::ACK, &[]);
            }
            option::SET_META_CONTEXT if structured && offer.allocation.get() => {
                let context = Context {
                    id: CONTEXT,
                    name: BASE_ALLOCATION.to_owned(),
                };
                say(reply::META_CONTEXT, &context.encode());
                say(reply::ACK, &[]);
            }
            option::GO => {
                assert_eq!(InfoRequest::decode(&data).expect("GO").name, "db");
                let (size_bytes, flags) = (offer.size_bytes.get(), offer.flags.get());
                say(reply::INFO, &Info::Export { size_bytes, flags }.encode());
                let block = Info::BlockSize {
                    minimum: 1,
                    preferred: offer.preferred.get(),
                    maximum: MAX_BYTES,
                };
                say(reply::INFO, &block.encode());
                say(reply::ACK, &[]);
                chosen = Some(Chosen::Export(structured));
            }
            _ => say(reply::ERR_UNSUP, &[]),
        }
        send(channel, &out).await?;
        if chosen.is_some() {
            return chosen;
        }
    }
}

/// Receives and answers one request. Returns `None` at the end of the connection.
async fn transmit<C: Channel>(
    stream: &Rc<C>,
    shared: &Rc<Shared>,
    structured: bool,
    first: &mut bool,
) -> Option<()> {
    let header = receive(&**stream, REQUEST_BYTES).await?;
    let request = Request::decode(&header).expect("a request");
    let payload = receive(&**stream, request.payload_bytes() as usize).await?;
    if request.command == command::DISC {
        return None;
    }
    if std::mem::take(first) {
        shared.used.set(shared.used.get() + 1);
    }
    let act = match shared.begun.replace(true) {
        false if request.command == command::FLUSH => Act::Answer,
        _ => {
            shared.count.set(shared.count.get() + 1);
            let asked = (request.command, request.offset);
            shared.asked.borrow_mut().push(asked);
            (shared.script)(shared.count.get(), request.command)
        }
    };
    let (error, data) = match act {
        Act::Answer => (0, shared.carry_out(&request, &payload)),
        Act::Delay(time) => {
            let data = shared.carry_out(&request, &payload);
            let (stream, bytes) = (Rc::clone(stream), encode(&request, structured, 0, &data));
            rt::spawn(async move {
                rt::sleep(time).await;
                send(&*stream, &bytes).await;
            });
            return Some(());
        }
        Act::Fail(error) => (error, Vec::new()),
        Act::Silence => return Some(()),
        Act::Cut => return None,
        Act::Slow(after) | Act::Late(after) => {
            let answers = matches!(act, Act::Slow(_));
            let (shared, stream) = (Rc::clone(shared), Rc::clone(stream));
            rt::spawn(async move {
                let life = shared.life.get();
                rt::sleep(after).await;
                // A server that has died carries out nothing.
                if shared.life.get() == life {
                    let data = shared.carry_out(&request, &payload);
                    if answers {
                        send(&*stream, &encode(&request, structured, 0, &data)).await;
                    }
                }
            });
            return answers.then_some(());
        }
        Act::PowerLoss => {
            shared.lose_power();
            for other in shared.open.borrow_mut().drain(..) {
                other.shutdown();
            }
            return None;
        }
        Act::Say(words) => return send(&**stream, &words(&request)).await,
    };
    send(&**stream, &encode(&request, structured, error, &data)).await
}

/// Encodes the status of blocks. Those that are zeroes are holes.
fn status(data: &[u8]) -> Vec<u8> {
    let blocks = data.chunks(512).map(|block| Descriptor {
        length: u32::try_from(block.len()).expect("short"),
        flags: if block.iter().all(|&byte| byte == 0) {
            3
        } else {
            0
        },
    });
    let status = BlockStatus {
        context: CONTEXT,
        descriptors: blocks.collect(),
    };
    status.encode()
}

/// Encodes the reply to a request.
fn encode(request: &Request, structured: bool, error: u32, data: &[u8]) -> Vec<u8> {
    if structured {
        return chunks(request, error, data);
    }
    let cookie = request.cookie;
    let reply = SimpleReply { error, cookie };
    [&reply.encode()[..], data].concat()
}

/// Encodes a structured reply. The data of a read comes in two parts, the second half first. A part
/// of zeroes is a hole.
fn chunks(request: &Request, error: u32, data: &[u8]) -> Vec<u8> {
    let cookie = request.cookie;
    if error != 0 {
        return Chunk::encode_error(cookie, error).to_vec();
    }
    if request.command == command::BLOCK_STATUS {
        return encode_chunk(cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, data);
    }
    let mut out = Vec::new();
    let (one, two) = data.split_at(data.len() / 2);
    for (at, part) in [(one.len(), two), (0, one)] {
        if part.is_empty() {
            continue;
        }
        let is_hole = part.iter().all(|byte| *byte == 0);
        let place = (request.offset + at as u64).to_be_bytes();
        let length = u32::try_from(part.len()).expect("short");
        let payload = match is_hole {
            true => [&place[..], &length.to_be_bytes()].concat(),
            false => [&place[..], part].concat(),
        };
        let kind = match is_hole {
            true => chunk::OFFSET_HOLE,
            false => chunk::OFFSET_DATA,
        };
        out.extend(encode_chunk(cookie, 0, kind, &payload));
    }
    out.extend(encode_chunk(cookie, chunk::FLAG_DONE, chunk::NONE, &[]));
    out
}

/// Encodes a chunk with its payload.
pub(super) fn encode_chunk(cookie: u64, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = Chunk {
        flags,
        kind,
        cookie,
        length: u32::try_from(payload.len()).expect("short"),
    };
    let bytes = header.encode();
    assert!(bytes.starts_with(&CHUNK_MAGIC.to_be_bytes()));
    [&bytes[..], payload].concat()
}
