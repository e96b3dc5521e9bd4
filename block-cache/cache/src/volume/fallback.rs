//! A volume's agreement to continue without a cache that has failed in service.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::{BlockDevice, Result};
use forebay_io::sync::Semaphore;

use crate::failpoints::{Fault, planted};

/// In which modes a volume continues at its backing device alone, should its cache fail in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Only in the modes that leave nothing dirty: `wt`, `wa`, `wi` and `pt`. Dirty data of an
    /// earlier mode stays, and a write that touches it is an error.
    CleanModes,
    /// In all modes. A write of whole granules takes the place of dirty data, which the next attach
    /// gives up.
    AllModes,
}

/// State that a volume leaves in its cache when it continues without the cache.
#[derive(Clone)]
pub struct Remains {
    /// The volume's backing device.
    pub backing: Rc<dyn BlockDevice>,
    /// All that is dirty, bytes of the volume in ascending order: no write touches it, and nothing
    /// else in the cache counts any more. None if writes may take the place of dirty data: then
    /// each range is to be logged before it is written.
    pub dirty: Option<Vec<Range<u64>>>,
}

/// The beginning of service without the cache: the device to write to.
type Begun = Pin<Box<dyn Future<Output = Result<Rc<dyn BlockDevice>>>>>;

/// A volume's agreement to continue without its cache.
pub(crate) struct DegradedService {
    fallback: Fallback,
    begin: Box<dyn Fn(Remains) -> Begun>,
    beginning: Semaphore,
    begun: Cell<bool>,
    /// Dirty data that no write may touch, bytes of the volume in ascending order.
    preserved: RefCell<Option<Vec<Range<u64>>>>,
    /// Data that no flush covers, bytes of the volume; none until they are determined.
    owed: RefCell<Option<Vec<Range<u64>>>>,
}

impl std::fmt::Debug for DegradedService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DegradedService")
            .field("fallback", &self.fallback)
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}

impl DegradedService {
    /// Returns an agreement; `begin` raises the epoch, durably, before the first write without the
    /// cache.
    pub(crate) fn new<F>(fallback: Fallback, begin: impl Fn(Remains) -> F + 'static) -> Self
    where
        F: Future<Output = Result<Rc<dyn BlockDevice>>> + 'static,
    {
        Self {
            fallback,
            begin: Box::new(move |remains| Box::pin(begin(remains))),
            beginning: Semaphore::new(1),
            begun: Cell::new(false),
            preserved: RefCell::new(None),
            owed: RefCell::new(None),
        }
    }

    /// Returns the modes in which the volume continues.
    pub(crate) const fn fallback(&self) -> Fallback {
        self.fallback
    }

    /// Returns whether the volume is served without its cache.
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Returns the turn to begin.
    pub(crate) const fn turn(&self) -> &Semaphore {
        &self.beginning
    }

    /// Raises the epoch, or begins the log of ranges. Returns the device to write to.
    pub(crate) fn begin(&self, remains: Remains) -> Begun {
        (self.begin)(remains)
    }

    /// Notes that the volume is served without its cache.
    pub(crate) fn set_begun(&self) {
        self.begun.set(true);
    }

    /// Notes the dirty data that no write may touch; none where writes may take its place.
    pub(crate) fn preserve(&self, dirty: Option<Vec<Range<u64>>>) {
        self.preserved.replace(dirty);
    }

    /// Returns whether no write may touch dirty data.
    pub(crate) fn keeps_dirty(&self) -> bool {
        self.preserved.borrow().is_some()
    }

    /// Returns the start of the first dirty data that must stay in a range of bytes, or `None`.
    pub(crate) fn first_preserved(&self, range: &Range<u64>) -> Option<u64> {
        if planted(Fault::OverwritePreserved) {
            return None;
        }
        let preserved = self.preserved.borrow();
        let preserved = preserved.as_deref().unwrap_or_default();
        let at = preserved.partition_point(|dirty| dirty.end <= range.start);
        let dirty = preserved.get(at).filter(|dirty| dirty.start < range.end)?;
        Some(dirty.start.max(range.start))
    }

    /// Returns whether it is known which data no flush covers.
    pub(crate) fn knows_owed(&self) -> bool {
        self.owed.borrow().is_some()
    }

    /// Notes the data that no flush covers; none if it is not known.
    pub(crate) fn set_owed(&self, owed: Option<Vec<Range<u64>>>) {
        self.owed.replace(owed);
    }

    /// Notes that a range was written without the cache: a flush covers it.
    pub(crate) fn pay(&self, written: &Range<u64>) {
        let mut owed = self.owed.borrow_mut();
        let Some(owed) = owed.as_mut().filter(|owed| !owed.is_empty()) else {
            return;
        };
        *owed = (owed.drain(..))
            .flat_map(|range| {
                let before = range.start..range.end.min(written.start);
                let behind = range.start.max(written.end)..range.end;
                [before, behind].into_iter().filter(|rest| !rest.is_empty())
            })
            .collect();
    }

    /// Returns the first range that no flush covers, and whether there are others.
    pub(crate) fn first_owed(&self) -> Option<(Range<u64>, bool)> {
        let owed = self.owed.borrow();
        let (first, others) = owed.as_ref()?.split_first()?;
        Some((first.clone(), !others.is_empty()))
    }
}
