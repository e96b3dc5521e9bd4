//! Tests with a scripted server on a thread.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, ErrorKind, Result};
use forebay_io::net::Address;
use forebay_io::{Engine, Reactor};
use forebay_wire::nbd::handshake::{
    GREETING_BYTES, Greeting, Info, InfoRequest, OPTION_HEADER_BYTES, OptionHeader, OptionReply,
    export, flags, option, reply,
};
use forebay_wire::nbd::transmission::{REQUEST_BYTES, Request, SimpleReply, command};

use super::{NbdDevice, Uri};

const SIZE_BYTES: u64 = (1 << 20) + 100;
const OFFERED: u16 = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA;

/// Server side of one connection.
struct Peer(UnixStream);

impl Peer {
    fn greet(&mut self) -> String {
        let greeting = Greeting {
            flags: flags::FIXED_NEWSTYLE | flags::NO_ZEROES,
        };
        assert_eq!(greeting.encode().len(), GREETING_BYTES);
        self.0.write_all(&greeting.encode()).expect("sent");
        let mut said = [0; 4 + OPTION_HEADER_BYTES];
        self.0.read_exact(&mut said).expect("received");
        assert_eq!(said[..4], [0, 0, 0, 3]);
        let header = OptionHeader::decode(&said[4..]).expect("an option");
        assert_eq!(header.option, option::GO);
        let mut data = vec![0; header.length as usize];
        self.0.read_exact(&mut data).expect("received");
        InfoRequest::decode(&data).expect("GO").name
    }

    fn reply(&mut self, kind: u32, data: &[u8]) {
        let mut out = Vec::new();
        OptionReply::append(&mut out, option::GO, kind, data);
        self.0.write_all(&out).expect("sent");
    }

    fn offer(&mut self, flags: u16) {
        self.greet();
        let size_bytes = SIZE_BYTES;
        self.reply(reply::INFO, &Info::Export { size_bytes, flags }.encode());
        let block = Info::BlockSize {
            minimum: 1,
            preferred: 4096,
            maximum: 8192,
        };
        self.reply(reply::INFO, &block.encode());
        self.reply(reply::ACK, &[]);
    }

    fn request(&mut self) -> (Request, Vec<u8>) {
        let mut header = [0; REQUEST_BYTES];
        self.0.read_exact(&mut header).expect("received");
        let request = Request::decode(&header).expect("a request");
        let mut payload = vec![0; request.payload_bytes() as usize];
        self.0.read_exact(&mut payload).expect("received");
        (request, payload)
    }

    fn answer(&mut self, cookie: u64, error: u32, data: &[u8]) {
        let reply = SimpleReply { error, cookie };
        let bytes = [&reply.encode()[..], data].concat();
        self.0.write_all(&bytes).expect("sent");
    }
}

fn play(name: &str, script: impl FnOnce(Peer) + Send + 'static) -> (Uri, JoinHandle<()>) {
    let unique = format!("fb-nbd-{name}-{}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(unique);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    let uri = Uri {
        address: Address::Unix(path.clone()),
        export: "db".into(),
    };
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let _ = std::fs::remove_file(&path);
        script(Peer(stream));
    });
    (uri, thread)
}

fn run<T: 'static>(client: impl Future<Output = T> + 'static) -> T {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(client)
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn answers_come_in_any_order_and_long_requests_are_several() {
    let (uri, server) = play("order", |mut peer| {
        peer.offer(OFFERED);
        let asked: Vec<_> = (0..3).map(|_| peer.request().0).collect();
        for request in asked.iter().rev() {
            let data = vec![(request.offset >> 12) as u8; request.length as usize];
            peer.answer(request.cookie, 0, &data);
        }
        let mut written = Vec::new();
        for (at, len) in [(0, 8192), (8192, 8192), (16_384, 512)] {
            let (request, payload) = peer.request();
            assert_eq!((request.offset, request.length), (at, len));
            written.extend(payload);
            peer.answer(request.cookie, 0, &[]);
        }
        assert!(
            written
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == (at % 251) as u8)
        );
        // The server has no command for zeroes.
        let (request, payload) = peer.request();
        assert_eq!((request.command, payload), (command::WRITE, vec![0; 4096]));
        peer.answer(request.cookie, 28, &[]);
        let mut rest = Vec::new();
        peer.0.read_to_end(&mut rest).expect("the end");
        assert_eq!(rest, []);
    });
    run(async move {
        let device = NbdDevice::connect(&uri).await.expect("connected");
        let info = device.info();
        assert_eq!(info.size_bytes, 1 << 20, "whole blocks");
        assert_eq!(
            (info.logical_block_bytes, info.physical_block_bytes),
            (512, 4096)
        );
        assert!(info.volatile_cache && info.fua && !info.discard && !device.read_only());
        let bufs: Vec<_> = (0..3).map(|_| Buf::zeroed(8192)).collect();
        let reads: Vec<_> = (1..)
            .zip(&bufs)
            .map(|(at, buf)| device.read(at << 12, buf.clone()))
            .collect();
        for read in reads {
            read.await.expect("read");
        }
        for (at, buf) in (1..).zip(&bufs) {
            assert_eq!(buf.to_vec(), [at; 8192]);
        }
        let data: Vec<_> = (0..16_896).map(|at| (at % 251) as u8).collect();
        device.write(0, Buf::copied(&data)).await.expect("written");
        device.discard(0, 4096).await.expect("nothing to do");
        let full = device.write_zeroes(0, 4096).await;
        assert_eq!(kind(full), Some(ErrorKind::NoSpace));
        let beyond = device.read(1 << 20, Buf::zeroed(512)).await;
        assert_eq!(kind(beyond), Some(ErrorKind::OutOfRange));
    });
    server.join().expect("as the script says");
}

#[test]
fn a_broken_connection_fails_all_pending_requests_by_name() {
    for damage in [false, true] {
        let (uri, server) = play(&format!("break-{damage}"), move |mut peer| {
            peer.offer(OFFERED);
            let (first, _) = peer.request();
            peer.request();
            if damage {
                // An answer to no pending request.
                peer.answer(first.cookie + (1 << 32), 0, &[0; 4096]);
                let _ = peer.0.read(&mut [0]);
            }
        });
        run(async move {
            let device = NbdDevice::connect(&uri).await.expect("connected");
            let reads = [0, 4096].map(|at| device.read(at, Buf::zeroed(4096)));
            for read in reads {
                let error = read.await.expect_err("no answer");
                assert_eq!(error.kind(), ErrorKind::Disconnected);
                for words in [
                    "nbd+unix:///db?socket=",
                    "UNFLUSHED DATA MAY BE LOST",
                    "restart when the server answers",
                ] {
                    assert!(error.report().contains(words), "{}", error.report());
                }
            }
            // No reconnection: it is unknown which writes a later flush would cover.
            for _ in 0..2 {
                assert_eq!(kind(device.flush().await), Some(ErrorKind::Disconnected));
            }
        });
        server.join().expect("as the script says");
    }
}

#[test]
fn connection_errors_name_the_cause() {
    let (uri, server) = play("unknown", |mut peer| {
        assert_eq!(peer.greet(), "db");
        peer.reply(reply::ERR_UNKNOWN, b"sorry");
    });
    let error = run(async move { NbdDevice::connect(&uri).await.err() }).expect("no export");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().contains("sorry"), "{error}");
    server.join().expect("as the script says");

    let (uri, server) = play("garbage", |mut peer| {
        let _ = peer.0.write_all(b"HTTP/1.1 400 Bad Request\r\n");
        let _ = peer.0.read(&mut [0]);
    });
    let error = run(async move { NbdDevice::connect(&uri).await.err() }).expect("no server");
    assert!(error.report().contains("newstyle"), "{error}");
    server.join().expect("as the script says");

    let (uri, server) = play("read-only", |mut peer| {
        peer.offer(OFFERED | export::READ_ONLY);
        let _ = peer.0.read(&mut [0]);
    });
    let refused = run(async move {
        let device = NbdDevice::connect(&uri).await.expect("connected");
        kind(device.write(0, Buf::zeroed(512)).await)
    });
    assert_eq!(refused, Some(ErrorKind::ReadOnly));
    server.join().expect("as the script says");

    let nobody: Uri = "nbd+unix:///x?socket=/nonexistent".parse().expect("a URI");
    let error = run(async move { NbdDevice::connect(&nobody).await.err() }).expect("nobody");
    assert!(
        error.report().contains("nbd+unix:///x?socket=/nonexistent"),
        "{error}"
    );
}
