//! A loss stays recorded in the superblock until a start that served the volume has reported it.

use super::*;
use crate::failpoints::{Fault, plant};
use crate::recover::poison_own_journal;

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

/// The journal is gone. The start that accepts its loss is refused, and the next one names the
/// volume.
#[test]
fn an_accepted_loss_of_the_journal_is_named_by_the_next_start() {
    run(&world(1), async move |disks| {
        make_tracked(&disks, DirtyTracking::Exact).await;
        let (cache, _) = try_open(&disks, &Buf::zeroed(1 << 16))
            .await
            .expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        write(&volume, 0, 6).await;
        let accepting = CacheOptions {
            accept_journal_loss: true,
            ..options(&Buf::zeroed(1 << 16))
        };
        let opened = Cache::open(devices(&disks), accepting).await;
        let (cache, report) = opened.expect("the loss is accepted");
        assert!(
            report
                .journal_losses
                .is_some_and(|ranges| !ranges.is_empty())
        );
        let (_, report) = close_and_open(cache, &disks).await;
        assert_eq!(report.unreported, ["v"]);
    });
}

/// The flush with which a start begins fails. The journal of the dead process names no overwrite in
/// place that the flush took.
#[test]
fn overwrites_that_no_journal_names_are_a_loss_of_their_volume() {
    run(&world(1), async move |disks| {
        make_tracked(&disks, DirtyTracking::Exact).await;
        let journal = Buf::zeroed(1 << 16);
        let (cache, _) = try_open(&disks, &journal).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        write(&volume, 0, 6).await;
        volume.flush().await.expect("durable");
        write(&volume, 0, 7).await;
        let left = Buf::copied(&journal.to_vec());
        poison_own_journal(&devices(&disks), &superblock(&disks).await, &options(&left));
        let (cache, report) = try_open(&disks, &left).await.expect("opens");
        assert_eq!(report.unnamed_overwrites, ["v"]);
        let (_, report) = close_and_open(cache, &disks).await;
        assert_eq!(report.unreported, ["v"]);
    });
}

async fn superblock(disks: &[SimDisk]) -> Superblock {
    Superblock::read(&disks[0]).await.expect("sound")
}

/// Damage of the log may be gone after one opening. Its volumes stay named.
#[test]
fn damage_of_the_log_is_a_loss_of_the_volumes_that_may_have_been_dirty() {
    run(&world(1), async move |disks| {
        make_tracked(&disks, DirtyTracking::Exact).await;
        let journal = Buf::zeroed(1 << 16);
        let (cache, _) = try_open(&disks, &journal).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        write_all(&volume, 6).await;
        volume.flush().await.expect("durable");
        cache.close().await.expect("closes");
        let log = superblock(&disks).await.log;
        disks[0].rot(log.offset, 4096, 64);
        let (cache, report) = try_open(&disks, &Buf::zeroed(1 << 16))
            .await
            .expect("opens");
        assert!(report.damaged_records > 0 && !report.possible_losses.is_empty());
        let (cache, report) = close_and_open(cache, &disks).await;
        assert_eq!(report.unreported, ["v"]);
        drop(attach(&cache, &disks, Mode::WriteBack).await);
        assert!(cache.stats().volumes[0].loss.is_some());
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
