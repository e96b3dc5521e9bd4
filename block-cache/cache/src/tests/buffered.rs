//! Backing devices with unflushed changes in the memory of their process.

use std::cell::RefCell;

use forebay_block::{Completion, DeviceInfo, Identity, Op, Request};

use super::medium::{BOOT, TestFile, formatted};
use super::*;
use crate::failpoints::{Fault, plant};

const LEN: usize = 1 << 20;

/// A device over what its store has durably.
struct Buffered {
    durable: Rc<RefCell<Vec<u8>>>,
    shown: RefCell<Vec<u8>>,
}

impl Buffered {
    fn open(durable: &Rc<RefCell<Vec<u8>>>) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            durable: Rc::clone(durable),
            shown: RefCell::new(durable.borrow().clone()),
        })
    }
}

impl BlockDevice for Buffered {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            identity: Identity::of(77),
            buffers_in_process: true,
            fua: false,
            ..DeviceInfo::new("objects", self.shown.borrow().len() as u64)
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let start = usize::try_from(request.offset).expect("small");
        let end = start + usize::try_from(request.len).expect("small");
        let mut shown = self.shown.borrow_mut();
        match (request.op, request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &shown[start..end]),
            (Op::Write { .. }, Some(buf)) => buf.copy_to(0, &mut shown[start..end]),
            (Op::WriteZeroes { .. } | Op::Discard, _) => shown[start..end].fill(0),
            (Op::Flush, _) => self.durable.replace(shown.clone()).clear(),
            (op, _) => panic!("{op:?}"),
        }
        done.complete(Ok(()));
    }
}

async fn open(file: &TestFile, journal: &Buf) -> Cache {
    let devices = Devices {
        data: file.device(),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    };
    Cache::open(devices, options).await.expect("opens").0
}

/// Last step of a client before its daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// A flushed write.
    Flushed,
    /// An overwrite of a cached block.
    Overwritten,
    /// A write after a second flush.
    WrittenLater,
    /// Zeroes over a cached block.
    Zeroed,
    /// A discard of a cached block.
    Discarded,
    /// Cached blocks that were written back, and not flushed.
    WrittenBack,
}

/// Kills a daemon. Returns whether the next attach reports a loss, and the block that it reads
/// before and after the cache gives up its copy.
fn killed(mode: Mode, last: Last) -> (bool, [u8; 2]) {
    run(&World::new(1), async move |_| {
        let durable = Rc::new(RefCell::new(vec![0; LEN]));
        let (file, journal) = (formatted(1, 4 << 20).await, Buf::zeroed(1 << 16));
        let page = |byte: u8| Buf::copied(&[byte; 4096]);
        let cache = open(&file, &journal).await;
        let attached = cache.attach("v", Buffered::open(&durable), VolumeOptions::new(mode));
        let volume = attached.await.expect("attaches");
        volume.write(0, page(1)).await.expect("writes");
        volume.flush().await.expect("flushes");
        volume.read(0, Buf::zeroed(4096)).await.expect("reads");
        match last {
            Last::Flushed => {
                volume.write(0, page(2)).await.expect("writes");
                volume.flush().await.expect("flushes");
            }
            Last::Overwritten => volume.write(0, page(2)).await.expect("writes"),
            Last::WrittenLater => {
                volume.write(8192, page(2)).await.expect("writes");
                volume.flush().await.expect("flushes");
                volume.write(0, page(2)).await.expect("writes");
            }
            Last::Zeroed => volume.write_zeroes(0, 4096).await.expect("writes"),
            Last::Discarded => volume.discard(0, 4096).await.expect("discards"),
            Last::WrittenBack => {
                volume.write(0, page(2)).await.expect("writes");
                volume.flush().await.expect("flushes");
                cache.write_back(None).await.expect("writes back");
            }
        }
        // The process dies here.
        let file = file.copy(1);
        let left = Buf::copied(&journal.to_vec());
        let cache = open(&file, &left).await;
        let is_reported = cache.has_failed_flush("v");
        let attached = cache.attach("v", Buffered::open(&durable), VolumeOptions::new(mode));
        let volume = attached.await.expect("attaches");
        assert_eq!(cache.stats().volumes[0].loss.is_some(), is_reported);
        let read = async || {
            let found = Buf::zeroed(4096);
            volume.read(0, found.clone()).await.expect("reads");
            found.to_vec()[0]
        };
        let seen = read().await;
        cache.write_back(None).await.expect("writes back");
        volume.flush().await.expect("flushes");
        let stored = durable.borrow()[0];
        (is_reported, [seen, stored])
    })
}

#[test]
fn unflushed_changes_that_end_with_their_process_are_reported() {
    let through = [
        Mode::WriteThrough,
        Mode::WriteAround,
        Mode::WriteInvalidate,
        Mode::PassThrough,
    ];
    for mode in through {
        assert_eq!(killed(mode, Last::Flushed), (false, [2, 2]), "{mode:?}");
        for last in [
            Last::Overwritten,
            Last::WrittenLater,
            Last::Zeroed,
            Last::Discarded,
        ] {
            // The reader sees what the store has, before and after an eviction.
            assert_eq!(killed(mode, last), (true, [1, 1]), "{mode:?}, {last:?}");
        }
    }
    let back = |last| killed(Mode::WriteBack, last);
    for last in [
        Last::Flushed,
        Last::Overwritten,
        Last::WrittenLater,
        Last::WrittenBack,
    ] {
        assert_eq!(back(last), (false, [2, 2]), "{last:?}");
    }
    plant(Some(Fault::ForgetBuffered));
    let unreported = killed(Mode::WriteThrough, Last::Overwritten);
    plant(None);
    assert!(!unreported.0, "the fault is found");
}

#[test]
fn zeroes_that_only_the_process_has_are_reported_with_write_back() {
    for last in [Last::Zeroed, Last::Discarded] {
        let (is_reported, [seen, stored]) = killed(Mode::WriteBack, last);
        assert!(is_reported || (seen, stored) == (0, 0), "{last:?}");
        assert_eq!(seen, stored, "{last:?}");
    }
}

/// A transit cache over such a device has data of an earlier process, which a client may flush.
#[test]
fn a_first_flush_covers_data_of_earlier_processes() {
    run(&World::new(1), async move |_| {
        let durable = Rc::new(RefCell::new(vec![0; LEN]));
        let (file, journal) = (formatted(1, 4 << 20).await, Buf::zeroed(1 << 16));
        let cache = open(&file, &journal).await;
        let device: Rc<dyn BlockDevice> = Rc::new(Buffered {
            durable: Rc::clone(&durable),
            shown: RefCell::new(vec![1; LEN]),
        });
        let options = VolumeOptions::new(Mode::WriteThrough);
        let volume = cache.attach("v", device, options).await.expect("attaches");
        assert!(!cache.has_failed_flush("v"));
        volume.flush().await.expect("flushes");
        assert_eq!(*durable.borrow(), vec![1; LEN]);
    });
}
