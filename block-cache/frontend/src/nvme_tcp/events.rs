//! Asynchronous events: what a host is told without having asked for it now (Base 5.2).

use std::cell::{Cell, RefCell};

use forebay_wire::nvme::admin::event;

use super::connection::Connection;
use super::subsystem::Subsystem;

/// Most asynchronous event requests of a controller.
pub(super) const MAX_REQUESTS: usize = 4;

/// What an admin queue knows of its host's wish for events.
#[derive(Default)]
pub(super) struct Events {
    wanted: Cell<u32>,
    /// Told, and the log page that goes with it not read since: nothing more is told till then.
    told: Cell<bool>,
    pending: Cell<bool>,
    /// Namespaces that have changed since the host read which, in rising order.
    changed: RefCell<Vec<u32>>,
    /// What was there when it was last looked at.
    before: RefCell<Option<Seen>>,
}

#[derive(PartialEq, Eq)]
struct Seen {
    generation: u64,
    /// NSIDs with their sizes, bytes.
    sizes: Vec<(u32, u64)>,
}

impl Seen {
    fn of(subsystem: &Subsystem) -> Self {
        let generation = subsystem.generation();
        let namespaces = subsystem.namespaces();
        let sizes = namespaces.iter();
        let sizes = sizes.map(|it| (it.nsid, it.volume.info().size_bytes));
        Self {
            generation,
            sizes: sizes.collect(),
        }
    }
}

impl Events {
    /// The events that the host wants, as a bit each.
    pub(super) const fn wanted(&self) -> u32 {
        self.wanted.get()
    }

    pub(super) fn want(&self, events: u32) {
        self.wanted.set(events);
    }

    /// The host has read what the last event was about.
    pub(super) fn seen(&self) {
        self.told.set(false);
    }

    /// The namespaces that have changed; forgotten if the host `takes` them.
    pub(super) fn changed(&self, takes: bool) -> Vec<u32> {
        if !takes {
            return self.changed.borrow().clone();
        }
        self.seen();
        self.pending.set(false);
        self.changed.take()
    }

    /// Looks at what has changed since the last time, and tells the host if it waits for it.
    pub(super) fn look(&self, connection: &Connection) {
        let (bit, code) = match connection.controller().subsystem() {
            Some(_) => (event::NAMESPACE_CHANGED_BIT, event::NAMESPACE_CHANGED),
            None => (event::DISCOVERY_CHANGED_BIT, event::DISCOVERY_CHANGED),
        };
        let now = match connection.controller().subsystem() {
            Some(subsystem) => Seen::of(subsystem),
            None => Seen {
                generation: connection.exports.generation(),
                sizes: Vec::new(),
            },
        };
        if let Some(before) = self.before.replace(None)
            && before != now
        {
            self.note(&before, &now);
            self.pending.set(true);
        }
        self.before.replace(Some(now));
        let tell = self.pending.get() && !self.told.get() && self.wanted() & bit != 0;
        if tell && connection.slots.tell(code) {
            self.pending.set(false);
            self.told.set(true);
        }
    }

    fn note(&self, before: &Seen, now: &Seen) {
        let mut changed = self.changed.borrow_mut();
        let of = |one: &Seen, other: &Seen| -> Vec<u32> {
            let gone = one.sizes.iter().filter(|it| !other.sizes.contains(it));
            gone.map(|(nsid, _)| *nsid).collect()
        };
        changed.extend(of(before, now));
        changed.extend(of(now, before));
        changed.sort_unstable();
        changed.dedup();
    }
}
