//! Publications by all nodes, which a truncation requests.
//!
//! Their choices have a generator of their own, and half of the lives have none. So a seed without
//! them draws the same life as without this file.

use forebay_io::sim::Rng;

use super::client::Client;
use super::world::{Event, World};
use crate::fault::Fault;

/// Chance of a request before a step, one in this many.
const REQUESTS: u64 = 60;

/// Choices of one life.
pub(super) struct Publications {
    rng: Rng,
    requests: bool,
}

impl Publications {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        let rng = Rng::new(seed ^ (1 << 62));
        let requests = match fault {
            None => rng.chance(1, 2),
            Some(fault) => matches!(fault, Fault::FirstAnswerCounts | Fault::AnswerUnpublished),
        };
        Self { rng, requests }
    }
}

impl World {
    /// Draws a request of a living node that all nodes publish the file.
    pub(super) fn draw_publication(&self, living: &[usize]) -> Option<Event> {
        let Publications { rng, requests } = &self.publications;
        let is_drawn = *requests && !living.is_empty() && rng.chance(1, REQUESTS);
        is_drawn.then(|| Event::PublishAll(living[rng.index(living.len())]))
    }

    /// Begins a request of a node that all nodes publish the file.
    pub(super) fn begin_publication(&mut self, index: usize) {
        self.summary.publications += 1;
        let ticket = self.ticket();
        let client = Client::publish_all(self, index, ticket);
        self.clients.insert(ticket, client);
    }
}
