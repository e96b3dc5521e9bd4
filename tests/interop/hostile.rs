//! Clients that break the protocol, by malice or by dying. The server continues, answers with the
//! protocol's error where there is one, and closes the connection where there is none.

use std::time::{Duration, Instant};

use forebay_wire::nbd::errno::{EINVAL, ENOSPC};
use forebay_wire::nbd::handshake::option;
use forebay_wire::nbd::transmission::{Request, command};

use crate::raw::Raw;
use crate::server::{Server, Setup};

/// Asserts that the server still serves.
pub(crate) fn still_up(server: &Server) {
    let mut raw = Raw::ready(server);
    raw.request(command::READ, 0, 512);
    assert_eq!(raw.simple().error, 0);
    raw.data(512);
}

/// Returns the resident memory of this process, bytes.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = pages.split(' ').nth(1).and_then(|field| field.parse().ok());
    pages.map_or(0, |pages: u64| pages * 4096)
}

#[test]
fn broken_handshakes_end_the_connection() {
    let server = Server::start(Setup::default());
    // Short: closed after each length of the client's first message.
    let words = [
        &[0, 0, 0, 3][..],
        b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0",
    ]
    .concat();
    for len in 0..words.len() {
        let mut raw = Raw::silent(&server);
        raw.say(&words[..len]);
    }
    // Garbage: unknown flags, then an option without its magic.
    let mut raw = Raw::silent(&server);
    raw.say(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(raw.closed().len(), 18, "the greeting and nothing else");
    let mut raw = Raw::greeted(&server);
    raw.say(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(raw.closed(), b"");
    // Oversized: an option that announces 4 GiB.
    let mut raw = Raw::greeted(&server);
    raw.say(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    assert_eq!(raw.closed(), b"");
    // A missing export, by the option that has no error.
    let mut raw = Raw::greeted(&server);
    raw.option(option::EXPORT_NAME, b"missing");
    assert_eq!(raw.closed(), b"");
    let mut raw = Raw::greeted(&server);
    raw.option(option::EXPORT_NAME, b"\xff\xfe\0");
    assert_eq!(raw.closed(), b"");
    still_up(&server);
}

#[test]
fn broken_requests_are_refused_and_the_connection_goes_on() {
    let server = Server::start(Setup::default());
    let mut raw = Raw::ready(&server);
    let size = 64 << 20;
    for (command, offset, length, error) in [
        (command::READ, size, 512, EINVAL),
        (command::READ, u64::MAX - 511, 512, EINVAL),
        (command::READ, 0, u32::MAX, EINVAL),
        (command::READ, 0, 0, EINVAL),
        (command::READ, 1, 512, EINVAL),
        (command::TRIM, size - 512, 1024, ENOSPC),
        (command::WRITE_ZEROES, 0, u32::MAX - 511, ENOSPC),
        (command::CACHE, 0, u32::MAX - 511, EINVAL),
        (command::CACHE, u64::MAX - 511, 4096, EINVAL),
        (command::FLUSH, 512, 0, EINVAL),
        (command::FLUSH, 0, 512, EINVAL),
        (command::BLOCK_STATUS, 0, 512, EINVAL),
        (8, 0, 512, EINVAL),
        (0xffff, u64::MAX, u32::MAX, EINVAL),
        (command::WRITE, 0, 0, EINVAL),
    ] {
        raw.request(command, offset, length);
        let reply = raw.simple();
        assert_eq!(
            reply.error, error,
            "command {command} at {offset}, {length} bytes"
        );
        assert_eq!(reply.cookie, offset ^ 0xf0eb);
    }
    // The server does not parse a refused write's payload as requests.
    let payload = Request {
        flags: 0,
        command: command::WRITE_ZEROES,
        cookie: 0,
        offset: 0,
        length: 512,
    };
    raw.request(command::WRITE, size, 28 * 512);
    raw.say(&payload.encode().repeat(512));
    assert_eq!(raw.simple().error, ENOSPC);
    raw.request(command::FLUSH, 0, 0);
    assert_eq!(raw.simple().error, 0);
    assert_eq!(
        server.take_log().len(),
        1,
        "the flush alone reached the device"
    );
}

#[test]
fn bad_magic_and_oversized_payloads_end_the_connection() {
    let server = Server::start(Setup::default());
    let mut raw = Raw::ready(&server);
    raw.say(&[0x25; 28]);
    assert_eq!(raw.closed(), b"", "bad magic");
    let mut raw = Raw::ready(&server);
    raw.request(command::WRITE, 0, (32 << 20) + 512);
    assert_eq!(raw.closed(), b"", "a payload above the agreed limit");
    still_up(&server);
}

#[test]
fn clients_that_die_leave_nothing_behind() {
    for apart in [false, true] {
        let server = Server::start(Setup {
            apart,
            ..Setup::default()
        });
        for len in [1, 27, 28, 29, 4000, 28 + 4095] {
            let mut raw = Raw::ready(&server);
            let request = Request {
                flags: 0,
                command: command::WRITE,
                cookie: 1,
                offset: 0,
                length: 4096,
            };
            let whole = [&request.encode()[..], &[1; 4096]].concat();
            raw.say(&whole[..len]);
        }
        // Closed while its replies are in flight.
        for _ in 0..10 {
            let mut raw = Raw::ready(&server);
            for index in 0..64 {
                raw.request(command::READ, index << 18, 1 << 18);
            }
        }
        still_up(&server);
        assert_eq!(
            server.take_log(),
            [],
            "no half of a write reached the device"
        );
        let patience = Instant::now() + Duration::from_secs(10);
        while server.disk.stats().in_flight > 0 {
            assert!(Instant::now() < patience, "requests of the dead end too");
            std::thread::yield_now();
        }
    }
}

/// Runs the test called `name` in a process of its own, where nothing else uses memory. Returns
/// false in that process.
pub(crate) fn elsewhere(name: &str) -> bool {
    const ALONE: &str = "FOREBAY_INTEROP_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let this = std::env::current_exe().expect("the test knows its own path");
    let output = std::process::Command::new(this)
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("the test runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("1 passed"), "{said}\n{complained}");
    true
}

#[test]
fn a_hundred_idle_connections_are_no_burden() {
    if elsewhere("hostile::a_hundred_idle_connections_are_no_burden") {
        return;
    }
    let server = Server::start(Setup::default());
    still_up(&server);
    let before = resident_bytes();
    let mut idle: Vec<Raw> = (0..50).map(|_| Raw::ready(&server)).collect();
    idle.extend((0..50).map(|_| Raw::silent(&server)));
    still_up(&server);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{grown} bytes for 100 idle connections");
    assert!(grown < 4 << 20, "{grown} bytes for 100 idle connections");
    // Each of them still works.
    for raw in &mut idle[..50] {
        raw.request(command::FLUSH, 0, 0);
        assert_eq!(raw.simple().error, 0);
    }
}

#[test]
fn a_client_that_does_not_read_is_not_fed_for_ever() {
    if elsewhere("hostile::a_client_that_does_not_read_is_not_fed_for_ever") {
        return;
    }
    let server = Server::start(Setup::default());
    let mut raw = Raw::ready(&server);
    still_up(&server);
    let before = resident_bytes();
    // The client requests 4 GiB and reads nothing.
    let timeout = Some(Duration::from_secs(2));
    raw.stream.set_write_timeout(timeout).expect("a timeout");
    let request = Request {
        flags: 0,
        command: command::READ,
        cookie: 1,
        offset: 0,
        length: 1 << 20,
    };
    let many = request.encode().repeat(4096);
    let mut sent = 0;
    while sent < many.len() {
        use std::io::Write as _;
        match raw.stream.write(&many[sent..]) {
            Ok(more) => sent += more,
            Err(_) => break,
        }
    }
    still_up(&server);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{grown} bytes for one greedy client");
    assert!(grown < 200 << 20, "{grown} bytes for one greedy client");
    drop(raw);
    still_up(&server);
}
