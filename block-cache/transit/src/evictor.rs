//! Evictors: tasks that take the next slot, write it to the device, and continue, until there is
//! nothing to evict.

use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Result};
use forebay_io::rt;

use crate::core::{Core, IDLE};
use crate::parts::{Lap, Part};

impl Core {
    /// Something may have to be evicted.
    pub(crate) fn kick(self: &Rc<Self>) {
        if !self.start_evictor() && self.evictions.evictors.get() == 0 && self.lines.waiting() > 0 {
            // No later event would serve them.
            self.serve_lines();
            if !self.start_evictor() {
                self.release_lines();
            }
        }
    }

    /// Starts an evictor, if there is something to evict and another may be. Whether there is one
    /// more.
    fn start_evictor(self: &Rc<Self>) -> bool {
        let evictions = &self.evictions;
        let more = evictions.evictors.get() < evictions.most && self.next_to_evict().is_some();
        if more {
            evictions.evictors.set(evictions.evictors.get() + 1);
            rt::spawn(Rc::clone(self).evict());
        }
        more
    }

    /// As many evictors as there may be, if there is enough to do.
    pub(crate) fn kick_all(self: &Rc<Self>) {
        for _ in 0..self.evictions.most {
            self.kick();
        }
    }

    async fn evict(self: Rc<Self>) {
        let evictions = &self.evictions;
        loop {
            let lap = Lap::begin();
            let Some(slot) = self.next_to_evict() else {
                break;
            };
            let block = self.slots.borrow_mut().begin(slot);
            self.policy.borrow_mut().began(slot);
            evictions.in_flight.set(evictions.in_flight.get() + 1);
            let at = self.bytes(&(block..block + 1)).start;
            let write = evictions.device.write(at, self.memory.data(slot));
            self.times.end(lap, Part::Queue);
            let result = write.await;
            let lap = Lap::begin();
            evictions.in_flight.set(evictions.in_flight.get() - 1);
            self.evicted_with(slot, block, result);
            self.times.end(lap, Part::Ended);
            // A device that answers at once would have this task run for ever, alone.
            rt::yield_now().await;
        }
        evictions.evictors.set(evictions.evictors.get() - 1);
        self.kick();
    }

    fn evicted_with(&self, slot: u32, block: u64, result: Result<()>) {
        match result {
            Ok(()) => {
                self.memory.retire(slot);
                let mut policy = self.policy.borrow_mut();
                let keep = policy.keeps();
                self.slots.borrow_mut().end(slot, keep);
                policy.left(slot, keep);
                self.counters.add(|stats| stats.evicted += 1);
            }
            Err(error) => {
                self.slots.borrow_mut().fail(slot);
                *self.refusal.borrow_mut() = Some((block, error));
                self.counters.add(|stats| stats.refused += 1);
            }
        }
        self.evicted(block).wake_all();
        self.changed.wake_all();
        let line = self.policy.borrow().line(block);
        self.serve_line(line);
    }

    /// Notes a request, and sees to it that its absence is noticed, too.
    pub(crate) fn requested(self: &Rc<Self>) {
        if !self.uses_idle_time {
            return;
        }
        self.requested_at.set(rt::now());
        if self.watching.replace(true) {
            return;
        }
        let core = Rc::clone(self);
        rt::spawn(async move {
            while !core.is_idle() {
                rt::sleep(IDLE).await;
            }
            core.watching.set(false);
            core.kick();
        });
    }
}
