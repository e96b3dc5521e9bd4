//! Clients that break TLS or bypass it, by malice or by dying.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use forebay_frontend::nbd::Demand;
use forebay_wire::nbd::handshake::{InfoRequest, option, reply};
use forebay_wire::nbd::transmission::{Request, command};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::hostile::{elsewhere, resident_bytes};
use crate::raw::Raw;
use crate::secure::Secured;
use crate::server::Setup;

type Tls = StreamOwned<ClientConnection, UnixStream>;

fn start(demand: Demand) -> Secured {
    Secured::start(Setup::default(), demand, false)
}

/// Returns the client's end of a session with that server.
fn session(secured: &Secured, version: &'static SupportedProtocolVersion) -> ClientConnection {
    let pem = secured.authority.certificate.as_bytes();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pem).expect("a certificate"))
        .expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a session")
}

/// Sends STARTTLS. The server acknowledges it.
fn begun(secured: &Secured) -> Raw {
    let mut raw = Raw::greeted(&secured.server);
    raw.option(option::STARTTLS, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    raw
}

/// Connects through TLS, as far as the options.
fn secure_of(secured: &Secured, version: &'static SupportedProtocolVersion) -> Raw<Tls> {
    let stream = StreamOwned::new(session(secured, version), begun(secured).stream);
    Raw { stream }
}

fn secure(secured: &Secured) -> Raw<Tls> {
    secure_of(secured, &rustls::version::TLS13)
}

fn ready(secured: &Secured) -> Raw<Tls> {
    let mut raw = secure(secured);
    raw.go("disk");
    raw
}

fn still_up(secured: &Secured) {
    let mut raw = ready(secured);
    raw.request(command::READ, 0, 512);
    assert_eq!(raw.simple().error, 0);
    raw.data(512);
}

fn go(name: &str) -> Vec<u8> {
    let wanted = vec![];
    let name = name.to_owned();
    InfoRequest { name, wanted }.encode()
}

fn write(offset: u64, length: u32) -> Vec<u8> {
    let request = Request {
        flags: 0,
        command: command::WRITE,
        cookie: 7,
        offset,
        length,
    };
    let data = vec![0x5a; length as usize];
    [&request.encode()[..], &data].concat()
}

/// Returns the bytes that a session would send next.
fn sealed(session: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).expect("memory");
    }
    bytes
}

#[test]
fn nothing_is_said_before_tls_where_it_is_required() {
    let secured = start(Demand::Required);
    let mut raw = Raw::greeted(&secured.server);
    for (option, data) in [
        (option::LIST, &b""[..]),
        (option::INFO, &go("disk")),
        (option::GO, &go("disk")),
        (option::GO, &go("missing")),
        (option::STRUCTURED_REPLY, b""),
        (option::SET_META_CONTEXT, b"??"),
        (99, b""),
    ] {
        raw.option(option, data);
        let (header, _) = raw.answer();
        assert_eq!(header.kind, reply::ERR_TLS_REQD, "option {option}");
    }
    raw.option(option::STARTTLS, b"now");
    assert_eq!(raw.answer().0.kind, reply::ERR_INVALID);
    raw.option(option::ABORT, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    assert_eq!(raw.closed(), b"");
    // Options without an error.
    let mut raw = Raw::greeted(&secured.server);
    raw.option(option::EXPORT_NAME, b"disk");
    assert_eq!(raw.closed(), b"");
    // A client that cannot receive an error.
    let mut raw = Raw::silent(&secured.server);
    raw.bytes::<18>();
    raw.say(&2_u32.to_be_bytes());
    assert_eq!(raw.closed(), b"");
    still_up(&secured);
}

#[test]
fn plain_words_after_starttls_are_not_taken_for_protected_ones() {
    for demand in [Demand::Required, Demand::Offered] {
        let secured = start(demand);
        // In one piece with the option: an attacker on the network may have added them.
        let mut raw = Raw::greeted(&secured.server);
        let mut words = b"IHAVEOPT\0\0\0\x05\0\0\0\0".to_vec();
        words.extend(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
        raw.say(&words);
        assert_eq!(raw.closed(), b"", "not even an acknowledgement of STARTTLS");
        // After the answer.
        let mut raw = begun(&secured);
        raw.option(option::LIST, b"");
        let said = raw.closed();
        assert!(said.is_empty() || said[0] == 21, "an alert alone: {said:?}");
        // In the middle of the session.
        let mut raw = ready(&secured);
        raw.stream.sock.write_all(&write(0, 512)).expect("sent");
        let mut rest = Vec::new();
        assert!(raw.stream.read_to_end(&mut rest).is_err(), "{rest:?}");
        assert_eq!(secured.server.take_log(), []);
        still_up(&secured);
    }
}

#[test]
fn options_negotiated_before_tls_do_not_apply_after_it() {
    let secured = start(Demand::Offered);
    let mut plain = Raw::greeted(&secured.server);
    plain.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(plain.answer().0.kind, reply::ACK);
    plain.option(option::STARTTLS, b"");
    assert_eq!(plain.answer().0.kind, reply::ACK);
    let session = session(&secured, &rustls::version::TLS13);
    let mut raw = Raw {
        stream: StreamOwned::new(session, plain.stream),
    };
    raw.option(option::STARTTLS, b"");
    assert_eq!(raw.answer().0.kind, reply::ERR_INVALID);
    raw.option(99, b"");
    assert_eq!(raw.answer().0.kind, reply::ERR_UNSUP);
    raw.go("disk");
    raw.request(command::READ, 0, 512);
    assert_eq!(raw.simple().error, 0, "a simple reply");
    raw.data(512);
}

#[test]
fn sessions_end_in_order() {
    let secured = start(Demand::Required);
    // The server ends TLS before the connection, as the protocol asks.
    let mut raw = ready(&secured);
    raw.request(command::DISC, 0, 0);
    let mut rest = Vec::new();
    raw.stream.read_to_end(&mut rest).expect("the end of TLS");
    assert_eq!(rest, b"");
    let mut raw = secure(&secured);
    raw.option(option::ABORT, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    raw.stream.read_to_end(&mut rest).expect("the end of TLS");
    // The client ends TLS and not the connection: so does the server, at once.
    let mut raw = ready(&secured);
    raw.request(command::FLUSH, 0, 0);
    assert_eq!(raw.simple().error, 0);
    raw.stream.conn.send_close_notify();
    raw.stream.flush().expect("sent");
    raw.stream.read_to_end(&mut rest).expect("the end of TLS");
    assert_eq!(rest, b"");
    // In the middle of TLS's handshake, too.
    let mut raw = begun(&secured);
    raw.say(b"\x15\x03\x01\0\x02\x01\0");
    raw.stream
        .shutdown(std::net::Shutdown::Write)
        .expect("ended");
    raw.closed();
    still_up(&secured);
}

#[test]
fn each_version_and_new_keys_carry_data() {
    let secured = start(Demand::Required);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut raw = secure_of(&secured, version);
        raw.go("disk");
        for round in 0..20 {
            if version.version == rustls::ProtocolVersion::TLSv1_3 {
                raw.stream.conn.refresh_traffic_keys().expect("new keys");
            }
            let length = 4096 << (round % 9);
            raw.say(&write(0, length));
            assert_eq!(raw.simple().error, 0);
            raw.request(command::READ, 0, length);
            assert_eq!(raw.simple().error, 0);
            assert_eq!(raw.data(length as usize), vec![0x5a; length as usize]);
        }
    }
}

#[test]
fn half_handshakes_leave_nothing_behind() {
    let secured = start(Demand::Required);
    let hello = sealed(&mut session(&secured, &rustls::version::TLS13));
    for len in (0..hello.len()).step_by(7) {
        begun(&secured).say(&hello[..len]);
    }
    // Many connections may stay in the handshake, and others are served.
    let mut halves: Vec<Raw> = (0..50).map(|_| begun(&secured)).collect();
    for raw in &mut halves {
        raw.say(&hello[..hello.len() / 2]);
    }
    still_up(&secured);
    // The wrong protocol, and each byte of the right one inverted.
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16; 2000], &[0; 2000]] {
        let mut raw = begun(&secured);
        raw.say(words);
        raw.closed();
    }
    for at in 0..hello.len() {
        let mut spoilt = hello.clone();
        spoilt[at] ^= 0x80;
        let mut raw = begun(&secured);
        raw.say(&spoilt);
        // Some bytes do not matter, and the server waits for more.
        raw.stream
            .shutdown(std::net::Shutdown::Write)
            .expect("ended");
        raw.closed();
    }
    still_up(&secured);
}

#[test]
fn records_that_are_cut_off_or_changed_reach_no_device() {
    let secured = start(Demand::Required);
    let next = || {
        let mut raw = ready(&secured);
        let words = write(0, 40_960);
        raw.stream.conn.writer().write_all(&words).expect("sealed");
        let bytes = sealed(&mut raw.stream.conn);
        (raw, bytes)
    };
    let whole = next().1.len();
    // At the beginning and the end of a record, and between.
    for len in [1, 5, 21, 1000, 16_405, 16_406, 16_410, whole - 1] {
        let (mut raw, bytes) = next();
        raw.stream.sock.write_all(&bytes[..len]).expect("sent");
    }
    // TLS 1.3 ignores the first three bytes of a record.
    for at in [3, 4, 5, 100, 16_410, whole - 1] {
        let (mut raw, mut bytes) = next();
        bytes[at] ^= 1;
        // The server may close before everything was sent.
        let _ = raw.stream.sock.write_all(&bytes);
        let _ = raw.stream.sock.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let ended = raw.stream.read_to_end(&mut rest);
        assert!(ended.is_err() && rest.is_empty(), "byte {at}: {rest:?}");
    }
    // A repeated record.
    let (mut raw, bytes) = next();
    let _ = raw.stream.sock.write_all(&bytes);
    assert_eq!(raw.simple().error, 0);
    let _ = raw.stream.sock.write_all(&bytes);
    let mut rest = Vec::new();
    assert!(raw.stream.read_to_end(&mut rest).is_err(), "{rest:?}");
    let log = secured.server.take_log();
    assert_eq!(log.len(), 1, "the write that was whole, once: {log:?}");
    still_up(&secured);
}

#[test]
fn idle_sessions_and_greedy_ones_hold_little() {
    if elsewhere("secure_hostile::idle_sessions_and_greedy_ones_hold_little") {
        return;
    }
    let secured = start(Demand::Required);
    still_up(&secured);
    let before = resident_bytes();
    // The client's ends are in this process, too.
    let mut idle: Vec<_> = (0..50).map(|_| ready(&secured)).collect();
    let halves: Vec<Raw> = (0..50).map(|_| begun(&secured)).collect();
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{grown} bytes for 100 idle connections with TLS, both ends of 50");
    assert!(grown < 20 << 20, "{grown} bytes for 100 idle connections");
    for raw in &mut idle {
        raw.request(command::FLUSH, 0, 0);
        assert_eq!(raw.simple().error, 0);
    }
    drop((idle, halves));
    // The client requests 4 GiB and reads nothing.
    let mut raw = ready(&secured);
    let before = resident_bytes();
    let timeout = Some(std::time::Duration::from_millis(1200));
    raw.stream
        .sock
        .set_write_timeout(timeout)
        .expect("a timeout");
    let request = Request {
        flags: 0,
        command: command::READ,
        cookie: 1,
        offset: 0,
        length: 1 << 20,
    };
    for _ in 0..4096 {
        match raw.stream.write_all(&request.encode()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    still_up(&secured);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{grown} bytes for one greedy client with TLS");
    assert!(grown < 200 << 20, "{grown} bytes for one greedy client");
}
