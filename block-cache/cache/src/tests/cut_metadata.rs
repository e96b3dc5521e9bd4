//! Metadata that is truncated in service and rewritten.

mod searches;
mod steps;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use forebay_block::{Completion, DeviceInfo, Op, Request, Result};
use forebay_metadata::superblock::DirtyTracking;

use super::medium::{BOOT, TestFile, UUID, dead, values};
use super::*;
use crate::failpoints::{Fault, plant};

const LEN: usize = 1 << 20;

/// A file of which a copy is made after each write.
#[derive(Clone)]
struct Recorder {
    file: TestFile,
    copies: Rc<RefCell<Vec<TestFile>>>,
    /// Number of writes until the file is truncated and gets its length again.
    cut_after: Rc<Cell<Option<usize>>>,
}

impl BlockDevice for Recorder {
    fn info(&self) -> DeviceInfo {
        self.file.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let is_write = matches!(request.op, Op::Write { .. });
        self.file.submit(request, done);
        if is_write {
            let medium = self.file.info().identity.medium;
            self.copies.borrow_mut().push(self.file.copy(medium));
            if self.cut_after.get() == Some(self.copies.borrow().len()) {
                self.file.cut(0);
                self.file.lengthen(LEN);
            }
        }
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.file.holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.file.allocated_bytes()
    }
}

/// The files of a cache and of its backing device.
struct Files {
    data: TestFile,
    metadata: Option<TestFile>,
    backing: TestFile,
    journal: Buf,
}

impl Files {
    async fn formatted(tracking: DirtyTracking, is_one: bool) -> Self {
        let files = Self {
            data: TestFile::new(1, LEN),
            metadata: (!is_one).then(|| TestFile::new(2, LEN)),
            backing: TestFile::new(100, LEN),
            journal: Buf::zeroed(1 << 16),
        };
        files.backing.0.bytes.borrow_mut().fill(1);
        let options = FormatOptions {
            checksums: true,
            dirty_tracking: tracking,
            ..FormatOptions::sizes(&[4096], UUID)
        };
        format(&files.devices(), &options).await.expect("formats");
        files
    }

    fn devices(&self) -> Devices {
        Devices {
            data: self.data.device(),
            metadata: self.metadata.as_ref().map(TestFile::device),
        }
    }

    fn holder(&self) -> &TestFile {
        self.metadata.as_ref().unwrap_or(&self.data)
    }

    /// State that a process leaves if it dies now.
    fn dead(&self) -> Self {
        let (data, journal) = dead(&self.data, &self.journal);
        let metadata = self.metadata.as_ref().map(|it| dead(it, &journal).0);
        Self {
            data,
            metadata,
            backing: self.backing.clone(),
            journal,
        }
    }

    async fn open(&self) -> Result<(Cache, RecoveryReport)> {
        open_on(self.devices(), &self.journal).await
    }

    /// The next start: nothing is damaged, and the blocks have these values.
    async fn has(&self, expected: &[u8]) -> bool {
        let Ok((cache, report)) = self.open().await else {
            return false;
        };
        let is_whole = report.damaged_records == 0
            && report.unreadable_units == 0
            && report.lost_tree_units == 0
            && report.cut.is_empty();
        is_whole && values(&cache, &self.backing).await == expected
    }
}

async fn open_on(devices: Devices, journal: &Buf) -> Result<(Cache, RecoveryReport)> {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    };
    Cache::open(devices, options).await
}

async fn write(volume: &Rc<dyn BlockDevice>, blocks: Range<u64>, value: u8) {
    for block in blocks {
        let data = Buf::copied(&[value; 4096]);
        volume.write(block * 8192, data).await.expect("writes");
    }
}

/// Blocks that only the log names: two that were written back, two of these overwritten in place
/// since, and four new ones.
async fn live(devices: Devices, files: &Files) -> (Cache, Rc<dyn BlockDevice>) {
    let (cache, _) = open_on(devices, &files.journal).await.expect("opens");
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("v", files.backing.device(), options).await;
    let volume = volume.expect("attaches");
    write(&volume, 0..4, 5).await;
    cache.write_back(Some("v")).await.expect("written back");
    write(&volume, 2..4, 6).await;
    write(&volume, 4..8, 7).await;
    volume.flush().await.expect("flushes");
    (cache, volume)
}

const VALUES: [u8; 8] = [5, 5, 6, 6, 7, 7, 7, 7];

/// Places to cut at: all, the second superblock, the log, a part of it, the tree, the checksums.
fn places(cache: &Cache) -> Vec<u64> {
    let superblock = cache.engine.superblock.current();
    let log = superblock.log.offset;
    let mut places = vec![0, 70_000, log, log + 4096 + 512];
    let behind = [superblock.tree_offset, superblock.checksums_offset];
    places.extend(behind.into_iter().filter(|at| *at > 0));
    places
}

/// Whether nothing is lost that was cut off at the place `nth`; none if there is no such place.
async fn cut_life(tracking: DirtyTracking, nth: usize, is_seen: bool, ends: bool) -> Option<bool> {
    let files = Files::formatted(tracking, false).await;
    let (cache, _volume) = live(files.devices(), &files).await;
    let at = *places(&cache).get(nth)?;
    cache.look_for_cut().await;
    files.holder().cut(at);
    if is_seen {
        cache.look_for_cut().await;
        let trouble = cache.metadata_trouble();
        if let Some(trouble) = trouble {
            assert!(
                trouble.report().contains("truncate -s 1048576"),
                "{trouble:?}"
            );
        }
    }
    files.holder().lengthen(LEN);
    match ends {
        // The end looks as well.
        true => match cache.close().await {
            Ok(()) => Some(files.has(&VALUES).await),
            Err(_) => Some(false),
        },
        false => {
            cache.look_for_cut().await;
            assert!(cache.metadata_trouble().is_none(), "it is over");
            let (left, is_alive) = (files.dead(), cache.stats().failure.is_none());
            Some(is_alive && left.has(&VALUES).await)
        }
    }
}

#[test]
fn metadata_that_is_cut_off_in_service_is_written_anew() {
    for fault in [None, Some(Fault::OverlookCut), Some(Fault::GiveUpUnlogged)] {
        let mut lost = 0;
        for tracking in DirtyTracking::ALL {
            for (nth, flags) in (0..6).flat_map(|nth| (0..4).map(move |flags| (nth, flags))) {
                let (is_seen, ends) = (flags & 1 == 1, flags & 2 == 2);
                let is_intact = run(&World::new(1), async move |_| {
                    plant(fault);
                    let is_intact = cut_life(tracking, nth, is_seen, ends).await;
                    plant(None);
                    is_intact
                });
                let Some(is_intact) = is_intact else { continue };
                assert!(
                    is_intact || fault.is_some(),
                    "{tracking}, place {nth}, {is_seen}, {ends}"
                );
                lost += u32::from(!is_intact);
            }
        }
        // The log's end and the tree's have nothing that counts.
        assert_eq!(lost > 20, fault.is_some(), "{lost}");
    }
}

/// A file that has data and metadata, of which nothing is cached yet.
#[test]
fn metadata_in_one_file_with_the_data_is_written_anew() {
    for fault in [None, Some(Fault::OverlookCut)] {
        run(&World::new(1), async move |_| {
            let files = Files::formatted(DirtyTracking::Exact, true).await;
            let (cache, _) = files.open().await.expect("opens");
            let options = VolumeOptions::new(Mode::WriteBack);
            let volume = cache.attach("v", files.backing.device(), options).await;
            let volume = volume.expect("attaches");
            cache.look_for_cut().await;
            files
                .holder()
                .cut(cache.engine.superblock.current().log.offset);
            files.holder().lengthen(LEN);
            plant(fault);
            cache.look_for_cut().await;
            write(&volume, 0..8, 7).await;
            volume.flush().await.expect("flushes");
            let is_whole = files.dead().has(&[7; 8]).await;
            plant(None);
            assert_eq!(is_whole, fault.is_none());
        });
    }
}

#[test]
fn metadata_that_is_missing_at_the_end_is_reported_and_the_end_is_not_clean() {
    run(&World::new(1), async |_| {
        let files = Files::formatted(DirtyTracking::Exact, false).await;
        let (cache, _volume) = live(files.devices(), &files).await;
        files.holder().cut(160_000);
        let refused = cache.close().await.expect_err("it is too short");
        assert_eq!(refused.kind(), ErrorKind::Lost);
        assert!(refused.report().contains("help:"), "{refused:?}");
    });
}

/// Holes that a tool makes where the log has zeroes yet, and in the table of checksums.
#[test]
fn holes_that_a_tool_makes_in_metadata_lose_nothing() {
    run(&World::new(1), async |_| {
        let files = Files::formatted(DirtyTracking::Exact, false).await;
        let (cache, volume) = live(files.devices(), &files).await;
        for pages in [5..10, 45..50, 200..256] {
            cache.look_for_cut().await;
            for page in pages {
                files.holder().0.written.borrow_mut().remove(&page);
            }
            cache.look_for_cut().await;
        }
        assert_eq!(cache.stats().failure, None);
        write(&volume, 0..8, 9).await;
        cache.close().await.expect("a clean end");
        assert!(files.has(&[9; 8]).await);
    });
}

/// Wherever the process dies during the rewrite of metadata, the next start has all of it, or
/// reports the loss.
#[test]
fn a_death_while_metadata_is_written_anew_is_never_silent() {
    for tracking in [DirtyTracking::Exact, DirtyTracking::Abt] {
        run(&World::new(1), async move |_| {
            for nth in 0..6 {
                let files = Files::formatted(tracking, false).await;
                let copies = Rc::new(RefCell::default());
                let recorder = Recorder {
                    file: files.holder().clone(),
                    copies: Rc::clone(&copies),
                    cut_after: Rc::default(),
                };
                let devices = Devices {
                    data: files.data.device(),
                    metadata: Some(Rc::new(recorder)),
                };
                let (cache, _volume) = live(devices, &files).await;
                let Some(at) = places(&cache).get(nth).copied() else {
                    continue;
                };
                cache.look_for_cut().await;
                files.holder().cut(at);
                files.holder().lengthen(LEN);
                copies.borrow_mut().clear();
                cache.look_for_cut().await;
                let copies = copies.take();
                assert!(copies.len() > 3, "{}", copies.len());
                let last = copies.len() - 1;
                for (moment, metadata) in copies.into_iter().enumerate() {
                    let left = Files {
                        metadata: Some(metadata),
                        ..files.dead()
                    };
                    let is_reported = match left.open().await {
                        Err(_) => true,
                        Ok((_, report)) => {
                            report.damaged_records
                                + report.unreadable_units
                                + u64::from(report.lost_tree_units)
                                > 0
                        }
                    };
                    assert!(moment < last || !is_reported, "place {nth}: all is written");
                    if !is_reported {
                        assert!(left.has(&VALUES).await, "place {nth}, moment {moment}");
                    }
                }
            }
        });
    }
}

/// The file is truncated a second time after any write of the rewrite.
#[test]
fn a_truncation_while_metadata_is_written_anew_is_not_missed() {
    for tracking in [DirtyTracking::Exact, DirtyTracking::Abt] {
        run(&World::new(1), async move |_| {
            let mut nth = 0;
            loop {
                nth += 1;
                let files = Files::formatted(tracking, false).await;
                let recorder = Recorder {
                    file: files.holder().clone(),
                    copies: Rc::default(),
                    cut_after: Rc::default(),
                };
                let devices = Devices {
                    data: files.data.device(),
                    metadata: Some(Rc::new(recorder.clone())),
                };
                let (cache, _volume) = live(devices, &files).await;
                cache.look_for_cut().await;
                files.holder().cut(0);
                files.holder().lengthen(LEN);
                recorder.copies.take();
                recorder.cut_after.set(Some(nth));
                cache.look_for_cut().await;
                // The watch looks once more a second later.
                cache.look_for_cut().await;
                assert!(files.dead().has(&VALUES).await, "{tracking}, write {nth}");
                if recorder.copies.borrow().len() < nth {
                    break;
                }
            }
            assert!(nth > 4, "{nth}");
        });
    }
}

/// Clients write, blocks are evicted, and the file is cut over and over.
#[test]
fn clients_go_on_while_metadata_is_written_anew() {
    for seed in 0..20 {
        run(&World::new(seed), async move |_| {
            let tracking = DirtyTracking::ALL[seed as usize % 3];
            let (rng, volume_blocks) = (Rng::labelled(seed, 7), 400_u64);
            let mut files = Files::formatted(tracking, false).await;
            files.backing = TestFile::new(100, (volume_blocks * 4096) as usize);
            let (cache, _) = {
                let options = CacheOptions {
                    journal: Some(files.journal.clone()),
                    ..CacheOptions::new(BOOT)
                };
                Cache::open(files.devices(), options).await.expect("opens")
            };
            let options = VolumeOptions::new(Mode::WriteBack);
            let volume = cache.attach("v", files.backing.device(), options).await;
            let volume = volume.expect("attaches");
            let mut model = vec![0_u8; volume_blocks as usize];
            let end = cache.engine.superblock.current().metadata_end();
            for _ in 0..8 {
                let looking = match rng.chance(1, 2) {
                    false => None,
                    true => {
                        cache.look_for_cut().await;
                        files.holder().cut(rng.below(end));
                        files.holder().lengthen(LEN);
                        let cache = cache.clone();
                        let over = forebay_io::sync::Promise::new();
                        let set = over.clone();
                        rt::spawn(async move {
                            cache.look_for_cut().await;
                            set.set(());
                        });
                        Some(over)
                    }
                };
                for _ in 0..60 {
                    let (block, value) = (rng.below(volume_blocks), rng.draw() as u8);
                    let data = Buf::copied(&[value; 4096]);
                    volume.write(block * 4096, data).await.expect("writes");
                    model[block as usize] = value;
                    if rng.chance(1, 10) {
                        volume.flush().await.expect("flushes");
                    }
                }
                if let Some(looking) = looking {
                    looking.get().await;
                }
            }
            assert_eq!(cache.stats().failure, None);
            let left = files.dead();
            let (cache, report) = left.open().await.expect("opens");
            let damage = (report.damaged_records, report.unreadable_units);
            assert_eq!(damage, (0, 0), "seed {seed}");
            let options = VolumeOptions::new(Mode::WriteBack);
            let volume = cache.attach("v", left.backing.device(), options).await;
            let volume = volume.expect("attaches");
            for (block, value) in (0..).zip(&model) {
                let found = Buf::zeroed(4096);
                volume
                    .read(block * 4096, found.clone())
                    .await
                    .expect("reads");
                assert!(
                    found.to_vec() == [*value; 4096],
                    "seed {seed}: block {block}"
                );
            }
        });
    }
}
