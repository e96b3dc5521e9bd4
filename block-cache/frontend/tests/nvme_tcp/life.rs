//! Associations that end, orderly or not, and the fate of their commands.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_block::Op;

use crate::initiator::{Association, Done, Identity, Style, With, command, on_blocks, words};
use crate::target::{NQN, Target};
use crate::{BLOCK, READ, WRITE};

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn abort(queue: u16, cid: u16) -> [u8; 64] {
    command(8, 0, words(&[u32::from(queue) | u32::from(cid) << 16]))
}

#[test]
fn a_command_that_waits_for_data_is_aborted() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let cid = queue.start(on_blocks(WRITE, 0, 1, 0), With::Room(BLOCK));
    let (tag, ..) = queue.r2t(cid);
    let aborted = Done {
        status: 0,
        result: 0,
        data: vec![],
    };
    assert_eq!(host.admin.call(abort(1, cid), With::Nothing), aborted);
    // The requested data may be in flight: it is received and dropped.
    queue.send_data(cid, tag, 0, &[1; BLOCK], true, 0);
    assert_eq!(queue.wait(cid).status, 0x07);
    assert_eq!(target.take_log(), []);
    // An unknown command, or one on the device, is not aborted.
    assert_eq!(host.admin.call(abort(1, 999), With::Nothing).result, 1);
    assert_eq!(host.admin.call(abort(9, 1), With::Nothing).status, 0x02);
    target.hold(true);
    let cid = queue.start(on_blocks(WRITE, 0, 1, 0), With::InCapsule(&[1; BLOCK]));
    until("it reaches the device", || {
        target.log.lock().expect("sound").len() == 1
    });
    assert_eq!(host.admin.call(abort(1, cid), With::Nothing).result, 1);
    target.hold(false);
    assert_eq!(queue.wait(cid).status, 0);
    // An event request is aborted at once.
    let event = host.admin.start(command(0x0c, 0, [0; 6]), With::Nothing);
    assert_eq!(host.admin.call(abort(0, event), With::Nothing).result, 0);
    assert_eq!(host.admin.wait(event).status, 0x07);
}

#[test]
fn a_command_takes_the_identifier_of_a_waiting_event_request() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let events = [100, 101];
    for cid in events {
        host.admin
            .start_as(cid, command(0x0c, 0, [0; 6]), With::Nothing);
    }
    // The target has begun to execute them when it answers a later command.
    let keep_alive = command(0x18, 0, [0; 6]);
    assert_eq!(host.admin.call(keep_alive, With::Nothing).status, 0);
    for cid in events {
        host.admin
            .start_as(cid, command(0x18, 0, [0; 6]), With::Nothing);
        assert_eq!(host.admin.wait(cid).status, 0, "the keep-alive");
    }
    // The displaced requests do not count.
    for cid in 200..204 {
        host.admin
            .start_as(cid, command(0x0c, 0, [0; 6]), With::Nothing);
    }
    let keep_alive = host.admin.start(command(0x18, 0, [0; 6]), With::Nothing);
    assert_eq!(host.admin.wait(keep_alive).status, 0);
    // A command that runs keeps its identifier.
    let mut queue = host.queue(1);
    target.hold(true);
    queue.start_as(7, on_blocks(WRITE, 0, 1, 0), With::InCapsule(&[1; BLOCK]));
    until("it reaches the device", || {
        target.log.lock().expect("sound").len() == 1
    });
    queue.start_as(7, on_blocks(READ, 0, 1, 0), With::Room(BLOCK));
    assert_eq!(queue.wait(7).status, 0x03, "a conflict");
    target.hold(false);
    assert_eq!(queue.wait(7).status, 0);
}

#[test]
fn a_full_queue_displaces_no_event_request() {
    let target = Target::start();
    let mut identity = Identity::to(NQN);
    identity.queue_size = 4;
    let mut host = Association::new(target.address, identity, Style::default());
    for cid in 100..103 {
        host.admin
            .start_as(cid, command(0x0c, 0, [0; 6]), With::Nothing);
    }
    let keep_alive = command(0x18, 0, [0; 6]);
    assert_eq!(host.admin.call(keep_alive, With::Nothing).status, 0);
    host.admin
        .start_as(103, command(0x0c, 0, [0; 6]), With::Nothing);
    host.admin
        .start_as(100, command(0x18, 0, [0; 6]), With::Nothing);
    assert_eq!(host.admin.wait(100).status, 0x03, "a conflict");
    // One command too many ends the connection, which waits for none of them.
    host.admin
        .start_as(200, command(0x18, 0, [0; 6]), With::Nothing);
    host.admin.closed();
}

#[test]
fn a_host_that_is_silent_for_too_long_loses_its_association() {
    let target = Target::start();
    // A host without a timer may be silent.
    let patient = Association::new(target.address, Identity::to(NQN), Style::default());
    let keep_alive = Duration::from_secs(2);
    let mut identity = Identity::to(NQN);
    identity.keep_alive_ms = 2000;
    let mut host = Association::new(target.address, identity, Style::default());
    let mut queue = host.queue(1);
    // Any command keeps it alive, on any queue.
    let begin = Instant::now();
    while begin.elapsed() < 2 * keep_alive {
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            queue
                .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
                .status,
            0
        );
    }
    let last_word = Instant::now();
    assert_eq!(
        host.admin
            .call(command(0x18, 0, [0; 6]), With::Nothing)
            .status,
        0
    );
    queue.closed();
    host.admin.closed();
    let waited = last_word.elapsed();
    assert!(waited >= keep_alive, "{waited:?}");
    let mut queue = patient.queue(1);
    assert_eq!(
        queue
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
}

#[test]
fn a_write_that_is_cut_off_is_not_written() {
    let target = Target::start();
    for (sent, in_capsule) in [
        (0, false),
        (1, false),
        (4000, false),
        (4095, false),
        (100, true),
    ] {
        let host = Association::new(target.address, Identity::to(NQN), Style::default());
        let mut queue = host.queue(1);
        let mut words = if in_capsule {
            let mut entry = on_blocks(WRITE, 0, 8, 0);
            (entry[33], entry[39]) = (0x10, 1);
            [&[4, 0, 72, 72, 72, 0x10, 0, 0][..], &entry].concat()
        } else {
            let cid = queue.start(on_blocks(WRITE, 0, 8, 0), With::Room(4096));
            let (tag, ..) = queue.r2t(cid);
            let (cid, tag) = (cid.to_le_bytes(), tag.to_le_bytes());
            let header = [6, 4, 24, 24, 24, 0x10, 0, 0, cid[0], cid[1], tag[0], tag[1]];
            [&header[..], &[0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]].concat()
        };
        words.extend(vec![0xee; sent]);
        queue.say(&words);
        drop(queue);
        // The association ends with its queue.
        host.admin.closed();
    }
    assert_eq!(target.take_log(), []);
    until("nothing is left in flight", || {
        target.volume.stats().in_flight == 0
    });
}

#[test]
fn a_new_association_waits_for_the_old_ones_writes() {
    let target = Target::start();
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    target.hold(true);
    queue.start(on_blocks(WRITE, 0, 8, 0), With::InCapsule(&[1; 4096]));
    until("it reaches the device", || {
        target.log.lock().expect("sound").len() == 1
    });
    drop((host, queue));
    let (send, receive) = mpsc::channel();
    let address = target.address;
    let comes_back = std::thread::spawn(move || {
        let host = Association::new(address, Identity::to(NQN), Style::default());
        send.send(()).expect("the test waits");
        let mut queue = host.queue(1);
        queue.call(on_blocks(WRITE, 0, 8, 0), With::InCapsule(&[2; 4096]))
    });
    let patience = Duration::from_millis(500);
    assert!(
        receive.recv_timeout(patience).is_err(),
        "the old write is still on its way"
    );
    // Another host is not affected.
    let mut stranger = Identity::to(NQN);
    stranger.host = "nqn.2026-11.io.forebay:other";
    let other = Association::new(address, stranger, Style::default());
    target.hold(false);
    assert_eq!(comes_back.join().expect("it does").status, 0);
    let mut queue = other.queue(1);
    let read = queue.call(on_blocks(READ, 0, 8, 0), With::Room(4096));
    assert_eq!(read.data, vec![2; 4096], "the newer write");
}

#[test]
fn a_second_path_of_a_host_waits_only_for_commands_in_flight() {
    let target = Target::start();
    let first = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = first.queue(1);
    // The first association stays in use while the second is created.
    let second = Association::new(target.address, Identity::to(NQN), Style::default());
    assert_eq!(
        queue
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    let mut other = second.queue(1);
    assert_eq!(
        other
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    // A write without its data is dropped with its association.
    queue.start(on_blocks(WRITE, 0, 1, 0), With::Room(BLOCK));
    let begin = Instant::now();
    let third = Association::new(target.address, Identity::to(NQN), Style::default());
    let waited = begin.elapsed();
    assert!((4..15).contains(&waited.as_secs()), "{waited:?}");
    queue.closed();
    drop((first, third));
    assert_eq!(target.take_log(), []);
}

#[test]
fn a_reset_takes_the_io_queues_alone() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let queue = host.queue(1);
    let set = |value| command(0x7f, 0, words(&[0, 0x14, value]));
    let get = command(0x7f, 4, words(&[0, 0x1c]));
    assert_eq!(host.admin.call(set(0x46_0000), With::Nothing).status, 0);
    queue.closed();
    while host.admin.call(get, With::Nothing).result != 0 {
        std::thread::yield_now();
    }
    assert_eq!(host.admin.call(set(0x46_0001), With::Nothing).status, 0);
    assert_eq!(host.admin.call(get, With::Nothing).result, 1);
    let mut queue = host.queue(1);
    assert_eq!(
        queue
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    // An invalid configuration is fatal until the next reset.
    assert_eq!(host.admin.call(set(0x46_0000), With::Nothing).status, 0);
    queue.closed();
    while host.admin.call(get, With::Nothing).result != 0 {
        std::thread::yield_now();
    }
    assert_eq!(host.admin.call(set(0x11_0001), With::Nothing).status, 0);
    assert_eq!(host.admin.call(get, With::Nothing).result, 2);
}

#[test]
fn a_queue_that_is_closed_idle_leaves_its_association_alone() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let (mut first, mut second) = (host.queue(1), host.queue(2));
    assert_eq!(
        first
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    // As Linux does: the I/O queues are closed, then the controller is shut down.
    drop(first);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        second
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    let mut reopened = host.queue(1);
    assert_eq!(
        reopened
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0
    );
    drop((reopened, second));
    let set = command(0x7f, 0, words(&[0, 0x14, 0x46_4001]));
    assert_eq!(host.admin.call(set, With::Nothing).status, 0);
    let get = command(0x7f, 4, words(&[0, 0x1c]));
    until("the shutdown is complete", || {
        host.admin.call(get, With::Nothing).result == 0b1001
    });
    // A queue that closes with a command on the device ends the association.
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    assert_eq!(
        host.admin
            .call(command(0x18, 0, [0; 6]), With::Nothing)
            .status,
        0
    );
    target.hold(true);
    target.take_log();
    queue.start(on_blocks(WRITE, 0, 1, 0), With::InCapsule(&[1; BLOCK]));
    until("it reaches the device", || {
        target.log.lock().expect("sound").len() == 1
    });
    drop(queue);
    host.admin.closed();
}

#[test]
fn hosts_are_notified_when_namespaces_change() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let wants = command(9, 0, words(&[0x0b, 1 << 8]));
    assert_eq!(host.admin.call(wants, With::Nothing).status, 0);
    let request = command(0x0c, 0, [0; 6]);
    let event = host.admin.start(request, With::Nothing);
    for _ in 0..3 {
        host.admin.start(request, With::Nothing);
    }
    let fifth = host.admin.start(request, With::Nothing);
    assert_eq!(host.admin.wait(fifth).status, 0x105, "four are held");
    // The target checks twice a second. It must check once before the change.
    std::thread::sleep(Duration::from_secs(2));
    assert!(target.subsystem.remove("disk"));
    assert!(!target.subsystem.remove("disk"));
    let event = host.admin.wait(event);
    assert_eq!((event.status, event.result), (0, 0x04_00_02));
    assert_eq!(host.log(4, 0, 4096).data[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.log(4, 0, 4096).data[..4], [0; 4], "told once");
    assert_eq!(host.identify(2, 0).data, vec![0; 4096]);
    assert_eq!(
        queue
            .call(on_blocks(READ, 0, 1, 0), With::Room(BLOCK))
            .status,
        0x0b
    );
}

#[test]
fn a_volume_that_shuts_down_sends_its_hosts_away_without_an_error() {
    let target = Target::start();
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let flushed = queue.call(command(0, 1, [0; 6]), With::Nothing);
    assert_eq!(flushed.status, 0);
    assert_eq!(target.take_log(), [(Op::Flush, 0, 0)]);
    target.drain();
    queue.start(on_blocks(READ, 0, 1, 0), With::Room(BLOCK));
    assert_eq!(queue.closed(), b"", "no answer: the host tries again");
    host.admin.closed();
}
