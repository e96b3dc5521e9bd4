//! I/O of the store. Threads of their own execute it, so that neither the thread that receives
//! packets nor the node's mutex waits for the store.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::{Client, Link, State};
use crate::message::{NodeId, PageId, Place};
use crate::store::{self, Store};

/// I/O that the node requested.
#[derive(Debug)]
pub(super) enum Job {
    /// Reads the page from the store into the frame.
    Fill { page: PageId, place: Place },
    /// Stores an unpublished page over the content of the frame, which may have to wait for a store
    /// of another node.
    Merge {
        page: PageId,
        place: Place,
        bytes: Box<[u8]>,
    },
    /// Writes the page to the store if it is dirty.
    WriteBack { page: PageId, place: Place },
}

/// Requested I/O that has not ended.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    waiting: VecDeque<Job>,
    running: usize,
    /// Whether the threads end.
    is_over: bool,
}

impl Jobs {
    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

impl<S: Store, L: Link> Client<S, L> {
    /// Executes the I/O that the node requests, until [`Client::end_io`]. Each thread that runs
    /// this executes one request at a time. Without such a thread, no page is filled or written
    /// back.
    pub fn run_io(&self) {
        let mut scratch = vec![0; self.segment.page_size_bytes()];
        let mut state = self.lock_state();
        let id = state.node.id();
        while !state.jobs.is_over {
            let Some(job) = state.jobs.waiting.pop_front() else {
                let woken = self.requested.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.jobs.running += 1;
            drop(state);
            let done = self.execute(id, &job, &mut scratch);
            state = self.lock_state();
            state.jobs.running -= 1;
            let State { node, effects, .. } = &mut *state;
            match job {
                Job::Fill { page, .. } => node.filled(page, done, effects),
                Job::Merge { page, place, .. } => node.merged(page, place, effects),
                Job::WriteBack { place, .. } => node.written_back(place, done, effects),
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
    }

    /// Executes a request. Returns whether it succeeded.
    fn execute(&self, id: NodeId, job: &Job, scratch: &mut [u8]) -> bool {
        let (segment, store) = (&self.segment, &self.store);
        match job {
            Job::Fill { page, place } => {
                store::fill(segment, store, id, *page, *place, scratch).is_ok()
            }
            Job::Merge { place, bytes, .. } => {
                while let Err(found) = segment.write(*place, id, 0, bytes) {
                    Self::give_way(found);
                }
                true
            }
            Job::WriteBack { page, place } => {
                store::write_back(segment, store, *page, *place, scratch).is_ok()
            }
        }
    }
}
