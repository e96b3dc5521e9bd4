//! Which dirty block is cleaned next: the one that has been dirty longest.

use std::collections::VecDeque;

use crate::SlotId;

/// Dirty slots in the order in which they turned dirty. A slot stands in it at most once, which the
/// caller's own flag says; slots that were cleaned or evicted meanwhile are skipped by the caller.
#[derive(Debug, Default)]
pub struct DirtyQueue {
    queue: VecDeque<SlotId>,
}

impl DirtyQueue {
    /// An empty queue with room for `slots` entries, so that it never grows in service.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(slots),
        }
    }

    /// Adds a slot at the young end.
    pub fn push(&mut self, slot: SlotId) {
        self.queue.push_back(slot);
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<SlotId> {
        self.queue.pop_front()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
