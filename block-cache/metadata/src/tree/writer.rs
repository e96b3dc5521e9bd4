//! A tree and the device that it is written to.

use std::cell::{Cell, RefCell, RefMut};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_block::{BlockDevice, Buf, Error, ErrorKind, Result};

use super::load::{Loaded, UnitState, formatted, image};
use super::sector::TreeExtent;
use super::{Adjust, Marked, Priced, Round, Tree, TreeOptions};
use crate::order::{Part, Site, write_fua};
use crate::{Seed, order};

/// Writes a tree's rounds. Lives on one reactor. A task that needs a round and finds none in flight
/// writes it, for all waiting tasks.
pub struct TreeWriter<A = Priced> {
    device: Rc<dyn BlockDevice>,
    extent: TreeExtent,
    seed: Seed,
    tree: RefCell<Tree<A>>,
    units: RefCell<Vec<UnitState>>,
    writing: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    failed: RefCell<Option<Error>>,
}

impl<A> std::fmt::Debug for TreeWriter<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeWriter")
            .field("extent", &self.extent)
            .field("failed", &self.failed.borrow())
            .finish_non_exhaustive()
    }
}

impl<A: Adjust> TreeWriter<A> {
    /// Goes on with a tree that was loaded from this extent.
    #[must_use]
    pub fn new(
        device: Rc<dyn BlockDevice>,
        extent: TreeExtent,
        seed: Seed,
        loaded: Loaded<A>,
    ) -> Self {
        Self {
            device,
            extent,
            seed,
            tree: RefCell::new(loaded.tree),
            units: RefCell::new(loaded.units),
            writing: Cell::new(false),
            waiting: RefCell::default(),
            failed: RefCell::new(None),
        }
    }

    /// Goes on with a tree that was just formatted there, in the same epoch.
    #[must_use]
    pub fn formatted(
        device: Rc<dyn BlockDevice>,
        extent: TreeExtent,
        seed: Seed,
        epoch: u32,
        options: TreeOptions,
        adjuster: A,
    ) -> Self {
        let loaded = Loaded {
            tree: Tree::new(extent.shape, extent.unit_words(), options, adjuster),
            report: super::LoadReport::default(),
            units: formatted(extent, epoch),
        };
        Self::new(device, extent, seed, loaded)
    }

    /// Returns the tree. The borrow must end before any wait.
    ///
    /// # Panics
    /// If the tree is borrowed already.
    pub fn tree(&self) -> RefMut<'_, Tree<A>> {
        self.tree.borrow_mut()
    }

    /// Marks blocks, see [`Tree::mark`], and waits until the mark is durable.
    ///
    /// # Errors
    /// The device's own: then the mark stands in memory, and is to be cleared.
    #[track_caller]
    pub fn mark(&self, blocks: Range<u64>) -> impl Future<Output = Result<()>> + '_ {
        let marked = self.tree.borrow_mut().mark(blocks);
        self.until(Site::here(), marked)
    }

    /// Waits until what was marked is durably so.
    ///
    /// # Errors
    /// The device's own.
    #[track_caller]
    pub fn durable(&self, marked: Marked) -> impl Future<Output = Result<()>> + '_ {
        self.until(Site::here(), marked)
    }

    async fn until(&self, site: Site, marked: Marked) -> Result<()> {
        match marked {
            Marked::After(round) if !site.lacks(Part::Wait) => self.reach(round).await,
            _ => Ok(()),
        }
    }

    /// Bytes of a unit, which a persist writes.
    #[must_use]
    pub const fn unit_bytes(&self) -> u32 {
        self.extent.unit_bytes
    }

    /// Waits until a round is durable. Writes earlier rounds that no other task writes.
    ///
    /// # Errors
    /// The error that ended the writing of rounds.
    pub async fn reach(&self, round: u64) -> Result<()> {
        while self.tree.borrow().durable_round() < round {
            self.check()?;
            if self.writing.get() {
                self.wait().await;
            } else {
                self.write_round().await?;
            }
        }
        Ok(())
    }

    /// Adjusts the tree (see [`Tree::adjust`]) and writes what the ratio leaves room for. For a
    /// timer.
    ///
    /// # Errors
    /// The error that ended the writing of rounds.
    pub async fn tick(&self, now: Duration, writes: u64, persists: u64) -> Result<()> {
        self.tree.borrow_mut().adjust(now, writes, persists);
        self.finish_rounds().await
    }

    /// Makes media cover exactly the dirty blocks, for a clean end. No block may be marked any
    /// more.
    ///
    /// # Errors
    /// The error that ended the writing of rounds.
    pub async fn close(&self) -> Result<()> {
        self.tree.borrow_mut().tighten();
        self.finish_rounds().await
    }

    /// Rewrites both copies of each unit, durably, one after the other: media may hold neither.
    ///
    /// # Errors
    /// The error that ended the writing of rounds.
    pub async fn rewrite(&self) -> Result<()> {
        while self.writing.get() {
            self.wait().await;
        }
        self.check()?;
        self.writing.set(true);
        let unfinished = Unfinished {
            writer: self,
            round: None,
            has_ended: false,
        };
        let mut result = Ok(());
        for _ in 0..2 {
            if result.is_ok() {
                let parts = (0..self.extent.units()).map(|unit| self.next_copy(unit));
                let parts: Vec<_> = parts.collect();
                result = order::write_durably(&*self.device, parts).await;
            }
        }
        unfinished.end(result)
    }

    async fn finish_rounds(&self) -> Result<()> {
        loop {
            self.check()?;
            if self.writing.get() {
                self.wait().await;
            } else if !self.tree.borrow().is_due() || !self.write_round().await? {
                return Ok(());
            }
        }
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Waits for the round under way to end.
    async fn wait(&self) {
        let mut waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Writes a round, if there is one.
    async fn write_round(&self) -> Result<bool> {
        let Some(round) = self.tree.borrow_mut().begin_round() else {
            return Ok(false);
        };
        self.writing.set(true);
        let unfinished = Unfinished {
            writer: self,
            round: Some(round),
            has_ended: false,
        };
        let round = unfinished.round.as_ref().expect("it was put there");
        let result = match Site::here().lacks(Part::Step) {
            true => Ok(()),
            false => self.write_units(round).await,
        };
        unfinished.end(result)?;
        Ok(true)
    }

    /// Puts the copy of a unit together that does not count. Then it does.
    fn next_copy(&self, unit: u32) -> (u64, Buf) {
        let (tree, mut units) = (self.tree.borrow(), self.units.borrow_mut());
        let state = &mut units[unit as usize];
        state.copy = 1 - state.copy;
        state.sequence += 1;
        let words = tree.unit(unit);
        let image = image(self.extent, self.seed, unit, state.sequence, words);
        (self.extent.at(unit, state.copy), image)
    }

    async fn write_units(&self, round: &Round) -> Result<()> {
        let mut parts: Vec<_> = (round.units().iter())
            .map(|unit| self.next_copy(*unit))
            .collect();
        let info = self.device.info();
        match parts.len() {
            0 => Ok(()),
            _ if !info.volatile_cache => order::write_all(&*self.device, parts).await,
            1 if info.fua => {
                let (offset, image) = parts.remove(0);
                write_fua(&*self.device, offset, image).await
            }
            _ => order::write_durably(&*self.device, parts).await,
        }
    }
}

/// Units that are being written: those of a round, or all of them. If this is dropped before the
/// end, their content is unknown.
struct Unfinished<'a, A: Adjust> {
    writer: &'a TreeWriter<A>,
    round: Option<Round>,
    has_ended: bool,
}

impl<A: Adjust> Unfinished<'_, A> {
    fn end(mut self, result: Result<()>) -> Result<()> {
        self.has_ended = true;
        self.writer.end(self.round.take(), &result);
        result
    }
}

impl<A: Adjust> Drop for Unfinished<'_, A> {
    fn drop(&mut self) {
        if !self.has_ended {
            let dropped = "the task that wrote a round of the bit-tree was dropped";
            let error = Error::new(ErrorKind::ShuttingDown, dropped);
            self.writer.end(self.round.take(), &Err(error));
        }
    }
}

impl<A: Adjust> TreeWriter<A> {
    fn end(&self, round: Option<Round>, result: &Result<()>) {
        if let Err(error) = result {
            let extent = self.extent;
            let context = format!(
                "the bit-tree of volume {} on {}: no blocks can be marked until the cache is \
                 opened again",
                extent.volume,
                self.device.info().name
            );
            *self.failed.borrow_mut() = Some(error.clone().context(context));
        }
        if let Some(round) = round {
            self.tree.borrow_mut().finish_round(round, result.is_ok());
        }
        self.writing.set(false);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }
}
