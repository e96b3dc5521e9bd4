//! Limits of a volume, on the simulator's clock: rates are kept, and no request overtakes or is
//! lost.

use std::cell::RefCell;
use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Op, Request};
use forebay_io::rt;
use forebay_volume::{Limits, Volume};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A device that records requests with their times, and completes a little later.
#[derive(Default)]
struct Clocked {
    seen: RefCell<Vec<(Duration, Op, u64, u64)>>,
}

impl BlockDevice for Clocked {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            discard: true,
            fua: true,
            ..DeviceInfo::new("clocked", 1 << 40)
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let entry = (rt::now(), request.op, request.offset, request.len);
        self.seen.borrow_mut().push(entry);
        rt::spawn(async move {
            rt::sleep(Duration::from_micros(300)).await;
            drop(request);
            done.complete(Ok(()));
        });
    }
}

impl Clocked {
    /// Returns the number of requests and bytes in an interval.
    fn between(&self, from: Duration, to: Duration) -> (f64, f64) {
        let seen = self.seen.borrow();
        let within = seen.iter().filter(|(at, ..)| (from..to).contains(at));
        within.fold((0.0, 0.0), |(count, bytes), (.., len)| {
            (count + 1.0, bytes + *len as f64)
        })
    }
}

fn limits(iops: u32, bandwidth_bytes_per_s: u64) -> Limits {
    Limits {
        iops: NonZeroU32::new(iops),
        bandwidth_bytes_per_s: NonZeroU64::new(bandwidth_bytes_per_s),
        ..Limits::NONE
    }
}

fn near(measured: f64, limit: f64) -> bool {
    (measured / limit - 1.0).abs() < 0.05
}

/// Runs `depth` clients for `time`, each with one request at a time: reads and writes of `len`
/// bytes. Returns the number of completed requests.
async fn load(volume: &Volume, depth: u64, len: u64, time: Duration) -> u64 {
    let end = rt::now() + time;
    let clients: Vec<_> = (0..depth)
        .map(|client| {
            let device = volume.handle().open();
            let answered = forebay_io::sync::Promise::new();
            let completed = answered.clone();
            rt::spawn(async move {
                let buf = Buf::zeroed(usize::try_from(len).expect("small"));
                let mut count = 0_u64;
                while rt::now() < end {
                    let at = (client << 30) + count * len;
                    let done = match count % 3 {
                        0 => device.read(at, buf.clone()).await,
                        _ => device.write(at, buf.clone()).await,
                    };
                    done.expect("it is answered");
                    count += 1;
                }
                completed.set(count);
            });
            answered
        })
        .collect();
    let mut answered = 0;
    for client in clients {
        answered += client.get().await;
    }
    answered
}

#[test]
fn operations_a_second_are_limited_to_within_five_percent() {
    for (seed, iops, depth) in [(1, 100, 1), (2, 1000, 1), (3, 1000, 32), (4, 50_000, 64)] {
        rt::block_on_simulated(seed, async move {
            let device = Rc::new(Clocked::default());
            let volume = Volume::new("v", device.clone(), false);
            volume.limit(limits(iops, 0));
            let answered = load(&volume, depth, 4096, 6 * SECOND).await;
            // After the initial burst, all seconds are equal.
            for second in 1..5 {
                let (count, _) = device.between(second * SECOND, (second + 1) * SECOND);
                assert!(near(count, iops.into()), "{iops}: {count} in a second");
            }
            assert_eq!(device.seen.borrow().len() as u64, answered, "none is lost");
            let stats = volume.handle().stats();
            assert_eq!(stats.read.ops + stats.write.ops, answered);
            assert_eq!((stats.in_flight, stats.read.errors), (0, 0));
            // The device takes 0.3 ms for a request, with `depth` clients. Any further wait is due
            // to the limit.
            let waited = stats.limited_time.as_secs_f64();
            let expected = depth as f64 * 6.0 - answered as f64 * 0.0003;
            assert!(near(waited, expected), "{iops}: {waited} s, {expected}");
            assert!(stats.limited <= answered && stats.limited * 10 > answered * 9);
        });
    }
}

#[test]
fn bytes_a_second_are_limited_to_within_five_percent() {
    for (seed, len) in [(1, 4 << 10), (2, 64 << 10), (3, 1 << 20)] {
        rt::block_on_simulated(seed, async move {
            let device = Rc::new(Clocked::default());
            let volume = Volume::new("v", device.clone(), false);
            volume.limit(limits(0, 100_000_000));
            load(&volume, 32, len, 6 * SECOND).await;
            let (_, bytes) = device.between(SECOND, 5 * SECOND);
            assert!(near(bytes / 4.0, 1e8), "{len}: {bytes} in four seconds");
        });
    }
}

#[test]
fn the_lower_of_two_limits_holds() {
    rt::block_on_simulated(5, async {
        let device = Rc::new(Clocked::default());
        let volume = Volume::new("v", device.clone(), false);
        volume.limit(limits(1000, 16_384_000));
        load(&volume, 16, 4096, 3 * SECOND).await;
        let (count, _) = device.between(SECOND, 3 * SECOND);
        assert!(near(count / 2.0, 1000.0), "small requests: {count}");
        let begin = rt::now();
        load(&volume, 16, 65_536, 3 * SECOND).await;
        let (_, bytes) = device.between(begin + SECOND, begin + 3 * SECOND);
        assert!(near(bytes / 2.0, 16_384_000.0), "large requests: {bytes}");
    });
}

#[test]
fn an_idle_volume_may_spend_a_burst_and_no_more() {
    rt::block_on_simulated(6, async {
        let device = Rc::new(Clocked::default());
        let volume = Volume::new("v", device.clone(), false);
        volume.limit(Limits {
            burst: 2 * SECOND,
            ..limits(100, 0)
        });
        for _ in 0..3 {
            // However long it was idle.
            rt::sleep(60 * SECOND).await;
            let begin = rt::now();
            load(&volume, 64, 512, SECOND).await;
            let (at_once, _) = device.between(begin, begin + 100 * MS);
            assert!(near(at_once, 210.0), "{at_once} at once");
            let (then, _) = device.between(begin + 100 * MS, begin + SECOND);
            assert!(near(then, 90.0), "{then} in the rest of the second");
        }
    });
}

#[test]
fn nothing_overtakes_and_nothing_is_lost() {
    rt::block_on_simulated(7, async {
        let device = Rc::new(Clocked::default());
        let volume = Volume::new("v", device.clone(), false);
        volume.limit(limits(500, 5_000_000));
        let client = volume.handle().open();
        let mut expected = Vec::new();
        let mut pending = Vec::new();
        for number in 0..400_u64 {
            let len = [512, 65_536, 4096][usize::try_from(number % 3).expect("small")];
            let buf = Buf::zeroed(usize::try_from(len).expect("small"));
            let at = number << 20;
            let request = match number % 7 {
                0 => Request::flush(),
                1 => Request::discard(at, 1 << 20),
                2 => Request::write_zeroes(at, len, false, true),
                3 => Request::read(at, buf),
                _ => Request::write(at, buf, number % 2 == 0),
            };
            expected.push((request.op, request.offset, request.len));
            pending.push(client.start(request));
            if number % 50 == 0 {
                rt::sleep(20 * MS).await;
            }
        }
        for request in pending {
            request.await.expect("it is answered");
        }
        let seen: Vec<_> = (device.seen.borrow().iter())
            .map(|(_, op, offset, len)| (*op, *offset, *len))
            .collect();
        assert_eq!(seen, expected);
    });
}

#[test]
fn a_volume_that_ends_waits_for_no_limit() {
    rt::block_on_simulated(8, async {
        let device = Rc::new(Clocked::default());
        let volume = Volume::new("v", device.clone(), false);
        volume.limit(limits(1, 0));
        let client = volume.handle().open();
        let pending: Vec<_> = (0..100)
            .map(|at| client.write(at * 512, Buf::zeroed(512)))
            .collect();
        let begin = rt::now();
        volume.drain().await;
        assert!(rt::now() - begin < SECOND, "{:?}", rt::now() - begin);
        for request in pending {
            request.await.expect("it was taken");
        }
        assert_eq!(device.seen.borrow().len(), 100);
        drop((client, volume));
        assert_eq!(Rc::strong_count(&device), 1, "nothing keeps the device");
    });
}

#[test]
fn limits_may_change_while_requests_wait() {
    rt::block_on_simulated(9, async {
        let device = Rc::new(Clocked::default());
        let volume = Volume::new("v", device.clone(), false);
        volume.limit(limits(10, 0));
        let client = volume.handle().open();
        let waiting: Vec<_> = (0..20)
            .map(|at| client.write(at * 512, Buf::zeroed(512)))
            .collect();
        volume.limit(Limits::NONE);
        // New requests stay behind the earlier ones.
        client
            .write(1 << 20, Buf::zeroed(512))
            .await
            .expect("a write");
        assert!(rt::now() > SECOND, "{:?}", rt::now());
        for request in waiting {
            request.await.expect("it is answered");
        }
        assert_eq!(
            device.seen.borrow().last().map(|seen| seen.2),
            Some(1 << 20)
        );
        let begin = rt::now();
        load(&volume, 1, 512, SECOND).await;
        let (count, _) = device.between(begin, begin + SECOND);
        assert!(count > 3000.0, "without a limit: {count}");
    });
}
