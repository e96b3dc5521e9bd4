//! The NBD codec: properties of well-formed messages, and a seeded substitute for the fuzzer that
//! needs no nightly compiler.

mod check;

use forebay_wire::nbd::context::{
    BASE_ALLOCATION, BlockStatus, Context, ContextRequest, Descriptor, ExtendedStatus, state,
};
use forebay_wire::nbd::extended::{ExtendedChunk, ExtendedRequest};
use forebay_wire::nbd::handshake::{Greeting, Info, InfoRequest, OptionHeader, OptionReply};
use forebay_wire::nbd::transmission::{Chunk, Request, SimpleReply};
use forebay_wire::nbd::{handshake, transmission};
use proptest::prelude::*;

/// Returns a request for metadata contexts.
fn contexts() -> ContextRequest {
    ContextRequest {
        name: "volume".to_owned(),
        queries: vec!["base:".to_owned(), BASE_ALLOCATION.to_owned()],
    }
}

/// A valid message to damage.
fn seeds() -> Vec<Vec<u8>> {
    let info = InfoRequest {
        name: "volume".to_owned(),
        wanted: vec![handshake::info::BLOCK_SIZE, handshake::info::NAME],
    };
    vec![
        Greeting { flags: 3 }.encode().to_vec(),
        OptionHeader {
            option: handshake::option::GO,
            length: 12,
        }
        .encode()
        .to_vec(),
        OptionReply {
            option: handshake::option::LIST,
            kind: handshake::reply::ACK,
            length: 0,
        }
        .encode()
        .to_vec(),
        info.encode(),
        Info::BlockSize {
            minimum: 512,
            preferred: 4096,
            maximum: 32 << 20,
        }
        .encode(),
        Info::Export {
            size_bytes: 1 << 30,
            flags: handshake::export::HAS_FLAGS,
        }
        .encode(),
        ExtendedRequest {
            flags: transmission::flag::PAYLOAD_LEN,
            command: transmission::command::WRITE,
            cookie: 7,
            offset: 4096,
            length: 4096,
        }
        .encode()
        .to_vec(),
        ExtendedChunk::encode_error(7, 4096, 5).to_vec(),
        ExtendedStatus {
            context: 1,
            descriptors: vec![(1 << 40, 3), (4096, 0)],
        }
        .encode(),
        Request {
            flags: transmission::flag::FUA,
            command: transmission::command::WRITE,
            cookie: 7,
            offset: 4096,
            length: 4096,
        }
        .encode()
        .to_vec(),
        SimpleReply {
            error: 22,
            cookie: 9,
        }
        .encode()
        .to_vec(),
        Chunk::encode_data(1, 2, 3).to_vec(),
        Chunk::encode_error(1, 5).to_vec(),
        contexts().encode(),
        Context {
            id: 1,
            name: BASE_ALLOCATION.to_owned(),
        }
        .encode(),
        BlockStatus {
            context: 1,
            descriptors: vec![
                Descriptor {
                    length: 4096,
                    flags: 0,
                },
                Descriptor {
                    length: 1 << 30,
                    flags: state::HOLE | state::ZERO,
                },
            ],
        }
        .encode(),
        vec![0, 0, 0, 3],
    ]
}

#[test]
fn damaged_messages_never_break_the_codec() {
    let seeds = seeds();
    let mut state = 0x0f0e_b0a1_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("a small number")
    };
    let mut taken = 0;
    for _ in 0..200_000 {
        let mut data = seeds[draw(seeds.len())].clone();
        for _ in 0..draw(4) {
            match draw(4) {
                0 if !data.is_empty() => {
                    let at = draw(data.len());
                    data[at] ^= 1 << draw(8);
                }
                1 => data.truncate(draw(data.len() + 1)),
                2 => data.push(u8::try_from(draw(256)).expect("a byte")),
                _ => data.extend_from_slice(&seeds[draw(seeds.len())]),
            }
        }
        taken += check::any_input(&data);
    }
    assert!(
        taken > 50_000,
        "the inputs reach past the magic numbers: {taken}"
    );
}

#[test]
fn every_seed_is_taken() {
    for seed in seeds() {
        assert!(check::any_input(&seed) > 0, "{seed:?}");
    }
}

proptest! {
    #[test]
    fn requests_come_back(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
        let request = Request { flags, command, cookie, offset, length };
        prop_assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        let payload = if command == transmission::command::WRITE { length } else { 0 };
        prop_assert_eq!(request.payload_bytes(), payload);
    }

    #[test]
    fn replies_come_back(error: u32, cookie: u64, flags: u16, kind: u16, length: u32) {
        let simple = SimpleReply { error, cookie };
        prop_assert_eq!(SimpleReply::decode(&simple.encode()).unwrap(), simple);
        let chunk = Chunk { flags, kind, cookie, length };
        prop_assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
    }

    #[test]
    fn final_chunks_say_their_length(
        cookie: u64,
        offset: u64,
        length in 1u32..=32 << 20,
        error: u32,
    ) {
        let data = Chunk::encode_data(cookie, offset, length);
        let chunk = Chunk::decode(&data).unwrap();
        prop_assert_eq!(chunk.length, length + 8);
        prop_assert_eq!(chunk.flags, transmission::chunk::FLAG_DONE);
        prop_assert_eq!(&data[20..], &offset.to_be_bytes()[..]);
        let failed = Chunk::encode_error(cookie, error);
        let chunk = Chunk::decode(&failed).unwrap();
        prop_assert_eq!(chunk.length as usize, failed.len() - 20);
        prop_assert_eq!(&failed[20..24], &error.to_be_bytes()[..]);
    }

    #[test]
    fn info_requests_come_back(
        name in "[^\0]{0,64}",
        wanted in proptest::collection::vec(any::<u16>(), 0..20),
    ) {
        let request = InfoRequest { name, wanted };
        prop_assert_eq!(InfoRequest::decode(&request.encode()).unwrap(), request);
    }

    #[test]
    fn requests_for_contexts_come_back(
        name in "[^\0]{0,64}",
        queries in proptest::collection::vec("[^\0]{0,32}", 0..8),
    ) {
        let request = ContextRequest { name: name.clone(), queries };
        prop_assert_eq!(ContextRequest::decode(&request.encode()).unwrap(), request);
        let context = Context { id: 7, name };
        prop_assert_eq!(Context::decode(&context.encode()).unwrap(), context);
    }

    #[test]
    fn states_come_back(
        context: u32,
        parts in proptest::collection::vec((1u32.., any::<u32>()), 1..20),
    ) {
        let descriptors: Vec<_> = parts
            .into_iter()
            .map(|(length, flags)| Descriptor { length, flags })
            .collect();
        let status = BlockStatus { context, descriptors };
        prop_assert_eq!(BlockStatus::decode(&status.encode()).unwrap(), status);
    }

    #[test]
    fn properties_come_back(size_bytes: u64, flags: u16, name in "[^\0]{0,64}", sizes: [u32; 3]) {
        for info in [
            Info::Export { size_bytes, flags },
            Info::Name(name.clone()),
            Info::Description(name),
            Info::BlockSize { minimum: sizes[0], preferred: sizes[1], maximum: sizes[2] },
        ] {
            prop_assert_eq!(Info::decode(&info.encode()).unwrap(), info);
        }
    }

    #[test]
    fn any_bytes_are_handled(data in proptest::collection::vec(any::<u8>(), 0..128)) {
        check::any_input(&data);
    }
}

#[test]
fn the_documents_numbers() {
    assert_eq!(&Greeting { flags: 3 }.encode(), b"NBDMAGICIHAVEOPT\x00\x03");
    assert_eq!(
        Request {
            flags: 1,
            command: 1,
            cookie: 0x0102_0304_0506_0708,
            offset: 4096,
            length: 512,
        }
        .encode(),
        [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 2, 0
        ]
    );
    assert_eq!(handshake::encode_export_name_reply(1, 2, false).len(), 134);
    assert_eq!(handshake::encode_export_name_reply(1, 2, true).len(), 10);
    assert!(handshake::decode_client_flags([0, 0, 0, 4]).is_err());
    assert!(handshake::decode_client_flags([0, 1, 0, 0]).is_err());
    assert!(handshake::decode_name(&[b'a'; 4097]).is_err());
    assert!(handshake::decode_name(b"a\0b").is_err());
    assert!(InfoRequest::decode(&[0xff; 6]).is_err());
    let mut spare = InfoRequest {
        name: String::new(),
        wanted: vec![],
    }
    .encode();
    spare.push(0);
    assert!(InfoRequest::decode(&spare).is_err());
    let mut spare = contexts().encode();
    assert_eq!(spare[..10], *b"\0\0\0\x06volume");
    assert_eq!(spare[10..23], *b"\0\0\0\x02\0\0\0\x05base:");
    spare.push(0);
    assert!(ContextRequest::decode(&spare).is_err());
    // A count that is larger than the data.
    assert!(ContextRequest::decode(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).is_err());
    for invalid in [&[0; 4][..], &[0; 12], &[1; 11], &[1; 16]] {
        assert!(BlockStatus::decode(invalid).is_err(), "{invalid:?}");
    }
}
