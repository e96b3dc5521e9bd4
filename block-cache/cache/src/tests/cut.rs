//! Data devices that are shorter than the cache, and files with holes: which of them are evidence
//! of a truncation.

use std::cell::RefCell;

use forebay_metadata::superblock::Superblock;

use super::medium::{BOOT, PAGE, TestFile, UUID, dead, formatted, values};
use super::*;
use crate::failpoints::{Fault, plant};
use forebay_block::Result;

const LEN: usize = 1 << 20;

async fn open_on(devices: &Devices, journal: &Buf) -> Result<(Cache, RecoveryReport)> {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    };
    Cache::open(devices.clone(), options).await
}

fn on(data: &TestFile, metadata: Option<&TestFile>) -> Devices {
    Devices {
        data: data.device(),
        metadata: metadata.map(TestFile::device),
    }
}

/// A cache in service, and its volume.
type Life = (Cache, Rc<dyn BlockDevice>);

/// Opens, and writes a block of each of these values, one slot behind the other.
async fn live(devices: &Devices, journal: &Buf, backing: &TestFile, values: &[u8]) -> Life {
    let (cache, _) = open_on(devices, journal).await.expect("opens");
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("v", backing.device(), options).await;
    let volume = volume.expect("attaches");
    for (block, value) in (0..).zip(values) {
        let data = Buf::copied(&[*value; 4096]);
        volume.write(block * 8192, data).await.expect("writes");
    }
    (cache, volume)
}

fn cut_bytes(report: &RecoveryReport) -> u64 {
    report.cut.iter().map(|range| range.len).sum()
}

/// A tool makes holes of these blocks of a file.
fn dig(file: &TestFile, begins: u64, blocks: &[u64]) {
    let mut written = file.0.written.borrow_mut();
    for block in blocks {
        written.remove(&(begins / PAGE + block));
    }
}

async fn with_checksums(medium: u64) -> TestFile {
    let file = TestFile::new(medium, LEN);
    let options = FormatOptions {
        checksums: true,
        ..FormatOptions::sizes(&[4096], UUID)
    };
    format(&on(&file, None), &options).await.expect("formats");
    file
}

/// Holes that a tool has dug where the file had zeroes, with data behind one of them at least.
#[test]
fn holes_with_data_behind_them_are_those_of_a_tool() {
    let written = [7, 0, 7, 0, 0, 7, 7, 0];
    for (dug, is_killed) in [
        (&[1][..], false),
        (&[1, 3, 4], false),
        (&[4, 7], false),
        (&[1, 3, 4, 7], true),
    ] {
        for fault in [None, Some(Fault::TrustHoles)] {
            run(&World::new(1), async move |_| {
                let backing = TestFile::new(100, LEN);
                backing.0.bytes.borrow_mut().fill(1);
                let mut file = formatted(1, LEN).await;
                let mut journal = Buf::zeroed(1 << 16);
                let (cache, _volume) = live(&on(&file, None), &journal, &backing, &written).await;
                let begins = cache.engine.superblock.current().data_offset;
                match is_killed {
                    true => (file, journal) = dead(&file, &journal),
                    false => cache.close().await.expect("closes"),
                }
                dig(&file, begins, dug);
                plant(fault);
                let devices = on(&file, None);
                let left = is_killed.then_some(&journal);
                let found = inspect(&devices, left, &BOOT).await.expect("sound");
                let (cache, report) = open_on(&devices, &journal).await.expect("opens");
                plant(None);
                let lost = dug.len() as u64 * 4096 * u64::from(fault.is_some());
                assert_eq!(cut_bytes(&report), lost, "{dug:?}, {fault:?}");
                assert_eq!(found.problems.is_empty(), lost == 0, "{:?}", found.problems);
                if fault.is_some() {
                    return;
                }
                assert_eq!(values(&cache, &backing).await, written, "{dug:?}");
                // Nothing of that fails in service, nor when it is written back.
                cache.look_for_cut().await;
                cache.write_back(Some("v")).await.expect("written back");
                cache.close().await.expect("a clean end");
                assert_eq!(backing.0.bytes.borrow()[8192], 0, "zeroes");
                let (cache, report) = open_on(&devices, &journal).await.expect("opens");
                assert_eq!(cut_bytes(&report), 0);
                assert_eq!(values(&cache, &backing).await, written);
            });
        }
    }
}

/// A cut file is as long as before, and the tool that made it so wrote zeroes behind the cut.
#[test]
fn zeroes_behind_a_cut_do_not_hide_it() {
    let written = [7; 8];
    // Blocks of the data that are zeroes: behind all cached data, on it, or on some of it.
    for zeroes in [&[200][..], &[7], &[5, 7], &[6, 100, 200]] {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, LEN);
            backing.0.bytes.borrow_mut().fill(1);
            let file = formatted(1, LEN).await;
            let (journal, devices) = (Buf::zeroed(1 << 16), on(&file, None));
            let (cache, _volume) = live(&devices, &journal, &backing, &written).await;
            let begins = cache.engine.superblock.current().data_offset;
            cache.close().await.expect("closes");
            file.cut(begins + 4 * 4096);
            file.lengthen(LEN);
            for block in zeroes {
                let page = Buf::zeroed(4096);
                file.write(begins + block * 4096, page)
                    .await
                    .expect("written");
            }
            let found = inspect(&devices, None, &BOOT).await.expect("sound");
            assert_eq!(found.problems.len(), 4, "{:?}", found.problems);
            let (cache, report) = open_on(&devices, &journal).await.expect("opens");
            assert_eq!(cut_bytes(&report), 4 * 4096, "{zeroes:?}");
            assert_eq!(values(&cache, &backing).await, [7, 7, 7, 7, 1, 1, 1, 1]);
            cache.close().await.expect("a clean end");
        });
    }
}

#[test]
fn a_hole_of_zeroes_whose_checksum_is_known_has_lost_nothing() {
    let written = [7, 7, 7, 7, 7, 7, 7, 0];
    // The last block alone was dug out, or the file was cut before it.
    for (cut_at, lost) in [(7, 0), (6, 1), (4, 3)] {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, LEN);
            backing.0.bytes.borrow_mut().fill(1);
            let file = with_checksums(1).await;
            let journal = Buf::zeroed(1 << 16);
            let devices = on(&file, None);
            let (cache, _volume) = live(&devices, &journal, &backing, &written).await;
            let begins = cache.engine.superblock.current().data_offset;
            cache.close().await.expect("closes");
            file.cut(begins + cut_at * 4096);
            file.lengthen(LEN);
            let found = inspect(&devices, None, &BOOT).await.expect("sound");
            let (cache, report) = open_on(&devices, &journal).await.expect("opens");
            assert_eq!(cut_bytes(&report), lost * 4096, "cut at {cut_at}");
            assert_eq!(found.problems.len() as u64, lost, "{:?}", found.problems);
            let mut expected = written;
            expected[cut_at as usize..7].fill(1);
            assert_eq!(values(&cache, &backing).await, expected, "cut at {cut_at}");
            cache.close().await.expect("a clean end");
        });
    }
    // In service, too.
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, LEN);
        backing.0.bytes.borrow_mut().fill(1);
        let (file, journal) = (with_checksums(1).await, Buf::zeroed(1 << 16));
        let (cache, _volume) = live(&on(&file, None), &journal, &backing, &[7, 0, 7, 0]).await;
        let begins = cache.engine.superblock.current().data_offset;
        cache.look_for_cut().await;
        dig(&file, begins, &[1, 3]);
        cache.look_for_cut().await;
        cache.write_back(Some("v")).await.expect("written back");
        cache.close().await.expect("a clean end");
        assert_eq!(backing.0.bytes.borrow()[8192], 0, "zeroes");
    });
}

#[test]
fn a_repair_does_not_forget_where_the_cache_was_served() {
    run(&World::new(1), async |_| {
        let file = formatted(1, LEN).await;
        let options = CacheOptions {
            place: "/dev/original".to_owned(),
            ..CacheOptions::new(BOOT)
        };
        let (cache, _) = Cache::open(on(&file, None), options).await.expect("opens");
        cache.close().await.expect("closes");
        let alone = RepairOptions {
            boot_id: BOOT,
            ..RepairOptions::default()
        };
        repair(&on(&file, None), &alone).await.expect("repaired");
        let found = Superblock::read(&file).await.expect("sound");
        assert_eq!(found.place, "/dev/original");
    });
}

#[test]
fn data_cut_off_in_service_is_lost_despite_later_writes_behind_the_cut() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, LEN);
        backing.0.bytes.borrow_mut().fill(1);
        let (file, journal) = (formatted(1, LEN).await, Buf::zeroed(1 << 16));
        let (cache, volume) = live(&on(&file, None), &journal, &backing, &[7; 8]).await;
        let begins = cache.engine.superblock.current().data_offset;
        cache.look_for_cut().await;
        file.cut(begins + 5 * 4096);
        file.lengthen(LEN);
        let data = Buf::copied(&[9; 4096]);
        volume.write(8 * 8192, data).await.expect("writes");
        cache.look_for_cut().await;
        let (file, journal) = dead(&file, &journal);
        let devices = on(&file, None);
        let (cache, report) = open_on(&devices, &journal).await.expect("opens");
        assert_eq!(cut_bytes(&report), 3 * 4096);
        assert_eq!(values(&cache, &backing).await, [7, 7, 7, 7, 7, 1, 1, 1]);
        cache.close().await.expect("a clean end");
        let (_, report) = open_on(&devices, &journal).await.expect("opens");
        assert_eq!(cut_bytes(&report), 0, "it is over");
    });
}

/// A data device that was named by mistake, and is shorter than the cache, costs nothing.
#[test]
fn a_wrong_or_shorter_device_is_refused_and_nothing_is_noted() {
    let noted = Rc::new(RefCell::new(Vec::new()));
    for case in 0..6 {
        for fault in [None, Some(Fault::NoteAnyShort)] {
            let noted = Rc::clone(&noted);
            run(&World::new(1), async move |_| {
                let backing = TestFile::new(100, LEN);
                let (data, metadata) = (TestFile::new(1, LEN), TestFile::new(2, LEN / 2));
                let right = on(&data, Some(&metadata));
                let options = FormatOptions::sizes(&[4096], UUID);
                format(&right, &options).await.expect("formats");
                let journal = Buf::zeroed(1 << 16);
                let (cache, _volume) = live(&right, &journal, &backing, &[7; 8]).await;
                cache.close().await.expect("closes");
                let before = [&data, &metadata].map(|file| file.0.bytes.borrow().clone());
                let short = TestFile::new(3, LEN / 4);
                let wrong = match case {
                    // No superblock at all.
                    0 => on(&short, Some(&metadata)),
                    // The metadata device alone.
                    1 => on(&metadata, None),
                    // Each in the other's role.
                    2 => on(&metadata, Some(&data)),
                    // Another cache's.
                    3 => {
                        let other = FormatOptions::sizes(&[4096], [6; 16]);
                        let beside = TestFile::new(4, LEN);
                        let made = format(&on(&short, Some(&beside)), &other).await;
                        made.expect("formats");
                        on(&short, Some(&metadata))
                    }
                    // A copy that was cut.
                    4 => {
                        let copy = data.copy(3);
                        copy.cut(LEN as u64 / 2);
                        on(&copy, Some(&metadata))
                    }
                    // A block device that is shorter for a time.
                    _ => {
                        data.0.is_file.set(false);
                        data.0.reports_holes.set(false);
                        data.cut(LEN as u64 / 2);
                        right.clone()
                    }
                };
                plant(fault);
                open_on(&wrong, &journal).await.expect_err("it is not this");
                plant(None);
                // The file has its length back.
                if case == 5 {
                    data.0.bytes.borrow_mut().clone_from(&before[0]);
                }
                let is_same =
                    *metadata.0.bytes.borrow() == before[1] && *data.0.bytes.borrow() == before[0];
                if !is_same {
                    noted.borrow_mut().push(case);
                }
                if fault.is_none() {
                    assert!(is_same, "case {case}");
                    let (cache, report) = open_on(&right, &journal).await.expect("opens");
                    assert_eq!(cut_bytes(&report), 0, "case {case}");
                    assert_eq!(values(&cache, &backing).await, [7; 8], "case {case}");
                }
            });
        }
    }
    // The superblock of the data device tells the others.
    assert!(noted.borrow().contains(&5), "{noted:?}");
}

#[test]
fn a_block_device_that_is_shorter_in_service_has_lost_nothing_when_it_is_back() {
    for fault in [None, Some(Fault::NoteAnyShort)] {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, LEN);
            let (data, metadata) = (TestFile::new(1, LEN), TestFile::new(2, LEN));
            for file in [&data, &metadata] {
                file.0.is_file.set(false);
                file.0.reports_holes.set(false);
            }
            let devices = on(&data, Some(&metadata));
            let options = FormatOptions::sizes(&[4096], UUID);
            format(&devices, &options).await.expect("formats");
            let journal = Buf::zeroed(1 << 16);
            let (cache, _volume) = live(&devices, &journal, &backing, &[7; 8]).await;
            let whole = data.0.bytes.borrow().clone();
            let begins = cache.engine.superblock.current().data_offset;
            plant(fault);
            data.cut(begins + 5 * 4096);
            cache.look_for_cut().await;
            let failed = cache.stats().failure.expect("it takes no more writes");
            data.0.bytes.borrow_mut().clone_from(&whole);
            let closed = cache.close().await;
            plant(None);
            let noted = Superblock::read(&metadata).await.expect("sound");
            let (_, report) = open_on(&devices, &journal).await.expect("opens");
            match fault {
                None => {
                    assert!(failed.contains("shorter"), "{failed}");
                    assert_eq!(closed.expect_err("no clean end").kind(), ErrorKind::Lost);
                    assert_eq!((noted.service.cut_bytes, cut_bytes(&report)), (0, 0));
                    let (cache, _) = open_on(&devices, &journal).await.expect("opens");
                    assert_eq!(values(&cache, &backing).await, [7; 8]);
                }
                Some(_) => assert_eq!(cut_bytes(&report), 3 * 4096),
            }
        });
    }
}
