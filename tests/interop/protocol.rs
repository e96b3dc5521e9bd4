//! Requirements of the protocol in corners that the usual clients do not visit.

use forebay_wire::nbd::errno::{EINVAL, ENOSPC};
use forebay_wire::nbd::handshake::{Info, InfoRequest, export, info, option, reply};
use forebay_wire::nbd::transmission::{Chunk, Request, chunk, command, flag};

use crate::raw::Raw;
use crate::server::{Server, Setup};

#[test]
fn options_are_answered_one_by_one() {
    let server = Server::start(Setup::default());
    let mut raw = Raw::greeted(&server);
    for unknown in [option::STARTTLS, 4, 0xdead_beef] {
        raw.option(unknown, b"");
        let (header, _) = raw.answer();
        assert_eq!((header.option, header.kind), (unknown, reply::ERR_UNSUP));
    }
    raw.option(option::LIST, b"no data is allowed here");
    assert_eq!(raw.answer().0.kind, reply::ERR_INVALID);
    raw.option(option::GO, b"\xff\xff\xff\xff");
    assert_eq!(raw.answer().0.kind, reply::ERR_INVALID);
    let missing = InfoRequest {
        name: "missing".to_owned(),
        wanted: vec![],
    };
    raw.option(option::GO, &missing.encode());
    let (header, words) = raw.answer();
    assert_eq!(header.kind, reply::ERR_UNKNOWN);
    assert!(String::from_utf8_lossy(&words).contains("missing"));
    let asked = InfoRequest {
        name: String::new(),
        wanted: vec![info::NAME, info::DESCRIPTION],
    };
    raw.option(option::INFO, &asked.encode());
    let mut properties = Vec::new();
    loop {
        let (header, data) = raw.answer();
        if header.kind == reply::ACK {
            break;
        }
        properties.push(Info::decode(&data).expect("a property"));
    }
    assert!(properties.contains(&Info::Name("disk".to_owned())));
    assert!(properties.contains(&Info::Description("a test disk".to_owned())));
    // INFO does not end the negotiation. DF is offered only with structured replies.
    let flags_of = |properties: &[Info]| match properties[0] {
        Info::Export { flags, .. } => flags,
        _ => panic!("the first property is the export's"),
    };
    assert_eq!(flags_of(&properties) & export::SEND_DF, 0);
    raw.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    let flags = flags_of(&raw.go("disk"));
    assert_ne!(flags & export::SEND_DF, 0);
    assert_ne!(flags & export::CAN_MULTI_CONN, 0);
}

#[test]
fn structured_reads_are_one_chunk_and_errors_are_chunks() {
    let server = Server::start(Setup::default());
    let mut raw = Raw::greeted(&server);
    raw.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(raw.answer().0.kind, reply::ACK);
    raw.go("disk");
    raw.request(command::READ, 4096, 8192);
    let header = Chunk::decode(&raw.bytes::<20>()).expect("a chunk");
    assert_eq!((header.kind, header.flags), (chunk::OFFSET_DATA, 1));
    assert_eq!(header.length, 8192 + 8);
    assert_eq!(raw.bytes::<8>(), 4096_u64.to_be_bytes());
    raw.data(8192);
    raw.request(command::READ, 64 << 20, 512);
    let header = Chunk::decode(&raw.bytes::<20>()).expect("a chunk");
    assert_eq!(
        (header.kind, header.flags, header.length),
        (chunk::ERROR, 1, 6)
    );
    assert_eq!(raw.bytes::<4>(), EINVAL.to_be_bytes());
    raw.data(2);
    raw.request(command::WRITE, 64 << 20, 512);
    raw.say(&[0; 512]);
    raw.data(20);
    assert_eq!(raw.bytes::<4>(), ENOSPC.to_be_bytes());
}

#[test]
fn pieces_and_piles_of_requests_are_the_same() {
    let server = Server::start(Setup::default());
    let mut raw = Raw::ready(&server);
    let write = Request {
        flags: flag::FUA,
        command: command::WRITE,
        cookie: 1,
        offset: 0,
        length: 512,
    };
    for piece in [&write.encode()[..], &[7; 512]].concat().chunks(3) {
        raw.say(piece);
    }
    assert_eq!(raw.simple().error, 0);
    // Many requests in one message: writes of several sizes, so that payloads end anywhere in the
    // buffers.
    let mut pile = Vec::new();
    let mut offset = 1 << 20;
    let mut sizes = Vec::new();
    for index in 0..400_u32 {
        let length = 512 * (1 + index % 150);
        let request = Request {
            flags: 0,
            command: command::WRITE,
            cookie: u64::from(index),
            offset,
            length,
        };
        pile.extend_from_slice(&request.encode());
        pile.resize(pile.len() + length as usize, index as u8);
        sizes.push((offset, length));
        offset += u64::from(length);
    }
    let mut writer = raw.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        use std::io::Write as _;
        writer.write_all(&pile).expect("the server reads");
    });
    let mut answered: Vec<u64> = (0..400).map(|_| raw.simple().cookie).collect();
    sender.join().expect("the sender");
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..400), "each is answered once");
    for (index, (offset, length)) in sizes.into_iter().enumerate() {
        raw.request(command::READ, offset, length);
        assert_eq!(raw.simple().error, 0);
        let data = raw.data(length as usize);
        assert!(
            data.iter().all(|&byte| byte == index as u8),
            "write {index}"
        );
    }
}

#[test]
fn requests_before_a_disconnect_are_answered() {
    for apart in [false, true] {
        let server = Server::start(Setup {
            apart,
            ..Setup::default()
        });
        let mut raw = Raw::ready(&server);
        for index in 0..100 {
            raw.request(command::READ, index * 4096, 4096);
        }
        raw.request(command::DISC, 0, 0);
        assert_eq!(raw.closed().len(), 100 * (16 + 4096));
    }
}
