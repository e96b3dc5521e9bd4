//! Operations whose programs do not wait any more.

use super::{Node, Ticket};

impl Node {
    /// Notes that no program waits for an operation on a page, or for a flush, write-back or close.
    /// No effect names its ticket any more. The requests stay in progress: a page that is being
    /// filled is mapped, and a written page is published and written back. A leave and a lock
    /// cannot be cancelled.
    pub fn cancel(&mut self, ticket: Ticket) {
        for pending in self.pending.values_mut() {
            pending.waiting.retain(|waiting| *waiting != ticket);
        }
        for unpublished in self.unpublished.values_mut() {
            unpublished.writer = unpublished.writer.filter(|writer| *writer != ticket);
        }
        self.cancel_sync(ticket);
    }

    /// Returns the number of pages that a flush, write-back or close still waits for.
    #[must_use]
    pub fn awaited_pages(&self, ticket: Ticket) -> usize {
        let syncs = self.syncs.iter();
        let mut awaited = syncs.filter_map(|sync| sync.awaited_by(ticket));
        awaited.next().unwrap_or(0)
    }
}
