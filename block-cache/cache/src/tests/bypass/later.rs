//! Data that the next process takes for dirty.

use super::*;
use crate::failpoints::{Fault, plant};

/// An older version may be durable as dirty in a slot whose newer one was written back, and no
/// flush of the cache covered it.
#[test]
fn a_flush_raises_the_epoch_before_power_loss_brings_an_older_version_back() {
    let found_with = |fault: Option<Fault>| {
        let world = Failure::Device.world();
        let (epoch, listed) = run(&world, async move |disks| {
            let devices = Failure::Device.devices(&disks);
            format_as(&devices, DirtyTracking::Exact).await;
            let cache = open_at(devices).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let state = agree(&cache);
            volume.write(0, page(1)).await.expect("writes");
            volume.flush().await.expect("flushes");
            volume.write(0, page(2)).await.expect("writes");
            cache.set_cleaning(Cleaning::Acp);
            while cache.stats().dirty_blocks > 0 {
                rt::sleep(Duration::from_millis(10)).await;
            }
            cache.set_mode("v", Mode::WriteThrough).expect("attached");
            Failure::Device.happens(&disks);
            plant(fault);
            volume.flush().await.expect("flushes");
            plant(None);
            (state.raised.get(), state.listed.take())
        });
        world.crash_power(Keep::None);
        run(&world, async move |disks| {
            let state = State {
                listed: RefCell::new(listed),
                raised: Cell::new(epoch),
                failures: Cell::default(),
            };
            let (cache, volume) =
                (reattached(&disks, Failure::Device, &state).await).expect("attaches");
            let read = first_byte(&volume, 0).await.expect("there");
            cache.write_back(None).await.expect("writes back");
            (read, disks[1].peek(0, 1)[0])
        })
    };
    assert_eq!(found_with(None), (2, 2));
    assert_eq!(
        found_with(Some(Fault::FlushUnannounced)),
        (1, 1),
        "it is found missing"
    );
}

/// For each kind of dirty tracking. More may be presumed dirty after a crash than was.
#[test]
fn blocks_clean_at_the_failure_are_not_written_back_after_reattach() {
    let found_with = |tracking, fault: Option<Fault>| {
        let world = Failure::Device.world();
        run(&world, async move |disks| {
            let devices = Failure::Device.devices(&disks);
            format_as(&devices, tracking).await;
            let cache = open_at(devices).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let state = agree(&cache);
            for byte in 1..3 {
                for block in 0..4 {
                    volume
                        .write(block * BLOCK, page(byte))
                        .await
                        .expect("writes");
                }
                volume.flush().await.expect("flushes");
                cache.set_cleaning(Cleaning::Acp);
                while cache.stats().dirty_blocks > 0 {
                    rt::sleep(Duration::from_millis(10)).await;
                }
                cache.set_cleaning(Cleaning::Nop);
            }
            cache.set_mode("v", Mode::WriteThrough).expect("attached");
            Failure::Device.happens(&disks);
            for block in 0..2 {
                volume.write(block * BLOCK, page(3)).await.expect("goes on");
            }
            assert_eq!(*state.listed.borrow(), Some(Vec::new()));
            plant(fault);
            let attached = reattached(&disks, Failure::Device, &state).await;
            plant(None);
            let (cache, volume) = attached.expect("attaches");
            cache.write_back(None).await.expect("writes back");
            let mut found = Vec::new();
            for block in 0..4 {
                let read = first_byte(&volume, block).await.expect("there");
                assert_eq!([read], disks[1].peek(block * BLOCK, 1)[..], "block {block}");
                found.push(read);
            }
            found
        })
    };
    for tracking in [
        DirtyTracking::Exact,
        DirtyTracking::Abt,
        DirtyTracking::None,
    ] {
        assert_eq!(found_with(tracking, None), [3, 3, 2, 2], "{tracking}");
        // With the others nothing of this is called dirty by what is durable.
        if tracking == DirtyTracking::Exact {
            let stale = found_with(tracking, Some(Fault::KeepUnlisted));
            assert_ne!(stale, [3, 3, 2, 2], "{tracking}: it is found missing");
        }
    }
}
