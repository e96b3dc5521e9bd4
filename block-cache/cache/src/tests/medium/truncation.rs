//! Cache devices that are truncated in service, or are too short at a start.

use super::*;

/// A process whose dirty data lies on `file`. `cut` truncates the blocks at its end.
async fn cut_life(
    fault: Option<Fault>,
    cut: impl AsyncFn(&Cache, &TestFile, u64, usize),
) -> Option<Vec<u8>> {
    let backing = TestFile::new(100, 1 << 20);
    let file = formatted(1, 1 << 20).await;
    let journal = Buf::zeroed(1 << 16);
    let cache = live(&file, &journal, &backing, 7).await;
    // Slots are taken from the beginning: eight blocks of 4 KiB.
    let begins = cache.engine.superblock.current().data_offset;
    plant(fault);
    cut(&cache, &file, begins + 5 * 4096, 1 << 20).await;
    let closed = cache.close().await;
    plant(None);
    let left = file.copy(1);
    left.lengthen(1 << 20);
    let is_unclean = closed.is_err();
    plant(fault);
    let found = inspect(&devices(&left), Some(&journal), &BOOT)
        .await
        .expect("read");
    let (cache, report) = try_open(&left, &journal, false, true).await.expect("opens");
    let is_named = report.cut.iter().map(|range| range.len).sum::<u64>() == 3 * 4096;
    let is_reported = (found.problems.iter()).any(|it| it.to_uppercase().contains("ARE LOST"));
    cache.set_cleaning(Cleaning::Auto);
    let values = values(&cache, &backing).await;
    plant(None);
    (is_unclean && is_named && is_reported).then_some(values)
}

#[test]
fn data_cut_off_the_cache_device_is_named_and_never_written_back() {
    // In service: seen while it is short; restored in length before any check; and restored before
    // the check at the end only.
    let seen = async |cache: &Cache, file: &TestFile, at: u64, len: usize| {
        file.cut(at);
        cache.look_for_cut().await;
        file.lengthen(len);
    };
    let unseen = async |cache: &Cache, file: &TestFile, at: u64, len: usize| {
        cache.look_for_cut().await;
        file.cut(at);
        file.lengthen(len);
        cache.look_for_cut().await;
    };
    let at_once = async |_: &Cache, file: &TestFile, at: u64, len: usize| {
        file.cut(at);
        file.lengthen(len);
    };
    for fault in [None, Some(Fault::OverlookCut)] {
        let lives = async move || {
            [
                cut_life(fault, seen).await,
                cut_life(fault, unseen).await,
                cut_life(fault, at_once).await,
            ]
        };
        let found = run(&World::new(1), async move |_| lives().await);
        for values in found {
            // The backing device has zeroes for the lost data, and the rest stays.
            let expected = fault.is_none().then(|| vec![7, 7, 7, 7, 7, 0, 0, 0]);
            assert_eq!(values, expected, "{fault:?}");
        }
    }
}

#[test]
fn a_device_found_too_short_is_remembered_so_though_it_tells_no_holes() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        let file = formatted(1, 1 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        let cache = live(&file, &journal, &backing, 7).await;
        let begins = cache.engine.superblock.current().data_offset;
        cache.close().await.expect("closes");
        file.0.reports_holes.set(false);
        file.cut(begins + 5 * 4096);
        let error = try_open(&file, &journal, false, false)
            .await
            .expect_err("it is too short");
        assert!(error.report().contains("LOST"), "{error:?}");
        file.lengthen(1 << 20);
        let (cache, report) = try_open(&file, &journal, false, false)
            .await
            .expect("opens");
        assert_eq!(
            report.cut.iter().map(|range| range.len).sum::<u64>(),
            3 * 4096
        );
        assert_eq!(values(&cache, &backing).await, [7, 7, 7, 7, 7, 0, 0, 0]);
        cache.close().await.expect("a clean end");
        let (_, report) = try_open(&file, &journal, false, false)
            .await
            .expect("opens");
        assert_eq!(report.cut, [], "it is over");
    });
}

/// Zeroes that a copying program left out are data: of a copy holes tell nothing.
#[test]
fn of_a_copy_holes_tell_nothing_as_long_as_it_has_some() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        backing.0.bytes.borrow_mut().fill(1);
        let file = formatted(1, 1 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        live(&file, &journal, &backing, 0)
            .await
            .close()
            .await
            .expect("closes");
        let journal = Buf::zeroed(1 << 16);
        let sparse = file.copy(2);
        sparse.0.written.borrow_mut().clear();
        for _ in 0..2 {
            let (cache, report) = try_open(&sparse, &journal, false, false)
                .await
                .expect("opens");
            assert_eq!(report.cut, []);
            assert_eq!(values(&cache, &backing).await, [0; 8]);
            cache.close().await.expect("closes");
        }
    });
}
