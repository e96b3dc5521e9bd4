//! Slots show data that a failed flush may have lost.

use super::*;
use crate::failpoints::{Fault, plant};

/// State of the journal after a failed flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It names every slot in doubt.
    Whole,
    /// It had no room for the overwrites in place.
    Full,
    /// The flush was the first one of the process after, which only poisoned it.
    Remains,
}

fn journaled(journal: &Buf) -> CacheOptions {
    CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        dirty_limit_percent: 95,
        ..CacheOptions::new([9; 16])
    }
}

/// Overwrites durable blocks in place, and lets a flush fail. The device shows what it may lose.
async fn fail_flush(disks: &[SimDisk], journal: &Buf, left: Left) {
    make(disks, 4096).await;
    let devices = || Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let opened = Cache::open(devices(), journaled(journal)).await;
    let volume = attach(&opened.expect("opens").0, disks, Mode::WriteBack).await;
    two_versions(disks, &volume).await;
    let fail_next = FaultPlan {
        fail_nth: Some((OpClass::Flush, 1)),
        ..FaultPlan::default()
    };
    disks[0].set_faults(fail_next.clone());
    match left {
        Left::Whole => volume.flush().await.expect_err("the flush fails"),
        Left::Full => {
            let mut fresh = BLOCKS..;
            loop {
                let block = fresh.next().expect("there are more");
                if let Err(error) = volume.write(block * 4096, pattern(7)).await {
                    break error;
                }
            }
        }
        Left::Remains => {
            // The process dies here.
            let left = Buf::copied(&journal.to_vec());
            disks[0].set_faults(fail_next);
            let opened = Cache::open(devices(), journaled(&left)).await;
            let error = opened.map(|_| ()).expect_err("the flush fails");
            journal.copy_from(0, &left.to_vec());
            error
        }
    };
    disks[0].set_faults(FaultPlan::default());
}

/// A flush of the cache device fails, and the device shows data that it has lost. The next process
/// writes that data back. Then power is lost. Returns the number of blocks whose cached copies
/// differ from the backing device, or which a good flush did not make durable.
fn shown_and_lost(seed: u64, left: Left) -> u32 {
    let world = world_of(seed, [16 << 20, 8 << 20]);
    let journal = Buf::zeroed(1 << 16);
    let devices = |disks: &[SimDisk]| Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let first = journal.clone();
    run(&world, async move |disks| {
        fail_flush(&disks, &first, left).await;
    });
    let second = journaled(&Buf::copied(&journal.to_vec()));
    let seen = run(&world, async move |disks| {
        let (cache, report) = Cache::open(devices(&disks), second).await.expect("opens");
        let lost: u64 = report.lost.iter().map(|lost| lost.len).sum();
        assert_eq!(lost == BLOCKS * 4096, left == Left::Whole, "{left:?}");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let mut seen = Vec::new();
        for block in 0..BLOCKS {
            let found = Buf::zeroed(4096);
            volume
                .read(block * 4096, found.clone())
                .await
                .expect("reads");
            seen.push(found.to_vec());
        }
        volume.flush().await.expect("flushes");
        cache.write_back(None).await.expect("writes back");
        seen
    });
    world.crash_power(Keep::None);
    run(&world, async move |disks| {
        let third = CacheOptions {
            boot_id: [10; 16],
            ..journaled(&Buf::zeroed(1 << 16))
        };
        let (cache, _) = Cache::open(devices(&disks), third).await.expect("opens");
        let backing = Rc::new(disks[1].clone());
        let attached = cache.attach("v", backing, VolumeOptions::new(Mode::WriteBack));
        let Ok(volume) = attached.await else {
            return u32::try_from(BLOCKS).expect("few");
        };
        let mut wrong = 0;
        for (block, seen) in (0..BLOCKS).zip(seen) {
            let found = Buf::zeroed(4096);
            volume
                .read(block * 4096, found.clone())
                .await
                .expect("reads");
            wrong += u32::from(found.to_vec() != seen);
        }
        wrong
    })
}

/// Checks that nothing is lost, and that the planted fault is found.
fn check_shown(left: Left, fault: Fault) {
    let wrong = || (0..20).map(|seed| shown_and_lost(seed, left)).sum::<u32>();
    assert_eq!(wrong(), 0, "{left:?}");
    plant(Some(fault));
    let found = wrong();
    plant(None);
    assert!(found > 0, "{left:?}: the fault is found");
}

#[test]
fn slots_in_doubt_after_a_failed_flush_are_made_durable_before_use() {
    check_shown(Left::Whole, Fault::TrustShown);
}

#[test]
fn slots_without_an_entry_are_made_durable_first() {
    check_shown(Left::Full, Fault::TrustUnnamed);
}

#[test]
fn slots_of_a_dead_process_are_made_durable_first() {
    check_shown(Left::Remains, Fault::TrustUnnamed);
}
