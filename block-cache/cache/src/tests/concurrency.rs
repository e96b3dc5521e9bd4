//! Requests to one block that do not wait for each other, and those that do.

use std::cell::RefCell;

use super::*;

/// A write of half a granule, which must be completed from a slow backing device, and later
/// requests. Returns the order in which they end.
fn ended(granules: [u64; 2]) -> Vec<&'static str> {
    let mut world = World::new(11);
    world.add_disk(&config("cache", 4 << 20, 512));
    let slow = DiskConfig {
        latency_us: (50_000, 50_000),
        ..config("backing", VOLUME_BYTES, 512)
    };
    world.add_disk(&slow);
    run(&world, async move |disks| {
        make_sizes(&disks, &[32 << 10, 256 << 10]).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let block = Buf::copied(&[1; 64 << 10]);
        volume.write(0, block).await.expect("writes");
        // The granule to complete is no longer cached, and its content is on the backing device.
        cache.write_back(None).await.expect("written back");
        volume.write_zeroes(0, 4096).await.expect("zeroes");
        let order = Rc::new(RefCell::new(Vec::new()));
        let begin = |name: &'static str, at: u64, write: bool| {
            let (volume, order) = (Rc::clone(&volume), Rc::clone(&order));
            rt::spawn(async move {
                let buf = Buf::copied(&[2; 512]);
                match write {
                    true => volume.write(at, buf).await.expect("writes"),
                    false => volume.read(at, buf).await.expect("reads"),
                }
                order.borrow_mut().push(name);
            });
        };
        begin("filled", 512, true);
        rt::sleep(std::time::Duration::from_millis(1)).await;
        begin("write", granules[0] * 4096, true);
        begin("read", granules[1] * 4096 + 1024, false);
        rt::sleep(std::time::Duration::from_secs(2)).await;
        let back = Buf::zeroed(4096);
        volume.read(0, back.clone()).await.expect("reads");
        assert_eq!(back.to_vec()[512..1024], [2; 512]);
        assert_eq!(back.to_vec()[1024..], [0; 3072]);
        let ended = order.borrow().clone();
        cache.close().await.expect("closes");
        ended
    })
}

#[test]
fn other_granules_of_a_block_are_not_waited_for() {
    let ended = ended([3, 5]);
    assert_eq!(ended.last(), Some(&"filled"), "{ended:?}");
}

#[test]
fn one_granule_is_served_in_order() {
    assert_eq!(ended([0, 0])[0], "filled");
}

/// Consecutive writes, each smaller than a granule and sharing one with the next. Returns their
/// total time if a read of the backing device takes 50 ms. The written data and the data next to it
/// must be right.
fn stream_takes_ms(block_sizes: &'static [u64]) -> u128 {
    const WRITES: u64 = 12;
    const LEN: u64 = 3584;
    let mut world = World::new(11);
    world.add_disk(&config("cache", 4 << 20, 512));
    let slow = DiskConfig {
        latency_us: (50_000, 50_000),
        ..config("backing", VOLUME_BYTES, 512)
    };
    world.add_disk(&slow);
    run(&world, async move |disks| {
        make_sizes(&disks, block_sizes).await;
        let before = Buf::copied(&[9; 64 << 10]);
        disks[1].write(0, before).await.expect("writes");
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        // Both blocks are there, with one granule each.
        for at in [0, 32 << 10] {
            let granule = Buf::copied(&[9; 4096]);
            volume.write(at, granule).await.expect("writes");
        }
        let begun = rt::now();
        let last = Rc::new(RefCell::new(begun));
        for nth in 0..WRITES {
            let (volume, last) = (Rc::clone(&volume), Rc::clone(&last));
            rt::spawn(async move {
                let buf = Buf::copied(&[nth as u8; LEN as usize]);
                let written = volume.write(8192 + nth * LEN, buf).await;
                written.expect("writes");
                last.replace(rt::now());
            });
        }
        rt::sleep(std::time::Duration::from_secs(5)).await;
        let back = Buf::zeroed(64 << 10);
        volume.read(0, back.clone()).await.expect("reads");
        for (at, byte) in back.to_vec().into_iter().enumerate() {
            let nth = (at as u64).checked_sub(8192).map(|at| at / LEN);
            let expected = nth.filter(|nth| *nth < WRITES).map_or(9, |nth| nth as u8);
            assert_eq!(byte, expected, "byte {at}");
        }
        cache.close().await.expect("closes");
        let last = *last.borrow();
        (last - begun).as_millis()
    })
}

#[test]
fn small_writes_behind_each_other_do_not_wait_for_all_before_them() {
    for sizes in [&[32 << 10][..], &[32 << 10, 256 << 10]] {
        let ms = stream_takes_ms(sizes);
        // A write waits for what it completes, and where it shares that with the one before, for
        // what that one did.
        assert!((50..=110).contains(&ms), "{sizes:?}: {ms} ms");
    }
}
