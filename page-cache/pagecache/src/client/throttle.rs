//! Limits of dirty pages: above the background limit all are written back, and above the hard limit
//! writers wait.

use std::time::{Duration, Instant};

use super::{Client, Link, State};
use crate::store::Store;

/// Limits of a node's dirty pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirtyLimits {
    /// Number of dirty pages above which all are written back.
    background_pages: usize,
    /// Longest wait of an operation.
    patience: Duration,
}

/// Waits of one operation that writes.
#[derive(Debug)]
pub struct Throttle<'a, S: Store, L: Link> {
    client: &'a Client<S, L>,
    /// Rest of the longest wait.
    left: Duration,
}

impl DirtyLimits {
    pub(super) const NONE: Self = Self {
        background_pages: usize::MAX,
        patience: Duration::ZERO,
    };

    /// Returns the number of dirty pages above which writers wait.
    const fn hard_pages(&self) -> usize {
        self.background_pages.saturating_mul(2)
    }
}

impl State {
    fn is_dirty_above(&mut self, pages: usize) -> bool {
        self.node.dirty().pages > pages
    }
}

impl<S: Store, L: Link> Client<S, L> {
    /// Limits this node's dirty pages. The caller writes all back above `background_pages`
    /// ([`Client::wait_dirty`]). Above twice as many, an operation that writes waits, at most for
    /// `patience`.
    pub fn limit_dirty(&self, background_pages: usize, patience: Duration) {
        self.lock_state().dirty_limits = DirtyLimits {
            background_pages,
            patience,
        };
    }

    /// Waits until writers have made more pages dirty than the background limit, at most for
    /// `longest`, or until [`Client::end_flushes`].
    pub fn wait_dirty(&self, longest: Duration) {
        let begin = Instant::now();
        let mut state = self.lock_state();
        loop {
            let left = longest.saturating_sub(begin.elapsed());
            let background_pages = state.dirty_limits.background_pages;
            if left.is_zero() || state.flushes_are_over || state.is_dirty_above(background_pages) {
                return;
            }
            state = state.wait_timeout(&self.dirtied, left);
        }
    }

    /// Returns the waits of an operation that writes. The caller must not have a file alone while
    /// it waits.
    pub fn throttle(&self) -> Throttle<'_, S, L> {
        let left = self.lock_state().dirty_limits.patience;
        Throttle { client: self, left }
    }
}

impl<S: Store, L: Link> Throttle<'_, S, L> {
    /// Waits, after a write, while this node has more dirty pages than the hard limit.
    pub fn wait(&mut self) {
        let client = self.client;
        let mut state = client.lock_state();
        let limits = state.dirty_limits;
        if !state.is_dirty_above(limits.background_pages) {
            return;
        }
        client.dirtied.notify_all();
        let (begin, patience) = (Instant::now(), self.left);
        while state.broken.is_none()
            && !self.left.is_zero()
            && state.is_dirty_above(limits.hard_pages())
        {
            state = state.wait_timeout(&client.changed, self.left);
            self.left = patience.saturating_sub(begin.elapsed());
        }
    }
}
