//! The simulated store.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_io::sync::WaitList;

use crate::format::{PIPELINE, log_name, seq_of};
use crate::store::{Answer, Creation, Listed, Progress, Store};

/// Faults of a store, as chances of 1000.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    /// An operation fails.
    pub(super) failure: u64,
    /// An operation without an answer, or a repeated one, takes effect late.
    pub(super) late: u64,
    /// Longest time of an operation, ms.
    pub(super) longest_ms: u64,
}

/// An effect.
#[derive(Clone, Debug)]
enum Effect {
    Create(String, Bytes),
    Delete(String),
}

/// The store. It outlives the executors of its users.
#[derive(Debug)]
pub(super) struct Shelf {
    objects: RefCell<BTreeMap<String, Bytes>>,
    /// Effects that come later, or never.
    late: RefCell<Vec<Effect>>,
    rng: Rng,
    profile: Profile,
}

impl Shelf {
    pub(super) fn new(seed: u64, profile: Profile) -> Rc<Self> {
        Rc::new(Self {
            objects: RefCell::default(),
            late: RefCell::default(),
            rng: Rng::labelled(seed, 1),
            profile,
        })
    }

    fn apply(&self, effect: Effect) -> Creation {
        let mut objects = self.objects.borrow_mut();
        match effect {
            Effect::Create(name, _) if objects.contains_key(&name) => return Creation::Exists,
            Effect::Create(name, content) => objects.insert(name, content),
            Effect::Delete(name) => objects.remove(&name),
        };
        Creation::Created
    }

    /// Lets a late effect happen, or not.
    fn stir(&self) {
        if !self.late.borrow().is_empty() && self.rng.chance(1, 6) {
            let index = self.rng.index(self.late.borrow().len());
            let effect = self.late.borrow_mut().swap_remove(index);
            self.apply(effect);
        }
    }

    /// Loses an object of the log that has to be replayed, and whose loss a later object proves.
    /// Returns its name and content.
    pub(super) fn lose_object(&self, rng: &Rng) -> Option<(String, Bytes)> {
        let (covered, log) = (self.covered(), self.places("log/"));
        let last = log.last().copied()?;
        let replayed = |seq: &u64| *seq > covered && *seq + PIPELINE <= last;
        let replayed: Vec<_> = log.into_iter().filter(replayed).collect();
        if replayed.is_empty() {
            return None;
        }
        let name = log_name(replayed[rng.index(replayed.len())]);
        let content = self.objects.borrow_mut().remove(&name)?;
        Some((name, content))
    }

    /// Returns the places of objects of the log or of checkpoints, in ascending order.
    fn places(&self, prefix: &str) -> Vec<u64> {
        let objects = self.objects.borrow();
        let names = objects.keys().filter(|name| name.starts_with(prefix));
        names.filter_map(|name| seq_of(name)).collect()
    }

    /// Returns the place of the newest checkpoint, or 0.
    pub(super) fn covered(&self) -> u64 {
        self.places("map/").last().copied().unwrap_or(0)
    }

    /// Brings an object back that was lost. Returns false if it is there already.
    pub(super) fn restore_object(&self, (name, content): (String, Bytes)) -> bool {
        self.apply(Effect::Create(name, content)) == Creation::Created
    }

    fn may_be_late(&self, effect: Effect) {
        if self.rng.chance(self.profile.late, 1000) {
            self.late.borrow_mut().push(effect);
        }
    }
}

/// The line of one user to the store.
#[derive(Debug)]
pub(super) struct Line {
    shelf: Rc<Shelf>,
    is_held: Cell<bool>,
    is_cut: Cell<bool>,
    released: WaitList,
}

/// Has an effect late if its caller ends.
struct Pending<'a> {
    shelf: &'a Shelf,
    effect: Option<Effect>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(effect) = self.effect.take() {
            self.shelf.may_be_late(effect);
        }
    }
}

impl Line {
    pub(super) fn new(shelf: &Rc<Shelf>) -> Rc<Self> {
        Rc::new(Self {
            shelf: Rc::clone(shelf),
            is_held: Cell::new(false),
            is_cut: Cell::new(false),
            released: WaitList::new(),
        })
    }

    /// Holds or releases everything on the line.
    pub(super) fn hold(&self, is_held: bool) {
        self.is_held.set(is_held);
        self.released.wake_all();
    }

    /// Cuts or repairs the line.
    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.set(is_cut);
    }

    async fn pass(&self) {
        let longest = self.shelf.profile.longest_ms;
        // Most operations are short.
        let longest = if self.shelf.rng.chance(1, 8) {
            longest
        } else {
            longest / 8
        };
        let ms = self.shelf.rng.below(longest + 1);
        rt::sleep(Duration::from_millis(ms)).await;
        self.released.until(|| !self.is_held.get()).await;
    }

    fn fails(&self) -> Result<()> {
        let fails = self.shelf.rng.chance(self.shelf.profile.failure, 1000);
        match fails || self.is_cut.get() {
            true => Err(Error::new(ErrorKind::Io, "the line failed")),
            false => Ok(()),
        }
    }

    /// Runs an operation without a change.
    async fn ask<T>(&self, answer: impl FnOnce(&BTreeMap<String, Bytes>) -> T) -> Result<T> {
        self.pass().await;
        self.shelf.stir();
        self.fails()?;
        let answer = answer(&self.shelf.objects.borrow());
        self.pass().await;
        self.fails()?;
        Ok(answer)
    }

    async fn change(&self, effect: Effect) -> Result<Creation> {
        let shelf = &*self.shelf;
        let mut pending = Pending {
            shelf,
            effect: Some(effect.clone()),
        };
        self.pass().await;
        shelf.stir();
        self.fails()?;
        let outcome = shelf.apply(effect.clone());
        pending.effect = None;
        if matches!(effect, Effect::Create(..)) {
            shelf.may_be_late(effect);
        }
        self.pass().await;
        self.fails()?;
        Ok(outcome)
    }
}

impl Store for Line {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        Box::pin(self.change(Effect::Create(name.to_owned(), content)))
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        Box::pin(async move {
            let content = self.ask(|objects| objects.get(name).cloned()).await?;
            let content = content.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("there is no object {name}"))
            })?;
            let len = content.len() as u64;
            let (start, end) = (bytes.start.min(len), bytes.end.min(len));
            Ok(content.slice(start as usize..end as usize))
        })
    }

    fn list_with<'a>(&'a self, prefix: &'a str, _: Progress) -> Answer<'a, Vec<Listed>> {
        Box::pin(self.ask(move |objects| {
            let from = objects.range(prefix.to_owned()..);
            let listed = from.take_while(|(name, _)| name.starts_with(prefix));
            let listed = listed.map(|(name, content)| Listed {
                name: name.clone(),
                bytes: content.len() as u64,
            });
            listed.collect()
        }))
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.change(Effect::Delete(name.to_owned())).await?;
            Ok(())
        })
    }
}
