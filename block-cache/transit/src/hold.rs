//! Evictions that wait until the start is over.
//!
//! A start checks each device before it serves anything. It refuses another device, or an older
//! state of this one. Until then blocks of an earlier process stay in their slots, and reads find
//! them there. The hold ends before that if a request would wait for ever. This is so for a flush,
//! and for a request that needs a block which is held from the earlier process. For a write that
//! waits for room, slots are evicted one after the other.

use std::rc::Rc;

use crate::core::Core;

impl Core {
    /// Has evictions wait. `left_held` are the slots that an earlier process left held.
    pub(crate) fn hold_evictions(&self, left_held: Vec<u32>) {
        self.hold.on.set(true);
        // No write may supersede these before they are on media. Reads need not wait: the range
        // locks do not run yet.
        *self.hold.left_held.borrow_mut() = self.withdraw_left_held(left_held);
    }

    /// Lets evictions begin.
    pub(crate) fn allow_evictions(self: &Rc<Self>) {
        if !self.hold.on.replace(false) {
            return;
        }
        let left_held = self.hold.left_held.take();
        for (_, lock) in &left_held {
            self.range_locks.run(*lock);
        }
        self.write_left_held(left_held);
        self.kick_all();
    }

    /// Ends the hold if a request for `blocks` would wait for slots that were left held.
    pub(crate) fn allow_evictions_for(self: &Rc<Self>, blocks: &std::ops::Range<u64>) {
        if !self.hold.is_on() {
            return;
        }
        let waits = {
            let (slots, left_held) = (self.slots.borrow(), self.hold.left_held.borrow());
            let mut left_held = left_held.iter();
            left_held.any(|(slot, _)| blocks.contains(&slots.block(*slot)))
        };
        if waits {
            self.allow_evictions();
        }
    }

    /// Whether nothing is to be evicted now but what a flush waits for.
    pub(crate) const fn evictions_wait(&self) -> bool {
        self.hold.is_on() && self.lines.waiting() == 0
    }
}
