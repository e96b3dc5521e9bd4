//! Targets that ask for authentication and must authenticate themselves: an honest one, and ones
//! that lie at each step. An unproved target gets no command after Connect but those of
//! authentication.

use forebay_auth::{HostSecrets, Question, Secrets, Side, augment};
use forebay_block::{BlockDeviceExt as _, Buf, ErrorKind};
use forebay_wire::nvme::Status;
use forebay_wire::nvme::auth::{ControllerMessage, Group, Hash, HostMessage, Reason};
use forebay_wire::nvme::fabrics::{self, fctype};
use forebay_wire::nvme::io::opcode;

use super::target::{Act, Target, Word};
use super::{NvmeTcpDevice, TIMES, Times, Uri};

const SUBSYSTEM: &str = "nqn.test";
const HOST: &str = "nqn.a:host";
/// The bytes 0, 1, 2, ... and 100, 101, ...
const OWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const THEIRS: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";
const HASH: Hash = Hash::Sha256;
const CHALLENGE: ControllerMessage<'_> = ControllerMessage::Challenge {
    hash: HASH,
    group: Group::Null,
    sequence: 77,
    value: &[3; 32],
    public: &[],
};

fn secrets(line: &str) -> HostSecrets {
    let secrets = Secrets::parse(&format!("{HOST} {line}")).expect("a line");
    secrets.of(HOST).expect("it is there").clone()
}

fn both() -> HostSecrets {
    secrets(&format!("{OWN} {THEIRS}"))
}

fn uri(target: &Target, secrets: HostSecrets) -> Uri {
    let uri = format!("{}?host={HOST}", target.uri());
    let mut uri: Uri = uri.parse().expect("a URI");
    uri.secrets = Some(secrets);
    uri
}

fn question<'a>(side: Side, challenge: &'a [u8], sequence: u32, transaction: u16) -> Question<'a> {
    Question {
        side,
        hash: HASH,
        challenge,
        sequence,
        transaction,
        host: HOST,
        subsystem: SUBSYSTEM,
    }
}

fn transaction(received: &[Vec<u8>]) -> u16 {
    HostMessage::decode(&received[0]).expect("an offer").0
}

/// Answer of a target that knows both secrets.
fn honest(received: &[Vec<u8>]) -> Vec<u8> {
    let transaction = transaction(received);
    let [_, reply] = received else {
        return CHALLENGE.encode(transaction);
    };
    let (_, reply) = HostMessage::decode(reply).expect("a reply");
    let HostMessage::Reply {
        response,
        challenge,
        ..
    } = reply
    else {
        panic!("{reply:?} is no reply");
    };
    let secrets = both();
    let asked = augment(HASH, &[3; 32], None);
    let asked = question(Side::Host, &asked, 77, transaction);
    assert!(asked.is_answer(&secrets.own.key(HOST), response));
    let key = secrets.controller.expect("it has one").key(SUBSYSTEM);
    let answer = challenge.map(|(value, sequence)| {
        let augmented = augment(HASH, value, None);
        question(Side::Controller, &augmented, sequence, transaction).answer(&key)
    });
    let response = answer.as_ref().map(|answer| answer.as_slice());
    success(transaction, response)
}

fn success(transaction: u16, response: Option<&[u8]>) -> Vec<u8> {
    let hash = HASH;
    ControllerMessage::Success1 { hash, response }.encode(transaction)
}

/// The host's own message, returned as the answer to its challenge.
fn reflected(received: &[Vec<u8>]) -> Vec<u8> {
    match HostMessage::decode(&received[1]).expect("a reply").1 {
        HostMessage::Reply { response, .. } => success(transaction(received), Some(response)),
        other => panic!("{other:?} is no reply"),
    }
}

fn changed(received: &[Vec<u8>], at: usize, value: u8) -> Word {
    let mut message = honest(received);
    assert_ne!(message[at], value, "it is a change");
    message[at] = value;
    Word::Message(message)
}

/// Answer of a lying target to the messages of its host.
type Lie = fn(&[Vec<u8>]) -> Word;

/// Number of the wrong message (from 1), its fault, and the result. The result is the error kind, a
/// word of the error, and the reason that the target gets.
type Case = (
    usize,
    &'static str,
    Lie,
    ErrorKind,
    &'static str,
    Option<Reason>,
);

const REFUSED: ErrorKind = ErrorKind::Permission;
const BROKEN: ErrorKind = ErrorKind::Disconnected;
const PAYLOAD: (ErrorKind, &str, Option<Reason>) = (
    BROKEN,
    "an invalid field or length",
    Some(Reason::IncorrectPayload),
);
const MESSAGE: (ErrorKind, &str, Option<Reason>) =
    (BROKEN, "out of sequence", Some(Reason::IncorrectMessage));
const UNPROVED: (ErrorKind, &str, Option<Reason>) = (
    REFUSED,
    "the target has not authenticated itself",
    Some(Reason::Failed),
);

const fn case(
    message: usize,
    name: &'static str,
    lie: Lie,
    (kind, word, sent_reason): (ErrorKind, &'static str, Option<Reason>),
) -> Case {
    (message, name, lie, kind, word, sent_reason)
}

const LIES: [Case; 24] = [
    case(
        1,
        "agreement unasked",
        |it| Word::Message(success(transaction(it), None)),
        MESSAGE,
    ),
    case(
        1,
        "agreement with an answer to nothing",
        |it| Word::Message(success(transaction(it), Some(&[0; 32]))),
        MESSAGE,
    ),
    case(
        1,
        "nothing but zeroes",
        |_| Word::Message(Vec::new()),
        MESSAGE,
    ),
    case(1, "all ones", |_| Word::Message(vec![0xff; 4096]), MESSAGE),
    case(
        1,
        "the host's offer",
        |it| Word::Message(it[0].clone()),
        MESSAGE,
    ),
    case(
        1,
        "another transaction",
        |it| changed(it, 4, !it[0][4]),
        PAYLOAD,
    ),
    case(
        1,
        "a challenge of no length",
        |it| changed(it, 6, 0),
        PAYLOAD,
    ),
    case(
        1,
        "a public value without a group",
        |it| changed(it, 10, 255),
        PAYLOAD,
    ),
    case(
        1,
        "a group without a public value",
        |it| changed(it, 9, 1),
        PAYLOAD,
    ),
    case(
        1,
        "a hash function that was not offered",
        |it| changed(it, 8, 4),
        (BROKEN, "hash functions", Some(Reason::HashUnusable)),
    ),
    case(
        1,
        "a group that was not offered",
        |it| changed(it, 9, 5),
        (BROKEN, "groups", Some(Reason::GroupUnusable)),
    ),
    case(
        1,
        "a refusal",
        |it| {
            Word::Message(ControllerMessage::Failure1(Reason::HashUnusable).encode(transaction(it)))
        },
        (REFUSED, "refuses to authenticate host nqn.a:host", None),
    ),
    case(
        1,
        "half a page",
        |it| Word::Short(honest(it), 2048),
        (BROKEN, "missing", None),
    ),
    case(
        1,
        "a status",
        |_| Word::Fail(Status::INVALID_FIELD),
        (ErrorKind::InvalidInput, "Authentication Receive", None),
    ),
    case(
        1,
        "nothing",
        |_| Word::Silence,
        (ErrorKind::TimedOut, "was made within", None),
    ),
    case(1, "the end", |_| Word::Cut, (BROKEN, "", None)),
    case(
        2,
        "no answer",
        |it| Word::Message(success(transaction(it), None)),
        UNPROVED,
    ),
    case(
        2,
        "another's answer",
        |it| Word::Message(success(transaction(it), Some(&[7; 32]))),
        UNPROVED,
    ),
    case(
        2,
        "the host's answer",
        |it| Word::Message(reflected(it)),
        UNPROVED,
    ),
    case(
        2,
        "an answer that is one bit off",
        |it| changed(it, 16, honest(it)[16] ^ 1),
        UNPROVED,
    ),
    case(
        2,
        "the challenge again",
        |it| Word::Message(honest(&it[..1])),
        MESSAGE,
    ),
    case(
        2,
        "another transaction",
        |it| changed(it, 5, !it[0][5]),
        PAYLOAD,
    ),
    case(
        2,
        "a refusal",
        |it| Word::Message(ControllerMessage::Failure1(Reason::Failed).encode(transaction(it))),
        (REFUSED, "the same secrets", None),
    ),
    case(2, "the end", |_| Word::Cut, (BROKEN, "", None)),
];

/// Asserts that the target got only commands of authentication, and no secret.
fn assert_only_authenticated(target: &Target) {
    let all = target.commands();
    let rest = |&(opcode, kind): &(u8, u8)| {
        const KINDS: [u8; 3] = [
            fctype::CONNECT,
            fctype::AUTHENTICATION_SEND,
            fctype::AUTHENTICATION_RECEIVE,
        ];
        opcode != fabrics::OPCODE || !KINDS.contains(&kind)
    };
    assert!(!all.iter().any(rest), "{all:?}");
    let secrets = both();
    let controller = secrets.controller.expect("it has one");
    let keys = [secrets.own.key(HOST), controller.key(SUBSYSTEM)];
    for message in target.received() {
        for key in &keys {
            let shown = message.windows(8).any(|part| part == &key[..8]);
            assert!(!shown, "a secret in {message:?}");
        }
    }
}

#[test]
fn both_queues_begin_with_the_proof_of_both_sides() {
    for (line, messages) in [(OWN.to_owned(), 2), (format!("{OWN} {THEIRS}"), 3)] {
        let target = Target::start(|_, _| Act::Answer);
        target.authenticate(|_, received| Word::Message(honest(received)));
        let uri = uri(&target, secrets(&line));
        target.run(async move {
            let device = NvmeTcpDevice::connect_within(&uri, TIMES).await;
            let device = device.expect("both know each other");
            device
                .write(0, Buf::copied(&[1; 4096]))
                .await
                .expect("written");
        });
        let received = target.received();
        assert_eq!(received.len(), 2 * messages);
        for queue in received.chunks(messages) {
            assert!(matches!(
                HostMessage::decode(&queue[1]).expect("a message").1,
                HostMessage::Reply { challenge, .. } if challenge.is_some() == (messages == 3)
            ));
            if let Some(last) = queue.get(2) {
                assert_eq!(
                    HostMessage::decode(last),
                    Ok((transaction(queue), HostMessage::Success2))
                );
            }
        }
        assert_ne!(received[0][4..6], received[messages][4..6], "a number each");
    }
}

#[test]
fn a_target_that_lies_at_any_step_gets_the_reason_and_nothing_else() {
    for (message, name, lie, kind, word, sent_reason) in LIES {
        let target = Target::start(|_, _| Act::Answer);
        target.authenticate(move |_, received| match received.len() == message {
            true => lie(received),
            false => Word::Message(honest(received)),
        });
        let uri = uri(&target, both());
        let made =
            target.run(async move { NvmeTcpDevice::connect_within(&uri, TIMES).await.err() });
        let error = made.expect(name);
        let report = error.report();
        assert_eq!(error.kind(), kind, "{name}: {report}");
        assert!(report.contains(word), "{name}: {report}");
        assert!(
            !report.contains("AAECAw") && !report.contains("ZGVmZ2"),
            "{report}"
        );
        let received = target.received();
        assert_eq!(
            received.len(),
            message + usize::from(sent_reason.is_some()),
            "{name}"
        );
        if let Some(reason) = sent_reason {
            let last = HostMessage::decode(&received[message]);
            let failure = HostMessage::Failure2(reason.code());
            assert_eq!(last, Ok((transaction(&received), failure)), "{name}");
        }
        assert_only_authenticated(&target);
    }
}

#[test]
fn one_that_proves_itself_on_the_first_queue_alone_is_not_used() {
    let target = Target::start(|_, _| Act::Answer);
    target.authenticate(|number, received| match (number, received.len()) {
        (1, 2) => Word::Message(success(transaction(received), None)),
        _ => Word::Message(honest(received)),
    });
    let uri = uri(&target, both());
    let made = target.run(async move { NvmeTcpDevice::connect_within(&uri, TIMES).await.err() });
    assert_eq!(made.expect("an I/O queue of another").kind(), REFUSED);
    assert_eq!(target.asked(), []);
}

#[test]
fn another_in_the_place_of_one_that_was_lost_gets_no_write() {
    let target = Target::start(|number, _| match number {
        1 => Act::Cut,
        _ => Act::Answer,
    });
    // A target that connects after the loss knows no secret, and accepts everything.
    target.authenticate(|number, received| match (number, received.len()) {
        (2.., 2) => Word::Message(success(transaction(received), None)),
        _ => Word::Message(honest(received)),
    });
    let patience = std::time::Duration::from_secs(1);
    let times = Times { patience, ..TIMES };
    let uri = uri(&target, both());
    target.run(async move {
        let device = NvmeTcpDevice::connect_within(&uri, times).await;
        let device = device.expect("both know each other");
        let write = device.write(0, Buf::copied(&[1; 4096])).await;
        let error = write.expect_err("it is another one");
        let report = error.report();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{report}");
        assert!(report.contains("has not authenticated itself"), "{report}");
    });
    assert_eq!(
        target.asked(),
        [(opcode::WRITE, 0)],
        "and nothing after the loss"
    );
}
