//! Lower bounds of the write-back after the same crashes, by two trackers that no cache can have.
//!
//! They replay the log of a run and know its future. Both know single blocks, put any number of
//! marks into one write of metadata, and forget nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::trackers::{Block, Cost, RECORD_LAG};

/// A block from its placing until it is gone.
type Stay = u32;

/// An event of a run.
#[derive(Clone, Copy, Debug)]
enum Event {
    Placed(Stay),
    /// It turned dirty. The record of a new block says so. Another block must have been announced.
    Dirtied(Stay, bool),
    Cleaned(Stay),
    Removed(Stay),
    Served {
        write: bool,
        now: Duration,
    },
    Crash,
}

/// A run of a cache as trackers see it.
#[derive(Debug, Default)]
pub(crate) struct Log {
    events: Vec<Event>,
    /// By place, who stays there.
    staying: HashMap<u64, Stay>,
    stays: u32,
    writes: u64,
}

/// Results of a tracker of this file.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) warm_up: Cost,
    pub(crate) all: Cost,
    /// Blocks, by crash.
    pub(crate) written_back: Vec<u64>,
    /// Number of clean blocks that the tracker leaves marked.
    pub(crate) clean_marks: usize,
}

impl Log {
    fn stay(&mut self, block: &Block) -> Stay {
        let next = self.stays;
        let stay = *self.staying.entry(block.slots.start).or_insert(next);
        self.stays += u32::from(stay == next);
        stay
    }

    pub(crate) fn placed(&mut self, block: &Block) {
        let stay = self.stay(block);
        self.events.push(Event::Placed(stay));
    }

    pub(crate) fn dirtied(&mut self, block: &Block, fresh: bool) {
        let stay = self.stay(block);
        self.events.push(Event::Dirtied(stay, fresh));
    }

    pub(crate) fn cleaned(&mut self, block: &Block) {
        let stay = self.stay(block);
        self.events.push(Event::Cleaned(stay));
    }

    pub(crate) fn removed(&mut self, block: &Block) {
        let stay = self.stay(block);
        self.events.push(Event::Removed(stay));
        self.staying.remove(&block.slots.start);
    }

    pub(crate) fn served(&mut self, write: bool, now: Duration) {
        self.writes += u64::from(write);
        self.events.push(Event::Served { write, now });
    }

    pub(crate) fn crash(&mut self) {
        self.events.push(Event::Crash);
    }

    /// Runs a tracker that knows the next events. It writes once in `1 / ratio` client writes. Each
    /// write has the dirty blocks and those that will be announced before the next one. No client
    /// waits.
    ///
    /// # Panics
    /// If a client waits.
    pub(crate) fn foresight(&self, ratio: f64, warm_writes: u64) -> Bound {
        let beat = (1.0 / ratio).round() as u64;
        let mut run = Run::new(self, warm_writes);
        run.persist(self.announced_within(0, beat).into_iter());
        for (nth, event) in (1..).zip(&self.events) {
            run.step(*event);
            assert!(run.waiting == 0, "it knew what would come");
            if matches!(event, Event::Served { write: true, .. }) && run.writes.is_multiple_of(beat)
            {
                run.persist(self.announced_within(nth, beat).into_iter());
            }
        }
        run.end(0)
    }

    fn announced_within(&self, from: usize, writes: u64) -> Vec<Stay> {
        let mut left = writes;
        let mut announced = Vec::new();
        for event in &self.events[from..] {
            match event {
                Event::Dirtied(stay, false) => announced.push(*stay),
                Event::Served { write: true, .. } => left -= 1,
                _ => {}
            }
            if left == 0 {
                break;
            }
        }
        announced
    }

    /// Runs a tracker that leaves those blocks marked that turned clean last. It leaves as few as
    /// the ratio permits, which it knows from the whole run. It writes when a client must wait.
    pub(crate) fn recency(&self, ratio: f64, warm_writes: u64) -> Bound {
        let writes = (self.writes - warm_writes) as f64;
        let keeps =
            |bound: &Bound| (bound.all.persists - bound.warm_up.persists) as f64 <= ratio * writes;
        let (mut least, mut most) = (0, self.stays as usize);
        while least < most {
            let middle = usize::midpoint(least, most);
            if keeps(&self.recency_of(middle, warm_writes)) {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        self.recency_of(least, warm_writes)
    }

    fn recency_of(&self, clean_marks: usize, warm_writes: u64) -> Bound {
        let mut run = Run::new(self, warm_writes);
        for event in &self.events {
            run.step(*event);
            if run.waiting > 0 && matches!(event, Event::Served { .. }) {
                // A block that is dirty by its record is written back anyway, and is marked when it
                // turns clean.
                let last = run.order.values().rev().take(clean_marks).chain(&run.dirty);
                let last: Vec<Stay> = last.copied().collect();
                run.persist(last.into_iter());
            }
        }
        run.end(clean_marks)
    }
}

/// State of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    cached: bool,
    dirty: bool,
    marked: bool,
    /// Time until which its record calls it dirty.
    recorded: Option<Duration>,
    /// Number in the order in which blocks turned clean. Zero if it is dirty or never was.
    cleaned: u64,
}

#[derive(Debug)]
struct Run {
    known: Vec<Known>,
    marked: Vec<Stay>,
    announced: BTreeSet<Stay>,
    dirty: BTreeSet<Stay>,
    /// Clean blocks, in the order in which they turned clean.
    order: BTreeMap<u64, Stay>,
    turned: u64,
    now: Duration,
    writes: u64,
    /// Blocks announced by the request that is being served, and not marked.
    waiting: u64,
    warm_writes: u64,
    bound: Bound,
}

impl Run {
    fn new(log: &Log, warm_writes: u64) -> Self {
        Self {
            known: vec![Known::default(); log.stays as usize],
            marked: Vec::new(),
            announced: BTreeSet::new(),
            dirty: BTreeSet::new(),
            order: BTreeMap::new(),
            turned: 0,
            now: Duration::ZERO,
            writes: 0,
            waiting: 0,
            warm_writes,
            bound: Bound {
                warm_up: Cost::default(),
                all: Cost::default(),
                written_back: Vec::new(),
                clean_marks: 0,
            },
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Placed(stay) => self.known[stay as usize].cached = true,
            Event::Dirtied(stay, fresh) => {
                let known = &mut self.known[stay as usize];
                self.order.remove(&known.cleaned);
                (known.dirty, known.cleaned) = (true, 0);
                self.dirty.insert(stay);
                if fresh {
                    known.recorded = Some(Duration::MAX);
                } else {
                    self.announced.insert(stay);
                    self.waiting += u64::from(!known.marked);
                }
            }
            Event::Cleaned(stay) => {
                let known = &mut self.known[stay as usize];
                self.order.remove(&known.cleaned);
                self.turned += 1;
                self.order.insert(self.turned, stay);
                if known.recorded == Some(Duration::MAX) {
                    known.recorded = Some(self.now + RECORD_LAG);
                }
                (known.dirty, known.cleaned) = (false, self.turned);
                self.announced.remove(&stay);
                self.dirty.remove(&stay);
            }
            Event::Removed(stay) => {
                let known = &mut self.known[stay as usize];
                self.order.remove(&known.cleaned);
                self.announced.remove(&stay);
                self.dirty.remove(&stay);
                *known = Known {
                    marked: known.marked,
                    ..Known::default()
                };
            }
            Event::Served { write, now } => {
                self.now = now;
                self.writes += u64::from(write);
                if self.writes <= self.warm_writes {
                    self.bound.warm_up = self.bound.all;
                }
            }
            Event::Crash => {
                let written_back = self.known.iter().filter(|known| self.writes_back(known));
                self.bound.written_back.push(written_back.count() as u64);
            }
        }
    }

    fn writes_back(&self, known: &Known) -> bool {
        let covered = known.marked || known.recorded.is_some_and(|until| until > self.now);
        assert!(covered || !known.dirty, "{known:?} is forgotten");
        known.cached && covered
    }

    /// Writes the dirty blocks and these.
    fn persist(&mut self, besides: impl Iterator<Item = Stay>) {
        self.bound.all.persists += 1;
        self.bound.all.waited += u64::from(self.waiting > 0);
        self.waiting = 0;
        for stay in self.marked.drain(..) {
            self.known[stay as usize].marked = false;
        }
        self.marked.extend(&self.announced);
        self.marked.extend(besides);
        for stay in &self.marked {
            self.known[*stay as usize].marked = true;
        }
        if self.writes <= self.warm_writes {
            self.bound.warm_up = self.bound.all;
        }
    }

    fn end(mut self, clean_marks: usize) -> Bound {
        self.bound.clean_marks = clean_marks;
        self.bound
    }
}
