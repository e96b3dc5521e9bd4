//! Hosts that must authenticate themselves: successful ones, and the refusal of others.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::Op;

use crate::initiator::{Association, Identity, Queue, Style, With, command, on_blocks, words};
use crate::prover::{
    Challenge, SHA_256, admitted, authenticate, challenged, entry, fetch, identity, negotiate,
    promised, send,
};
use crate::target::{
    CONTROLLER_KEY, CONTROLLER_SECRET, HOST_KEY, HOST_SECRET, NQN, SECRET_HOST, SECRET_NQN, Target,
};
use crate::{BLOCK, READ, WRITE};

const FAILED: u8 = 1;
const PROTOCOL: u8 = 2;
const CHANNEL: u8 = 3;
const HASH: u8 = 4;
const GROUP: u8 = 5;
const PAYLOAD: u8 = 6;
const MESSAGE: u8 = 7;

/// Checks that the target refuses the host for this reason and ends the connection.
fn refused(mut queue: Queue, reason: u8, what: &str) {
    let message = fetch(&mut queue);
    assert_eq!(message[..2], [0, 0xf1], "{what}: a refusal");
    assert_eq!(message[6..8], [1, reason], "{what}");
    // The target need not wait for this side to close.
    queue.say_no_more();
    assert_eq!(queue.closed(), b"", "{what}: the last words");
}

#[test]
fn a_host_that_proves_itself_is_served() {
    let target = Target::start();
    let (mut admin, mut io, controller) = admitted(&target);
    let write = on_blocks(WRITE, 0, 1, 0);
    assert_eq!(io.call(write, With::InCapsule(&[7; BLOCK])).status, 0);
    assert_eq!(target.take_log(), [(Op::Write { fua: false }, 0, 512)]);
    let page = admin
        .call(command(6, 0, words(&[1])), With::Room(4096))
        .data;
    assert_eq!(page[78..80], controller.to_le_bytes());
    // Reauthentication on queues in use, also with messages sent by R2T.
    for queue in [&mut admin, &mut io] {
        for group in 0..4 {
            authenticate(queue, group);
        }
        let offer = negotiate(&[SHA_256], &[0]);
        assert_eq!(queue.call(entry(5, 72), With::Data(&offer)).status, 0);
        let reply = Challenge::of(&fetch(queue)).reply(HOST_KEY, None);
        assert_eq!(
            queue.call(entry(5, reply.len()), With::Data(&reply)).status,
            0
        );
        assert_eq!(fetch(queue)[1], 3);
    }
    assert_eq!(
        io.call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK)).data,
        [7; BLOCK]
    );
}

#[test]
fn nothing_goes_before_the_proof() {
    let target = Target::start();
    for number in 0..2 {
        let (admin, _, controller) = admitted(&target);
        let controller = if number == 0 { 0xffff } else { controller };
        let (mut queue, controller) =
            promised(&target, if number == 0 { 0 } else { 2 }, controller);
        for entry in [
            command(6, 0, words(&[1])),
            command(0x7f, 0, words(&[0, 0x14, 0x46_0001])),
            command(0x7f, 4, words(&[0, 0x1c])),
            command(0x18, 0, words(&[])),
            on_blocks(READ, 0, 1, 0),
            on_blocks(WRITE, 0, 1, 0),
            on_blocks(0, 0, 1, 0),
        ] {
            assert_eq!(queue.call(entry, With::Nothing).status, 0x191, "{entry:?}");
        }
        let second = queue.connect(&identity(), 0, controller);
        assert_eq!(second.status, 0x191);
        // A partial authentication does not count.
        assert_eq!(send(&mut queue, &negotiate(&[SHA_256], &[0])).status, 0);
        let challenge = Challenge::of(&fetch(&mut queue));
        assert_eq!(
            queue.call(on_blocks(WRITE, 0, 1, 0), With::Nothing).status,
            0x191
        );
        assert_eq!(
            send(&mut queue, &challenge.reply(HOST_KEY, Some(5))).status,
            0
        );
        assert_eq!(
            queue.call(on_blocks(WRITE, 0, 1, 0), With::Nothing).status,
            0x191
        );
        let success = fetch(&mut queue);
        assert_eq!((success[1], success[8]), (3, 1));
        assert_eq!(success[16..48], challenge.controllers(5));
        assert_eq!(
            queue.call(on_blocks(WRITE, 0, 1, 0), With::Nothing).status,
            0x191
        );
        // The host confirms.
        let mut agreed = [0; 16];
        (agreed[0], agreed[1], agreed[4]) = (1, 4, 9);
        assert_eq!(send(&mut queue, &agreed).status, 0);
        let get = command(0x7f, 4, words(&[0, 0x1c]));
        let status = queue.call(get, With::Nothing).status;
        assert_eq!(status, if number == 0 { 0 } else { 1 }, "served by now");
        drop(admin);
    }
    assert_eq!(target.take_log(), []);
}

#[test]
fn a_host_without_the_secret_is_refused() {
    let target = Target::start();
    let mut wrong = HOST_KEY.to_vec();
    wrong[31] ^= 1;
    for group in 0..4 {
        for key in [&wrong[..], CONTROLLER_KEY, &[]] {
            let (mut queue, challenge) = challenged(&target, group);
            assert_eq!(send(&mut queue, &challenge.reply(key, None)).status, 0);
            refused(queue, FAILED, "a wrong secret");
        }
    }
    // Nothing remains of them: the test and the listener have the subsystem, and no controller.
    let begin = Instant::now();
    while Arc::strong_count(&target.secret) > 2 {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "a controller is left"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // A response to another challenge.
    let (mut one, first) = challenged(&target, 0);
    let (mut other, second) = challenged(&target, 0);
    assert_eq!(send(&mut one, &second.reply(HOST_KEY, None)).status, 0);
    assert_eq!(send(&mut other, &first.reply(HOST_KEY, None)).status, 0);
    refused(one, FAILED, "another's challenge");
    refused(other, FAILED, "another's challenge");
    // A host without a secret is refused at Connect, and discovery shows it nothing.
    let mut stranger = Queue::open(target.address, Style::default());
    let done = stranger.connect(&Identity::to(SECRET_NQN), 0, 0xffff);
    assert_eq!((done.status, done.result), (0x184, 1 << 16 | 512));
    for (host, count) in [(SECRET_HOST, 2), ("nqn.a:stranger", 1)] {
        let discovery = "nqn.2014-08.org.nvmexpress.discovery";
        let identity = Identity {
            host,
            ..Identity::to(discovery)
        };
        let mut discovery = Association::new(target.address, identity, Style::default());
        let log = discovery.log(0x70, 0, 1024).data;
        assert_eq!(log[8..16], u64::to_le_bytes(count), "{host}");
    }
    // Other subsystems neither require nor accept authentication.
    let mut open = Association::new(target.address, Identity::to(NQN), Style::default());
    assert_eq!(
        send(&mut open.admin, &negotiate(&[SHA_256], &[0])).status,
        1
    );
    assert_eq!(target.take_log(), []);
}

#[test]
fn a_host_with_a_false_name_ends_no_association() {
    let target = Target::start();
    let (mut admin, mut io, controller) = admitted(&target);
    target.hold(true);
    let write = on_blocks(WRITE, 0, 1, 0);
    let cid = io.start(write, With::InCapsule(&[1; BLOCK]));
    // If these were taken for the real host, its association would end with them, or if it did not
    // drain within 5 s.
    for number in [0, 1, 2] {
        let to = if number == 0 { 0xffff } else { controller };
        let (mut queue, _) = promised(&target, number, to);
        assert_eq!(send(&mut queue, &negotiate(&[SHA_256], &[0])).status, 0);
        let challenge = Challenge::of(&fetch(&mut queue));
        assert_eq!(send(&mut queue, &challenge.reply(b"", None)).status, 0);
        refused(queue, FAILED, "a wrong secret");
        let (mut queue, _) = promised(&target, number, to);
        queue.start(on_blocks(WRITE, 0, 1, 0), With::Room(512));
    }
    target.hold(false);
    assert_eq!(io.wait(cid).status, 0);
    assert_eq!(
        io.call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK)).data,
        [1; BLOCK]
    );
    let get = command(0x7f, 4, words(&[0, 0x1c]));
    assert_eq!(admin.call(get, With::Nothing).result, 1, "ready");
    // A queue that the host has is not created a second time.
    let (mut second, _) = promised(&target, 1, controller);
    assert_eq!(send(&mut second, &negotiate(&[SHA_256], &[0])).status, 0);
    let challenge = Challenge::of(&fetch(&mut second));
    assert_eq!(
        send(&mut second, &challenge.reply(HOST_KEY, None)).status,
        0
    );
    second.start(entry(6, 4096), With::Room(4096));
    assert_eq!(second.closed(), b"");
}

#[test]
fn wrong_messages_are_refused_for_their_reason() {
    let target = Target::start();
    type Change = fn(&mut Vec<u8>);
    let offers: [(u8, Change); 14] = [
        (PROTOCOL, |m| m[8] = 2),
        (CHANNEL, |m| m[6] = 1),
        (HASH, |m| m[12] = 4),
        (HASH, |m| m[12] = 0),
        (GROUP, |m| m[42] = 5),
        (GROUP, |m| m[42] = 4),
        (PAYLOAD, |m| m.truncate(71)),
        (PAYLOAD, |m| m.push(0)),
        (PAYLOAD, |m| m.truncate(4)),
        (PAYLOAD, |m| m[7] = 0),
        (PAYLOAD, |m| m[10] = 0),
        (MESSAGE, |m| m[0] = 2),
        (MESSAGE, |m| m[1] = 0xf1),
        // A host that aborts before the negotiation.
        (MESSAGE, |m| *m = vec![0, 0xf0, 0, 0, 9, 0, 1, 1]),
    ];
    for (index, (reason, change)) in offers.into_iter().enumerate() {
        let (mut queue, _) = promised(&target, 0, 0xffff);
        let mut message = negotiate(&[SHA_256], &[0]);
        change(&mut message);
        assert_eq!(send(&mut queue, &message).status, 0);
        refused(queue, reason, &format!("offer {index}"));
    }
    let replies: [(u8, u8, Change); 13] = [
        (0, PAYLOAD, |m| m[4] = 8),
        (0, PAYLOAD, |m| m[6] = 31),
        (0, PAYLOAD, |m| m[6] = 16),
        (0, PAYLOAD, |m| m.push(0)),
        (0, PAYLOAD, |m| m.truncate(15)),
        (0, PAYLOAD, |m| m[8] = 2),
        (0, PAYLOAD, |m| m[8] = 1),
        // A shorter hash than the selected one, consistent in itself.
        (0, PAYLOAD, |m| {
            m[6] = 1;
            m.truncate(18);
        }),
        // A public value for the null group; an empty one, 0, 1, and a short one with a group.
        (0, PAYLOAD, |m| {
            m[11] = 1;
            m.extend([2; 256]);
        }),
        (1, PAYLOAD, |m| {
            m[11] = 0;
            m.truncate(80);
        }),
        (1, PAYLOAD, |m| *m.last_mut().expect("many") = 0),
        (2, PAYLOAD, |m| *m.last_mut().expect("many") = 1),
        (3, PAYLOAD, |m| {
            m[11] = 1;
            m.truncate(80 + 256);
        }),
    ];
    for (index, (group, reason, change)) in replies.into_iter().enumerate() {
        let (mut queue, challenge) = challenged(&target, group);
        let mut message = challenge.reply(HOST_KEY, None);
        change(&mut message);
        assert_eq!(send(&mut queue, &message).status, 0);
        refused(queue, reason, &format!("reply {index}"));
    }
}

#[test]
fn wrong_orders_are_refused() {
    let target = Target::start();
    // A receive before any message, and a second one.
    let (queue, _) = promised(&target, 0, 0xffff);
    refused(queue, MESSAGE, "nothing was said");
    let (queue, _) = challenged(&target, 0);
    refused(queue, MESSAGE, "a reply is due");
    // A reply before the challenge, a negotiation after it, an unexpected confirmation.
    let (mut queue, challenge) = challenged(&target, 0);
    assert_eq!(send(&mut queue, &negotiate(&[SHA_256], &[0])).status, 0);
    refused(queue, MESSAGE, "a second offer");
    let (mut queue, _) = promised(&target, 0, 0xffff);
    assert_eq!(send(&mut queue, &challenge.reply(HOST_KEY, None)).status, 0);
    refused(queue, MESSAGE, "a reply without a challenge");
    let (mut queue, _) = promised(&target, 0, 0xffff);
    assert_eq!(send(&mut queue, &negotiate(&[SHA_256], &[0])).status, 0);
    assert_eq!(send(&mut queue, &challenge.reply(HOST_KEY, None)).status, 0);
    refused(
        queue,
        MESSAGE,
        "a reply to a challenge that was not fetched",
    );
    let mut agreed = vec![0; 16];
    (agreed[0], agreed[1], agreed[4]) = (1, 4, 9);
    let (mut queue, _) = challenged(&target, 0);
    assert_eq!(send(&mut queue, &agreed).status, 0);
    refused(queue, MESSAGE, "an agreement before a proof");
    // A host that rejects the controller is disconnected.
    let (mut queue, challenge) = challenged(&target, 0);
    assert_eq!(
        send(&mut queue, &challenge.reply(HOST_KEY, Some(1))).status,
        0
    );
    assert_eq!(fetch(&mut queue)[1], 3);
    assert_eq!(send(&mut queue, &[0, 0xf0, 0, 0, 9, 0, 1, 1]).status, 0);
    assert_eq!(queue.closed(), b"");
}

#[test]
fn wrong_commands_are_refused_and_change_nothing() {
    let target = Target::start();
    let (mut queue, _) = promised(&target, 0, 0xffff);
    let offer = negotiate(&[SHA_256], &[0]);
    let with = |at: usize, value: u8| {
        let mut entry = entry(5, 72);
        entry[at] = value;
        entry
    };
    for (entry, status) in [
        (with(41, 0), 0x02),
        (with(42, 0), 0x02),
        (with(43, 0xea), 0x02),
        (with(44, 0), 0x02),
        (with(44, 71), 0x0f),
        (with(46, 1), 0x02),
    ] {
        assert_eq!(
            queue.call(entry, With::InCapsule(&offer)).status,
            status,
            "{entry:?}"
        );
    }
    assert_eq!(queue.call(entry(5, 72), With::Room(72)).status, 0x11);
    assert_eq!(
        queue.call(entry(6, 72), With::InCapsule(&offer)).status,
        0x11
    );
    assert_eq!(queue.call(entry(6, 0), With::Nothing).status, 0x02);
    assert_eq!(send(&mut queue, &offer).status, 0);
    // Too little room for the message.
    assert_eq!(queue.call(entry(6, 47), With::Room(47)).status, 0x02);
    let done = queue.call(entry(6, 48), With::Room(48));
    assert_eq!((done.status, done.data.len()), (0, 48));
    let reply = Challenge::of(&done.data).reply(HOST_KEY, None);
    assert_eq!(send(&mut queue, &reply).status, 0);
    // More room than any message needs.
    let done = queue.call(entry(6, 1 << 20), With::Room(1 << 20));
    assert_eq!((done.status, done.data.len(), done.data[1]), (0, 4096, 3));
}

#[test]
fn a_host_that_fails_later_loses_its_association() {
    let target = Target::start();
    for queue in 0..2 {
        let (mut admin, mut io, _) = admitted(&target);
        let one = if queue == 0 { &mut admin } else { &mut io };
        assert_eq!(send(one, &negotiate(&[SHA_256], &[0])).status, 0);
        let challenge = Challenge::of(&fetch(one));
        assert_eq!(send(one, &challenge.reply(b"", None)).status, 0);
        assert_eq!(fetch(one)[..8], [0, 0xf1, 0, 0, 9, 0, 1, FAILED]);
        assert_eq!(admin.closed(), b"");
        assert_eq!(io.closed(), b"");
    }
    drop(admitted(&target));
}

#[test]
fn another_implementation_authenticates_itself() {
    if Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: there is no python3, in which another host is written");
        return;
    }
    let target = Target::start();
    let run = |secret: &str, controller: &str, hashes: &str, groups: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvme_tcp/host.py");
        let port = target.address.port().to_string();
        let words = [
            script,
            &port,
            SECRET_NQN,
            SECRET_HOST,
            secret,
            controller,
            hashes,
            groups,
        ];
        let ended = Command::new("python3")
            .args(words)
            .output()
            .expect("it starts");
        let said = [ended.stdout, ended.stderr].concat();
        (
            ended.status.success(),
            String::from_utf8(said).expect("text"),
        )
    };
    // The strongest offered functions, on both queues, and a second time.
    for (hashes, groups, chosen) in [
        ("1", "0", "1 0"),
        ("2,1", "1,0", "2 1"),
        ("1,2,3", "0,2", "3 2"),
        ("1,2,3", "0,1,2,3,4,5", "3 3"),
    ] {
        for controller in ["-", CONTROLLER_SECRET] {
            let (well, said) = run(HOST_SECRET, controller, hashes, groups);
            assert!(well, "{hashes} {groups}: {said}");
            assert_eq!(said, format!("{chosen}\n").repeat(4));
        }
    }
    let (well, said) = run(CONTROLLER_SECRET, "-", "3", "3");
    assert!(!well && said == "refused for reason 1\n", "{said}");
    // The host detects that the controller does not know its secret.
    let (well, said) = run(HOST_SECRET, HOST_SECRET, "3", "1");
    assert!(
        !well && said.contains("the controller's response"),
        "{said}"
    );
}
