//! Requests that a device does not complete in time.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, Result};
use forebay_io::rt;
use forebay_io::sim::{DiskConfig, FaultPlan, Outcome, SimDisk, Trouble, World};

use super::*;
use crate::Volume;

const SECOND: u64 = 1_000_000;
const LIMIT: Duration = Duration::from_secs(10);

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; 4096])
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().as_ref().map(Error::kind)
}

/// Runs `main` on a volume over a device that stalls for 100 s from its first operation on.
fn stalled<T: 'static>(
    seed: u64,
    main: impl AsyncFnOnce(SimDisk, Volume, Rc<dyn BlockDevice>) -> T + 'static,
) -> T {
    let mut world = World::new(seed);
    let disk = world.add_disk(&DiskConfig::new("disk", 1 << 20));
    disk.set_faults(FaultPlan {
        from_nth: Some((1, Trouble::Stalls(100 * SECOND))),
        ..FaultPlan::default()
    });
    let ended = world.run(seed, async move {
        let volume = Volume::new("v", Rc::new(disk.clone()), false);
        volume.time_out(LIMIT);
        let device = volume.handle().open();
        main(disk, volume, device).await
    });
    match ended {
        Outcome::Finished(value) => value,
        _ => panic!("it did not end"),
    }
}

#[test]
fn a_client_of_a_stalled_device_gets_an_error_after_the_limit() {
    stalled(1, async |_, volume, device| {
        for nth in 1..=3 {
            let begin = rt::now();
            let result = match nth {
                1 => device.read(0, page(0)).await,
                2 => device.flush().await,
                _ => device.write(8192, page(1)).await,
            };
            let took = rt::now() - begin;
            assert_eq!(kind(result), Some(ErrorKind::TimedOut));
            assert!((LIMIT..=LIMIT * 5 / 4).contains(&took), "{took:?}");
            let stats = volume.handle().stats();
            assert_eq!(
                (stats.timed_out, stats.overdue, stats.in_flight),
                (nth, nth, 0)
            );
        }
        volume.drain().await;
        rt::sleep(Duration::from_secs(100)).await;
        let stats = volume.handle().stats();
        assert_eq!((stats.timed_out, stats.overdue), (3, 0), "all have ended");
    });
}

#[test]
fn a_request_that_ends_in_time_is_not_late() {
    let mut world = World::new(3);
    let disk = world.add_disk(&DiskConfig {
        latency_us: (SECOND, 2 * SECOND),
        ..DiskConfig::new("disk", 1 << 20)
    });
    let ended = world.run(3, async move {
        let volume = Volume::new("v", Rc::new(disk), false);
        volume.time_out(Duration::from_secs(250));
        let device = volume.handle().open();
        for nth in 0..100 {
            device.write(nth * 4096, page(1)).await.expect("in time");
        }
        assert_eq!(volume.handle().stats().timed_out, 0);
    });
    assert!(matches!(ended, Outcome::Finished(())));
}

/// An old write is late, and a newer one to the same range follows as soon as it may. Returns the
/// device's content at the end.
fn old_and_new(seed: u64) -> (u8, bool) {
    stalled(seed, async |disk, _volume, device| {
        assert_eq!(
            kind(device.write(4096, page(1)).await),
            Some(ErrorKind::TimedOut)
        );
        let beside = device.write(0, page(9)).await;
        assert_eq!(
            kind(beside),
            Some(ErrorKind::TimedOut),
            "not refused, but late as well"
        );
        let (other, begin) = (Rc::clone(&device), rt::now());
        let overlapping = device.write(0, page(2)).await;
        let at_once = kind(overlapping) == Some(ErrorKind::TimedOut) && rt::now() == begin;
        // A client that retries.
        let newer = async {
            while other.write(4096, page(2)).await.is_err() {
                rt::sleep(Duration::from_millis(100)).await;
            }
        };
        newer.await;
        rt::sleep(Duration::from_secs(200)).await;
        (disk.peek(4096, 1)[0], at_once)
    })
}

#[test]
fn a_late_write_never_lands_on_a_newer_one() {
    for seed in 0..50 {
        assert_eq!(old_and_new(seed), (2, true), "seed {seed}");
    }
    FORGETS_LATE_REQUESTS.set(true);
    let found = (0..50).filter(|seed| old_and_new(*seed).0 != 2).count();
    FORGETS_LATE_REQUESTS.set(false);
    assert!(found > 0, "the planted fault is found");
}

#[test]
fn ranges_outside_a_late_request_are_served() {
    stalled(5, async |disk, _volume, device| {
        assert_eq!(
            kind(device.write(4096, page(1)).await),
            Some(ErrorKind::TimedOut)
        );
        disk.set_faults(FaultPlan {
            from_nth: Some((2, Trouble::Stalls(SECOND))),
            ..FaultPlan::default()
        });
        device.write(8192, page(3)).await.expect("served");
        rt::sleep(Duration::from_secs(1)).await;
        device
            .write(4096, page(4))
            .await
            .expect("the late one has ended");
        let found = page(0);
        device.read(4096, found.clone()).await.expect("read");
        assert_eq!(found.to_vec(), page(4).to_vec());
    });
}
