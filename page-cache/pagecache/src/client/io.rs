//! I/O of the store. Threads of their own execute it, so that neither the thread that receives
//! packets nor the node's mutex waits for the store.

use std::collections::{BTreeMap, VecDeque};

use super::{Client, Link, State};
use crate::message::{NodeId, PageId, Place};
use crate::store::{self, Store};

/// Maximum length of one read or write of the store, bytes.
const RUN_BYTES: usize = 1 << 20;

/// Number of runs of fills that may precede a run of write-backs, which a flush may wait for.
const FILL_RUNS_MAX: u32 = 4;

/// I/O of one page that the node requested.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) page: PageId,
    pub(super) place: Place,
    pub(super) action: Action,
}

/// Action of a [`Job`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Reads the page from the store into the frame.
    Fill,
    /// Stores an unpublished page over the content of the frame, which may have to wait for a store
    /// of another node.
    Merge(Box<[u8]>),
    /// Writes the page to the store if it is dirty.
    WriteBack,
}

impl Job {
    pub(super) const fn new(page: PageId, place: Place, action: Action) -> Self {
        Self {
            page,
            place,
            action,
        }
    }

    /// Returns whether one request of the store can execute both.
    pub(super) fn is_followed_by(&self, next: &Self) -> bool {
        !matches!(self.action, Action::Merge(_))
            && self.action == next.action
            && self.page.inode == next.page.inode
            && self.page.index.checked_add(1) == Some(next.page.index)
    }
}

/// Requested I/O that has not ended.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// Fills for the thread of [`Client::run_fills`], if there is one.
    pub(super) submitted: VecDeque<Job>,
    /// Whether there is such a thread.
    pub(super) submits: bool,
    /// Fills and merges, which programs wait for.
    fills: VecDeque<Job>,
    write_backs: VecDeque<Job>,
    /// Number of runs of fills since the last run of write-backs.
    fill_runs: u32,
    /// Frames whose pages are being written back, with the number of the directory that requested
    /// it.
    writing: BTreeMap<u32, u64>,
    /// Number of directories that this node has rejoined.
    rejoined: u64,
    /// Whether the threads end.
    pub(super) is_over: bool,
}

/// Threads to wake for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    None,
    /// One of those of [`Client::run_io`].
    Io,
    /// That of [`Client::run_fills`].
    Fills,
}

impl Jobs {
    /// Queues a job. Returns the thread to wake for it: none if the job continues a run.
    pub(super) fn push(&mut self, job: Job) -> Woken {
        if self.submits && job.action == Action::Fill {
            self.submitted.push_back(job);
            return Woken::Fills;
        }
        match self.push_io(job) {
            true => Woken::Io,
            false => Woken::None,
        }
    }

    /// Queues a job for the threads of [`Client::run_io`]. Returns whether it begins a run, so that
    /// a thread has to be woken for it.
    pub(super) fn push_io(&mut self, job: Job) -> bool {
        let queue = match job.action {
            Action::Fill | Action::Merge(_) => &mut self.fills,
            Action::WriteBack => &mut self.write_backs,
        };
        let last = queue.back();
        let begins = last.is_none_or(|last| !last.is_followed_by(&job));
        queue.push_back(job);
        begins
    }

    /// Notes that the node has rejoined a new directory. Fills and merges continue. A write-back
    /// that has not begun is dropped, since the new directory requests what it needs.
    pub(super) fn rejoin(&mut self) {
        self.rejoined += 1;
        self.write_backs.clear();
    }

    /// Notes the end of a write-back. Returns whether the current directory requested it.
    fn end_write_back(&mut self, place: Place) -> bool {
        self.writing.remove(&place.frame) == Some(self.rejoined)
    }

    /// Moves the next job, and those for the next pages that directly follow it, into `run`. A
    /// write-back waits for the end of one that a former directory requested for the same frame.
    fn take_run(&mut self, most: usize, run: &mut Vec<Job>) {
        let next = self.write_backs.front();
        let may_write = next.is_some_and(|next| !self.writing.contains_key(&next.place.frame));
        let writes = may_write && (self.fills.is_empty() || self.fill_runs >= FILL_RUNS_MAX);
        let queue = match writes {
            true => &mut self.write_backs,
            false => &mut self.fills,
        };
        while let Some(next) = queue.front() {
            let follows = run.last().is_none_or(|last| last.is_followed_by(next));
            let waits = writes && self.writing.contains_key(&next.place.frame);
            if run.len() == most || waits || !follows {
                break;
            }
            if writes {
                self.writing.insert(next.place.frame, self.rejoined);
            }
            run.extend(queue.pop_front());
        }
        self.fill_runs = match writes {
            true => 0,
            false => self.fill_runs.saturating_add(1),
        };
    }

    /// Returns whether the next jobs continue a run that ends with `last`.
    fn is_followed(&self, last: Option<&Job>) -> bool {
        let follows = |next: &Job| last.is_some_and(|last| last.is_followed_by(next));
        [&self.fills, &self.write_backs]
            .iter()
            .any(|queue| queue.front().is_some_and(follows))
    }
}

impl<S: Store, L: Link> Client<S, L> {
    /// Executes the I/O that the node requests, until [`Client::end_io`]. Each thread that runs
    /// this executes one request at a time. Without such a thread, no page is filled or written
    /// back.
    pub fn run_io(&self) {
        let most = (RUN_BYTES / self.segment.page_size_bytes()).max(1);
        let (mut run, mut scratch) = (Vec::new(), Vec::new());
        let mut state = self.lock_state();
        let id = state.node.id();
        while !state.jobs.is_over {
            state.jobs.take_run(most, &mut run);
            if run.is_empty() {
                state = state.wait(&self.requested);
                continue;
            }
            if let Some(job) = run.first().filter(|job| job.action == Action::WriteBack) {
                state.unsynced.insert(job.page.inode);
            }
            // A run that is too long for one request has woken one thread only.
            let is_cut = state.jobs.is_followed(run.last());
            state.deferred.io += usize::from(is_cut);
            drop(state);
            let done = self.execute(id, &run, &mut scratch);
            state = self.lock_state();
            let State {
                node,
                effects,
                jobs,
                ..
            } = &mut *state;
            for (job, done) in run.drain(..).zip(done) {
                match job.action {
                    Action::Fill => node.filled(job.page, done, effects),
                    Action::Merge(_) => node.merged(job.page, job.place, effects),
                    Action::WriteBack if jobs.end_write_back(job.place) => {
                        node.written_back(job.place, done, effects);
                    }
                    Action::WriteBack => self.requested.notify_all(),
                }
            }
            // If the link is gone, the client is broken or rejoins.
            let _ = self.act(&mut state);
            self.changed.notify_all();
        }
    }

    /// Ends the threads of [`Client::run_io`] after their current requests. No other request is
    /// executed any more.
    pub fn end_io(&self) {
        self.lock_state().jobs.is_over = true;
        self.requested.notify_all();
        if let Some(filler) = self.filler.get() {
            filler.interrupt();
        }
    }

    /// Executes jobs for consecutive pages. Returns whether each succeeded.
    fn execute(&self, id: NodeId, run: &[Job], scratch: &mut Vec<u8>) -> Vec<bool> {
        if self.try_execute(id, run, scratch) {
            return vec![true; run.len()];
        }
        if run.len() == 1 {
            return vec![false];
        }
        // Only those pages fail that the store refuses by themselves.
        let each = run.chunks(1);
        each.map(|job| self.try_execute(id, job, scratch)).collect()
    }

    fn try_execute(&self, id: NodeId, run: &[Job], scratch: &mut Vec<u8>) -> bool {
        let (segment, store) = (&self.segment, &self.store);
        let pages = || -> Vec<_> { run.iter().map(|job| (job.page, job.place)).collect() };
        match run.first().map(|job| (job.place, &job.action)) {
            None => true,
            Some((_, Action::Fill)) => store::fill(segment, store, id, &pages(), scratch).is_ok(),
            Some((place, Action::Merge(bytes))) => {
                while let Err(found) = segment.write(place, id, 0, bytes) {
                    Self::give_way(found);
                }
                true
            }
            Some((_, Action::WriteBack)) => {
                store::write_back(segment, store, &pages(), scratch).is_ok()
            }
        }
    }
}
