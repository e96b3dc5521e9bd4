//! Replies and greetings, of servers that refuse or lie.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use forebay_io::net::Address;
use forebay_wire::nbd::errno::{EIO, ENOSPC};
use forebay_wire::nbd::handshake::{
    Greeting, Info, InfoRequest, OPTION_HEADER_BYTES, OptionHeader, OptionReply, flags, option,
    reply,
};
use forebay_wire::nbd::transmission::{Request, SimpleReply, chunk};

use super::server::encode_chunk;
use super::*;

/// Server side of one handshake.
struct Peer(UnixStream);

impl Peer {
    /// Greets, refuses structured replies, and returns the name of the export.
    fn greet(&mut self) -> String {
        let greeting = Greeting {
            flags: flags::FIXED_NEWSTYLE | flags::NO_ZEROES,
        };
        self.0.write_all(&greeting.encode()).expect("sent");
        let mut said = [0; 4];
        self.0.read_exact(&mut said).expect("received");
        assert_eq!(said, [0, 0, 0, 3]);
        loop {
            let mut header = [0; OPTION_HEADER_BYTES];
            self.0.read_exact(&mut header).expect("received");
            let header = OptionHeader::decode(&header).expect("an option");
            let mut data = vec![0; header.length as usize];
            self.0.read_exact(&mut data).expect("received");
            if header.option == option::GO {
                return InfoRequest::decode(&data).expect("GO").name;
            }
            let mut out = Vec::new();
            OptionReply::append(&mut out, header.option, reply::ERR_UNSUP, &[]);
            self.0.write_all(&out).expect("sent");
        }
    }

    fn reply(&mut self, kind: u32, data: &[u8]) {
        let mut out = Vec::new();
        OptionReply::append(&mut out, option::GO, kind, data);
        self.0.write_all(&out).expect("sent");
    }
}

fn play(name: &str, script: impl FnOnce(Peer) + Send + 'static) -> (Uri, JoinHandle<()>) {
    let unique = format!("fb-nbd-{name}-{}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(unique);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    let uri = format!("nbd+unix:///db?socket={}", path.display());
    let uri: Uri = uri.parse().expect("a URI");
    assert_eq!(uri.address, Address::Unix(path.clone()));
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let _ = std::fs::remove_file(&path);
        script(Peer(stream));
    });
    (uri, thread)
}

fn connect<T: 'static>(
    uri: Uri,
    client: impl AsyncFnOnce(Result<Rc<NbdDevice>>) -> T + 'static,
) -> T {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move { client(NbdDevice::connect(&uri).await).await })
}

#[test]
fn connection_errors_name_the_cause() {
    type Script = fn(Peer);
    let scripts: [(&str, Script, &str); 4] = [
        (
            "unknown",
            |mut peer| {
                assert_eq!(peer.greet(), "db");
                peer.reply(reply::ERR_UNKNOWN, b"sorry");
            },
            "`nbdinfo --list` (message of the server: \"sorry\")",
        ),
        (
            "tls",
            |mut peer| {
                peer.greet();
                peer.reply(reply::ERR_TLS_REQD, &[]);
            },
            "the server requires TLS",
        ),
        (
            "garbage",
            |mut peer| {
                let _ = peer.0.write_all(b"HTTP/1.1 400 Bad Request\r\n");
                let _ = peer.0.read(&mut [0]);
            },
            "newstyle",
        ),
        (
            "blocks",
            |mut peer| {
                peer.greet();
                let block = Info::BlockSize {
                    minimum: 3,
                    preferred: 4096,
                    maximum: 8192,
                };
                peer.reply(reply::INFO, &block.encode());
                let _ = peer.0.read(&mut [0]);
            },
            "blocks of 3 to 8192 bytes are not supported",
        ),
    ];
    for (name, script, words) in scripts {
        let (uri, server) = play(name, script);
        let shown = uri.to_string();
        let error = connect(uri, async |made| made.err()).expect(words);
        let report = error.report();
        assert!(report.contains(words), "{report}");
        assert!(report.contains(&shown), "{report}");
        server.join().expect("as the script says");
    }
    let unserved: Uri = "nbd+unix:///x?socket=/nonexistent".parse().expect("a URI");
    let error = connect(unserved, async |made| made.err()).expect("no server");
    let report = error.report();
    assert!(
        report.contains("nbd+unix:///x?socket=/nonexistent"),
        "{report}"
    );
}

#[test]
fn a_read_only_export_refuses_writes() {
    let (uri, server) = play("read-only", |mut peer| {
        peer.greet();
        let flags = export::HAS_FLAGS | export::SEND_FLUSH | export::READ_ONLY;
        // Whole blocks only.
        let size_bytes = (1 << 20) + 100;
        peer.reply(reply::INFO, &Info::Export { size_bytes, flags }.encode());
        peer.reply(reply::ACK, &[]);
        // Not even a flush is sent to it.
        let mut said = Vec::new();
        peer.0.read_to_end(&mut said).expect("the end");
        assert_eq!(said.get(4..8), Some(&[0, 0, 0, command::DISC as u8][..]));
    });
    connect(uri, async |made| {
        let device = made.expect("connected");
        assert_eq!(device.info().size_bytes, 1 << 20);
        let refused = device.write(0, Buf::zeroed(512)).await;
        assert_eq!(kind(refused), Some(ErrorKind::ReadOnly));
        drop(device);
        rt::sleep(Duration::from_millis(50)).await;
    });
    server.join().expect("as the script says");
}

#[test]
fn errors_name_the_request() {
    for structured in [false, true] {
        let server = Server::start(|_, asked| match asked {
            command::READ => Act::Fail(EIO),
            command::WRITE => Act::Fail(ENOSPC),
            _ => Act::Answer,
        });
        server.offer().structured.set(structured);
        with_device(&server, settings(), |device| async move {
            let error = device.read(4096, Buf::zeroed(4096)).await;
            let error = error.expect_err("it fails");
            assert_eq!(error.kind(), ErrorKind::Io);
            let words = "a read of 4096 bytes at byte 4096: the server answers error 5";
            assert!(error.report().contains(words), "{}", error.report());
            let full = device.write(0, Buf::zeroed(4096)).await;
            assert_eq!(kind(full), Some(ErrorKind::NoSpace));
            assert_eq!(device.losses(), 0);
        });
    }
}

/// A simple reply without an error to a request.
fn success(cookie: u64) -> Vec<u8> {
    SimpleReply { error: 0, cookie }.encode().to_vec()
}

/// A chunk of a read: its place, and its data.
fn data(request: &Request, flags: u16, at: u64, bytes: usize) -> Vec<u8> {
    let payload = [&at.to_be_bytes()[..], &vec![0xee; bytes]].concat();
    encode_chunk(request.cookie, flags, chunk::OFFSET_DATA, &payload)
}

/// Lies about the first read. The connection is lost, and the read is sent again.
#[test]
fn lies_about_reads_are_not_believed() {
    type Words = fn(&Request) -> Vec<u8>;
    let simple: [Words; 3] = [
        |request| success(request.cookie + 1),
        |request| success(request.cookie | 1 << 32),
        |_| vec![0x55; 16],
    ];
    let structured: [Words; 10] = [
        // Data in a simple reply.
        |request| [success(request.cookie), vec![0xee; 4096]].concat(),
        // Too little, too much, and in the wrong place.
        |request| data(request, chunk::FLAG_DONE, request.offset, 2048),
        |request| data(request, chunk::FLAG_DONE, request.offset, 8192),
        |request| data(request, chunk::FLAG_DONE, request.offset - 1, 4096),
        |request| data(request, chunk::FLAG_DONE, u64::MAX - 1, 4096),
        // Twice.
        |request| {
            let once = data(request, 0, request.offset, 4096);
            [once, data(request, chunk::FLAG_DONE, request.offset, 1)].concat()
        },
        |request| encode_chunk(request.cookie, chunk::FLAG_DONE, chunk::NONE, &[]),
        |request| encode_chunk(request.cookie, 0, chunk::NONE, &[]),
        |request| encode_chunk(request.cookie, chunk::FLAG_DONE, chunk::ERROR, &[0; 6]),
        |request| encode_chunk(request.cookie, chunk::FLAG_DONE, 5, &[0; 6]),
    ];
    let lies = simple.iter().map(|words| (false, *words));
    for (is_structured, words) in lies.chain(structured.iter().map(|words| (true, *words))) {
        let server = Server::start(move |number, _| match number {
            1 => Act::Say(words),
            _ => Act::Answer,
        });
        server.offer().structured.set(is_structured);
        with_device(&server, settings(), |device| async move {
            let into = Buf::zeroed(4096);
            device.read(4096, into.clone()).await.expect("again");
            assert_eq!(into.to_vec(), [0; 4096]);
            assert_eq!(device.losses(), 1);
        });
    }
}

#[test]
fn answers_come_in_any_order() {
    let server = Server::start(|number, _| match number {
        2 => Act::Delay(Duration::from_millis(100)),
        3 => Act::Delay(Duration::from_millis(50)),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device
            .write(4096, Buf::copied(&[1; 4096]))
            .await
            .expect("1");
        let bufs: Vec<_> = (0..3).map(|_| Buf::zeroed(4096)).collect();
        let order = Rc::new(RefCell::new(Vec::new()));
        for (at, buf) in (0..3).zip(&bufs) {
            let read = device.read(at * 4096, buf.clone());
            let order = Rc::clone(&order);
            rt::spawn(async move {
                read.await.expect("read");
                order.borrow_mut().push(at);
            });
        }
        rt::sleep(Duration::from_millis(200)).await;
        assert_eq!(*order.borrow(), [2, 1, 0]);
        for (buf, byte) in bufs.iter().zip([0, 1, 0]) {
            assert_eq!(buf.to_vec(), [byte; 4096]);
        }
        assert_eq!(device.losses(), 0);
    });
}
