//! The page cache's codec: properties of well-formed messages, and a seeded substitute for the
//! fuzzer that needs no nightly compiler.

mod check;

use forebay_pagecache::message::{
    Access, LockRange, NodeId, PageId, Place, Refusal, ToDirectory, ToNode,
};
use forebay_pagecache::protocol::{DecodeError, MESSAGES_MAX, PACKET_BYTES_MAX, Packet, encode};
use proptest::prelude::*;

fn page() -> impl Strategy<Value = PageId> {
    any::<(u64, u64)>().prop_map(|(inode, index)| PageId { inode, index })
}

fn place() -> impl Strategy<Value = Place> {
    any::<(u32, u64)>().prop_map(|(frame, generation)| Place { frame, generation })
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Read), Just(Access::Write)]
}

fn node() -> impl Strategy<Value = NodeId> {
    (0_u8..32).prop_map(|number| NodeId::new(number).expect("below 32"))
}

fn range() -> impl Strategy<Value = LockRange> {
    any::<(u64, u64, u64, bool)>().prop_map(|(inode, start, end, exclusive)| LockRange {
        inode,
        start,
        end,
        exclusive,
    })
}

fn to_directory() -> impl Strategy<Value = ToDirectory> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(frames, unpublished_pages)| ToDirectory::Join {
            frames,
            unpublished_pages
        }),
        (page(), access()).prop_map(|(page, access)| ToDirectory::Lookup { page, access }),
        place().prop_map(|place| ToDirectory::Publish { place }),
        place().prop_map(|place| ToDirectory::Abandon { place }),
        place().prop_map(|place| ToDirectory::Invalidated { place }),
        (place(), any::<bool>()).prop_map(|(place, ok)| ToDirectory::WrittenBack { place, ok }),
        (page(), place()).prop_map(|(page, place)| ToDirectory::Flush { page, place }),
        place().prop_map(|place| ToDirectory::Used { place }),
        (any::<u64>(), range()).prop_map(|(ticket, range)| ToDirectory::Lock { ticket, range }),
        any::<u64>().prop_map(|ticket| ToDirectory::Unlock { ticket }),
        any::<(u64, u64)>().prop_map(|(nonce, session)| ToDirectory::Hello { nonce, session }),
        any::<[u64; 4]>().prop_map(|[hits_local, hits_remote, misses, read_ahead]| {
            ToDirectory::Alive {
                hits_local,
                hits_remote,
                misses,
                read_ahead,
            }
        }),
        any::<[u64; 4]>().prop_map(|[pages, oldest_ms, write_back_failures, lost_pages]| {
            ToDirectory::Dirty {
                pages,
                oldest_ms,
                write_back_failures,
                lost_pages,
            }
        }),
        Just(ToDirectory::Leave {}),
        node().prop_map(|node| ToDirectory::Forgotten { node }),
        any::<(u32, u32)>().prop_map(|(first_frame, frames)| ToDirectory::Rejoin {
            first_frame,
            frames
        }),
        (page(), place(), access()).prop_map(|(page, place, access)| ToDirectory::Have {
            page,
            place,
            access
        }),
        (page(), place(), access()).prop_map(|(page, place, access)| ToDirectory::Filling {
            page,
            place,
            access
        }),
        (any::<(u64, bool)>(), range()).prop_map(|((ticket, held), range)| ToDirectory::Relock {
            ticket,
            range,
            held
        }),
        Just(ToDirectory::HadAll {}),
        any::<(u64, u64)>().prop_map(|(ticket, inode)| ToDirectory::NotFlushed { ticket, inode }),
        place().prop_map(|place| ToDirectory::Replicate { place }),
        place().prop_map(|place| ToDirectory::Dropped { place }),
        any::<(u64, u64)>().prop_map(|(ticket, inode)| ToDirectory::PublishAll { ticket, inode }),
        any::<u64>().prop_map(|request| ToDirectory::PublishedFile { request }),
        (place(), any::<bool>()).prop_map(|(place, ok)| ToDirectory::Protected { place, ok }),
        any::<[u64; 3]>().prop_map(|[ticket, pages, failed]| ToDirectory::FlushedAll {
            ticket,
            pages,
            failed
        }),
    ]
}

fn to_node() -> impl Strategy<Value = ToNode> {
    prop_oneof![
        any::<(u32, u32, u32)>().prop_map(|(first_frame, frames, unpublished_pages)| {
            ToNode::Joined {
                first_frame,
                frames,
                unpublished_pages,
            }
        }),
        (page(), place(), access()).prop_map(|(page, place, access)| ToNode::Fill {
            page,
            place,
            access
        }),
        (page(), place(), access()).prop_map(|(page, place, access)| ToNode::Map {
            page,
            place,
            access
        }),
        (page(), place()).prop_map(|(page, place)| ToNode::Invalidate { page, place }),
        (page(), place()).prop_map(|(page, place)| ToNode::WriteBack { page, place }),
        (page(), place(), any::<bool>()).prop_map(|(page, place, ok)| ToNode::Flushed {
            page,
            place,
            ok
        }),
        any::<u64>().prop_map(|ticket| ToNode::Locked { ticket }),
        (node(), any::<(u32, u32)>()).prop_map(|(node, (first_frame, frames))| ToNode::Died {
            node,
            first_frame,
            frames
        }),
        (page(), place(), place()).prop_map(|(page, place, copy)| ToNode::Replica {
            page,
            place,
            copy
        }),
        (page(), place()).prop_map(|(page, place)| ToNode::DropReplica { page, place }),
        any::<(u64, u64)>().prop_map(|(request, inode)| ToNode::PublishFile { request, inode }),
        any::<u64>().prop_map(|ticket| ToNode::PublishedAll { ticket }),
        (page(), place()).prop_map(|(page, place)| ToNode::Protect { page, place }),
        any::<u64>().prop_map(|nonce| ToNode::Hello { nonce }),
        node().prop_map(|node| ToNode::Forget { node }),
        Just(ToNode::Left {}),
        any::<u64>().prop_map(|ticket| ToNode::FlushAll { ticket }),
        prop_oneof![
            Just(Refusal::NumberInUse),
            Just(Refusal::Unknown),
            Just(Refusal::Unseen)
        ]
        .prop_map(|why| ToNode::Refused { why }),
    ]
}

fn decoded<M: forebay_pagecache::protocol::Message>(bytes: &[u8]) -> Vec<M> {
    let packet = Packet::<M>::decode(bytes)
        .expect("a packet")
        .expect("all of it");
    assert_eq!(packet.size_bytes, bytes.len());
    packet
        .messages()
        .map(|message| message.expect("well-formed"))
        .collect()
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded(
        node in node(),
        up in prop::collection::vec(to_directory(), 1..40),
        down in prop::collection::vec(to_node(), 1..40),
    ) {
        let mut bytes = Vec::new();
        encode(node, &up, &mut bytes);
        let packet = Packet::<ToDirectory>::decode(&bytes).expect("a packet").expect("whole");
        prop_assert_eq!(packet.node, node);
        prop_assert_eq!(decoded::<ToDirectory>(&bytes), up);
        prop_assert!(matches!(Packet::<ToNode>::decode(&bytes), Err(DecodeError::Direction(1))));
        bytes.clear();
        encode(node, &down, &mut bytes);
        prop_assert_eq!(decoded::<ToNode>(&bytes), down);
    }

    #[test]
    fn a_packet_is_whole_or_awaited(
        node in node(),
        messages in prop::collection::vec(to_node(), 1..8),
    ) {
        let mut bytes = Vec::new();
        encode(node, &messages, &mut bytes);
        for end in 0..bytes.len() {
            prop_assert!(matches!(Packet::<ToNode>::decode(&bytes[..end]), Ok(None)));
        }
    }

    #[test]
    fn damage_is_an_error_or_another_packet(
        node in node(),
        messages in prop::collection::vec(to_directory(), 1..8),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        encode(node, &messages, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        check::any_input(&bytes);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check::any_input(&bytes);
    }
}

#[test]
fn many_messages_are_many_packets() {
    let ticket = u64::MAX;
    let longest = ToDirectory::Lock {
        ticket,
        range: LockRange {
            inode: ticket,
            start: 0,
            end: ticket,
            exclusive: true,
        },
    };
    let messages = vec![longest; 2 * MESSAGES_MAX + 1];
    let mut bytes = Vec::new();
    encode(NodeId::new(31).expect("the last"), &messages, &mut bytes);
    assert!(bytes.len() < 3 * PACKET_BYTES_MAX);
    assert_eq!(check::any_input(&bytes), 3);
}

#[test]
fn hostile_headers_have_names() {
    let mut good = Vec::new();
    let messages = [ToNode::Locked { ticket: 3 }];
    encode(NodeId::new(1).expect("a node"), &messages, &mut good);
    let with = |at: usize, bytes: &[u8]| {
        let mut packet = good.clone();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    let header = |bytes: &[u8]| Packet::<ToNode>::decode(bytes).expect_err("it is not one");
    let huge = u32::MAX.to_le_bytes();
    assert_eq!(
        header(&huge),
        DecodeError::Length(u32::MAX),
        "before anything is awaited"
    );
    assert_eq!(header(&with(0, &[5, 0, 0, 0])), DecodeError::Length(5));
    assert_eq!(header(&with(4, &[1])), DecodeError::Version(1));
    assert_eq!(header(&with(5, &[1])), DecodeError::Direction(1));
    assert_eq!(header(&with(6, &[32])), DecodeError::Node(32));
    assert_eq!(header(&with(7, &[1])), DecodeError::Value(1));
    assert_eq!(header(&with(8, &[1, 4])), DecodeError::Count(1025));
    let body = |bytes: &[u8]| {
        let packet = Packet::<ToNode>::decode(bytes)
            .expect("a header")
            .expect("whole");
        packet.messages().find_map(Result::err)
    };
    assert_eq!(body(&good), None);
    assert_eq!(
        body(&with(8, &[2, 0])),
        Some(DecodeError::Size),
        "too few messages"
    );
    assert_eq!(
        body(&with(8, &[0, 0])),
        Some(DecodeError::Size),
        "too many bytes"
    );
    assert_eq!(body(&with(10, &[99])), Some(DecodeError::Tag(99)));
    let error = forebay_block::Error::from(DecodeError::Version(2));
    assert!(error.report().contains("version 2"), "{error:?}");
}
