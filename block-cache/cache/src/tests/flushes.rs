//! Flushes of one device are serialized: of two concurrent ones, the one with the error for lost
//! data might be answered last.

use std::cell::Cell;

use forebay_block::{Completion, DeviceInfo, Op, Request};

use super::*;

/// A device that knows how many of its flushes, or writes that carry one, are under way.
struct Turns {
    disk: SimDisk,
    now: Rc<Cell<u32>>,
    most: Rc<Cell<u32>>,
    all: Rc<Cell<u32>>,
}

impl BlockDevice for Turns {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let flushes = matches!(request.op, Op::Flush | Op::Write { fua: true });
        self.now.set(self.now.get() + u32::from(flushes));
        self.all.set(self.all.get() + u32::from(flushes));
        self.most.set(self.most.get().max(self.now.get()));
        let (io, now) = (self.disk.start(request), Rc::clone(&self.now));
        rt::spawn(async move {
            let result = io.await;
            now.set(now.get() - u32::from(flushes));
            done.complete(result);
        });
    }
}

/// Overwrites clean and dirty data, from several clients that flush now and then. Returns the
/// number of flushes and the most that ran at once.
fn flushes_at_once(split: bool, fua: bool, dirty_tracking: DirtyTracking) -> (u32, u32) {
    let mut world = World::new(3);
    for (name, size) in [("cache", 4 << 20), ("backing", VOLUME_BYTES)] {
        world.add_disk(&DiskConfig {
            fua,
            ..config(name, size, 512)
        });
    }
    world.add_disk(&DiskConfig {
        fua,
        ..config("metadata", 4 << 20, 512)
    });
    run(&world, async move |disks| {
        let (most, all) = (Rc::default(), Rc::default());
        let metadata = Turns {
            disk: disks[if split { 2 } else { 0 }].clone(),
            now: Rc::default(),
            most: Rc::clone(&most),
            all: Rc::clone(&all),
        };
        let metadata: Rc<dyn BlockDevice> = Rc::new(metadata);
        let devices = match split {
            true => Devices {
                data: Rc::new(disks[0].clone()),
                metadata: Some(metadata),
            },
            false => Devices {
                data: metadata,
                metadata: None,
            },
        };
        let options = FormatOptions {
            dirty_tracking,
            ..FormatOptions::new(4096, [5; 16])
        };
        format(&devices, &options).await.expect("formats");
        let options = CacheOptions::new([9; 16]);
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for round in 0..20_u64 {
            if round % 4 == 3 {
                cache.write_back(None).await.expect("writes back");
            }
            let client = |client: u64| {
                let volume = Rc::clone(&volume);
                async move {
                    let block = (round * 7 + client * 3) % 64;
                    let buf = Buf::copied(&[round as u8; 4096]);
                    volume.write(block * 4096, buf).await.expect("writes");
                    if client.is_multiple_of(2) {
                        volume.flush().await.expect("flushes");
                    }
                }
            };
            crate::parallel::join((0..8).map(client).collect()).await;
        }
        cache.close().await.expect("closes");
        (all.get(), most.get())
    })
}

#[test]
fn flushes_of_a_device_go_one_at_a_time() {
    for dirty_tracking in [
        DirtyTracking::Exact,
        DirtyTracking::Abt,
        DirtyTracking::None,
    ] {
        for (split, fua) in [(false, false), (false, true), (true, false), (true, true)] {
            let (all, most) = flushes_at_once(split, fua, dirty_tracking);
            assert!(all > 30, "{dirty_tracking}: only {all} flushes");
            assert_eq!(most, 1, "{dirty_tracking}, split {split}, FUA {fua}");
        }
    }
}
