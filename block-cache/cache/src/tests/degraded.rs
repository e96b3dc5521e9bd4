//! A cache device that vanishes in service, under a volume that continues without it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Op, Request};
use forebay_io::sim::{FaultPlan, Trouble};

use super::*;
use crate::failpoints::{Fault, plant};
use crate::volume::fallback::{Fallback, Remains};

const BLOCK: u64 = 4096;

type Written = Rc<RefCell<Vec<Range<u64>>>>;

/// Stands for the log of ranges.
struct Logged {
    inner: Rc<dyn BlockDevice>,
    written: Written,
}

impl BlockDevice for Logged {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if !matches!(request.op, Op::Read | Op::Flush) {
            let range = request.offset..request.offset + request.len;
            self.written.borrow_mut().push(range);
        }
        self.inner.submit(request, done);
    }
}

/// Has the volume continue without the cache. Returns what is written so, and how often the epoch
/// was raised.
fn agree(cache: &Cache) -> (Written, Rc<Cell<u32>>) {
    let (written, raised) = (Written::default(), Rc::<Cell<u32>>::default());
    let (log, count) = (Rc::clone(&written), Rc::clone(&raised));
    let begin = move |Remains { backing, .. }| {
        let inner: Rc<dyn BlockDevice> = backing;
        let (written, raised) = (Rc::clone(&log), Rc::clone(&count));
        async move {
            rt::sleep(Duration::from_millis(3)).await;
            raised.set(raised.get() + 1);
            let logged: Rc<dyn BlockDevice> = Rc::new(Logged { inner, written });
            Ok(logged)
        }
    };
    (cache.allow_degraded("v", Fallback::AllModes, begin)).expect("agrees");
    (written, raised)
}

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; BLOCK as usize])
}

async fn first_byte(volume: &Rc<dyn BlockDevice>, block: u64) -> forebay_block::Result<u8> {
    let found = page(0);
    volume.read(block * BLOCK, found.clone()).await?;
    let found = found.to_vec();
    assert!(found.iter().all(|byte| *byte == found[0]), "block {block}");
    Ok(found[0])
}

fn vanishes(disk: &SimDisk, nth: u64) {
    disk.set_faults(FaultPlan {
        from_nth: Some((nth, Trouble::Vanishes)),
        ..FaultPlan::default()
    });
}

/// Attaches in the next process: the cache's device is back, and the volume was written without it.
async fn reattached(
    disks: &[SimDisk],
    epoch: u64,
    written: &Written,
    discard_stale_dirty: bool,
) -> forebay_block::Result<Rc<dyn BlockDevice>> {
    disks[0].set_faults(FaultPlan::default());
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let (cache, _) = Cache::open(devices, CacheOptions::new([8; 16]))
        .await
        .expect("opens");
    let options = VolumeOptions {
        epoch,
        written_elsewhere: Some(written.borrow().clone()),
        discard_stale_dirty,
        ..VolumeOptions::new(Mode::WriteBack)
    };
    cache.attach("v", Rc::new(disks[1].clone()), options).await
}

#[test]
fn a_volume_goes_on_without_a_cache_that_has_vanished_if_that_was_agreed_to() {
    for agreed in [false, true] {
        run(&world(1, 4 << 20, 512), async move |disks| {
            make(&disks, BLOCK as u32).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let (written, raised) = match agreed {
                true => agree(&cache),
                false => Default::default(),
            };
            // Clean, dirty, and not there.
            for block in 0..8 {
                volume.write(block * BLOCK, page(1)).await.expect("writes");
            }
            cache.write_back(None).await.expect("writes back");
            for block in 4..8 {
                volume.write(block * BLOCK, page(2)).await.expect("writes");
            }
            volume.flush().await.expect("flushes");
            volume
                .write(7 * BLOCK, page(2))
                .await
                .expect("is not flushed");
            vanishes(&disks[0], 1);
            // Clean data stays readable, dirty data is named.
            assert_eq!(first_byte(&volume, 0).await.expect("clean"), 1);
            let error = first_byte(&volume, 5).await.expect_err("dirty");
            let message = error.report();
            assert!(
                message.contains("volume v: 4096 bytes at 20480 are dirty"),
                "{message}"
            );
            let results = [0, 5, 20].map(|block| volume.write(block * BLOCK, page(3)));
            for (number, result) in results.into_iter().enumerate() {
                let result = result.await;
                // A write of data that is not cached may bypass a cache whose failure has not shown
                // yet.
                assert_eq!(result.is_ok(), agreed || (number == 2 && result.is_ok()));
            }
            assert_eq!(cache.stats().volumes[0].diverged, agreed);
            if !agreed {
                assert!(volume.write(0, page(3)).await.is_err(), "refused");
                return;
            }
            assert_eq!(raised.get(), 1, "once");
            assert!(written.borrow().contains(&(0..BLOCK)));
            for block in [0, 5, 20] {
                assert_eq!(first_byte(&volume, block).await.expect("there"), 3);
            }
            assert_eq!(first_byte(&volume, 1).await.expect("clean"), 1);
            first_byte(&volume, 6).await.expect_err("dirty still");
            // A part of what is dirty would be mixed with what is older.
            let part = Buf::copied(&[4; 512]);
            let error = volume
                .write(6 * BLOCK, part.clone())
                .await
                .expect_err("a part");
            assert!(error.report().contains("512 bytes at 24576"), "{error:?}");
            volume
                .write(BLOCK, part)
                .await
                .expect("a part of what is clean");
            volume.write_zeroes(2 * BLOCK, BLOCK).await.expect("zeroes");
            assert_eq!(first_byte(&volume, 2).await.expect("there"), 0);
            volume.discard(3 * BLOCK, BLOCK).await.expect("discards");
            // The data lost with the cache can no longer be flushed, on either connection.
            for _ in 0..2 {
                let error = volume.flush().await.expect_err("not flushed");
                let message = error.report();
                assert!(message.contains("4096 bytes at 28672 ("), "{message}");
            }
            volume.write(7 * BLOCK, page(3)).await.expect("once more");
            volume.flush().await.expect("all is there");
            assert_eq!(disks[1].peek(5 * BLOCK, 1), [3]);
            let epoch = cache.volume_epoch("v").expect("attached") + 1;
            let refused = reattached(&disks, epoch, &written, false).await;
            let refused = refused.err().expect("dirty data is older").report();
            assert!(refused.contains("older dirty data there"), "{refused}");
            let volume = reattached(&disks, epoch, &written, true)
                .await
                .expect("attaches");
            for (block, byte) in [
                (0, 3),
                (2, 0),
                (3, 1),
                (4, 2),
                (5, 3),
                (6, 2),
                (7, 3),
                (20, 3),
            ] {
                assert_eq!(
                    first_byte(&volume, block).await.expect("reads"),
                    byte,
                    "{block}"
                );
            }
        });
    }
}

/// After power loss, a slot that was not flushed may hold older data than was written back from it,
/// durably dirty. The next process would write it over the newer data.
#[test]
fn a_flush_fails_while_clean_data_lies_over_older_durable_dirty_data() {
    let flushes_with = |fault: Option<Fault>| {
        run(&world(2, 4 << 20, 512), async move |disks| {
            make(&disks, BLOCK as u32).await;
            let devices = Devices {
                data: Rc::new(disks[0].clone()),
                metadata: None,
            };
            let options = CacheOptions {
                journal: Some(Buf::zeroed(1 << 16)),
                commit_interval: Duration::from_secs(3600),
                ..CacheOptions::new([9; 16])
            };
            let (cache, _) = Cache::open(devices, options).await.expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let (written, _) = agree(&cache);
            cache.set_cleaning(Cleaning::Nop);
            volume.write(0, page(1)).await.expect("writes");
            volume.flush().await.expect("flushes");
            volume.write(0, page(2)).await.expect("writes");
            cache.set_cleaning(Cleaning::Acp);
            while cache.stats().dirty_blocks > 0 {
                rt::sleep(Duration::from_millis(10)).await;
            }
            // Where nothing is dirty, the next process takes nothing for dirty.
            cache.set_cleaning(Cleaning::Nop);
            let apart = 200 * BLOCK;
            volume.write(apart, page(1)).await.expect("writes");
            vanishes(&disks[0], 1);
            plant(fault);
            volume.write(8 * BLOCK, page(3)).await.expect("goes past");
            volume.write(apart, page(3)).await.expect("goes past");
            let flushed = volume.flush().await;
            plant(None);
            if let Err(error) = &flushed {
                assert!(error.report().contains("4096 bytes at 0 ("), "{error:?}");
                let part = Buf::copied(&[4; 512]);
                volume.write(512, part).await.expect("a part");
                volume.flush().await.expect_err("the rest is owed still");
                volume.write(0, page(2)).await.expect("writes");
                volume.flush().await.expect("all is there");
                assert!(written.borrow().contains(&(0..BLOCK)));
            }
            flushed.is_ok()
        })
    };
    assert!(!flushes_with(None));
    assert!(
        flushes_with(Some(Fault::OweDirtyAlone)),
        "it is found missing"
    );
}

/// A part of a write may be in the cache, read, and overwritten when the cache fails under another
/// part. That part must not be written once more.
#[test]
fn the_part_of_a_write_that_is_cached_is_not_bypassed_later() {
    run(&world(1, 4 << 20, 512), async move |disks| {
        make(&disks, 8 * BLOCK as u32).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let (written, _) = agree(&cache);
        cache.set_cleaning(Cleaning::Nop);
        volume.write(BLOCK, page(1)).await.expect("writes");
        disks[1].set_faults(FaultPlan {
            from_nth: Some((1, Trouble::Stalls(100_000))),
            ..FaultPlan::default()
        });
        // Its first block must be completed from the backing device, the second need not wait.
        let long = Buf::copied(&[2; 2 * BLOCK as usize - 512]);
        let long = volume.start(Request::write(512, long, false));
        while first_byte(&volume, 1).await.expect("there") == 1 {}
        volume.write(BLOCK, page(3)).await.expect("writes");
        vanishes(&disks[0], 1);
        long.await.expect("goes past");
        assert_eq!(*written.borrow(), std::slice::from_ref(&(512..BLOCK)));
        let error = first_byte(&volume, 1).await.expect_err("dirty");
        assert!(error.report().contains("4096 bytes at 4096"), "{error:?}");
    });
}

/// The first request to a vanished cache need not be a write.
#[test]
fn zeroes_and_discards_go_past_a_vanished_cache_from_the_first_on() {
    run(&world(1, 4 << 20, 512), async move |disks| {
        make(&disks, BLOCK as u32).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let (written, raised) = agree(&cache);
        for block in 0..2 {
            volume.write(block * BLOCK, page(1)).await.expect("writes");
        }
        vanishes(&disks[0], 1);
        volume.discard(BLOCK, BLOCK).await.expect("discards");
        volume.write_zeroes(0, BLOCK).await.expect("zeroes");
        assert_eq!(first_byte(&volume, 0).await.expect("there"), 0);
        assert_eq!(raised.get(), 1);
        assert_eq!(*written.borrow(), std::slice::from_ref(&(0..BLOCK)));
    });
}
