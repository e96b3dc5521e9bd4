//! The failure of the cache, and the doubt about slots that a failed flush or write leaves.

use forebay_block::{Error, ErrorKind};
use forebay_policy::BlockId;

use super::Committer;
use crate::map::{FIRST, LIVE, NO_RECORD, Slot, TRACED, UNFLUSHED, UNKNOWN};

impl Committer {
    /// Stops taking writes, for good: what follows is an answer to `error`.
    pub(crate) fn fail(&self, error: Error) {
        if self.is_alive() {
            let volumes = self.volumes.all();
            let names = |goes_on: bool| -> Vec<&str> {
                let named = volumes.iter();
                let named = named.filter(|volume| volume.falls_back() == goes_on);
                named.map(|volume| &*volume.name).collect()
            };
            tracing::error!(
                error = %error.report(),
                go_on = names(true).join(", "),
                refuse_writes = names(false).join(", "),
                "the cache device failed: volumes go on at their backing devices, or refuse writes until restart, as named; dirty data that cannot be read is an error"
            );
        }
        let error = Error::with_source(
            ErrorKind::Io,
            "the cache stopped taking writes after its device failed: restart to recover",
            error,
        );
        if self.flush_failed.get() {
            self.give_up_unflushed();
        }
        self.failed.borrow_mut().get_or_insert(error);
        self.alive.set(false);
        self.done.wake_all();
        self.on_failure.borrow().iter().for_each(|hook| hook());
    }

    /// After a failed flush: names what was written since the last good one in the process journal,
    /// where the next process finds it. It reports what was dirty as lost; of these, entries of
    /// fresh writes are there already, and what was overwritten in place is added. What is clean
    /// the backing device has as well, and the next process forgets: a mark may have it take what
    /// is older for dirty.
    ///
    /// With `sync`, nothing of that was acknowledged, and what was written for the first time hides
    /// nothing: what was there before is on the backing device. What was overwritten in place is
    /// named all the same, in other words.
    fn give_up_unflushed(&self) {
        let mut written = std::mem::take(&mut *self.unflushed.borrow_mut());
        // Where the journal has no room for all, what is dirty comes first.
        written.sort_by_key(|slot| self.map.borrow().slot(*slot).dirty == 0);
        let stamp = self.log.borrow().next();
        let mut journal = self.journal.borrow_mut();
        let mut unnamed = 0_u64;
        for slot in written {
            let entry = self.map.borrow().slot(slot);
            if !entry.has(LIVE) {
                continue;
            }
            // What is clean is on the backing device as well, and is read there.
            self.map.borrow_mut().set(slot, entry.dirty, entry.dirty);
            self.map.borrow_mut().add_flags(slot, UNFLUSHED);
            if entry.dirty == 0 && entry.record_at == NO_RECORD
                || self.is_sync() && self.hides_nothing(&entry)
            {
                continue;
            }
            match &mut *journal {
                Some(journal) if journal.room() > 0 => {
                    journal.append(stamp, self.dirty_record(slot));
                }
                _ => {
                    unnamed += 1;
                    tracing::error!(
                        volume = entry.key.volume(),
                        block = entry.key.block(),
                        dirty = entry.dirty != 0,
                        "a block that no flush covered may be lost, or be older after a restart"
                    );
                }
            }
        }
        if let Some(journal) = &mut *journal {
            journal.poison(self.is_sync());
        }
        if unnamed > 0 {
            tracing::error!(
                blocks = unnamed,
                "named above: the process journal had no room"
            );
        }
    }

    /// Whether no durable record speaks of a slot, nor the process journal: what was there before
    /// is on the backing device.
    fn hides_nothing(&self, entry: &Slot) -> bool {
        let first = || entry.has(FIRST) && self.log.borrow().in_flight(entry.record_at);
        !entry.has(TRACED) || entry.record_at != NO_RECORD && first()
    }

    /// Whether nobody knows what a slot holds: it was written to, and then a flush of the cache
    /// device failed, or the cache.
    pub(crate) fn is_in_doubt(&self, slot: BlockId) -> bool {
        self.flush_failed.get()
            && (self.map.borrow().has(slot, UNFLUSHED) || self.covered.borrow().contains(&slot))
            || self.unknown.get() && self.map.borrow().has(slot, UNKNOWN)
    }

    /// What a failed write left of clean granules was to be dropped, and the cache failed before a
    /// record said so: an older one may have the next process take them for dirty. Until then they
    /// are neither old nor new.
    pub(crate) fn leave_in_doubt(&self, slot: BlockId, granules: u64) {
        self.unknown.set(true);
        self.doubts.set(true);
        let mut map = self.map.borrow_mut();
        let entry = map.slot(slot);
        map.set(slot, entry.valid | granules, entry.dirty | granules);
        map.add_flags(slot, UNKNOWN);
    }

    /// Waits for a flush of the cache device that is in flight, so that it is known whether it
    /// failed: what it should have covered may be gone before that is told.
    pub(crate) async fn flush_in_flight(&self) {
        if self.devices.data_is_volatile() {
            self.flushing.acquire(1).await;
            self.flushing.release(1);
        }
    }

    /// A flush of the metadata device failed: the data is in doubt if it lies on the same device.
    pub(crate) fn metadata_flush_failed(&self) {
        if self.devices.is_one() {
            self.set_flush_failed();
        }
    }
}
