//! A guest whose target was killed or has ended, and the next target.

use std::time::Duration;

use forebay_block::Op;
use forebay_io::Engine;
use forebay_wire::virtio_blk::{request, status};
use vhost::VhostBackend as _;

use super::guest::{Guest, Left};
use super::target::Target;
use super::{header, until};

/// More time than the answer to a request takes.
const A_WHILE: Duration = Duration::from_millis(50);

/// Writes a block of its own for each number.
fn write(guest: &mut Guest, number: u16) {
    let head = header(request::OUT, u64::from(number) * 8);
    guest.start_request(0, number, head, (&[7; 4096], 0, 4096));
}

/// Returns the device request of that write.
fn written(number: u64) -> (Op, u64, u64) {
    (Op::Write { fua: false }, number * 4096, 4096)
}

/// Returns a guest, and the state left by a target that was killed with these writes on its device.
fn killed_with(numbers: &[u16]) -> (Guest, Left) {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 1, 0);
    guest.keep_list();
    target.hold(true);
    for number in numbers {
        write(&mut guest, *number);
    }
    let all = numbers.len() as u64;
    until("they are on the device", || {
        target.volume.stats().in_flight == all
    });
    let left = guest.left();
    drop(target);
    guest.was_killed(&left);
    (guest, left)
}

#[test]
fn requests_in_flight_are_repeated_in_order_before_later_ones() {
    let (mut guest, _) = killed_with(&[5, 2, 9]);
    // While there is no target, nothing receives the kick.
    write(&mut guest, 1);
    guest.forget_kicks();
    let next = Target::start(Engine::Auto);
    // A monitor that uses the number of offered entries as base: with that base, the last one would
    // never be executed.
    guest.go_on(next.path(), &[4]).expect("taken over");
    let mut heads: Vec<_> = (0..4).map(|_| guest.wait(0).0).collect();
    assert_eq!(next.take_log(), [5, 2, 9, 1].map(written));
    heads.sort_unstable();
    assert_eq!(heads, [1, 2, 5, 9], "each of them once");
    for number in heads {
        assert_eq!(guest.outcome(number, 0).0, status::OK);
        assert!(!guest.in_flight(number));
    }
    std::thread::sleep(A_WHILE);
    assert_eq!(guest.used(0), None);
}

#[test]
fn the_list_decides_the_base_of_a_ring_in_use() {
    for base in [0, 1, 3, 100] {
        let target = Target::start(Engine::Auto);
        let mut guest = Guest::connect(target.path(), 1, 0);
        guest.keep_list();
        for number in 1..=3 {
            write(&mut guest, number);
            assert_eq!(guest.wait(0).0, number);
        }
        drop(target);
        guest.forget_kicks();
        let next = Target::start(Engine::Auto);
        guest.go_on(next.path(), &[base]).expect("taken over");
        write(&mut guest, 4);
        assert_eq!(guest.wait(0).0, 4, "base {base}");
        std::thread::sleep(A_WHILE);
        assert_eq!(next.take_log(), [written(4)], "base {base}");
        assert_eq!(guest.used(0), None, "base {base}");
    }
}

#[test]
fn an_unused_ring_is_read_without_a_kick() {
    let first = Target::start(Engine::Auto);
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.keep_list();
    // The state before a queue starts, except the identity of the volume.
    let left = guest.left();
    drop(first);
    guest.was_killed(&left);
    guest.forget_list();
    write(&mut guest, 3);
    guest.forget_kicks();
    assert!(!guest.in_flight(3));
    let next = Target::start(Engine::Auto);
    guest.go_on(next.path(), &[0]).expect("taken over");
    assert_eq!(guest.wait(0).0, 3);
    until("the guest is notified", || guest.called(0));
    assert_eq!(next.take_log(), [written(3)]);
}

#[test]
fn a_guest_is_notified_of_answers_of_the_dead_target() {
    let first = Target::start(Engine::Auto);
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.keep_list();
    write(&mut guest, 1);
    until("it is answered", || guest.done(0) == 1);
    until("it is notified", || guest.called(0));
    let left = guest.left();
    drop(first);
    guest.was_killed(&left);
    // The last notifications of the first target.
    while guest.called(0) {}
    let next = Target::start(Engine::Auto);
    guest.go_on(next.path(), &[1]).expect("taken over");
    until("it looks at the ring", || guest.called(0));
    assert_eq!(guest.used(0).map(|(head, _)| head), Some(1));
    assert_eq!(next.take_log(), []);
}

#[test]
fn requests_that_a_daemon_cannot_do_any_more_are_left_to_the_next() {
    let first = Target::start(Engine::Auto);
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.keep_list();
    first.close_volume();
    write(&mut guest, 2);
    until("it is taken", || guest.in_flight(2));
    std::thread::sleep(A_WHILE);
    assert_eq!(guest.used(0), None, "no error comes to the guest");
    drop(first);
    assert_eq!(guest.used(0), None);
    let next = Target::start(Engine::Auto);
    guest.go_on(next.path(), &[0]).expect("taken over");
    assert_eq!(guest.wait(0).0, 2);
    assert_eq!(guest.outcome(2, 0).0, status::OK);
    assert_eq!(next.take_log(), [written(2)]);
}

#[test]
fn after_a_detach_requests_fail_and_no_later_daemon_goes_on() {
    let first = Target::of(Engine::Auto, b"here, first generation");
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.keep_list();
    assert_eq!(
        guest
            .call(0, header(request::OUT, 8), &[1; 4096], 0, 4096)
            .0,
        status::OK
    );
    // In the order of a detach: first this, then the volume.
    first.succession.end();
    first.close_volume();
    let failed = guest.call(0, header(request::OUT, 8), &[2; 4096], 0, 4096);
    assert_eq!(failed.0, status::IOERR);
    assert!(!guest.in_flight(1), "nothing is left over");
    drop(first);
    let next = Target::of(Engine::Auto, b"here, second generation");
    // Messages without an answer may still be in flight.
    let _ = guest.go_on(next.path(), &[2]);
    let features = guest.monitor.get_features();
    assert!(
        features.is_err(),
        "it is sent away: the volume may lack writes"
    );
    assert_eq!(next.take_log(), []);
    // A machine that was restarted has the disk.
    let mut other = Guest::connect(next.path(), 1, 0);
    other.keep_list();
    let written = other.call(0, header(request::OUT, 8), &[3; 4096], 0, 4096);
    assert_eq!(written.0, status::OK);
}
