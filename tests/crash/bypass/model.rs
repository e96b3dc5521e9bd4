//! The knowledge of clients and of the state directory, and the allowed results of reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Error, ErrorKind};
use forebay_cache::{Mode, RecoveryReport, VolumeOptions};
use forebay_io::rt;

pub(super) const BLOCK: u64 = 4096;
pub(super) const BLOCKS: u64 = 48;
pub(super) const CLIENTS: u64 = 3;

thread_local! {
    /// Planted fault: the state directory does not sync its data.
    pub(super) static UNSYNCED: Cell<bool> = const { Cell::new(false) };
}

/// The state directory.
#[derive(Default)]
pub(super) struct State {
    /// Epoch of the last attachment.
    pub(super) epoch: Cell<u64>,
    /// Dirty ranges at the time when the epoch was raised because the cache had failed.
    pub(super) listed: RefCell<Option<Vec<Range<u64>>>>,
    pub(super) is_synced: Cell<bool>,
    /// Number of failures to come.
    pub(super) failures: Cell<u32>,
}

impl State {
    pub(super) async fn raise(&self, dirty: Vec<Range<u64>>) -> forebay_block::Result<()> {
        rt::sleep(Duration::from_millis(2)).await;
        if self.failures.get() > 0 {
            self.failures.set(self.failures.get() - 1);
            return Err(Error::new(ErrorKind::NoSpace, "state directory: no room"));
        }
        self.listed.replace(Some(dirty));
        if !UNSYNCED.get() {
            rt::sleep(Duration::from_millis(2)).await;
            self.is_synced.set(true);
        }
        Ok(())
    }

    pub(super) fn lose_power(&self) {
        if !self.is_synced.get() {
            self.listed.take();
        }
    }

    /// Whether the cache has nothing that the backing device lacks.
    pub(super) fn lists_nothing(&self) -> bool {
        self.listed.borrow().as_ref().is_some_and(Vec::is_empty)
    }

    pub(super) fn options(&self, mode: Mode) -> VolumeOptions {
        let listed = self.listed.borrow();
        VolumeOptions {
            epoch: self.epoch.get() + u64::from(listed.is_some()),
            written_elsewhere: listed.as_ref().map(|_| Vec::new()),
            dirty_at_failure: listed.clone(),
            ..VolumeOptions::new(mode)
        }
    }

    /// Notes that the volume is attached.
    pub(super) fn forget(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.listed.take();
        self.is_synced.set(false);
    }
}

/// Possible contents of a block.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) now: BTreeSet<u8>,
    /// Contents that are possible after power loss.
    pub(super) later: BTreeSet<u8>,
    /// Whether a change began and did not succeed.
    pub(super) changing: bool,
    /// Whether it was written in a mode that leaves dirty data.
    pub(super) maybe_dirty: bool,
}

impl Known {
    /// Whether the cache reported it lost, and no write followed. Its device may show the lost data
    /// until power loss.
    pub(super) fn is_lost(&self) -> bool {
        self.now.len() > usize::from(u8::MAX)
    }
}

/// The clients' knowledge, by block, and the violations that they saw.
pub(super) struct Seen {
    pub(super) blocks: RefCell<Vec<Known>>,
    pub(super) wrong: RefCell<Vec<String>>,
    /// The current mode of the volume.
    pub(super) mode: Cell<Mode>,
    /// Number of changes to a mode that leaves dirty data.
    pub(super) dirty_modes: Cell<u64>,
}

impl Seen {
    pub(super) fn new() -> Self {
        let blank = Known {
            now: BTreeSet::from([0]),
            later: BTreeSet::from([0]),
            changing: false,
            maybe_dirty: false,
        };
        Self {
            blocks: RefCell::new(vec![blank; BLOCKS as usize]),
            wrong: RefCell::default(),
            mode: Cell::new(Mode::WriteThrough),
            dirty_modes: Cell::new(0),
        }
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
        let count = u64::from(mode.makes_dirty());
        self.dirty_modes.set(self.dirty_modes.get() + count);
    }

    pub(super) fn note(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    pub(super) fn change<T>(&self, block: u64, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.blocks.borrow_mut()[block as usize])
    }

    /// Whether the contract allows an error: it concerns dirty data, or the state directory failed.
    pub(super) fn allows(&self, block: Option<u64>, error: &Error) -> bool {
        let is_dirty = |known: &Known| known.maybe_dirty;
        let dirty = match block {
            Some(block) => self.change(block, |known| known.maybe_dirty),
            None => self.blocks.borrow().iter().any(is_dirty),
        };
        let report = error.report();
        dirty || self.mode.get().makes_dirty() || report.contains("state directory: no room")
    }

    pub(super) fn read(&self, who: &str, block: u64, found: forebay_block::Result<u8>) {
        match found {
            Err(error) if self.allows(Some(block), &error) => {}
            Err(error) => self.note(format!("{who}, block {block}: {}", error.report())),
            Ok(found) => {
                let known = self.change(block, |known| known.clone());
                if !known.now.contains(&found) {
                    self.note(format!(
                        "{who}, block {block}: {found}, not {:?}",
                        known.now
                    ));
                }
                if !known.changing && !known.is_lost() {
                    self.change(block, |known| known.now = BTreeSet::from([found]));
                }
            }
        }
    }

    /// Ranges that the cache reports lost may hold anything.
    pub(super) fn lose(&self, report: &RecoveryReport) {
        for range in &report.lost {
            for block in range.offset / BLOCK..(range.offset + range.len).div_ceil(BLOCK) {
                self.change(block, |known| {
                    known.now = (0..=u8::MAX).collect();
                    known.later.clone_from(&known.now);
                });
            }
        }
    }
}

pub(super) async fn byte_of(volume: &Rc<dyn BlockDevice>, block: u64) -> forebay_block::Result<u8> {
    let found = Buf::zeroed(BLOCK as usize);
    volume.read(block * BLOCK, found.clone()).await?;
    let found = found.to_vec();
    let is_whole = found.iter().all(|byte| *byte == found[0]);
    assert!(is_whole, "block {block} is torn");
    Ok(found[0])
}
