//! After a crash what is only presumed to be dirty is compared with the backing device.

use std::cell::{Cell, RefCell};

use forebay_block::{Completion, DeviceInfo, Op, Request};
use forebay_io::sim::{FaultPlan, OpClass};

use super::*;
use crate::plant::{Fault, plant};

const BLOCK: u64 = 32 << 10;
const GRANULE: u64 = 4096;
const BLOCKS: u64 = 8;

async fn make_untracked(disks: &[SimDisk]) {
    let options = FormatOptions {
        dirty_tracking: DirtyTracking::None,
        ..FormatOptions::new(BLOCK as u32, [5; 16])
    };
    (format(&devices(disks), &options).await).expect("formats");
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn write(volume: &Rc<dyn BlockDevice>, at: u64, byte: u8) {
    let buf = Buf::copied(&[byte; GRANULE as usize]);
    volume.write(at, buf).await.expect("writes");
}

/// Everything is cached and clean; then one granule, not the first, of one block is overwritten in place, and the power is lost.
fn crashed(at: u64) -> World {
    let world = killed(at);
    world.crash_power(Keep::None);
    world
}

/// The same with the death of the process alone.
fn killed(at: u64) -> World {
    let world = world(31, 4 << 20, 512);
    run(&world, async move |disks| {
        make_untracked(&disks).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for granule in 0..BLOCKS * BLOCK / GRANULE {
            write(&volume, granule * GRANULE, 1).await;
        }
        cache.write_back(None).await.expect("writes back");
        cache.set_cleaning(Cleaning::Nop);
        write(&volume, at, 2).await;
        volume.flush().await.expect("flushes");
    });
    world
}

/// Opens and cleans what `backing` makes of the second disk. What it had to do.
fn recovered(
    world: &World,
    backing: impl FnOnce(SimDisk) -> Rc<dyn BlockDevice> + 'static,
    fault: Option<Fault>,
) -> CacheStats {
    recovered_in(10, world, backing, fault)
}

/// The same in this boot of the machine; [`crashed`] lived in boot 9.
fn recovered_in(
    boot: u8,
    world: &World,
    backing: impl FnOnce(SimDisk) -> Rc<dyn BlockDevice> + 'static,
    fault: Option<Fault>,
) -> CacheStats {
    run(world, async move |disks| {
        plant(fault);
        let options = CacheOptions {
            accept_journal_loss: true,
            ..CacheOptions::new([boot; 16])
        };
        let (cache, report) = (Cache::open(devices(&disks), options).await).expect("opens");
        assert_eq!(report.doubtful_blocks, BLOCKS);
        let options = VolumeOptions::new(Mode::WriteBack);
        let attached = cache.attach("v", backing(disks[1].clone()), options).await;
        attached.expect("attaches");
        while cache.stats().dirty_blocks > 0 {
            rt::sleep(std::time::Duration::from_millis(100)).await;
        }
        plant(None);
        cache.stats()
    })
}

fn itself(disk: SimDisk) -> Rc<dyn BlockDevice> {
    Rc::new(disk)
}

#[test]
fn what_differs_is_written_back_and_nothing_else() {
    const AT: u64 = 3 * BLOCK + 5 * GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareFirstGranule), 1)] {
        let world = crashed(AT);
        let before = world.disks()[1].counters().write_bytes;
        let stats = recovered(&world, itself, fault);
        let written = world.disks()[1].counters().write_bytes - before;
        let found = world.disks()[1].peek(AT, 1)[0];
        assert_eq!(found, expected, "{fault:?}");
        let wrote = if expected == 2 { GRANULE } else { 0 };
        assert_eq!((stats.write_back_bytes, written), (wrote, wrote));
        let recovery = stats.recovery;
        assert_eq!(
            (recovery.compared_bytes, recovery.same_bytes),
            (BLOCKS * BLOCK, BLOCKS * BLOCK - wrote)
        );
    }
}

#[test]
fn what_cannot_be_read_there_is_written_back() {
    let at = 2 * BLOCK;
    let world = crashed(at + GRANULE);
    world.disks()[1].set_faults(FaultPlan {
        bad_range: Some(at..at + 512),
        ..FaultPlan::default()
    });
    let stats = recovered(&world, itself, None);
    // Blocks that lie together are read together.
    assert!(
        stats.write_back_bytes >= BLOCK,
        "{}",
        stats.write_back_bytes
    );
    assert_eq!(stats.write_back_errors, 0);
    world.disks()[1].set_faults(FaultPlan::default());
    let found = world.disks()[1].peek(at, BLOCK as usize);
    let mut expected = [1; BLOCK as usize];
    expected[GRANULE as usize..2 * GRANULE as usize].fill(2);
    assert!(found == expected, "it is as the cache had it");
}

/// A server that lost power before the first flush of this session: until then it shows what another session wrote and no flush
/// covered, and from then on what was there before. Its client, who would send its own writes again, noticed nothing.
struct Forgetful {
    disk: SimDisk,
    shown: RefCell<Option<(u64, u8)>>,
    flushed: Rc<Cell<bool>>,
}

impl BlockDevice for Forgetful {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let (op, offset, buf) = (request.op, request.offset, request.buf.clone());
        let io = self.disk.start(request);
        if op == Op::Flush {
            self.shown.take();
            self.flushed.set(true);
        }
        let shown = *self.shown.borrow();
        rt::spawn(async move {
            let result = io.await;
            if let (Op::Read, Some((at, byte)), Some(buf)) = (op, shown, buf)
                && (offset..offset + buf.len() as u64).contains(&at)
            {
                buf.slice((at - offset) as usize..(at - offset + GRANULE) as usize)
                    .fill(byte);
            }
            done.complete(result);
        });
    }
}

#[test]
fn what_a_backing_device_may_still_lose_is_not_what_it_has() {
    const AT: u64 = 5 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareUnflushed), 1)] {
        let world = crashed(AT);
        let flushed = Rc::new(Cell::new(false));
        let device = {
            let flushed = Rc::clone(&flushed);
            move |disk| {
                Rc::new(Forgetful {
                    disk,
                    shown: RefCell::new(Some((AT, 2))),
                    flushed,
                }) as Rc<dyn BlockDevice>
            }
        };
        recovered(&world, device, fault);
        assert!(flushed.get());
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

#[test]
fn what_a_failed_flush_lost_is_written_again_however_it_looks() {
    const AT: u64 = 4 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareBehindFailedFlush), 1)] {
        let world = crashed(AT);
        // The first comes before the first comparison, the second covers what was written back.
        world.disks()[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 2)),
            ..FaultPlan::default()
        });
        let stats = recovered(&world, itself, fault);
        assert!(stats.write_back_errors > 0);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], 2, "it can be read");
        world.crash_power(Keep::None);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

/// A server that shows what it has lost, flushed or not, and will until it loses power itself.
struct Showing {
    disk: SimDisk,
    shown: (u64, u8),
}

impl BlockDevice for Showing {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let (op, offset, buf) = (request.op, request.offset, request.buf.clone());
        let (io, (at, byte)) = (self.disk.start(request), self.shown);
        rt::spawn(async move {
            let result = io.await;
            if let (Op::Read, Some(buf)) = (op, buf)
                && (offset..offset + buf.len() as u64).contains(&at)
            {
                buf.slice((at - offset) as usize..(at - offset + GRANULE) as usize)
                    .fill(byte);
            }
            done.complete(result);
        });
    }
}

#[test]
fn what_an_earlier_process_lost_is_written_again_however_it_looks() {
    const AT: u64 = 6 * BLOCK + GRANULE;
    let shows = |disk| {
        Rc::new(Showing {
            disk,
            shown: (AT, 2),
        }) as Rc<dyn BlockDevice>
    };
    for (fault, expected) in [(None, 2), (Some(Fault::ForgetFailedFlush), 1)] {
        let world = crashed(AT);
        world.disks()[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 2)),
            ..FaultPlan::default()
        });
        // Its flush fails, and then it loses power.
        run(&world, async move |disks| {
            plant(fault);
            let options = CacheOptions::new([10; 16]);
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            attach(&cache, &disks, Mode::WriteBack).await;
            while cache.stats().write_back_errors == 0 {
                rt::sleep(std::time::Duration::from_millis(1)).await;
            }
            plant(None);
        });
        world.crash_power(Keep::None);
        recovered_in(11, &world, shows, None);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
    for (fault, expected) in [(None, 2), (Some(Fault::CompareAfterProcessDeath), 1)] {
        let world = killed(AT);
        recovered_in(9, &world, shows, fault);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
    // The one that wrote it again lost power before it had, and the death that it knew of is not forgotten.
    let world = killed(AT);
    run(&world, async |disks| {
        let options = CacheOptions {
            accept_journal_loss: true,
            cleaning: Cleaning::Nop,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
        attach(&cache, &disks, Mode::WriteBack).await;
    });
    world.crash_power(Keep::None);
    recovered_in(10, &world, shows, None);
    assert_eq!(world.disks()[1].peek(AT, 1)[0], 2);
}
