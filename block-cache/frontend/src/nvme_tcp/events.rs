//! Asynchronous events (Base 5.2).

use std::cell::{Cell, RefCell};

use forebay_wire::nvme::admin::event;

use super::controller::Controller;
use super::export::Exports;
use super::namespaces::Namespaces;
use super::slots::Slots;

/// Maximum number of asynchronous event requests of a controller.
pub(super) const MAX_REQUESTS: usize = 4;

/// Event state of an admin queue.
#[derive(Default)]
pub(super) struct Events {
    wanted: Cell<u32>,
    /// Whether an event was sent and its log page not read since. No further event is sent until
    /// then.
    awaiting_read: Cell<bool>,
    pending: Cell<bool>,
    /// Namespaces that have changed since the host read the list, in rising order.
    changed: RefCell<Vec<u32>>,
    /// State at the last check.
    before: RefCell<Option<Seen>>,
}

#[derive(PartialEq, Eq)]
struct Seen {
    generation: u64,
    /// NSIDs with their sizes, bytes.
    sizes: Vec<(u32, u64)>,
}

impl Seen {
    fn of(namespaces: &Namespaces) -> Self {
        let generation = namespaces.generation();
        let list = namespaces.list();
        let sizes = list.iter();
        let sizes = sizes.map(|it| (it.nsid, it.volume.info().size_bytes));
        Self {
            generation,
            sizes: sizes.collect(),
        }
    }
}

impl Events {
    /// Returns the enabled events, one bit each.
    pub(super) const fn wanted(&self) -> u32 {
        self.wanted.get()
    }

    pub(super) fn want(&self, events: u32) {
        self.wanted.set(events);
    }

    /// Notes that the host has read the log page of the last event.
    pub(super) fn seen(&self) {
        self.awaiting_read.set(false);
    }

    /// Returns the changed namespaces, and clears the list if the host `takes` them.
    pub(super) fn changed(&self, takes: bool) -> Vec<u32> {
        if !takes {
            return self.changed.borrow().clone();
        }
        self.seen();
        self.pending.set(false);
        self.changed.take()
    }

    /// Checks for changes since the last time, and sends an event if the host has a request for it
    /// in `slots`.
    pub(super) fn look(&self, controller: &Controller, exports: &Exports, slots: &Slots) {
        let (bit, code) = match controller.namespaces() {
            Some(_) => (event::NAMESPACE_CHANGED_BIT, event::NAMESPACE_CHANGED),
            None => (event::DISCOVERY_CHANGED_BIT, event::DISCOVERY_CHANGED),
        };
        let now = match controller.namespaces() {
            Some(namespaces) => Seen::of(namespaces),
            None => Seen {
                generation: exports.generation(),
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
        let may_send = self.pending.get() && !self.awaiting_read.get() && self.wanted() & bit != 0;
        if may_send && slots.complete_event(code) {
            self.pending.set(false);
            self.awaiting_read.set(true);
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
