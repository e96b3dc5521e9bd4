//! A backing device that does not answer, or that loses what it acknowledged, beside one that is well.

use std::time::Duration;

use forebay_io::sim::{FaultPlan, Trouble};

use super::*;

const SECOND: u64 = 1_000_000;
const BLOCK: u64 = 4096;
/// For ever, as far as a test goes.
const LONG: Trouble = Trouble::Stalls(3000 * SECOND);

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; BLOCK as usize])
}

/// A cache with two volumes, `v` and `w`.
fn two_volumes(seed: u64) -> World {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig::new("cache", 4 << 20));
    world.add_disk(&DiskConfig::new("backing", 1 << 20));
    world.add_disk(&DiskConfig::new("another", 1 << 20));
    world
}

async fn attach_both(disks: &[SimDisk], mode: Mode) -> (Cache, [Rc<dyn BlockDevice>; 2]) {
    make(disks, BLOCK as u32).await;
    let (cache, _) = open(disks, Durability::Flush).await;
    let volume = attach(&cache, disks, mode).await;
    let other = Rc::new(disks[2].clone());
    let options = VolumeOptions::new(mode);
    let other = cache.attach("w", other, options).await.expect("attaches");
    (cache, [volume, other])
}

fn from_now(disk: &SimDisk, trouble: Trouble) {
    disk.set_faults(FaultPlan {
        from_nth: Some((1, trouble)),
        ..FaultPlan::default()
    });
}

/// Runs `future` until it ends or so many seconds have passed; whether it ended.
async fn ends_within(seconds: u64, future: impl Future<Output = ()> + 'static) -> bool {
    let ended = forebay_io::sync::Promise::new();
    let set = ended.clone();
    rt::spawn(async move {
        future.await;
        set.set(());
    });
    for _ in 0..seconds * 10 {
        if ended.is_set() {
            return true;
        }
        rt::sleep(Duration::from_millis(100)).await;
    }
    ended.is_set()
}

/// Marks of both volumes fall quiet at once; that of the first cannot go, since its backing device stalls.
#[test]
fn a_stalled_backing_device_keeps_no_region_of_another_volume() {
    for seed in 0..10 {
        run(&two_volumes(seed), async move |disks| {
            let (_cache, [volume, other]) = attach_both(&disks, Mode::WriteThrough).await;
            for device in [&volume, &other] {
                for byte in [1, 2] {
                    // The second time a clean copy is there: the region is marked.
                    device.write(0, page(byte)).await.expect("writes");
                    device.flush().await.expect("flushes");
                }
                device.write(0, page(3)).await.expect("writes");
            }
            from_now(&disks[1], LONG);
            // The marks have fallen quiet, and the timer has been at them.
            rt::sleep(Duration::from_secs(7)).await;
            let again = ends_within(20, async move {
                other.write(0, page(4)).await.expect("writes");
                other.flush().await.expect("flushes");
            });
            assert!(again.await, "seed {seed}: the other volume waits");
            drop(volume);
        });
    }
}

/// Clean data of the other volume is remembered though nobody flushes it.
#[test]
fn a_stalled_backing_device_keeps_nobody_from_being_flushed_behind() {
    run(&two_volumes(1), async |disks| {
        let (_cache, [volume, other]) = attach_both(&disks, Mode::WriteThrough).await;
        volume.write(0, page(1)).await.expect("writes");
        other.write(0, page(1)).await.expect("writes");
        from_now(&disks[1], LONG);
        let before = disks[2].counters().flushes;
        rt::sleep(Duration::from_secs(20)).await;
        assert!(disks[2].counters().flushes > before, "nobody flushed it");
    });
}
