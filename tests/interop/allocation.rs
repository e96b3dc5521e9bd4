//! Block status: real clients, and the corners of the protocol.

use forebay_wire::nbd::context::{BASE_ALLOCATION, BlockStatus, Context, ContextRequest};
use forebay_wire::nbd::errno::EINVAL;
use forebay_wire::nbd::handshake::{option, reply};
use forebay_wire::nbd::transmission::{Chunk, Request, chunk, command, flag};

use crate::clients::{every_setup, noise, text};
use crate::hostile::still_up;
use crate::programs::{nbdsh, requires, requires_nbdsh, run};
use crate::raw::Raw;
use crate::server::{Server, Setup};

const MIB: u64 = 1 << 20;

/// Returns the map that `nbdinfo` prints, as the end and the type of each extent.
pub(crate) fn nbdinfo_map(uri: &str) -> Vec<(u64, u32)> {
    let words = run("nbdinfo", &["--map", uri]);
    let mut map = Vec::new();
    for line in words.lines() {
        let mut fields = line.split_whitespace();
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let (start, len, kind) = (number(), number(), number());
        let (Some(start), Some(len), Some(kind)) = (start, len, kind) else {
            panic!("no extent: {line}");
        };
        map.push((start + len, u32::try_from(kind).expect("flags")));
    }
    map
}

#[test]
fn nbdinfo_shows_the_holes_of_a_volume() {
    if !requires("nbdinfo", "libnbd-bin") || !requires_nbdsh() {
        return;
    }
    for setup in every_setup() {
        let server = Server::start(setup);
        for uri in [server.uri("disk"), server.tcp_uri("sealed")] {
            assert_eq!(nbdinfo_map(&uri), [(64 * MIB, 3)], "{setup:?}");
        }
        let listed = run("nbdinfo", &["--json", &server.uri("disk")]);
        assert!(listed.contains(BASE_ALLOCATION), "{listed}");
        nbdsh(
            &server.uri("disk"),
            r#"
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.pwrite(b"x" * 4096, 4 << 20)
h.pwrite(b"x" * 4096, 10 << 20)
entries = []
def status(context, offset, e, error):
    assert context == nbd.CONTEXT_BASE_ALLOCATION and error.value == 0
    entries.extend(e)
h.block_status(64 << 20, 0, status)
m = 1 << 20
assert entries == [4*m, 3, 2*m, 0, 4*m, 3, 2*m, 0, 52*m, 3], entries
entries = []
h.block_status(60 << 20, 4 << 20, status, nbd.CMD_FLAG_REQ_ONE)
assert entries == [2*m, 0], entries
entries = []
h.block_status(512, (6 << 20) - 512, status)
assert entries == [512, 0], entries
h.trim(64 << 20, 0)
entries = []
h.block_status(64 << 20, 0, status)
assert entries == [64*m, 3], entries
h.shutdown()
"#,
        );
    }
}

#[test]
fn qemu_img_reads_nothing_of_an_empty_volume() {
    if !requires("qemu-img", "qemu-utils") {
        return;
    }
    let server = Server::start(Setup {
        size_bytes: 1 << 40,
        ..Setup::default()
    });
    let (uri, copy) = (server.uri("disk"), server.folder().join("copy"));
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"zero\": true"), "{map}");
    assert!(!map.contains("\"data\": true"), "{map}");
    let convert = ["convert", "-f", "raw", "-O", "qcow2", &uri, text(&copy)];
    run("qemu-img", &convert);
    assert_eq!(server.disk.stats().read.bytes, 0);
    // A little data is all that is read.
    let source = server.folder().join("source");
    noise(&source, 1 << 20);
    run("nbdcopy", &["--flush", text(&source), &server.uri("disk")]);
    run("qemu-img", &convert);
    let read = server.disk.stats().read.bytes;
    assert!((MIB..8 * MIB).contains(&read), "{read}");
}

/// Enables structured replies.
fn structured(server: &Server) -> Raw {
    let mut raw = Raw::greeted(server);
    raw.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    raw
}

fn request(name: &str, queries: &[&str]) -> Vec<u8> {
    ContextRequest {
        name: name.to_owned(),
        queries: queries.iter().map(|&it| it.to_owned()).collect(),
    }
    .encode()
}

/// Sends an option about contexts. Returns the contexts of the answer, or the kind of its error.
fn contexts(raw: &mut Raw, asked: u32, data: &[u8]) -> Result<Vec<Context>, u32> {
    raw.option(asked, data);
    let mut found = Vec::new();
    loop {
        let (header, data) = raw.answer();
        assert_eq!(header.option, asked);
        match header.kind {
            reply::META_CONTEXT => found.push(Context::decode(&data).expect("a context")),
            reply::ACK => return Ok(found),
            error => return Err(error),
        }
    }
}

/// Asks for the status of a range. Returns it, or the error number.
fn status(raw: &mut Raw, offset: u64, length: u32, flags: u16) -> Result<BlockStatus, u32> {
    let request = Request {
        flags,
        command: command::BLOCK_STATUS,
        cookie: 77,
        offset,
        length,
    };
    raw.say(&request.encode());
    let header = Chunk::decode(&raw.bytes::<20>()).expect("a chunk");
    assert_eq!((header.cookie, header.flags), (77, chunk::FLAG_DONE));
    let data = raw.data(header.length as usize);
    match header.kind {
        chunk::BLOCK_STATUS => Ok(BlockStatus::decode(&data).expect("a status")),
        chunk::ERROR => Err(u32::from_be_bytes(data[..4].try_into().expect("a number"))),
        other => panic!("chunk {other}"),
    }
}

#[test]
fn contexts_are_listed_and_selected_by_query() {
    let server = Server::start(Setup::default());
    let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
    let mut raw = Raw::greeted(&server);
    for asked in [list, set] {
        let refused = contexts(&mut raw, asked, &request("disk", &[BASE_ALLOCATION]));
        assert_eq!(
            refused,
            Err(reply::ERR_INVALID),
            "before structured replies"
        );
    }
    let mut raw = structured(&server);
    let allocation = |id: u32| {
        let name = BASE_ALLOCATION.to_owned();
        Ok(vec![Context { id, name }])
    };
    for (asked, queries, expected) in [
        (list, &[][..], allocation(0)),
        (list, &["base:"], allocation(0)),
        (
            list,
            &["qemu:dirty", BASE_ALLOCATION, "base:"],
            allocation(0),
        ),
        (list, &["base:other", "other:allocation"], Ok(vec![])),
        (list, &["base"], Err(reply::ERR_INVALID)),
        (set, &["base:"], Ok(vec![])),
        (set, &["x:y"], Ok(vec![])),
        (set, &["allocation"], Err(reply::ERR_INVALID)),
        (set, &[], Ok(vec![])),
        (set, &[BASE_ALLOCATION, BASE_ALLOCATION], allocation(1)),
    ] {
        let answer = contexts(&mut raw, asked, &request("disk", queries));
        assert_eq!(answer, expected, "option {asked}, {queries:?}");
    }
    let missing = contexts(&mut raw, list, &request("missing", &[]));
    assert_eq!(missing, Err(reply::ERR_UNKNOWN));
    // The last choice counts, and it was not changed by a list.
    raw.go("disk");
    let all = status(&mut raw, 0, 64 << 20, 0).expect("a status");
    assert_eq!((all.context, all.descriptors.len()), (1, 1));
    still_up(&server);
}

#[test]
fn status_needs_a_context_of_the_same_export() {
    let server = Server::start(Setup::default());
    let set = option::SET_META_CONTEXT;
    let good = request("disk", &[BASE_ALLOCATION]);
    let chosen =
        |raw: &mut Raw, data: &[u8]| contexts(raw, set, data).map_or(0, |found| found.len());
    // None, one of another export, and one that a later option revoked.
    let mut none = structured(&server);
    let mut other = structured(&server);
    assert_eq!(
        chosen(&mut other, &request("sealed", &[BASE_ALLOCATION])),
        1
    );
    let mut revoked = structured(&server);
    assert_eq!(chosen(&mut revoked, &good), 1);
    assert_eq!(chosen(&mut revoked, b"broken"), 0);
    for raw in [&mut none, &mut other, &mut revoked] {
        raw.go("disk");
        assert_eq!(status(raw, 0, 4096, 0), Err(EINVAL));
    }
    // The default export is the same one.
    let mut raw = structured(&server);
    assert_eq!(chosen(&mut raw, &request("", &[BASE_ALLOCATION])), 1);
    raw.go("disk");
    for (offset, length, flags) in [
        (0, 0, 0),
        (1, 512, 0),
        (0, 511, 0),
        (64 << 20, 512, 0),
        (0, (64 << 20) + 512, 0),
        (u64::MAX - 511, 512, 0),
        (0, u32::MAX, 0),
        (0, 4096, flag::DF),
        (0, 4096, flag::NO_HOLE),
    ] {
        let refused = status(&mut raw, offset, length, flags);
        assert_eq!(refused, Err(EINVAL), "{offset} {length} {flags}");
    }
    let one = status(&mut raw, 512, 512, flag::REQ_ONE | flag::FUA).expect("a status");
    assert_eq!(one.descriptors.len(), 1);
    assert_eq!(
        (one.descriptors[0].length, one.descriptors[0].flags),
        (512, 3)
    );
    assert!(server.take_log().is_empty(), "a query changes nothing");
}

#[test]
fn an_answer_is_bounded_and_the_next_one_continues() {
    let server = Server::start(Setup {
        size_bytes: 4 << 30,
        ..Setup::default()
    });
    let mut raw = structured(&server);
    let all = request("disk", &[BASE_ALLOCATION]);
    contexts(&mut raw, option::SET_META_CONTEXT, &all).expect("a context");
    raw.go("disk");
    let end = (4 << 30) - 2 * MIB;
    // Each second chunk of two MiB of the memory device.
    for at in (0..end).step_by(4 << 20) {
        let write = Request {
            flags: 0,
            command: command::WRITE,
            cookie: 1,
            offset: at,
            length: 512,
        };
        raw.say(&write.encode());
        raw.say(&[1; 512]);
        assert_eq!(raw.simple().error, 0);
    }
    let (mut at, mut flags, mut answers) = (0, Vec::new(), 0);
    while at < end {
        let length = u32::try_from(end - at).expect("below 4 GiB");
        let part = status(&mut raw, at, length, 0).expect("a status");
        assert!(part.descriptors.len() <= 512);
        for descriptor in part.descriptors {
            at += u64::from(descriptor.length);
            flags.push((at, descriptor.flags));
        }
        answers += 1;
    }
    assert_eq!((at, answers), (end, 4));
    for (number, (at, flags)) in flags.into_iter().enumerate() {
        assert_eq!(at, (number as u64 + 1) * 2 * MIB);
        assert_eq!(flags, if number % 2 == 0 { 0 } else { 3 });
    }
}

#[test]
fn damaged_options_about_contexts_leave_the_connection_in_step() {
    let server = Server::start(Setup::default());
    let whole = request("disk", &["base:", BASE_ALLOCATION]);
    let mut raw = structured(&server);
    for asked in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        for len in 0..whole.len() {
            let cut = contexts(&mut raw, asked, &whole[..len]);
            assert_eq!(cut, Err(reply::ERR_INVALID), "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x80;
            let answer = contexts(&mut raw, asked, &damaged);
            assert!(answer.is_err(), "byte {at}: {answer:?}");
        }
        let mut many = request("disk", &[]);
        many[8..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(contexts(&mut raw, asked, &many), Err(reply::ERR_INVALID));
        let good = contexts(&mut raw, asked, &whole).expect("a context");
        assert_eq!(good.len(), 1);
    }
    raw.go("disk");
    assert!(status(&mut raw, 0, 4096, 0).is_ok());
    still_up(&server);
}
