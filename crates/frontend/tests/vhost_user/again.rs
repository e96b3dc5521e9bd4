//! Guests whose target dies and is followed by another: what was not answered is done again, once, and nothing else.

use forebay_block::Op;
use forebay_io::Engine;
use forebay_wire::virtio_blk::{request, status};
use vhost::VhostBackend as _;
use vm_memory::{Bytes as _, GuestAddress};

use crate::guest::{ENTRIES, GUEST, Guest, MEMORY_BYTES};
use crate::target::Target;
use crate::{Draw, header, until};

/// Of a queue's part of what the monitor keeps: header and entries, of which there are [`ENTRIES`].
const STRIDE: u64 = (16 + 16 * ENTRIES as u64).next_multiple_of(64);

/// What a guest has when its target dies.
struct Moment {
    memory: Vec<u8>,
    kept: Vec<u8>,
}

impl Moment {
    fn of(guest: &Guest) -> Self {
        let mut memory = vec![0; MEMORY_BYTES];
        let all = GuestAddress(GUEST);
        (guest.memory.read_slice(&mut memory, all)).expect("its memory");
        let kept = guest.kept();
        Self { memory, kept }
    }

    /// The target dies here: what it does while this process ends it in order has not happened.
    fn dies(self, guest: &Guest, target: Target) {
        drop(target);
        let all = GuestAddress(GUEST);
        (guest.memory.write_slice(&self.memory, all)).expect("its memory");
        guest.forge(0, &self.kept);
    }
}

/// A write of 4 KiB to a block.
fn write(guest: &mut Guest, queue: usize, number: u16, block: u64) {
    let data = [number as u8; 4096];
    let head = header(request::OUT, block * 8);
    guest.start_request(queue, number, head, (&data, 0, 512));
}

/// The blocks that a target has written.
fn written(target: &Target) -> Vec<u64> {
    let log = target.take_log().into_iter();
    log.map(|(op, offset, len)| {
        assert_eq!((op, len), (Op::Write { fua: false }, 4096));
        offset / 4096
    })
    .collect()
}

#[test]
fn what_was_not_answered_is_done_again_and_once() {
    let mut draw = Draw(0x5eed);
    for round in 0..30 {
        let first = Target::start(Engine::Auto);
        let mut guest = Guest::connect(first.path(), 2, 0);
        guest.track();
        // Some are answered, so that the rings are somewhere, and descriptors are used again.
        for at in 0..draw.below(70) {
            write(&mut guest, at % 2, 1 + (at % 5) as u16, 100);
            guest.wait(at % 2);
        }
        first.take_log();
        first.hold(true);
        // Each has its number, its block, and a queue.
        let waiting: Vec<u16> = (1..=1 + draw.below(7) as u16).collect();
        for number in &waiting {
            write(
                &mut guest,
                usize::from(number % 2),
                *number,
                (*number).into(),
            );
        }
        let count = waiting.len() as u64;
        until("they are on the device", || {
            first.volume.stats().in_flight == count
        });
        let moment = Moment::of(&guest);
        moment.dies(&guest, first);
        let second = Target::start(Engine::Auto);
        guest.reconnect(second.path()).expect("it goes on");
        for _ in waiting.iter().filter(|number| *number % 2 == 0) {
            guest.wait(0);
        }
        for _ in waiting.iter().filter(|number| *number % 2 == 1) {
            guest.wait(1);
        }
        let mut again = written(&second);
        again.sort_unstable();
        let numbers: Vec<u64> = waiting.iter().map(|number| (*number).into()).collect();
        assert_eq!(again, numbers, "round {round}");
        for number in waiting {
            assert_eq!(guest.outcome(number, 0).0, status::OK);
        }
        // And it goes on with what comes.
        for queue in 0..2 {
            assert_eq!(guest.used(queue), None);
            let (done, data) = guest.call(queue, header(request::IN, 8), &[], 4096, 4096);
            assert_eq!((done, data), (status::OK, vec![1; 4096]));
        }
        let marks = guest.kept();
        let flags = |queue: u64| {
            let from = (queue * STRIDE + 16) as usize;
            marks[from..from + 16 * usize::from(ENTRIES)]
                .iter()
                .step_by(16)
        };
        assert!(flags(0).chain(flags(1)).all(|flag| *flag == 0));
    }
}

#[test]
fn one_that_was_answered_and_not_noted_is_not_done_again() {
    let first = Target::start(Engine::Auto);
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.track();
    write(&mut guest, 0, 1, 1);
    guest.wait(0);
    first.hold(true);
    write(&mut guest, 0, 2, 2);
    until("it is on the device", || {
        first.volume.stats().in_flight == 1
    });
    let mut moment = Moment::of(&guest);
    // As if the process had ended between the answer to the first and the note of it.
    assert_eq!(
        moment.kept[12..16],
        [1, 0, 1, 0],
        "answered last, and the used ring"
    );
    moment.kept[14..16].copy_from_slice(&[0, 0]);
    moment.kept[16 + 16] = 1;
    moment.dies(&guest, first);
    let second = Target::start(Engine::Auto);
    guest.reconnect(second.path()).expect("it goes on");
    assert_eq!(guest.wait(0), (2, 1));
    assert_eq!(written(&second), [2]);
    write(&mut guest, 0, 1, 3);
    assert_eq!(guest.wait(0), (1, 1));
}

#[test]
fn another_disk_and_one_that_may_lack_writes_are_refused() {
    let first = Target::start(Engine::Auto);
    let mut guest = Guest::connect(first.path(), 1, 0);
    guest.track();
    write(&mut guest, 0, 1, 1);
    guest.wait(0);
    let moment = Moment::of(&guest);
    moment.dies(&guest, first);
    let other = Target::of(Engine::Auto, "other", None);
    assert!(guest.reconnect(other.path()).is_err(), "another disk");
    let gap = Some("its cache was given up");
    let lossy = Target::of(Engine::Auto, "test", gap);
    // Of this process it lacks nothing.
    guest.reconnect(lossy.path()).expect("the same process");
    drop(lossy);
    let lossy = Target::of(Engine::Auto, "test", gap);
    guest.forge(STRIDE + 8, &[0x55; 8]);
    assert!(
        guest.reconnect(lossy.path()).is_err(),
        "of a process before"
    );
    drop(lossy);
    let whole = Target::start(Engine::Auto);
    guest.reconnect(whole.path()).expect("it lacks nothing");
    write(&mut guest, 0, 2, 2);
    assert_eq!(guest.wait(0), (2, 1));
}

#[test]
fn whatever_is_kept_is_served_or_refused() {
    let target = Target::start(Engine::Auto);
    let mut draw = Draw(0xf00d);
    for _ in 0..60 {
        let mut guest = Guest::connect(target.path(), 2, 0);
        guest.track();
        write(&mut guest, 0, 1, 1);
        guest.wait(0);
        guest.monitor.reset_owner().expect("its queues stop");
        for _ in 0..draw.below(40) {
            let at = draw.below(2 * STRIDE as usize) as u64;
            guest.forge(at, &[draw.below(256) as u8]);
        }
        // Requests that were never made lie where the descriptors are zeroes: they harm the guest alone.
        let _ = guest.reconnect(target.path());
        drop(guest);
        let mut next = Guest::connect(target.path(), 1, 0);
        let (done, _) = next.call(0, header(request::IN, 8), &[], 512, 512);
        assert_eq!(done, status::OK);
    }
}
