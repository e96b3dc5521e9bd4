//! Tests on the simulator's clock, with exact times.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Op as BlockOp, Request as BlockRequest,
};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_device::mem::MemDevice;
use forebay_io::rt::block_on_simulated;

use super::*;

const SIZE_BYTES: u64 = 1 << 20;
const OPTIONS: ReplayOptions = ReplayOptions {
    pace: Pace::Max,
    depth: 8,
    past_end: PastEnd::Fold,
    writes: Writes::Replay,
    verify: false,
};

fn request(time_us: u64, op: Op, offset_bytes: u64, len_bytes: u32) -> Request {
    Request {
        time_ns: time_us * 1000,
        offset_bytes,
        len_bytes,
        volume: 0,
        op,
    }
}

fn slow(inner: Rc<dyn BlockDevice>, latency_us: u64) -> Rc<dyn BlockDevice> {
    let profile = Profile {
        read_latency_us: latency_us,
        write_latency_us: latency_us,
        flush_latency_us: latency_us,
        ..Profile::default()
    };
    EmulateDevice::wrap(inner, profile)
}

/// Replays requests on a device, in batches of seven.
fn run(
    device: impl FnOnce() -> Rc<dyn BlockDevice> + 'static,
    options: ReplayOptions,
    requests: Vec<Request>,
) -> Report {
    block_on_simulated(1, async move {
        let targets = [Target {
            name: "db".into(),
            device: device(),
        }];
        let mut batches: Vec<_> = requests.chunks(7).map(<[_]>::to_vec).rev().collect();
        let mut report = replay(&targets, &options, async || Ok(batches.pop()), || false).await;
        report.verify(&targets, options.depth).await;
        report
    })
}

fn mem() -> Rc<dyn BlockDevice> {
    MemDevice::new("m", SIZE_BYTES)
}

/// Returns writes and reads at random places, many of which overlap.
fn mixed(count: u64) -> Vec<Request> {
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        (state >> 33) % below
    };
    let requests = (0..count).map(|number| {
        let op = [Op::Read, Op::Write, Op::Write, Op::Write][draw(4) as usize];
        let op = match number % 50 {
            7 => Op::Flush,
            9 => Op::Discard,
            _ => op,
        };
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (draw(512) * 512, 512 * (1 + draw(40) as u32)),
        };
        request(number * 10, op, offset, len)
    });
    requests.collect()
}

/// A device that fails or loses writes, from a certain one on.
struct Faulty {
    inner: Rc<dyn BlockDevice>,
    writes: Cell<u64>,
    bad_from: u64,
    error: Option<Error>,
}

impl BlockDevice for Faulty {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: BlockRequest, done: Completion) {
        if matches!(request.op, BlockOp::Write { .. }) {
            self.writes.set(self.writes.get() + 1);
            if self.writes.get() >= self.bad_from {
                return done.complete(self.error.clone().map_or(Ok(()), Err));
            }
        }
        self.inner.submit(request, done);
    }
}

fn faulty(bad_from: u64, error: Option<Error>) -> impl FnOnce() -> Rc<dyn BlockDevice> {
    move || {
        Rc::new(Faulty {
            inner: mem(),
            writes: Cell::new(0),
            bad_from,
            error,
        })
    }
}

#[test]
fn every_request_is_made_once_and_written_data_is_verified() {
    let requests = mixed(3000);
    let of = |op: Op| requests.iter().filter(move |request| request.op == op);
    for (latency_us, depth) in [(0, 1), (0, 8), (1000, 1), (1000, 32)] {
        let options = ReplayOptions {
            depth,
            verify: true,
            ..OPTIONS
        };
        let report = run(move || slow(mem(), latency_us), options, requests.clone());
        assert!(report.failed.is_none(), "{:?}", report.failed);
        assert_eq!(report.requests, 3000);
        for (op, done) in [Op::Read, Op::Write, Op::Flush, Op::Discard]
            .into_iter()
            .zip(report.ops())
        {
            assert_eq!(done.1.requests, of(op).count() as u64, "{}", done.0);
            let bytes: u64 = of(op).map(|request| u64::from(request.len_bytes)).sum();
            assert_eq!(done.1.bytes, bytes, "{}", done.0);
            assert_eq!(done.1.latency.count(), done.1.requests);
            assert_eq!(done.1.latency.max(), Duration::from_micros(latency_us));
        }
        let verified = report.verified.expect("it was asked for");
        assert!(verified.sectors > 400, "{verified:?}");
        assert_eq!((verified.wrong, verified.first_wrong), (0, None));
        assert_eq!(report.fitted, Fitted::default());
        assert!(report.late.is_none());
    }
}

#[test]
fn a_write_that_is_not_there_is_found_and_named() {
    let options = ReplayOptions {
        verify: true,
        ..OPTIONS
    };
    let requests = vec![
        request(0, Op::Write, 0, 4096),
        request(0, Op::Write, 8192, 1024),
        request(0, Op::Write, 0, 512),
    ];
    let report = run(faulty(3, None), options, requests.clone());
    let verified = report.verified.expect("it was asked for");
    assert_eq!((verified.sectors, verified.wrong), (10, 1));
    let said = verified.first_wrong.expect("one is wrong");
    assert!(
        said.contains("at 0 of db")
            && said.contains("write 3, the last one there, but that of write 1"),
        "{said}"
    );
    let verified = run(faulty(2, None), options, requests)
        .verified
        .expect("again");
    assert_eq!((verified.sectors, verified.wrong), (10, 3));
}

#[test]
fn recorded_times_are_followed_and_scaled() {
    for (speed, span_us) in [(1.0, 20_000), (2.0, 10_000), (0.5, 40_000)] {
        let options = ReplayOptions {
            pace: Pace::Recorded(speed),
            ..OPTIONS
        };
        let requests = [0, 10_000, 20_000].map(|us| request(us, Op::Read, 0, 4096));
        let report = run(|| slow(mem(), 1000), options, requests.to_vec());
        assert_eq!(report.elapsed, Duration::from_micros(span_us + 1000));
        let late = report.late.expect("there are times");
        assert_eq!((late.requests, late.by.count()), (0, 3));
        assert_eq!(late.by.max(), Duration::ZERO);
    }
}

#[test]
fn late_requests_are_counted() {
    let options = ReplayOptions {
        pace: Pace::Recorded(1.0),
        depth: 1,
        ..OPTIONS
    };
    let requests = (0..10).map(|number| request(number * 1000, Op::Read, 0, 4096));
    let report = run(|| slow(mem(), 10_000), options, requests.collect());
    let late = report.late.expect("there are times");
    assert_eq!(late.requests, 9);
    assert_eq!(late.by.max(), Duration::from_millis(81));
    assert_eq!(report.elapsed, Duration::from_millis(100));
    assert_eq!(
        report.read.latency.max(),
        Duration::from_millis(10),
        "from the issue"
    );
}

#[test]
fn at_most_so_many_are_in_flight() {
    let requests: Vec<_> = (0..64).map(|_| request(0, Op::Read, 0, 4096)).collect();
    for depth in [1, 4, 64] {
        let options = ReplayOptions { depth, ..OPTIONS };
        let report = run(|| slow(mem(), 1000), options, requests.clone());
        assert_eq!(report.elapsed, Duration::from_millis(64 / depth as u64));
    }
}

#[test]
fn writes_are_refused_or_left_out_where_that_is_wished() {
    let requests = vec![
        request(0, Op::Read, 0, 4096),
        request(0, Op::Discard, 0, 4096),
        request(0, Op::Write, 0, 4096),
        request(0, Op::Read, 0, 4096),
    ];
    let mut options = ReplayOptions {
        writes: Writes::Skip,
        ..OPTIONS
    };
    let report = run(mem, options, requests.clone());
    assert!(report.failed.is_none());
    assert_eq!(
        (report.read.requests, report.requests, report.skipped_writes),
        (2, 2, 2)
    );
    options.writes = Writes::Refuse;
    let report = run(
        faulty(1, Some(ErrorKind::Io.into())),
        options,
        requests.clone(),
    );
    let refused = report.failed.expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert_eq!((report.read.requests, report.discard.requests), (1, 0));
}

#[test]
fn a_failure_ends_it_and_is_named_with_its_place() {
    let broken = Error::new(ErrorKind::Disconnected, "the cable is out");
    let requests = (0..100).map(|number| request(0, Op::Write, number * 4096, 4096));
    let report = run(faulty(41, Some(broken)), OPTIONS, requests.collect());
    let failed = report.failed.expect("it failed");
    assert_eq!(failed.kind(), ErrorKind::Disconnected);
    let said = failed.report();
    assert!(
        said.contains("Write of 4096 bytes at 163840 of db failed"),
        "{said}"
    );
    assert!(said.contains("the cable is out"), "{said}");
    assert_eq!((report.write.requests, report.requests), (40, 40));
}

#[test]
fn only_whole_requests_that_were_answered_are_counted() {
    // The second of three pieces fails, while the others are in flight.
    let broken = || Some(Error::new(ErrorKind::Io, "it is worn out"));
    let long = || MemDevice::new("m", 16 << 20);
    for bad_from in [1, 2, 3, 4] {
        let device = move || -> Rc<dyn BlockDevice> {
            let faulty = Faulty {
                inner: long(),
                writes: Cell::new(0),
                bad_from,
                error: broken(),
            };
            slow(Rc::new(faulty), 1000)
        };
        let requests = vec![
            request(0, Op::Read, 0, 4096),
            request(0, Op::Write, 0, 12 << 20),
        ];
        let report = run(device, OPTIONS, requests);
        assert_eq!(report.failed.is_some(), bad_from < 4);
        assert_eq!(report.requests, 1 + u64::from(bad_from == 4), "{bad_from}");
        assert_eq!(report.write.requests, bad_from - 1);
    }
}

#[test]
fn requests_skipped_past_the_end_are_not_counted_as_replayed() {
    let requests = || {
        vec![
            request(0, Op::Read, 0, 4096),
            request(0, Op::Read, SIZE_BYTES, 4096),
        ]
    };
    for (past_end, expected) in [(PastEnd::Skip, (1, 0, 1)), (PastEnd::Fold, (2, 1, 0))] {
        let options = ReplayOptions {
            past_end,
            ..OPTIONS
        };
        let report = run(mem, options, requests());
        let Fitted {
            folded, left_out, ..
        } = report.fitted;
        assert_eq!((report.requests, folded, left_out), expected);
    }
}

#[test]
fn a_target_without_bytes_is_an_error() {
    let empty = || -> Rc<dyn BlockDevice> { MemDevice::new("m", 0) };
    let report = run(empty, OPTIONS, vec![request(0, Op::Read, 0, 4096)]);
    let failed = report.failed.expect("there is no room");
    assert_eq!(failed.kind(), ErrorKind::OutOfRange);
}

#[test]
fn it_stops_on_request() {
    let report = block_on_simulated(1, async {
        let targets = [Target {
            name: "db".into(),
            device: mem(),
        }];
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 100
        };
        let endless = async || Ok(Some(vec![request(0, Op::Read, 0, 512)]));
        replay(&targets, &OPTIONS, endless, stop).await
    });
    assert_eq!(report.requests, 100);
}
