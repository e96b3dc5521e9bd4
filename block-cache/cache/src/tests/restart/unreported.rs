//! A loss stays recorded in the superblock until a start that served the volume has reported it.

use super::*;
use crate::failpoints::{Fault, plant};

/// Loses dirty data of the volume with a failed flush. Returns the journal that the process leaves.
async fn lose(disks: &[SimDisk]) -> Buf {
    make_tracked(disks, DirtyTracking::Exact).await;
    let journal = Buf::zeroed(1 << 16);
    let (cache, _) = try_open(disks, &journal).await.expect("opens");
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    write(&volume, 0, 6).await;
    fail_next_flush(&disks[0]);
    assert!(volume.flush().await.is_err());
    disks[0].set_faults(FaultPlan::default());
    Buf::copied(&journal.to_vec())
}

/// Ends a start cleanly, with its journal. Returns the next opening and its report.
async fn close_and_open(cache: Cache, disks: &[SimDisk]) -> (Cache, RecoveryReport) {
    cache.close().await.expect("closes");
    try_open(disks, &Buf::zeroed(1 << 16)).await.expect("opens")
}

#[test]
fn a_loss_is_named_until_a_start_has_reported_it() {
    run(&world(1), async move |disks| {
        let journal = lose(&disks).await;
        let (cache, report) = try_open(&disks, &journal).await.expect("opens");
        assert!(report.lost.len() == 1 && report.unreported.is_empty());
        // This start was refused before it attached the volume.
        let (cache, report) = close_and_open(cache, &disks).await;
        assert!(report.lost.is_empty() && report.unreported == ["v"]);
        assert!(
            cache
                .idle_volumes()
                .iter()
                .all(|idle| !idle.is_expendable())
        );
        // This one was refused because of another volume.
        drop(attach(&cache, &disks, Mode::WriteBack).await);
        let (cache, report) = close_and_open(cache, &disks).await;
        assert_eq!(report.unreported, ["v"]);
        cache.forget_reported_losses().await.expect("written");
        let (cache, report) = close_and_open(cache, &disks).await;
        assert_eq!(report.unreported, ["v"], "the volume was not attached");
        drop(attach(&cache, &disks, Mode::WriteBack).await);
        cache.forget_reported_losses().await.expect("written");
        let (cache, report) = close_and_open(cache, &disks).await;
        assert!(report.unreported.is_empty());
        assert!(cache.idle_volumes().iter().all(|idle| idle.is_expendable()));
    });
}

/// The process dies before an I/O of the opening that found the loss, or after it. Returns whether
/// an opening after that names the volume.
fn names_it_after(stop: Stop) -> bool {
    let world = world(1);
    let journal = run(&world, async move |disks| lose(&disks).await);
    world.crash_process(1);
    let (disks, left) = (world.disks().to_vec(), journal.clone());
    world.set_stop(Some(stop));
    let _ = world.run(2, async move { try_open(&disks, &left).await.map(drop) });
    world.set_stop(None);
    world.crash_process(2);
    run(&world, async move |disks| {
        let (_, report) = try_open(&disks, &journal).await.expect("opens");
        !report.lost.is_empty() || report.unreported == ["v"]
    })
}

#[test]
fn no_death_of_an_opening_takes_the_record_of_a_loss() {
    let stops = || (1..40).flat_map(|nth| [Stop::BeforeIo(nth), Stop::AfterIo(nth)]);
    for stop in stops() {
        assert!(names_it_after(stop), "{stop:?}");
    }
    plant(Some(Fault::ForgetLoss));
    let named = stops().filter(|stop| names_it_after(*stop)).count();
    plant(None);
    assert!(named < stops().count(), "a planted fault was missed");
}
