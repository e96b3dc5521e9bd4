//! A backing device that does not have what clean copies claim is not attached.

use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Request, Result};

use super::*;
use crate::failpoints::{Fault, plant};

/// Bytes of a granule in the caches of these tests.
const GRANULE: u64 = 4096;
/// Clean blocks.
const CLEAN: std::ops::Range<u64> = 0..40;
/// Dirty blocks.
const DIRTY: std::ops::Range<u64> = 50..54;

async fn attach_with(
    cache: &Cache,
    backing: Rc<dyn BlockDevice>,
    adopt: bool,
) -> Result<Rc<dyn BlockDevice>> {
    let options = VolumeOptions {
        adopt,
        ..VolumeOptions::new(Mode::WriteBack)
    };
    cache.attach("v", backing, options).await
}

async fn attach_disk(cache: &Cache, disks: &[SimDisk], adopt: bool) -> Result<Rc<dyn BlockDevice>> {
    attach_with(cache, Rc::new(disks[1].clone()), adopt).await
}

fn bytes(block: u64) -> [u8; GRANULE as usize] {
    [1 + (block % 250) as u8; GRANULE as usize]
}

/// A cache of `v` with clean and with dirty blocks, closed. The last bytes of the volume are clean,
/// too.
async fn prepare(disks: &[SimDisk]) {
    make(disks, 16 << 10).await;
    let (cache, _) = open(disks, Durability::Flush).await;
    cache.set_cleaning(Cleaning::Nop);
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    for block in CLEAN {
        let data = Buf::copied(&bytes(block));
        volume.write(block * GRANULE, data).await.expect("written");
    }
    let tail = VOLUME_BYTES - VOLUME_BYTES % GRANULE;
    let data = Buf::copied(&[9; (VOLUME_BYTES % GRANULE) as usize]);
    volume.write(tail, data).await.expect("written");
    cache.write_back(None).await.expect("written back");
    for block in DIRTY {
        let data = Buf::copied(&bytes(block));
        volume.write(block * GRANULE, data).await.expect("written");
    }
    cache.close().await.expect("closed");
}

async fn change(disk: &SimDisk, at: u64, len: usize) -> Buf {
    let before = Buf::scratch(len);
    disk.read(at, before.clone()).await.expect("read");
    let after = Buf::zeroed(len);
    after.fill(0xfe);
    disk.write(at, after).await.expect("changed");
    before
}

/// Why the volume is refused, and that nothing was written to the device.
async fn refusal(disks: &[SimDisk]) -> String {
    let (cache, _) = open(disks, Durability::Flush).await;
    let before = disks[1].counters().writes;
    let Err(error) = attach_disk(&cache, disks, false).await else {
        panic!("attached to a device that is another one");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(disks[1].counters().writes, before, "nothing was written");
    let _ = cache.close().await;
    error.report()
}

async fn check(volume: &Rc<dyn BlockDevice>, block: u64, wanted: &[u8]) {
    let back = Buf::scratch(GRANULE as usize);
    let read = volume.read(block * GRANULE, back.clone()).await;
    read.expect("read");
    assert!(back.to_vec() == wanted, "block {block}");
}

#[test]
fn any_difference_stops_the_attach_until_it_is_gone() {
    let tail = VOLUME_BYTES - VOLUME_BYTES % GRANULE;
    for (at, len) in [
        // The differences are a block in the middle that another program wrote, and a whole device,
        // swapped or erased. Others are the end of a device from an older copy, and a part of a
        // granule.
        (7 * GRANULE, GRANULE as usize),
        (0, (60 * GRANULE) as usize),
        (tail, 1536),
        (39 * GRANULE + 1024, 512),
    ] {
        run(&world(at + 1, 2 << 20, 512), async move |disks| {
            prepare(&disks).await;
            let before = change(&disks[1], at, len).await;
            let said = refusal(&disks).await;
            for part in [
                "volume \"v\"",
                "backing differs at byte",
                "--adopt v",
                "16384 bytes of dirty data",
            ] {
                assert!(said.contains(part), "{part} in {said}");
            }
            if len < 8192 {
                assert!(said.contains(&format!("at byte {at} ")), "{said}");
            }
            // No chance lets it through.
            for _ in 0..3 {
                assert_eq!(refusal(&disks).await, said);
            }
            disks[1].write(at, before).await.expect("restored");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach_disk(&cache, &disks, false).await.expect("as it was");
            for block in CLEAN.chain(DIRTY) {
                check(&volume, block, &bytes(block)).await;
            }
        });
    }
}

#[test]
fn adoption_keeps_dirty_data_and_drops_differing_clean_copies() {
    for copied in [false, true] {
        run(&world(11, 2 << 20, 512), async move |disks| {
            prepare(&disks).await;
            change(&disks[1], 7 * GRANULE, GRANULE as usize).await;
            if !copied {
                refusal(&disks).await;
            }
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach_disk(&cache, &disks, true).await.expect("adopted");
            check(&volume, 7, &[0xfe; GRANULE as usize]).await;
            for block in CLEAN.filter(|block| *block != 7).chain(DIRTY) {
                check(&volume, block, &bytes(block)).await;
            }
            cache.close().await.expect("closed");
            // It is over with that.
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach_disk(&cache, &disks, false).await.expect("the same");
            cache.write_back(None).await.expect("written back");
            drop(volume);
            for block in DIRTY {
                let back = Buf::scratch(GRANULE as usize);
                let read = disks[1].read(block * GRANULE, back.clone()).await;
                read.expect("read");
                assert_eq!(back.to_vec(), bytes(block));
            }
        });
    }
}

/// A sample that is drawn for the adoption may miss what the refused start had found.
#[test]
fn adoption_after_a_refusal_relies_on_no_new_sample() {
    run(&world(18, 2 << 20, 512), async move |disks| {
        prepare(&disks).await;
        change(&disks[1], 7 * GRANULE, GRANULE as usize).await;
        refusal(&disks).await;
        plant(Some(Fault::ForgetDifference));
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach_disk(&cache, &disks, true).await.expect("adopted");
        plant(None);
        check(&volume, 7, &[0xfe; GRANULE as usize]).await;
        for block in DIRTY {
            check(&volume, block, &bytes(block)).await;
        }
        cache.close().await.expect("closed");
    });
}

#[test]
fn samples_ignore_dirty_and_uncached_data() {
    // Dirty data differs; so does data past the old end, and data that is not cached.
    run(&world(12, 2 << 20, 512), async |disks| {
        prepare(&disks).await;
        change(&disks[1], DIRTY.start * GRANULE, (4 * GRANULE) as usize).await;
        change(&disks[1], 100 * GRANULE, (20 * GRANULE) as usize).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let attached = attach_disk(&cache, &disks, false).await;
        attached.expect("nothing that claims to be there differs");
        drop(cache);
    });
    // Nothing clean is there.
    run(&world(13, 2 << 20, 512), async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        cache.set_cleaning(Cleaning::Nop);
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let data = Buf::copied(&bytes(3));
        volume.write(0, data).await.expect("written");
        cache.close().await.expect("closed");
        change(&disks[1], 0, 65536).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        attach_disk(&cache, &disks, false)
            .await
            .expect("nothing clean");
    });
}

/// A device whose reads take this long, or fail.
struct Slow(SimDisk, Duration, bool);

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op != forebay_block::Op::Read {
            return self.0.submit(request, done);
        }
        let (disk, time, fails) = (self.0.clone(), self.1, self.2);
        rt::spawn(async move {
            rt::sleep(time).await;
            match fails {
                true => done.complete(Err(ErrorKind::Io.into())),
                false => disk.submit(request, done),
            }
        });
    }
}

#[test]
fn a_slow_or_failing_device_does_not_hold_the_start_up() {
    let cases = [
        (1500, false, false),
        (200, false, true),
        (60, false, true),
        (1, true, false),
    ];
    for (read_ms, fails, finds) in cases {
        run(&world(14, 2 << 20, 512), async move |disks| {
            prepare(&disks).await;
            change(&disks[1], 0, (60 * GRANULE) as usize).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let begin = rt::now();
            let device = Slow(disks[1].clone(), Duration::from_millis(read_ms), fails);
            let attached = attach_with(&cache, Rc::new(device), false).await;
            assert_eq!(attached.is_err(), finds, "reads of {read_ms} ms");
            let took = rt::now() - begin;
            // The superblock and the last granule are read in addition, on fast disks.
            let limit_ms = 150 + (2 * read_ms).min(1000 + read_ms);
            assert!(took < Duration::from_millis(limit_ms), "{took:?}");
        });
    }
}

#[test]
fn a_sample_that_looks_at_dirty_data_or_forgets_is_found() {
    run(&world(15, 2 << 20, 512), async |disks| {
        prepare(&disks).await;
        plant(Some(Fault::SampleDirty));
        refusal(&disks).await;
        plant(None);
        let (cache, _) = open(&disks, Durability::Flush).await;
        let attached = attach_disk(&cache, &disks, false).await;
        attached.expect("dirty data may differ");
        cache.close().await.expect("closed");
        change(&disks[1], 7 * GRANULE, GRANULE as usize).await;
        plant(Some(Fault::ForgetDifference));
        let (cache, _) = open(&disks, Durability::Flush).await;
        let attached = attach_disk(&cache, &disks, false).await;
        plant(None);
        let volume = attached.expect("a stale copy is served for it");
        check(&volume, 7, &bytes(7)).await;
        cache.close().await.expect("closed");
        refusal(&disks).await;
    });
}

/// Other starts look at other granules of what is more than a sample.
#[test]
fn samples_differ_from_start_to_start() {
    let mut world = World::new(16);
    world.add_disk(&config("cache", 8 << 20, 512));
    world.add_disk(&config("backing", 4 << 20, 512));
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        for block in 0..900 {
            let data = Buf::copied(&bytes(block));
            volume.write(block * GRANULE, data).await.expect("written");
        }
        cache.close().await.expect("closed");
        // One of 900: a start that compares 256 misses it more often than not.
        change(&disks[1], 450 * GRANULE, GRANULE as usize).await;
        let mut passed = 0;
        for _ in 0..60 {
            let (cache, _) = open(&disks, Durability::Flush).await;
            let attached = attach_disk(&cache, &disks, false).await;
            let _ = cache.close().await;
            match attached {
                Ok(_) => passed += 1,
                Err(error) => {
                    assert!(error.report().contains("byte 1843200 "), "{error:?}");
                    assert!(passed > 0, "it was not found at once by design");
                    return;
                }
            }
        }
        panic!("sixty samples of 256 in 900 missed it");
    });
}

/// The volume was refused, and then served without this cache, which raised its epoch. That drops
/// clean copies, but not before the place of the difference is compared.
#[test]
fn service_without_the_cache_does_not_end_a_refusal() {
    const AT: u64 = 7 * GRANULE;
    let one = |range: std::ops::Range<u64>| Some(std::iter::once(range).collect());
    for (is_noted, written, is_refused) in [
        (true, Some(Vec::new()), true),
        (true, one(AT - GRANULE..AT), true),
        (true, one(AT + 100..AT + 101), false),
        // The ranges are unknown, and the difference is still there.
        (true, None, true),
        (false, Some(Vec::new()), false),
        (false, None, false),
    ] {
        run(&world(5, 2 << 20, 512), async move |disks| {
            prepare(&disks).await;
            change(&disks[1], AT, GRANULE as usize).await;
            if is_noted {
                refusal(&disks).await;
            }
            for _ in 0..2 {
                let (cache, _) = open(&disks, Durability::Flush).await;
                let options = VolumeOptions {
                    epoch: 9,
                    written_elsewhere: written.clone(),
                    discard_stale_dirty: true,
                    ..VolumeOptions::new(Mode::WriteBack)
                };
                let backing = Rc::new(disks[1].clone());
                let attached = cache.attach("v", backing, options).await;
                let case = format!("noted: {is_noted}, written: {written:?}");
                match attached {
                    Err(error) if is_refused => {
                        let said = error.report();
                        assert!(said.contains("differs at byte"), "{case}: {said}");
                    }
                    Ok(volume) if !is_refused => {
                        check(&volume, 7, &[0xfe; GRANULE as usize]).await;
                        return;
                    }
                    other => panic!("{case}: attached: {}", other.is_ok()),
                }
                let _ = cache.close().await;
            }
        });
    }
}
