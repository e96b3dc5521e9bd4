//! Copies of a cache device, earlier states put back, and devices that were cut.

mod journals;
mod moved;
mod parts;
mod truncation;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;

use forebay_block::{Completion, DeviceInfo, Error, Identity, Op, Request, Result};
use forebay_metadata::journal::{Journal, Relation};
use forebay_metadata::superblock::Superblock;

use super::*;
use crate::failpoints::{Fault, plant};

pub(super) const PAGE: u64 = 4096;
pub(super) const BOOT: [u8; 16] = [9; 16];
pub(super) const UUID: [u8; 16] = [5; 16];

/// A file: it can be copied, put back, cut and lengthened.
#[derive(Clone)]
pub(super) struct TestFile(pub(super) Rc<Contents>);

pub(super) struct Contents {
    identity: Identity,
    pub(super) bytes: RefCell<Vec<u8>>,
    /// Pages that were written to since they came to be.
    pub(super) written: RefCell<BTreeSet<u64>>,
    pub(super) reports_holes: Cell<bool>,
    /// Whether it is no block device.
    pub(super) is_file: Cell<bool>,
    pub(super) fails_flushes: Cell<bool>,
}

impl TestFile {
    pub(super) fn new(medium: u64, len: usize) -> Self {
        Self::with(medium, vec![0; len], BTreeSet::new())
    }

    fn with(medium: u64, bytes: Vec<u8>, written: BTreeSet<u64>) -> Self {
        Self(Rc::new(Contents {
            identity: Identity::of(medium),
            bytes: RefCell::new(bytes),
            written: RefCell::new(written),
            reports_holes: Cell::new(true),
            is_file: Cell::new(true),
            fails_flushes: Cell::new(false),
        }))
    }

    /// A copy on another medium. With the same number, a state that could be restored later.
    pub(super) fn copy(&self, medium: u64) -> Self {
        let (bytes, written) = (
            self.0.bytes.borrow().clone(),
            self.0.written.borrow().clone(),
        );
        Self::with(medium, bytes, written)
    }

    pub(super) fn put_back(&self, earlier: &Self) {
        self.0.bytes.replace(earlier.0.bytes.borrow().clone());
        self.0.written.replace(earlier.0.written.borrow().clone());
    }

    pub(super) fn cut(&self, len: u64) {
        self.0.bytes.borrow_mut().truncate(len as usize);
        self.0.written.borrow_mut().retain(|page| page * PAGE < len);
    }

    pub(super) fn lengthen(&self, len: usize) {
        self.0.bytes.borrow_mut().resize(len, 0);
    }

    pub(super) fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::new(self.clone())
    }
}

impl BlockDevice for TestFile {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            identity: self.0.identity,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            ..DeviceInfo::new("file", self.0.bytes.borrow().len() as u64)
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let (start, end) = (
            request.offset as usize,
            (request.offset + request.len) as usize,
        );
        let mut bytes = self.0.bytes.borrow_mut();
        if end > bytes.len() {
            return done.complete(Err(Error::new(ErrorKind::Io, "beyond the end")));
        }
        match (request.op, request.buf) {
            (Op::Flush, _) if self.0.fails_flushes.get() => {
                return done.complete(Err(Error::new(ErrorKind::Io, "a flush failed")));
            }
            (Op::Read, Some(buf)) => buf.copy_from(0, &bytes[start..end]),
            (Op::Write { .. }, Some(buf)) => {
                buf.copy_to(0, &mut bytes[start..end]);
                let pages = request.offset / PAGE..(request.offset + request.len).div_ceil(PAGE);
                self.0.written.borrow_mut().extend(pages);
            }
            _ => {}
        }
        done.complete(Ok(()));
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let written = self.0.written.borrow();
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let holes = pages.filter(|page| !written.contains(page));
        let holes = holes.map(|page| page * PAGE..(page + 1) * PAGE);
        self.0.reports_holes.get().then(|| holes.collect())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        let bytes = self.0.written.borrow().len() as u64 * PAGE;
        self.0.is_file.get().then_some(bytes)
    }
}

fn devices(file: &TestFile) -> Devices {
    Devices {
        data: file.device(),
        metadata: None,
    }
}

pub(super) async fn formatted(medium: u64, len: usize) -> TestFile {
    let file = TestFile::new(medium, len);
    let options = FormatOptions::sizes(&[4096], UUID);
    format(&devices(&file), &options).await.expect("formats");
    file
}

async fn try_open(
    file: &TestFile,
    journal: &Buf,
    moved: bool,
    accept_journal_loss: bool,
) -> Result<(Cache, RecoveryReport)> {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        moved,
        accept_journal_loss,
        ..CacheOptions::new(BOOT)
    };
    Cache::open(devices(file), options).await
}

/// Opens, and writes blocks with `value` that only the journal has.
async fn live(file: &TestFile, journal: &Buf, backing: &TestFile, value: u8) -> Cache {
    let (cache, _) = try_open(file, journal, false, false).await.expect("opens");
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("v", backing.device(), options).await;
    let volume = volume.expect("attaches");
    for block in 0..8 {
        let data = Buf::copied(&[value; 4096]);
        volume.write(block * 8192, data).await.expect("writes");
    }
    cache
}

/// The values of the blocks that [`live`] writes.
pub(super) async fn values(cache: &Cache, backing: &TestFile) -> Vec<u8> {
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("v", backing.device(), options).await;
    let volume = volume.expect("attaches");
    let mut values = Vec::new();
    for block in 0..8 {
        let buf = Buf::zeroed(4096);
        volume.read(block * 8192, buf.clone()).await.expect("reads");
        values.push(buf.to_vec()[0]);
    }
    values
}

/// State of a process that ended here, fixed from now on.
pub(super) fn dead(file: &TestFile, journal: &Buf) -> (TestFile, Buf) {
    (
        file.copy(file.0.identity.medium),
        Buf::copied(&journal.to_vec()),
    )
}

#[test]
fn a_copy_never_takes_the_originals_journal_and_leaves_it_whole() {
    let check = async || {
        let backing = TestFile::new(100, 1 << 20);
        let file = formatted(1, 2 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        let before = file.copy(2);
        let (first, _) = try_open(&file, &journal, false, false)
            .await
            .expect("opens");
        let first_copy = file.copy(3);
        first.close().await.expect("closes");
        let stopped = file.copy(4);
        live(&file, &journal, &backing, 7).await;
        let (file, journal) = dead(&file, &journal);
        let killed = file.copy(5);
        let copied = journal.to_vec();
        // Copied before it was used, in use, after a clean stop, and after the kill.
        for (copy, relation) in [
            (&before, Some(Relation::Foreign)),
            (&first_copy, Some(Relation::Foreign)),
            (&stopped, Some(Relation::Foreign)),
            (&killed, Some(Relation::Copied)),
        ] {
            for accept in [false, true] {
                let refused = try_open(copy, &journal, false, accept).await;
                let error = refused.expect_err("the journal is the original's");
                assert_eq!(error.kind(), ErrorKind::Busy, "{relation:?}: {error:?}");
                assert!(journal.to_vec() == copied, "{relation:?}");
            }
            let copy = copy.copy(copy.0.identity.medium);
            let moved = try_open(&copy, &Buf::copied(&copied), true, false).await;
            assert_eq!(
                moved.is_ok(),
                relation != Some(Relation::Foreign),
                "{relation:?}"
            );
        }
        // Of the copies, the sound ones are in order, and the journal says nothing of them.
        for (copy, is_sound) in [(&before, true), (&stopped, true), (&killed, false)] {
            let found = inspect(&devices(copy), Some(&journal), &BOOT)
                .await
                .expect("read");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            assert_eq!(found.journal_problem.is_none(), is_sound);
        }
        let (cache, report) = try_open(&file, &journal, false, false)
            .await
            .expect("opens");
        assert_eq!(report.journal_entries, 8);
        assert_eq!(values(&cache, &backing).await, [7; 8]);
    };
    run(&World::new(1), async move |_| check().await);
}

#[test]
fn a_copy_that_takes_the_place_of_the_original_has_its_journal() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        let file = formatted(1, 2 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        live(&file, &journal, &backing, 7).await;
        let (file, journal) = dead(&file, &journal);
        let moved = file.copy(2);
        let (cache, report) = try_open(&moved, &journal, true, false)
            .await
            .expect("opens");
        assert_eq!(report.journal_entries, 8);
        assert_eq!(values(&cache, &backing).await, [7; 8]);
        let (moved, journal) = dead(&moved, &journal);
        // From now on the original is the copy.
        let error = try_open(&file, &journal, false, false)
            .await
            .expect_err("it was moved");
        assert_eq!(error.kind(), ErrorKind::Busy);
        try_open(&moved, &journal, false, false)
            .await
            .expect("opens");
    });
}

#[test]
fn an_earlier_state_of_the_device_or_of_the_journal_is_refused() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        let file = formatted(1, 2 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        let mut states = vec![];
        for value in 1..4 {
            live(&file, &journal, &backing, value).await;
            let (left, copied) = dead(&file, &journal);
            file.put_back(&left);
            states.push((left, copied));
        }
        let newest = states[2].1.to_vec();
        for (device, _) in &states[..2] {
            for accept in [false, true] {
                let journal = Buf::copied(&newest);
                let rolled_back = try_open(device, &journal, false, accept).await;
                let error = rolled_back.expect_err("the journal is newer");
                assert_eq!(error.kind(), ErrorKind::Lost);
                assert!(error.report().contains("an earlier state"), "{error:?}");
                assert!(journal.to_vec() == newest);
            }
        }
        for (_, journal) in &states[..2] {
            let journal = Buf::copied(&journal.to_vec());
            let rolled_back = try_open(&states[2].0, &journal, false, false).await;
            let error = rolled_back.expect_err("the journal is older");
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert!(error.report().contains("an earlier one"), "{error:?}");
        }
        let (device, journal) = &states[2];
        let (cache, _) = try_open(device, journal, false, false)
            .await
            .expect("opens");
        assert_eq!(values(&cache, &backing).await, [3; 8]);
    });
}

/// A process may die anywhere while it opens the cache. The next one finds a journal that is its
/// own. The n-th operation and all later ones fail.
#[test]
fn an_opening_that_is_cut_off_anywhere_leaves_two_that_agree() {
    let agree = |fault: Option<Fault>| {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, 1 << 20);
            let file = formatted(1, 2 << 20).await;
            let journal = Buf::zeroed(1 << 16);
            live(&file, &journal, &backing, 7).await;
            let (file, journal) = dead(&file, &journal);
            let mut all_agree = true;
            for nth in 0.. {
                let (left, copied) = dead(&file, &journal);
                let opened = die_opening(&left, &copied, nth, fault).await;
                // And the next one dies, too.
                for second in 0..8 {
                    let (left, copied) = dead(&left, &copied);
                    die_opening(&left, &copied, second, fault).await;
                    let (left, copied) = dead(&left, &copied);
                    match try_open(&left, &copied, false, false).await {
                        Ok((cache, _)) => {
                            let values = values(&cache, &backing).await;
                            assert_eq!(values, [7; 8], "{nth}, {second}");
                        }
                        Err(_) => all_agree = false,
                    }
                }
                if opened {
                    assert!(nth > 3, "it writes the superblock and the log");
                    break;
                }
            }
            all_agree
        })
    };
    assert!(agree(None));
    assert!(
        !agree(Some(Fault::RaiseUnannounced)),
        "a planted fault was missed"
    );
}

/// Opens a cache in a process that dies at its n-th write. Returns whether it came to the end.
async fn die_opening(file: &TestFile, journal: &Buf, nth: u64, fault: Option<Fault>) -> bool {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    };
    let limited = Devices {
        data: Rc::new(Limited(file.clone(), Cell::new(nth), RefCell::default())),
        metadata: None,
    };
    plant(fault);
    let opened = rt::at_most(
        std::time::Duration::from_millis(100),
        Cache::open(limited, options),
    );
    let opened = opened.await.is_some();
    plant(None);
    opened
}

/// A file whose writes do not end, from the n-th on: the process dies there.
struct Limited(TestFile, Cell<u64>, RefCell<Vec<Completion>>);

impl BlockDevice for Limited {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request.op, Op::Write { .. }) {
            if self.1.get() == 0 {
                return self.2.borrow_mut().push(done);
            }
            self.1.set(self.1.get() - 1);
        }
        self.0.submit(request, done);
    }
}

#[test]
fn a_copy_with_a_uuid_of_its_own_opens_beside_the_original() {
    run(&World::new(1), async |_| {
        for checksums in [false, true] {
            let backing = TestFile::new(100, 1 << 20);
            let file = TestFile::new(1, 2 << 20);
            let options = FormatOptions {
                checksums,
                ..FormatOptions::sizes(&[4096], UUID)
            };
            format(&devices(&file), &options).await.expect("formats");
            let journal = Buf::zeroed(1 << 16);
            let cache = live(&file, &journal, &backing, 7).await;
            cache.close().await.expect("closes");
            let copy = file.copy(2);
            live(&file, &journal, &backing, 8).await;
            let (file, journal) = dead(&file, &journal);
            let changed = Superblock::change_uuid(&copy, None, [6; 16], "copy");
            changed.await.expect("written");
            let own = Buf::zeroed(1 << 16);
            let (cloned, report) = try_open(&copy, &own, false, false).await.expect("opens");
            assert_eq!((cloned.uuid(), report.damaged_records), ([6; 16], 0));
            assert_eq!(values(&cloned, &backing).await, [7; 8]);
            cloned.close().await.expect("closes");
            let found = inspect(&devices(&copy), None, &BOOT).await.expect("sound");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            let (cache, _) = try_open(&file, &journal, false, false)
                .await
                .expect("opens");
            assert_eq!(values(&cache, &backing).await, [8; 8]);
        }
    });
}
