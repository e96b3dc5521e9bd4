//! Queries for extents: servers that answer, that cannot, and that lie.

use forebay_block::{Allocation, Extents};
use forebay_wire::nbd::errno::EIO;
use forebay_wire::nbd::transmission::{Chunk, Request, chunk};

use super::server::{CONTEXT, encode_chunk};
use super::*;

const END: u64 = SIZE_BYTES as u64;

/// Starts a server that answers queries for extents.
fn server(script: impl Fn(u32, u16) -> Act + 'static) -> Server {
    let server = Server::start(script);
    server.offer().structured.set(true);
    server
}

fn is_data(found: &Extents) -> bool {
    found
        .iter()
        .all(|extent| extent.allocation == Allocation::Data)
}

/// Encodes a status with these descriptors, each a length and flags.
fn status(context: u32, descriptors: &[[u32; 2]]) -> Vec<u8> {
    let words = descriptors.as_flattened().iter();
    let words = std::iter::once(&context).chain(words);
    words.flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn extents_are_those_of_the_server() {
    let server = server(|_, _| Act::Answer);
    with_device(&server, settings(), |device| async move {
        let data = Buf::copied(&[5; 4096]);
        device.write(1 << 20, data).await.expect("written");
        let found = device.extents(0..END).await.expect("an answer");
        let mut expected = Extents::default();
        expected.push(0..1 << 20, Allocation::Hole);
        expected.push(1 << 20..(1 << 20) + 4096, Allocation::Data);
        // The server says more than a query takes. The next one asks for the rest.
        let end = found.end().expect("an extent");
        expected.push((1 << 20) + 4096..end, Allocation::Hole);
        assert_eq!((found, end), (expected, 2 << 20));
        let rest = device.extents(end..END).await.expect("an answer");
        assert_eq!(rest.end(), Some(END));
        assert_eq!(rest.iter().count(), 1);
    });
    let asked = server.asked();
    let query = command::BLOCK_STATUS;
    assert_eq!(asked[1..], [(query, 0), (query, 2 << 20)]);
}

#[test]
fn without_the_context_everything_is_data() {
    for structured in [false, true] {
        let server = Server::start(|_, _| Act::Answer);
        server.offer().structured.set(structured);
        server.offer().allocation.set(false);
        with_device(&server, settings(), |device| async move {
            let found = device.extents(0..END).await.expect("an answer");
            assert_eq!(found, Extents::data(0..END));
        });
        assert!(server.asked().is_empty(), "nothing is sent");
    }
}

#[test]
fn a_query_may_take_as_long_as_a_flush() {
    let server = server(|_, asked| match asked {
        command::BLOCK_STATUS => Act::Delay(3 * TIMES.answer),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        let found = device.extents(0..END).await.expect("an answer");
        assert!(!is_data(&found));
        assert_eq!(device.losses(), 0);
    });
}

#[test]
fn an_error_of_the_server_is_the_error_of_the_query() {
    let server = server(|_, _| Act::Fail(EIO));
    with_device(&server, settings(), |device| async move {
        let error = device.extents(0..4096).await.expect_err("refused");
        let said = error.report();
        assert!(
            said.contains("a query for the extents of 4096 bytes"),
            "{said}"
        );
        assert_eq!(device.losses(), 0);
    });
}

#[test]
fn a_query_is_sent_once_more_after_a_loss() {
    let server = server(|number, _| match number {
        2 => Act::Cut,
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        let data = Buf::copied(&[5; 4096]);
        device.write(0, data).await.expect("written");
        let found = device.extents(0..8192).await.expect("an answer");
        assert_eq!(found.iter().count(), 2);
        assert_eq!(device.losses(), 1);
    });
    // The unflushed write is sent before the query.
    let commands: Vec<_> = server
        .asked()
        .into_iter()
        .map(|(command, _)| command)
        .collect();
    let (write, query) = (command::WRITE, command::BLOCK_STATUS);
    assert_eq!(commands[..4], [write, query, write, query]);
}

#[test]
fn a_server_that_returns_without_the_context_ends_a_query() {
    let server = server(|_, _| Act::Cut);
    let offer = server.offer();
    with_device(&server, settings(), |device| async move {
        offer.allocation.set(false);
        let query = device.extents(0..4096).await;
        assert_eq!(query.expect_err("refused").kind(), ErrorKind::Unsupported);
        let found = device.extents(0..4096).await.expect("an answer");
        assert!(is_data(&found));
    });
}

#[test]
fn a_server_that_lies_about_extents_is_left() {
    type Words = fn(&Request) -> Vec<u8>;
    const DONE: u16 = chunk::FLAG_DONE;
    let lies: [(&str, Words); 8] = [
        ("of another context", |it| {
            let words = status(CONTEXT + 1, &[[4096, 3]]);
            encode_chunk(it.cookie, DONE, chunk::BLOCK_STATUS, &words)
        }),
        ("without descriptors", |it| {
            encode_chunk(it.cookie, DONE, chunk::BLOCK_STATUS, &status(CONTEXT, &[]))
        }),
        ("with half a descriptor", |it| {
            let words = &status(CONTEXT, &[[4096, 3], [4096, 0]])[..16];
            encode_chunk(it.cookie, DONE, chunk::BLOCK_STATUS, words)
        }),
        ("without a length", |it| {
            let words = status(CONTEXT, &[[512, 3], [0, 3]]);
            encode_chunk(it.cookie, DONE, chunk::BLOCK_STATUS, &words)
        }),
        ("twice", |it| {
            let words = status(CONTEXT, &[[4096, 3]]);
            let part = |flags| encode_chunk(it.cookie, flags, chunk::BLOCK_STATUS, &words);
            [part(0), part(DONE)].concat()
        }),
        ("that never came", |it| {
            encode_chunk(it.cookie, DONE, chunk::NONE, &[])
        }),
        ("as data", |it| {
            let words = [&it.offset.to_be_bytes()[..], &[0; 512]].concat();
            encode_chunk(it.cookie, DONE, chunk::OFFSET_DATA, &words)
        }),
        ("that is endless", |it| {
            let header = Chunk {
                flags: DONE,
                kind: chunk::BLOCK_STATUS,
                cookie: it.cookie,
                length: u32::MAX - 3,
            };
            header.encode().to_vec()
        }),
    ];
    for (name, words) in lies {
        let server = server(move |number, _| match number {
            1 => Act::Say(words),
            _ => Act::Answer,
        });
        with_device(&server, settings(), move |device| async move {
            let found = device.extents(0..4096).await.expect("an answer");
            assert_eq!(found.iter().count(), 1, "a status {name}");
            assert_eq!(found.end(), Some(4096), "a status {name}");
            assert_eq!(device.losses(), 1, "a status {name}");
        });
    }
    // A status in the answer to a read.
    let server = server(|number, command| match number {
        1 if command == command::READ => Act::Say(|it| {
            let words = status(CONTEXT, &[[4096, 3]]);
            encode_chunk(it.cookie, DONE, chunk::BLOCK_STATUS, &words)
        }),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.read(0, Buf::zeroed(4096)).await.expect("read");
        assert_eq!(device.losses(), 1);
    });
}

#[test]
fn a_long_status_is_cut_and_a_longer_last_extent_too() {
    let server = server(|number, _| match number {
        // More descriptors than count, and one that ends past the request.
        1 => Act::Say(|it| {
            let words = status(CONTEXT, &vec![[512, 3]; 20_000]);
            encode_chunk(it.cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, &words)
        }),
        _ => Act::Say(|it| {
            let words = status(CONTEXT, &[[100, 3], [u32::MAX, 3]]);
            encode_chunk(it.cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, &words)
        }),
    });
    with_device(&server, settings(), |device| async move {
        let found = device.extents(0..END).await.expect("an answer");
        assert_eq!(found.end(), Some(4096 * 512));
        let found = device.extents(0..8192).await.expect("an answer");
        assert_eq!((found.end(), is_data(&found)), (Some(8192), false));
        assert_eq!(device.losses(), 0);
    });
}
