//! Disks by vhost-user, with a guest whose monitor and driver are in this process.

mod hostile;
mod rings;
mod takeover;

use std::time::{Duration, Instant};

use forebay_block::Op;
use forebay_io::Engine;
use forebay_wire::virtio_blk::{Header, ID_BYTES, Segment, UNMAP, feature, request, status};
use vhost::VhostBackend as _;
use vhost::vhost_user::Frontend;

use rings::{guest, target};

use guest::{Guest, NO_EVENTS, PATIENCE};
use target::{SIZE_BYTES, Target};

pub(crate) const fn header(kind: u32, sector: u64) -> Header {
    Header { kind, sector }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns how often the memory of a guest is mapped in this process.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    maps.lines().filter(|line| line.contains(name)).count()
}

/// A generator of numbers (xorshift), the same in each run.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).expect("small")
    }
}

#[test]
fn a_disk_is_described() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 1, 0);
    let features = guest.monitor.get_features().expect("told");
    let has = feature::FLUSH | feature::MQ | feature::DISCARD | feature::WRITE_ZEROES;
    assert_eq!(features & has, has);
    assert_eq!(features & feature::RO, 0);
    let config = guest.config();
    assert_eq!(config[..8], (SIZE_BYTES / 512).to_le_bytes());
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(config[34..36], [16, 0], "queues");
    let (done, id) = guest.call(0, header(request::GET_ID, 0), &[], ID_BYTES, 7);
    assert_eq!((done, &id[..8]), (status::OK, &b"a-disk\0\0"[..]));
    let (done, _) = guest.call(0, header(77, 0), &[], 0, 512);
    assert_eq!(done, status::UNSUPP);
}

/// Runs random requests, several at a time on two queues, against a model.
fn against_the_model(engine: Engine, without: u64, seed: u64) {
    let target = Target::start(engine);
    let mut guest = Guest::connect(target.path(), 2, without);
    let mut draw = Draw(seed);
    let sectors = usize::try_from(SIZE_BYTES / 512).expect("small");
    let mut model = vec![0_u8; sectors * 512];
    for round in 0..150_u8 {
        // Each of four requests has a quarter of the disk, so that their order is irrelevant.
        let mut waiting = Vec::new();
        for slot in 0..4_u16 {
            let most = if draw.below(4) == 0 { 2000 } else { 20 };
            let count = draw.below(most) + 1;
            let first = usize::from(slot) * (sectors / 4) + draw.below(sectors / 4 - count);
            let range = first * 512..(first + count) * 512;
            let piece = [512, 4096, 65536, 100_000][draw.below(4)].max(range.len() / 100);
            let queue = draw.below(2);
            let segment = Segment {
                sector: first as u64,
                sectors: u32::try_from(count).expect("small"),
                flags: 0,
            };
            let at = first as u64;
            let number = slot + 1;
            match draw.below(7) {
                0..=2 => {
                    let data: Vec<_> = (0..range.len()).map(|i| (i / 512) as u8 ^ round).collect();
                    model[range].copy_from_slice(&data);
                    let head = header(request::OUT, at);
                    guest.start_request(queue, number, head, (&data, 0, piece));
                    waiting.push((queue, number, None));
                }
                3 => {
                    let unmap = Segment {
                        flags: UNMAP,
                        ..segment
                    };
                    let zeroes = if round % 2 == 0 { segment } else { unmap };
                    model[range].fill(0);
                    let head = header(request::WRITE_ZEROES, 0);
                    guest.start_request(queue, number, head, (&zeroes.encode(), 0, 5));
                    waiting.push((queue, number, None));
                }
                4 => {
                    // A memory device's discarded range reads as zeroes.
                    model[range].fill(0);
                    let head = header(request::DISCARD, 0);
                    guest.start_request(queue, number, head, (&segment.encode(), 0, 16));
                    waiting.push((queue, number, None));
                }
                _ => {
                    let head = header(request::IN, at);
                    guest.start_request(queue, number, head, (&[], range.len(), piece));
                    waiting.push((queue, number, Some(range)));
                }
            }
        }
        for queue in 0..2 {
            for _ in waiting.iter().filter(|one| one.0 == queue) {
                guest.wait(queue);
            }
        }
        for (_, number, read) in waiting {
            let len = read.as_ref().map_or(0, ExactSizeIterator::len);
            let (done, data) = guest.outcome(number, len);
            assert_eq!(done, status::OK, "round {round}");
            if let Some(range) = read {
                assert!(data == model[range.clone()], "round {round}: {range:?}");
            }
        }
    }
}

#[test]
fn requests_match_the_model() {
    against_the_model(Engine::Auto, 0, 1);
    against_the_model(Engine::Auto, NO_EVENTS, 2);
    against_the_model(Engine::Threads, 0, 3);
}

#[test]
fn a_flush_is_a_flush_and_a_guest_without_has_durable_writes() {
    let target = Target::start(Engine::Auto);
    let write = |fua| (Op::Write { fua }, 512, 1024);
    let segment = Segment {
        sector: 8,
        sectors: 8,
        flags: 0,
    };
    let mut guest = Guest::connect(target.path(), 1, 0);
    guest.call(0, header(request::OUT, 1), &[1; 1024], 0, 512);
    assert_eq!(target.take_log(), [write(false)]);
    assert_eq!(guest.call(0, header(request::FLUSH, 0), &[], 0, 512).0, 0);
    assert_eq!(target.take_log(), [(Op::Flush, 0, 0)]);
    drop(guest);
    let mut guest = Guest::connect(target.path(), 1, feature::FLUSH);
    guest.call(0, header(request::OUT, 1), &[1; 1024], 0, 512);
    guest.call(0, header(request::DISCARD, 0), &segment.encode(), 0, 16);
    guest.call(
        0,
        header(request::WRITE_ZEROES, 0),
        &segment.encode(),
        0,
        16,
    );
    let zeroes = Op::WriteZeroes {
        fua: true,
        unmap: false,
    };
    let discard = (Op::Discard, 4096, 4096);
    let durable = [
        write(true),
        discard,
        (Op::Flush, 0, 0),
        (zeroes, 4096, 4096),
    ];
    assert_eq!(target.take_log(), durable);
}

#[test]
fn the_guest_is_notified_of_ended_requests() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 1, NO_EVENTS);
    until("a queue that begins calls once", || guest.called(0));
    for _ in 0..20 {
        guest.call(0, header(request::FLUSH, 0), &[], 0, 512);
        until("it is notified", || guest.called(0));
    }
}

#[test]
fn a_queue_stops_with_all_that_it_has_begun_and_goes_on_where_it_was() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 2, 0);
    target.hold(true);
    for number in 1..=3 {
        let head = header(request::OUT, u64::from(number) * 8);
        guest.start_request(0, number, head, (&[7; 4096], 0, 4096));
    }
    until("they are on the device", || {
        target.volume.stats().in_flight == 3
    });
    let hold = std::sync::Arc::clone(&target.hold);
    let begin = Instant::now();
    let letting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        hold.store(false, std::sync::atomic::Ordering::Release);
    });
    assert_eq!(guest.monitor.get_vring_base(0).expect("told"), 3);
    assert!(begin.elapsed() >= Duration::from_millis(100));
    letting.join().expect("it lets go");
    for _ in 0..3 {
        let (number, written) = guest.used(0).expect("all have ended");
        assert_eq!((guest.outcome(number, 0).0, written), (status::OK, 1));
    }
    // Later requests wait.
    let head = header(request::OUT, 64);
    guest.start_request(0, 1, head, (&[8; 512], 0, 512));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(guest.used(0), None);
    guest.run(0, 3).expect("it runs again");
    assert_eq!(guest.wait(0), (1, 1));
    // New memory under running queues: they continue.
    guest.share_memory().expect("taken");
    for queue in 0..2 {
        assert_eq!(
            guest.call(queue, header(request::IN, 64), &[], 512, 512).1,
            [8; 512]
        );
    }
}

#[test]
fn a_guest_that_dies_leaves_nothing_and_its_disk_is_free() {
    let target = Target::start(Engine::Auto);
    target.hold(true);
    let mut guest = Guest::connect(target.path(), 2, 0);
    for number in 1..=4 {
        let head = header(request::OUT, u64::from(number) * 8);
        guest.start_request(usize::from(number) % 2, number, head, (&[7; 4096], 0, 4096));
    }
    until("they are on the device", || {
        target.volume.stats().in_flight == 4
    });
    let name = guest.name.clone();
    assert_eq!(mappings(&name), 2, "the guest's own, and the target's");
    drop(guest);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(mappings(&name), 1, "as long as the device uses it");
    target.hold(false);
    until("the memory is let go", || mappings(&name) == 0);
    assert_eq!(target.volume.stats().in_flight, 0);
    let mut guest = Guest::connect(target.path(), 1, 0);
    assert_eq!(
        guest.call(0, header(request::IN, 8), &[], 4096, 4096).1,
        [7; 4096]
    );
}

#[test]
fn a_target_that_ends_lets_the_guest_go() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 2, 0);
    assert_eq!(
        guest.call(1, header(request::FLUSH, 0), &[], 0, 512).0,
        status::OK
    );
    drop(target);
    assert!(
        guest.monitor.get_features().is_err(),
        "the connection is closed"
    );
    until("the memory is let go", || mappings(&guest.name) == 1);
}

#[test]
fn a_disk_has_one_guest() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 1, 0);
    let other = Frontend::connect(target.path(), 4).expect("it is accepted");
    assert!(other.get_features().is_err(), "and refused");
    assert_eq!(
        guest.call(0, header(request::FLUSH, 0), &[], 0, 512).0,
        status::OK
    );
}
