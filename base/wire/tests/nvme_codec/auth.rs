//! Authentication messages: encoding, decoding, and the errors of invalid ones.

use forebay_wire::nvme::auth::{
    ControllerMessage, Exchange, Group, Hash, HostMessage, Malformed, Reason,
};
use forebay_wire::nvme::fabrics;
use proptest::prelude::*;

/// A controller's messages, one of each.
pub(crate) fn answers() -> Vec<Vec<u8>> {
    let challenge = ControllerMessage::Challenge {
        hash: Hash::Sha384,
        group: Group::Ffdhe2048,
        sequence: 9,
        value: &[8; 48],
        public: &[9; 256],
    };
    let success = ControllerMessage::Success1 {
        hash: Hash::Sha256,
        response: Some(&[5; 32]),
    };
    let failure = ControllerMessage::Failure1(Reason::Failed);
    let all = [challenge, success, failure];
    all.iter().map(|message| message.encode(7)).collect()
}

/// A host's messages, one of each.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let reply = HostMessage::Reply {
        response: &[1; 32],
        challenge: Some((&[2; 32], 3)),
        public: &[4; 256],
    };
    let negotiate = HostMessage::Negotiate {
        hashes: &[1, 2, 3],
        groups: &[0, 1],
    };
    let all = [
        negotiate,
        reply,
        HostMessage::Success2,
        HostMessage::Failure2(1),
    ];
    all.iter().map(|message| message.encode(7)).collect()
}

#[test]
fn the_bytes_are_where_the_specification_has_them() {
    let [negotiate, reply, success, failure] = messages().try_into().expect("four");
    assert_eq!(negotiate.len(), 72);
    assert_eq!(negotiate[..8], [0, 0, 0, 0, 7, 0, 0, 1]);
    assert_eq!(negotiate[8..16], [1, 0, 3, 2, 1, 2, 3, 0]);
    assert_eq!(negotiate[42..45], [0, 1, 0]);
    assert_eq!(reply.len(), 16 + 64 + 256);
    assert_eq!(
        reply[..16],
        [1, 2, 0, 0, 7, 0, 32, 0, 1, 0, 0, 1, 3, 0, 0, 0]
    );
    assert_eq!((reply[16], reply[48], reply[80]), (1, 2, 4));
    assert_eq!(success, [1, 4, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(failure, [0, 0xf0, 0, 0, 7, 0, 1, 1]);
    let challenge = ControllerMessage::Challenge {
        hash: Hash::Sha384,
        group: Group::Ffdhe3072,
        sequence: 0x0102_0304,
        value: &[8; 48],
        public: &[9; 384],
    }
    .encode(0x0a0b);
    assert_eq!(challenge.len(), 16 + 48 + 384);
    assert_eq!(
        challenge[..17],
        [1, 1, 0, 0, 0x0b, 0x0a, 48, 0, 2, 2, 0x80, 1, 4, 3, 2, 1, 8]
    );
    assert_eq!((challenge[63], challenge[64]), (8, 9));
    let hash = Hash::Sha512;
    let silent = ControllerMessage::Success1 {
        hash,
        response: None,
    };
    let silent = silent.encode(1);
    assert_eq!(silent.len(), 16 + 64);
    assert_eq!(silent[..9], [1, 3, 0, 0, 1, 0, 64, 0, 0]);
    let said = ControllerMessage::Success1 {
        hash,
        response: Some(&[5; 64]),
    };
    let said = said.encode(1);
    assert_eq!((said[8], said[9], said[16], said[79]), (1, 0, 5, 5));
    let no = ControllerMessage::Failure1(Reason::GroupUnusable).encode(2);
    assert_eq!(no, [0, 0xf1, 0, 0, 2, 0, 1, 5]);
    let send = Exchange::command(true, 72).encode();
    assert_eq!((send[0], send[4]), (0x7f, 5));
    assert_eq!(send[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
    assert_eq!(Exchange::command(false, 4096).encode()[4], 6);
    assert_eq!(fabrics::connected(5, true), 0x2_0005);
    assert_eq!(fabrics::connected(5, false), 5);
}

#[test]
fn invalid_messages_are_refused_with_the_reason() {
    let [negotiate, reply, success, failure] = messages().try_into().expect("four");
    let refused = |mut bytes: Vec<u8>, change: &dyn Fn(&mut Vec<u8>)| {
        change(&mut bytes);
        HostMessage::decode(&bytes)
            .expect_err("it makes no sense")
            .reason
    };
    type Change = fn(&mut Vec<u8>);
    let payload: [(&[u8], Change); 16] = [
        (&negotiate, |b| b.truncate(71)),
        (&negotiate, |b| b.push(0)),
        (&negotiate, |b| b.truncate(7)),
        (&negotiate, |b| b.truncate(5)),
        (&negotiate, Vec::clear),
        (&negotiate, |b| b[7] = 0),
        (&negotiate, |b| b[7] = 2),
        (&negotiate, |b| b[10] = 0),
        (&negotiate, |b| b[10] = 31),
        (&negotiate, |b| b[11] = 31),
        (&reply, |b| b.truncate(15)),
        (&reply, |b| b[6] = 33),
        (&reply, |b| b[11] = 2),
        (&reply, |b| b[8] = 2),
        (&success, |b| b.push(0)),
        (&failure, |b| b.truncate(7)),
    ];
    for (index, (bytes, change)) in payload.into_iter().enumerate() {
        let reason = refused(bytes.to_vec(), &change);
        assert_eq!(reason, Reason::IncorrectPayload, "case {index}");
    }
    assert_eq!(
        refused(negotiate.clone(), &|b| b[6] = 1),
        Reason::ChannelMismatch
    );
    assert_eq!(
        refused(negotiate.clone(), &|b| b[8] = 2),
        Reason::ProtocolUnusable
    );
    // A challenge, which only controllers send.
    assert_eq!(refused(reply, &|b| b[1] = 1), Reason::IncorrectMessage);
    // The second protocol is the supported one.
    let mut two = negotiate.clone();
    (two[7], two[8]) = (2, 9);
    two.extend(&negotiate[8..]);
    let wanted = HostMessage::Negotiate {
        hashes: &[1, 2, 3],
        groups: &[0, 1],
    };
    assert_eq!(HostMessage::decode(&two), Ok((7, wanted)));
    let malformed = Malformed {
        transaction: 7,
        reason: Reason::IncorrectMessage,
    };
    let unknown = [3, 0, 0, 0, 7, 0];
    assert_eq!(HostMessage::decode(&unknown), Err(malformed));
}

#[test]
fn controllers_are_refused_for_their_reasons() {
    let [challenge, success, failure] = answers().try_into().expect("three");
    type Change = fn(&mut Vec<u8>);
    let cases: [(&[u8], Change, Reason); 17] = [
        (&challenge, |b| b.truncate(5), Reason::IncorrectPayload),
        (&challenge, |b| b.truncate(15), Reason::IncorrectPayload),
        (
            &challenge,
            |b| b.truncate(16 + 48 + 255),
            Reason::IncorrectPayload,
        ),
        (&challenge, |b| b[6] = 32, Reason::IncorrectPayload),
        (&challenge, |b| b[8] = 1, Reason::IncorrectPayload),
        (&challenge, |b| b[8] = 4, Reason::HashUnusable),
        (&challenge, |b| b[8] = 0, Reason::HashUnusable),
        (&challenge, |b| b[9] = 0, Reason::IncorrectPayload),
        (&challenge, |b| b[9] = 2, Reason::IncorrectPayload),
        (&challenge, |b| b[9] = 4, Reason::GroupUnusable),
        (&challenge, |b| b[10] = 1, Reason::IncorrectPayload),
        // A reply, which only hosts send.
        (&challenge, |b| b[1] = 2, Reason::IncorrectMessage),
        (&success, |b| b[6] = 33, Reason::IncorrectPayload),
        (&success, |b| b[6] = 48, Reason::IncorrectPayload),
        (&success, |b| b[8] = 2, Reason::IncorrectPayload),
        (&success, |b| b.truncate(47), Reason::IncorrectPayload),
        (&failure, |b| b.truncate(7), Reason::IncorrectPayload),
    ];
    for (index, (bytes, change, reason)) in cases.into_iter().enumerate() {
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        let refused = ControllerMessage::decode(&bytes).expect_err("it makes no sense");
        assert_eq!(refused.reason, reason, "case {index}");
        assert_eq!(refused.transaction, if bytes.len() < 6 { 0 } else { 7 });
    }
    let mut later = failure;
    later[7] = 99;
    let some = ControllerMessage::Failure1(Reason::Failed);
    assert_eq!(ControllerMessage::decode(&later), Ok((7, some)));
}

proptest! {
    #[test]
    fn controllers_messages_are_decoded_as_encoded(
        transaction: u16,
        hash in prop::sample::select(Hash::ALL.to_vec()),
        group in prop::sample::select(Group::ALL.to_vec()),
        sequence: u32,
        long in proptest::collection::vec(any::<u8>(), 64 + 512),
        reason in 1u8..=7,
        room in 0usize..100,
    ) {
        let (value, public) = (&long[..hash.bytes()], &long[64..][..group.bytes()]);
        for message in [
            ControllerMessage::Challenge { hash, group, sequence, value, public },
            ControllerMessage::Success1 { hash, response: None },
            ControllerMessage::Success1 { hash, response: Some(value) },
            ControllerMessage::Failure1(Reason::of(reason).expect("one of seven")),
        ] {
            let mut bytes = message.encode(transaction);
            bytes.resize(bytes.len() + room, 0x55);
            prop_assert_eq!(ControllerMessage::decode(&bytes), Ok((transaction, message)));
        }
    }

    #[test]
    fn hosts_messages_are_decoded_as_encoded(
        transaction: u16,
        hashes in proptest::collection::vec(any::<u8>(), 1..=30),
        groups in proptest::collection::vec(any::<u8>(), 1..=30),
        long in proptest::collection::vec(any::<u8>(), 128),
        hash in 1usize..=64,
        public in proptest::collection::vec(any::<u8>(), 0..=512),
        sequence: u32,
        both: bool,
        code: u8,
    ) {
        let (response, value) = (&long[..hash], &long[64..64 + hash]);
        let challenge = both.then_some((value, sequence));
        for message in [
            HostMessage::Negotiate { hashes: &hashes, groups: &groups },
            HostMessage::Reply { response, challenge, public: &public },
            HostMessage::Success2,
            HostMessage::Failure2(code),
        ] {
            let bytes = message.encode(transaction);
            prop_assert_eq!(HostMessage::decode(&bytes), Ok((transaction, message)));
        }
    }
}
