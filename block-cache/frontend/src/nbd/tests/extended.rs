//! Extended headers: lengths of 64 bits, and replies with one header.

use std::cell::RefCell;
use std::ops::Range;

use forebay_block::{Allocation, Extents, ExtentsFuture, Op};
use forebay_wire::nbd::context::{BASE_ALLOCATION, ContextRequest, ExtendedStatus};
use forebay_wire::nbd::errno::EINVAL;
use forebay_wire::nbd::extended::{EXTENDED_CHUNK_BYTES, ExtendedChunk, ExtendedRequest};
use forebay_wire::nbd::handshake::{OptionReply, reply};
use forebay_wire::nbd::transmission::{chunk, command, flag};

use super::*;

const TIB: u64 = 1 << 40;

/// Changes that reached a device: the operation, the first byte and the length.
type Changes = Rc<RefCell<Vec<(Op, u64, u64)>>>;

/// A device of 8 TiB that records changes. It reads as sevens, and says that it is a hole.
struct Recorder(Changes);

/// Time of a write of zeroes.
const ZEROES: Duration = Duration::from_millis(1);

impl BlockDevice for Recorder {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("recorder", 8 * TIB)
    }

    fn submit(&self, request: Request, done: Completion) {
        match (request.op, &request.buf) {
            (Op::Read, Some(buf)) => buf.fill(7),
            (op, _) => self.0.borrow_mut().push((op, request.offset, request.len)),
        }
        if !matches!(request.op, Op::WriteZeroes { .. }) {
            return done.complete(Ok(()));
        }
        rt::spawn(async move {
            rt::sleep(ZEROES).await;
            done.complete(Ok(()));
        });
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        let mut extents = Extents::default();
        extents.push(range, Allocation::Hole);
        Box::pin(std::future::ready(Ok(extents)))
    }
}

/// A client after the greeting.
struct Client(Stream);

impl Client {
    async fn say(&self, bytes: &[u8]) {
        self.0.send(&[Buf::copied(bytes)]).await.expect("it reads");
    }

    async fn hear(&self, len: usize) -> Vec<u8> {
        let bytes = Buf::scratch(len);
        let heard = self.0.recv_exact(bytes.clone()).await;
        heard.expect("it answers");
        bytes.to_vec()
    }

    /// Sends an option. Returns the kind of the last reply.
    async fn option(&self, option: u32, data: &[u8]) -> u32 {
        let length = u32::try_from(data.len()).expect("short");
        let header = OptionHeader { option, length }.encode();
        self.say(&[&header[..], data].concat()).await;
        loop {
            let header = self.hear(OPTION_REPLY_BYTES).await;
            let header = OptionReply::decode(&header).expect("a reply");
            if header.length > 0 {
                self.hear(header.length as usize).await;
            }
            if ![reply::INFO, reply::META_CONTEXT].contains(&header.kind) {
                return header.kind;
            }
        }
    }

    /// Sends a request with data. Returns the kind of the chunk in the answer, and its payload.
    async fn request(&self, request: ExtendedRequest, data: &[u8]) -> (u16, Vec<u8>) {
        self.say(&[&request.encode()[..], data].concat()).await;
        let header = self.hear(EXTENDED_CHUNK_BYTES).await;
        let header = ExtendedChunk::decode(&header).expect("a chunk");
        let own = (chunk::FLAG_DONE, request.cookie, request.offset);
        assert_eq!((header.flags, header.cookie, header.offset), own);
        let payload = match usize::try_from(header.length).expect("short") {
            0 => Vec::new(),
            len => self.hear(len).await,
        };
        (header.kind, payload)
    }
}

/// Runs a client on a server with extended headers.
fn with_client<F: Future<Output = ()>>(client: impl FnOnce(Client, Changes) -> F + 'static) {
    let reactor = Reactor::simulated(Engine::Auto, 1).expect("a reactor");
    reactor.run_simulated(async move {
        let changes = Changes::default();
        let volume = Volume::new("v", Rc::new(Recorder(Rc::clone(&changes))), false);
        let exports = Arc::new(Exports::new());
        exports.add(volume.handle(), "").expect("a free name");
        let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&any).expect("a port");
        let address = listener.address();
        rt::spawn(async move {
            serve(listener, exports).await.expect("the server goes on");
        });
        let stream = Stream::connect(&address).await.expect("it listens");
        let one = Client(stream);
        one.hear(GREETING_BYTES).await;
        one.say(&[0, 0, 0, 3]).await;
        client(one, changes).await;
    });
}

const fn request(command: u16, flags: u16, offset: u64, length: u64) -> ExtendedRequest {
    ExtendedRequest {
        flags,
        command,
        cookie: offset ^ 0xc0ffee,
        offset,
        length,
    }
}

fn error(number: u32) -> (u16, Vec<u8>) {
    let payload = [&number.to_be_bytes()[..], &[0, 0]].concat();
    (chunk::ERROR, payload)
}

#[test]
fn requests_have_lengths_of_64_bits() {
    with_client(|client, changes| async move {
        let query = ContextRequest {
            name: "v".to_owned(),
            queries: vec![BASE_ALLOCATION.to_owned()],
        };
        let go = InfoRequest {
            name: "v".to_owned(),
            wanted: vec![],
        };
        for (option, data, expected) in [
            (option::EXTENDED_HEADERS, vec![1], reply::ERR_INVALID),
            (option::EXTENDED_HEADERS, vec![], reply::ACK),
            (option::STRUCTURED_REPLY, vec![], reply::ERR_EXT_HEADER_REQD),
            (option::SET_META_CONTEXT, query.encode(), reply::ACK),
            (option::GO, go.encode(), reply::ACK),
        ] {
            let kind = client.option(option, &data).await;
            assert_eq!(kind, expected, "option {option}");
        }
        let ask = async |command, flags, offset, length, data: &[u8]| {
            let request = request(command, flags, offset, length);
            client.request(request, data).await
        };
        let none = (chunk::NONE, Vec::new());
        let with_data = flag::PAYLOAD_LEN;
        let written = ask(command::WRITE, with_data, 4096, 1024, &[1; 1024]).await;
        assert_eq!(written, none);
        let (kind, payload) = ask(command::READ, 0, 8192, 512, &[]).await;
        assert_eq!((kind, payload.len()), (chunk::OFFSET_DATA, 8 + 512));
        assert_eq!(payload[..8], 8192_u64.to_be_bytes());
        assert!(payload[8..].iter().all(|byte| *byte == 7));
        // Longer than 4 GiB.
        let zeroed = ask(command::WRITE_ZEROES, flag::FUA, TIB, 5 << 30, &[]).await;
        assert_eq!(zeroed, none);
        assert_eq!(ask(command::TRIM, 0, 2 * TIB, 6 << 30, &[]).await, none);
        let (kind, status) = ask(command::BLOCK_STATUS, 0, 0, 8 * TIB, &[]).await;
        assert_eq!(kind, chunk::BLOCK_STATUS_EXT);
        let status = ExtendedStatus::decode(&status).expect("a status");
        assert_eq!(
            status.descriptors,
            [(4 << 30, 3)],
            "an answer may cover less"
        );
        let [write, rest @ ..] = &changes.take()[..] else {
            panic!("nothing was written");
        };
        assert_eq!(*write, (Op::Write { fua: false }, 4096, 1024));
        let sum = |zeroes: bool| {
            let of = |op: &Op| matches!(op, Op::WriteZeroes { fua: true, .. }) == zeroes;
            let own = rest.iter().filter(|(op, ..)| of(op));
            own.fold(
                Vec::new(),
                |mut ranges: Vec<(u64, u64)>, (_, offset, len)| {
                    match ranges.last_mut() {
                        Some((_, end)) if end == offset => *end += len,
                        _ => ranges.push((*offset, offset + len)),
                    }
                    ranges
                },
            )
        };
        assert_eq!(sum(true), [(TIB, TIB + (5 << 30))]);
        assert_eq!(sum(false), [(2 * TIB, 2 * TIB + (6 << 30))]);
    });
}

/// Negotiates extended headers, and begins the transmission.
async fn begin(client: &Client) {
    client.option(option::EXTENDED_HEADERS, &[]).await;
    let go = InfoRequest {
        name: "v".to_owned(),
        wanted: vec![],
    };
    client.option(option::GO, &go.encode()).await;
}

#[test]
fn wrong_requests_are_answered_and_the_stream_stays_in_step() {
    with_client(|client, changes| async move {
        begin(&client).await;
        let data = [9; 512];
        let with_data = flag::PAYLOAD_LEN;
        for (wrong, data) in [
            // Data that the command does not take.
            (request(command::READ, with_data, 0, 512), &data[..]),
            (request(command::WRITE_ZEROES, with_data, 0, 512), &data),
            (request(command::BLOCK_STATUS, with_data, 0, 512), &data),
            // A write without data.
            (request(command::WRITE, 0, 0, 512), &[]),
            (request(command::WRITE, with_data, 0, 0), &[]),
            // Too long for one answer.
            (request(command::READ, 0, 0, 1 << 33), &[]),
            (request(command::CACHE, 0, 0, u64::MAX), &[]),
            (request(99, 0, 0, 512), &[]),
        ] {
            let answer = client.request(wrong, data).await;
            assert_eq!(answer, error(EINVAL), "{wrong:?}");
        }
        let (kind, _) = client
            .request(request(command::TRIM, 0, 8 * TIB, 512), &[])
            .await;
        assert_eq!(kind, chunk::ERROR, "it lies beyond the end");
        let flushed = client.request(request(command::FLUSH, 0, 0, 0), &[]).await;
        assert_eq!(flushed, (chunk::NONE, Vec::new()));
        assert!(changes.take().iter().all(|(op, ..)| *op == Op::Flush));
        // More data than a request may have ends the connection.
        client
            .say(&request(command::WRITE, with_data, 0, 1 << 32).encode())
            .await;
        assert!(closes(client.0, HANDSHAKE_TIMEOUT).await);
    });
}

#[test]
fn a_long_request_ends_with_its_client() {
    with_client(|client, changes| async move {
        begin(&client).await;
        // More than 4,000 pieces.
        let zeroes = request(command::WRITE_ZEROES, 0, 0, 4 * TIB + 4096);
        client.say(&zeroes.encode()).await;
        rt::sleep(20 * ZEROES).await;
        drop(client);
        rt::sleep(100 * ZEROES).await;
        let so_far = changes.borrow().len();
        assert!((1..1000).contains(&so_far), "{so_far}");
        rt::sleep(1000 * ZEROES).await;
        assert_eq!(changes.borrow().len(), so_far);
    });
}

#[test]
fn an_export_by_name_alone_is_refused_with_extended_headers() {
    with_client(|client, _| async move {
        client.option(option::EXTENDED_HEADERS, &[]).await;
        let header = OptionHeader {
            option: option::EXPORT_NAME,
            length: 1,
        };
        client.say(&[&header.encode()[..], b"v"].concat()).await;
        assert!(closes(client.0, HANDSHAKE_TIMEOUT).await);
    });
}
