//! The knowledge of clients, and the durable state outside of the cache.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Op, Request};

use super::BLOCK;

/// Durable state outside of the cache.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) epoch: Cell<u64>,
    /// Whether the epoch was raised.
    pub(super) raised: Cell<bool>,
    /// Ranges that were written past the cache.
    pub(super) written: RefCell<Vec<Range<u64>>>,
    /// Ranges that were dirty at that time, if the cache listed them.
    pub(super) dirty: RefCell<Option<Vec<Range<u64>>>>,
}

impl Beside {
    /// Whether a part of a range was written past the cache.
    pub(super) fn touches(&self, range: Range<u64>) -> bool {
        let written = self.written.borrow();
        (written.iter()).any(|other| other.start < range.end && range.start < other.end)
    }
}

/// A backing device that notes its writes.
pub(super) struct Logged {
    pub(super) inner: Rc<dyn BlockDevice>,
    pub(super) beside: Rc<Beside>,
}

impl BlockDevice for Logged {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if !matches!(request.op, Op::Read | Op::Flush) {
            let range = request.offset..request.offset + request.len;
            self.beside.written.borrow_mut().push(range);
        }
        self.inner.submit(request, done);
    }
}

/// Possible contents of a block.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// Contents that a read may return.
    pub(super) now: BTreeSet<u8>,
    /// Contents that are possible after power loss.
    pub(super) later: BTreeSet<u8>,
    /// Whether a change began and did not succeed.
    pub(super) changing: bool,
}

/// The clients' knowledge, by block, and the violations that they saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) blocks: RefCell<Vec<Known>>,
    pub(super) wrong: RefCell<Vec<String>>,
}

impl Seen {
    pub(super) fn note(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    pub(super) fn change<T>(&self, block: u64, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.blocks.borrow_mut()[block as usize])
    }

    pub(super) fn read(&self, block: u64, found: u8) {
        let right = self.change(block, |known| {
            let right = known.now.contains(&found);
            known.now = BTreeSet::from([found]);
            right
        });
        if !right {
            self.note(format!("block {block}: {found} was read"));
        }
    }
}

/// Reads the byte that fills a block.
pub(super) async fn byte_of(volume: Rc<dyn BlockDevice>, block: u64) -> forebay_block::Result<u8> {
    let found = Buf::zeroed(BLOCK as usize);
    volume.read(block * BLOCK, found.clone()).await?;
    let found = found.to_vec();
    assert!(
        found.iter().all(|byte| *byte == found[0]),
        "block {block} is torn"
    );
    Ok(found[0])
}
