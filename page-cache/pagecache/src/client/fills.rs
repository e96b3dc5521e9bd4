//! Fills by one thread, which has many reads of the store in flight. It continues the operations
//! that wait for their pages.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use super::io::{Job, Jobs};
use super::{Client, Link, State};
use crate::message::NodeId;
use crate::store::{self, Interrupt, Reads, Store};

/// Longest time for which publications wait for other messages while reads are in flight: less than
/// a fill by another node takes.
const PUBLICATION_DELAY: Duration = Duration::from_micros(200);

/// The thread of [`Client::run_fills`], for others.
pub(super) struct Filler {
    /// Whether it waits for reads, or is about to. Otherwise it soon looks for fills and sends
    /// packets.
    waits: AtomicBool,
    /// Whether its wait was interrupted.
    woken: AtomicBool,
    /// Whether there are queued messages that it has to send before it waits.
    urgent: AtomicBool,
    /// Whether there are queued publications.
    publishes: AtomicBool,
    interrupt: Interrupt,
}

impl fmt::Debug for Filler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filler")
    }
}

impl Filler {
    /// Ends its wait, since there are fills: queued before this call.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waits.load(Ordering::Relaxed) && !self.woken.swap(true, Ordering::AcqRel) {
            (self.interrupt)();
        }
    }

    /// Ends its current or next wait.
    pub(super) fn interrupt(&self) {
        (self.interrupt)();
    }

    /// Returns whether it sends the messages that are queued before this call. They are `urgent` if
    /// not all of them are publications.
    pub(super) fn sends(&self, urgent: bool) -> bool {
        let left = match urgent {
            true => &self.urgent,
            false => &self.publishes,
        };
        left.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.waits.load(Ordering::Relaxed)
    }

    /// Begins a wait. The thread then looks for work that was queued before.
    fn begin_wait(&self) {
        self.woken.store(false, Ordering::Relaxed);
        self.waits.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn end_wait(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }
}

/// The end of the thread: it sends no packets any more.
struct End<'a>(&'a Filler);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.begin_wait();
    }
}

/// Fills of the thread.
struct Fills {
    node: NodeId,
    /// Jobs of each read.
    begun: Vec<Vec<Job>>,
    /// Numbers of no read.
    free: Vec<usize>,
    /// Numbers of new reads.
    new: Vec<usize>,
    /// Numbers of reads that have ended, and whether their frames are filled.
    ended: Vec<(usize, bool)>,
    /// Time since which publications are queued.
    publishes_since: Option<Instant>,
}

impl Fills {
    fn new(node: NodeId, capacity: usize) -> Self {
        Self {
            node,
            begun: (0..capacity).map(|_| Vec::new()).collect(),
            free: (0..capacity).rev().collect(),
            new: Vec::new(),
            ended: Vec::new(),
            publishes_since: None,
        }
    }

    /// Takes fills for which there are numbers. Returns whether the threads of
    /// [`Client::run_io`] have to be woken for runs that are too long for a read.
    fn take(&mut self, jobs: &mut Jobs, pages_max: usize) -> usize {
        let mut long = 0;
        while let Some(first) = jobs.submitted.front()
            && let Some(number) = self.free.pop()
        {
            let mut last = first;
            let rest = jobs.submitted.iter().skip(1);
            let rest =
                rest.take_while(|next| std::mem::replace(&mut last, next).is_followed_by(next));
            let len = 1 + rest.count();
            if len <= pages_max {
                self.begun[number].extend(jobs.submitted.drain(..len));
                self.new.push(number);
                continue;
            }
            self.free.push(number);
            for _ in 0..len {
                if let Some(job) = jobs.submitted.pop_front() {
                    long += usize::from(jobs.push_io(job));
                }
            }
        }
        long
    }
}

impl<S: Store, L: Link> Client<S, L> {
    /// Executes fills by the [reads](Store::reads) of the store until [`Client::end_io`], and
    /// continues the operations that wait for their pages. Returns at once if the store has none.
    /// The threads of [`Client::run_io`] execute all other I/O. At most one thread of a client runs
    /// this.
    pub fn run_fills(&self) {
        let Some((mut reads, interrupt)) = self.store.reads() else {
            return;
        };
        let filler = self.filler.get_or_init(|| Filler {
            waits: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            publishes: AtomicBool::new(false),
            interrupt,
        });
        let _end = End(filler);
        let mut state = self.lock_state();
        state.jobs.submits = true;
        let mut fills = Fills::new(state.node.id(), reads.capacity());
        drop(state);
        while self.take_fills(filler, &mut fills, reads.pages_max()) {
            self.begin_fills(&mut fills, &mut *reads);
            let limit = self.send_before_wait(filler, &mut fills);
            let Fills { begun, ended, .. } = &mut fills;
            reads.turn(limit, &mut |number, bytes| {
                let places = begun[number].iter().map(|job| job.place);
                if let Some(bytes) = bytes {
                    store::end_fill(&self.segment, places, bytes);
                }
                ended.push((number, bytes.is_some()));
            });
            filler.end_wait();
            self.end_fills(&mut fills);
        }
        self.link.flush();
    }

    /// Sends messages that other threads have left to this one before its wait. Publications may
    /// wait for other messages while reads are in flight. Returns the limit of the wait.
    fn send_before_wait(&self, filler: &Filler, fills: &mut Fills) -> Option<Duration> {
        let is_urgent = filler.urgent.swap(false, Ordering::Relaxed);
        if !is_urgent {
            if !filler.publishes.load(Ordering::Relaxed) {
                return None;
            }
            let in_flight = fills.begun.len() - fills.free.len();
            let since = fills.publishes_since.get_or_insert_with(Instant::now);
            let left = PUBLICATION_DELAY.saturating_sub(since.elapsed());
            if in_flight > 0 && !left.is_zero() {
                return Some(left);
            }
        }
        filler.publishes.store(false, Ordering::Relaxed);
        fills.publishes_since = None;
        self.link.flush();
        None
    }

    /// Takes requested fills, and begins the thread's wait. Returns false at the end.
    fn take_fills(&self, filler: &Filler, fills: &mut Fills, pages_max: usize) -> bool {
        let mut state = self.lock_state();
        if state.jobs.is_over {
            return false;
        }
        state.deferred.io += fills.take(&mut state.jobs, pages_max);
        // Under the mutex, so that later fills wake the thread.
        filler.begin_wait();
        true
    }

    fn begin_fills(&self, fills: &mut Fills, reads: &mut dyn Reads) {
        if fills.new.is_empty() {
            return;
        }
        let jobs = fills.new.iter().flat_map(|number| &fills.begun[*number]);
        store::begin_fill(
            &self.segment,
            fills.node,
            jobs.map(|job| (job.page, job.place)),
        );
        let Fills {
            begun, new, free, ..
        } = fills;
        let mut refused = Vec::new();
        for number in new.drain(..) {
            let jobs = &mut begun[number];
            let begins = jobs
                .first()
                .is_some_and(|first| reads.begin(number, first.page, jobs.len()));
            if !begins {
                refused.append(jobs);
                free.push(number);
            }
        }
        if !refused.is_empty() {
            let mut state = self.lock_state();
            for job in refused {
                state.deferred.io += usize::from(state.jobs.push_io(job));
            }
        }
    }

    /// Notes the end of fills.
    fn end_fills(&self, fills: &mut Fills) {
        if fills.ended.is_empty() {
            return;
        }
        let mut state = self.lock_state();
        let State {
            node,
            effects,
            jobs,
            deferred,
            ..
        } = &mut *state;
        for (number, is_filled) in fills.ended.drain(..) {
            for job in fills.begun[number].drain(..) {
                match is_filled {
                    true => node.filled(job.page, true, effects),
                    false => deferred.io += usize::from(jobs.push_io(job)),
                }
            }
            fills.free.push(number);
        }
        // If the link is gone, the client is broken or rejoins.
        let _ = self.act(&mut state);
        self.changed.notify_all();
    }
}
