//! Background write-back, a store that stalls, and operations whose time limit ends.
//!
//! Their choices have a generator of their own, and each life has some of them only. So a seed
//! without them draws the same life as without this file.

use std::time::Duration;

use forebay_io::sim::Rng;

use super::client::Client;
use super::work::Work;
use super::world::{Event, World};
use crate::fault::Fault;
use crate::node::Ticket;

/// Chance of a round of write-back before a step, one in this many.
const ROUNDS: u64 = 60;
/// Maximum age of a write that a round leaves, steps.
const EXPIRY_STEPS: u64 = 200;
/// Chance of a stall of the store before a step, one in this many.
const STALLS: u64 = 150;
/// Maximum number of steps of a stall.
const STALL_STEPS: u64 = 300;
/// Chance of the end of the directory before a step of a stall, one in this many.
const CRASHES: u64 = 60;
/// Chance that an operation gives up before a step of a stall, one in this many.
const LIMITS: u64 = 15;

/// Rounds of write-back, stalls and time limits of one life.
pub(super) struct Pace {
    rng: Rng,
    writes_back: bool,
    stalls: bool,
    /// Step at which the current stall ends.
    stalled_until: u64,
}

impl Pace {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        let rng = Rng::new(!seed);
        // Without write-back, more data is lost and has to be reported.
        let writes_back = rng.chance(1, 2) && fault != Some(Fault::UnreportedLoss);
        let stalls = rng.chance(1, 2);
        Self {
            rng,
            writes_back,
            stalls,
            stalled_until: 0,
        }
    }
}

impl World {
    /// Returns whether the store executes nothing now.
    pub(super) fn is_stalled(&self) -> bool {
        self.now < self.pace.stalled_until
    }

    /// Returns whether the work may be executed now.
    pub(super) fn may_execute(&self, work: &Work) -> bool {
        let overlaps = self.fault == Some(Fault::WriteBackOverlaps);
        let waits = self.work.iter().any(|other| work.waits_for(other)) && !overlaps;
        !(waits || (self.is_stalled() && work.uses_store()))
    }

    /// Ends a stall. Returns whether there was one.
    pub(super) fn end_stall(&mut self) -> bool {
        let stalled = self.is_stalled();
        self.pace.stalled_until = self.now;
        stalled
    }

    /// Draws a round of write-back or the end of a time limit. May begin a stall.
    pub(super) fn draw_pace(&mut self, living: &[usize]) -> Option<Event> {
        let stalled = self.is_stalled();
        let Pace {
            rng,
            writes_back,
            stalls,
            stalled_until,
        } = &mut self.pace;
        if *writes_back && !living.is_empty() && rng.chance(1, ROUNDS) {
            return Some(Event::Round(living[rng.index(living.len())]));
        }
        if *stalls && !stalled && rng.chance(1, STALLS) {
            *stalled_until = self.now + 1 + rng.below(STALL_STEPS);
            self.summary.stalls += 1;
        }
        // Its I/O is in progress when the nodes find the next one.
        if stalled && self.crashes_left > 0 && rng.chance(1, CRASHES) {
            self.crashes_left -= 1;
            return Some(Event::Crash);
        }
        if stalled && rng.chance(1, LIMITS) {
            let waiting = self.clients.iter();
            let waiting = waiting.filter(|(_, client)| client.may_give_up());
            let waiting: Vec<Ticket> = waiting.map(|(ticket, _)| *ticket).collect();
            return (!waiting.is_empty()).then(|| Event::GiveUp(waiting[rng.index(waiting.len())]));
        }
        None
    }

    /// Begins a round of a node, and the write-back of the files that it names.
    pub(super) fn begin_round(&mut self, index: usize) {
        let rng = &self.pace.rng;
        let (expiry, most) = (rng.below(EXPIRY_STEPS), rng.index(8));
        let node = &mut self.peers[index].node;
        // A step takes a millisecond.
        node.set_time(Duration::from_millis(self.now));
        if rng.chance(1, 2) {
            let mut effects = Vec::new();
            let found = node.share().into_iter().flatten();
            let found = found.filter_map(|frame| self.segment.unsaved(frame));
            for (page, place) in found {
                node.adopt(page, place, Duration::ZERO, &mut effects);
            }
            self.apply(index, effects);
        }
        let node = &mut self.peers[index].node;
        for inode in node.expired(Duration::from_millis(expiry), most) {
            self.summary.write_backs += 1;
            let ticket = self.ticket();
            let client = Client::write_back(self, index, ticket, inode);
            self.clients.insert(ticket, client);
        }
    }

    /// Ends an operation that waits, as at its time limit.
    pub(super) fn give_up(&mut self, ticket: Ticket) {
        self.summary.given_up += 1;
        let client = self.clients.remove(&ticket).expect("it is there");
        self.peers[client.node].node.cancel(ticket);
    }
}
