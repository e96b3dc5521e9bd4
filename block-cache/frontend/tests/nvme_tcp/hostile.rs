//! Hosts that violate the protocol: they get an error if the protocol has one, and never affect
//! other hosts.

use std::time::{Duration, Instant};

use crate::initiator::{Association, Identity, Queue, Style, With, command, on_blocks, words};
use crate::target::{NQN, SIZE_BYTES, Target};
use crate::{BLOCK, READ, WRITE};

const INVALID_FIELD: u8 = 1;
const SEQUENCE: u8 = 2;
const HEADER_DIGEST: u8 = 3;
const OUT_OF_RANGE: u8 = 4;
const LIMIT: u8 = 5;
const UNSUPPORTED: u8 = 6;

/// Checks that the target still serves.
fn still_up(target: &Target) {
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    assert_eq!(
        queue
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
}

/// Waits for the PDU that ends the connection. Returns the error and its information.
fn last_words(queue: &mut Queue) -> (u8, u32) {
    loop {
        let pdu = queue.pdu();
        if pdu.kind != 3 {
            assert!(pdu.kind == 5 || pdu.kind == 9, "kind {}", pdu.kind);
            continue;
        }
        let information = u32::from_le_bytes(pdu.header[2..6].try_into().expect("four"));
        assert!(!pdu.data.is_empty(), "with the begin of what was wrong");
        return (pdu.header[0], information);
    }
}

/// Waits for the PDU that ends the connection, and checks that nothing follows. The host closes its
/// side at once, so that the target need not wait for it.
fn terminated(mut queue: Queue) -> (u8, u32) {
    let words = last_words(&mut queue);
    queue.say_no_more();
    assert_eq!(queue.closed(), b"", "the last words");
    words
}

#[test]
fn wrong_first_words() {
    let target = Target::start();
    let mut good = [0; 128];
    (good[2], good[4]) = (128, 128);
    let with = |at: usize, value: u8| {
        let mut words = good;
        words[at] = value;
        words
    };
    for (words, error) in [
        (with(0, 4), (INVALID_FIELD, 2)),
        (with(0, 1), (SEQUENCE, 0)),
        (with(0, 0x55), (INVALID_FIELD, 0)),
        (with(1, 1), (INVALID_FIELD, 1)),
        (with(2, 24), (INVALID_FIELD, 2)),
        (with(4, 129), (INVALID_FIELD, 4)),
        (with(7, 0x80), (INVALID_FIELD, 4)),
        (with(8, 1), (UNSUPPORTED, 8)),
        (with(10, 32), (INVALID_FIELD, 10)),
        (with(11, 4), (INVALID_FIELD, 11)),
    ] {
        let mut queue = Queue::silent(target.address);
        queue.say(&words);
        assert_eq!(terminated(queue), error, "{:?}", &words[..12]);
    }
    // Disconnects after each length of the initialization PDU.
    for len in [0, 1, 7, 8, 9, 127] {
        let mut queue = Queue::silent(target.address);
        queue.say(&good[..len]);
    }
    still_up(&target);
}

#[test]
fn wrong_pdus_end_the_connection() {
    let target = Target::start();
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    drop(host);
    // Sends invalid data on a queue with a pending write of 8 blocks.
    type Send = fn(&mut Queue, u16, u16);
    let data: [(Send, (u8, u32)); 15] = [
        (
            |q, cid, tag| q.send_data(cid, tag + 9, 0, &[1; 4096], true, 0),
            (INVALID_FIELD, 10),
        ),
        (
            |q, cid, _| q.send_data(cid, 0xffff, 0, &[1; 4096], true, 0),
            (INVALID_FIELD, 10),
        ),
        (
            |q, cid, tag| q.send_data(cid + 1, tag, 0, &[1; 4096], true, 0),
            (INVALID_FIELD, 8),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 512, &[1; 512], false, 0),
            (OUT_OF_RANGE, 0),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 0, &[1; 4100], true, 0),
            (OUT_OF_RANGE, 0),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 0xffff_ff00, &[1; 512], true, 0),
            (OUT_OF_RANGE, 0),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 0, &[1; 512], true, 0),
            (INVALID_FIELD, 1),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 0, &[1; 4096], false, 0),
            (INVALID_FIELD, 1),
        ),
        (
            |q, cid, tag| q.send_data(cid, tag, 0, &[1; (256 << 10) + 4], true, 0),
            (LIMIT, 0),
        ),
        // The length in the header differs from that of the PDU.
        (
            |q, _, _| q.send(6, 4, &[0; 16], &[1; 512], 0),
            (INVALID_FIELD, 16),
        ),
        (|q, _, _| q.send(6, 4, &[0; 16], &[], 0), (INVALID_FIELD, 4)),
        // A PDU that only controllers send, and a second initialization.
        (|q, _, _| q.send(5, 0, &[0; 16], &[], 0), (INVALID_FIELD, 0)),
        (|q, _, _| q.send(9, 0, &[0; 16], &[], 0), (INVALID_FIELD, 0)),
        (|q, _, _| q.send(0, 0, &[0; 120], &[], 0), (SEQUENCE, 0)),
        // More data in a capsule than allowed.
        (
            |q, _, _| q.send(4, 0, &on_blocks(WRITE, 0, 17, 0), &[1; 17 * 512], 0),
            (LIMIT, 0),
        ),
    ];
    for (index, (send, error)) in data.into_iter().enumerate() {
        let host = Association::new(target.address, Identity::to(NQN), Style::default());
        let mut queue = host.queue(1);
        let cid = queue.start(on_blocks(WRITE, 0, 8, 0), With::Room(4096));
        let (tag, ..) = queue.r2t(cid);
        send(&mut queue, cid, tag);
        assert_eq!(terminated(queue), error, "case {index}");
        // An association has all its queues or none.
        host.admin.closed();
    }
    assert_eq!(target.take_log(), [], "nothing of all that was written");
    still_up(&target);
}

#[test]
fn digests_are_checked() {
    let target = Target::start();
    let style = Style {
        header_digest: true,
        data_digest: true,
        alignment: 0,
    };
    let host = Association::new(target.address, Identity::to(NQN), style);
    let mut queue = host.queue(1);
    // Damaged data is refused, and may be sent again.
    let cid = queue.start(on_blocks(WRITE, 0, 8, 0), With::Room(4096));
    let (tag, ..) = queue.r2t(cid);
    queue.send_data(cid, tag, 0, &[1; 2048], false, 2);
    queue.send_data(cid, tag, 2048, &[1; 2048], true, 0);
    assert_eq!(queue.wait(cid).status, 0x22);
    let mut entry = on_blocks(WRITE, 0, 1, 0);
    (entry[2], entry[33], entry[39]) = (99, 2, 1);
    queue.send(4, 0, &entry, &[1; 512], 2);
    assert_eq!(queue.wait(99).status, 0x22);
    assert_eq!(target.take_log(), []);
    assert_eq!(
        queue
            .call(on_blocks(WRITE, 0, 1, 0), With::InCapsule(&[1; 512]))
            .status,
        0
    );
    assert_eq!(target.take_log().len(), 1);
    // Nothing in a damaged header can be trusted.
    queue.send(4, 0, &on_blocks(READ, 0, 1, 0), &[], 1);
    assert_eq!(terminated(queue).0, HEADER_DIGEST);
    // Selected digests are present.
    let host = Association::new(target.address, Identity::to(NQN), style);
    let mut queue = host.queue(1);
    queue.style = Style::default();
    queue.send(4, 0, &on_blocks(READ, 0, 1, 0), &[], 0);
    queue.style = style;
    assert_eq!(terminated(queue), (INVALID_FIELD, 1));
}

#[test]
fn wrong_commands_are_refused_and_the_connection_goes_on() {
    let target = Target::start();
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let end = SIZE_BYTES / 512;
    let mut fused = on_blocks(WRITE, 0, 1, 0);
    fused[1] |= 1;
    let mut prp = on_blocks(WRITE, 0, 1, 0);
    prp[1] = 0;
    let foreign = command(READ, 2, words(&[0]));
    let data = [1; 512];
    for (entry, with, status) in [
        (on_blocks(READ, end, 1, 0), With::Room(512), 0x80),
        (on_blocks(READ, u64::MAX, 1, 0), With::Room(512), 0x80),
        (on_blocks(READ, u64::MAX >> 9, 1, 0), With::Room(512), 0x80),
        (on_blocks(READ, 0, 1, 0), With::Room(1024), 0x0f),
        (on_blocks(READ, 0, 1, 0), With::Nothing, 0x0f),
        (on_blocks(READ, 0, 2049, 0), With::Room(2049 * 512), 0x02),
        (on_blocks(READ, 0, 1, 0), With::InCapsule(&data), 0x11),
        (
            on_blocks(WRITE, end - 1, 2, 0),
            With::Data(&[1; 1024]),
            0x80,
        ),
        (on_blocks(WRITE, 0, 2, 0), With::InCapsule(&data), 0x0f),
        (fused, With::Data(&data), 0x02),
        (prp, With::Data(&data), 0x02),
        (foreign, With::Room(512), 0x0b),
        (
            command(READ, 0xffff_ffff, words(&[0])),
            With::Room(512),
            0x0b,
        ),
        (command(READ, 0, words(&[0])), With::Room(512), 0x0b),
        (on_blocks(0x08, end, 1, 0), With::Nothing, 0x80),
        (on_blocks(0x08, 0, 1, 0), With::Room(512), 0x0f),
        (on_blocks(0x0c, end - 1, 2, 0), With::Nothing, 0x80),
        (on_blocks(0x04, 0, 1, 0), With::Nothing, 0x01),
        (on_blocks(0x7f, 0, 1, 0), With::Nothing, 0x01),
        (on_blocks(0xff, 0, 1, 0), With::Nothing, 0x01),
    ] {
        let done = queue.call(entry, with);
        assert_eq!(done.status, status, "{entry:?}");
    }
    // Data beyond the capsule.
    let mut entry = on_blocks(WRITE, 0, 1, 0);
    (entry[2], entry[24], entry[33], entry[39]) = (77, 1, 2, 1);
    queue.send(4, 0, &entry, &data, 0);
    assert_eq!(queue.wait(77).status, 0x16);
    // A keyed descriptor, as for RDMA.
    (entry[2], entry[24], entry[39]) = (78, 0, 0x40);
    queue.send(4, 0, &entry, &[], 0);
    assert_eq!(queue.wait(78).status, 0x11);
    let changed = target.take_log();
    assert!(
        changed
            .iter()
            .all(|(_, offset, len)| offset + len > SIZE_BYTES || *len == 0),
        "{changed:?}"
    );
    // The identifier of a command in flight.
    let cid = queue.start_as(500, on_blocks(WRITE, 0, 1, 0), With::Data(&data));
    let (tag, ..) = queue.r2t(cid);
    queue.start_as(500, on_blocks(READ, 0, 1, 0), With::Room(512));
    assert_eq!(queue.wait(500).status, 0x03);
    queue.send_data(cid, tag, 0, &data, true, 0);
    assert_eq!(queue.wait(500).status, 0);
}

#[test]
fn a_queue_holds_as_many_commands_as_it_has_entries() {
    let target = Target::start();
    let mut identity = Identity::to(NQN);
    identity.queue_size = 4;
    let host = Association::new(target.address, identity, Style::default());
    let mut queue = host.queue(1);
    for _ in 0..5 {
        queue.start(on_blocks(WRITE, 0, 1, 0), With::Room(512));
    }
    assert_eq!(last_words(&mut queue), (SEQUENCE, 0));
    assert_eq!(queue.closed(), b"", "the target does not wait for the host");
    still_up(&target);
}

#[test]
fn a_host_that_stops_reading_or_writing_delays_no_other() {
    let target = Target::start();
    let mut identity = Identity::to(NQN);
    identity.queue_size = 128;
    let host = Association::new(target.address, identity, Style::default());
    // One host requests 127 MiB and reads nothing; the other announces as much and sends nothing.
    let (mut greedy, mut silent) = (host.queue(1), host.queue(2));
    for _ in 0..127 {
        greedy.start(on_blocks(READ, 0, 2048, 0), With::Room(1 << 20));
        silent.start(on_blocks(WRITE, 0, 2048, 0), With::Room(1 << 20));
    }
    // A connection gets at most 32 MiB of memory; further commands wait without any.
    let mut pdu = [0; 24];
    for _ in 0..32 {
        std::io::Read::read_exact(&mut silent.stream, &mut pdu).expect("it asks for data");
        assert_eq!(pdu[0], 9);
    }
    let patience = Some(Duration::from_millis(500));
    silent.stream.set_read_timeout(patience).expect("a timeout");
    let more = std::io::Read::read(&mut silent.stream, &mut pdu);
    assert!(more.is_err(), "it asks for more than 32 MiB");
    let begin = Instant::now();
    let other = Association::new(
        target.address,
        Identity {
            host: "nqn.a:other",
            ..identity
        },
        Style::default(),
    );
    let mut queue = other.queue(1);
    for _ in 0..100 {
        assert_eq!(
            queue
                .call(on_blocks(WRITE, 0, 8, 0), With::InCapsule(&[3; 4096]))
                .status,
            0
        );
    }
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn a_host_that_reads_no_replies_is_not_read_either() {
    const FLUSH: u8 = 0;
    let target = Target::start();
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    // These flushes have one identifier, so most are refused, and none takes memory.
    let mut capsule = vec![4, 0, 72, 0, 72, 0, 0, 0];
    capsule.extend(command(FLUSH, 1, words(&[])));
    let many = capsule.repeat(1000);
    let patience = Some(Duration::from_secs(2));
    queue.stream.set_write_timeout(patience).expect("a timeout");
    let mut write = || std::io::Write::write_all(&mut queue.stream, &many);
    let is_blocked = (0..2000).any(|_| write().is_err());
    assert!(is_blocked, "the target has read two million commands");
    drop(queue);
    still_up(&target);
}

#[test]
fn damaged_conversations_never_break_the_target() {
    let target = Target::start();
    let mut state = 0x1234_5678_9abc_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below).expect("small")
    };
    for _ in 0..300 {
        let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
        let mut words = Vec::new();
        for _ in 0..draw(6) + 1 {
            let entry = on_blocks([READ, WRITE, 0x09, 0x06, 0x02, 0x0c][draw(6)], 0, 8, 0);
            words.extend([4, 0, 72, 0, 72, 0, 0, 0]);
            words.extend(entry);
        }
        for _ in 0..draw(4) + 1 {
            let at = draw(words.len() as u64);
            words[at] ^= 1 << draw(8);
        }
        let queue = if draw(2) == 0 {
            &mut host.admin
        } else {
            &mut host.queue(1)
        };
        // The target may have closed already.
        let _ = std::io::Write::write_all(&mut queue.stream, &words);
    }
    still_up(&target);
}
