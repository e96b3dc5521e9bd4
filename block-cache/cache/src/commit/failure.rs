//! The failure of the cache, and the doubt about blocks that a failed flush or write leaves.

use forebay_block::{Error, ErrorKind};
use forebay_policy::BlockId;

use super::Committer;
use crate::map::{BlockState, FIRST, LIVE, NO_RECORD, TRACED, UNFLUSHED, UNKNOWN};

impl Committer {
    /// Stops taking writes for good. All later writes fail with `error`.
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
                "the cache device failed: the named volumes continue without the cache, or refuse \
                 writes until restart"
            );
        }
        let error = Error::with_source(
            ErrorKind::Io,
            "the cache has failed\nhelp: restart to recover",
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

    /// Names, after a failed flush, the data written since the last good one. The names go to the
    /// process journal, where the next process finds them.
    ///
    /// The next process reports dirty data among it as lost. The journal already has the entries of
    /// fresh writes; entries of overwrites in place are added. The backing device has the clean
    /// data as well, and the next process drops its copy. Otherwise a mark might make it take an
    /// older version for dirty.
    ///
    /// With `sync`, none of that data was acknowledged. Fresh writes hide nothing then, since the
    /// backing device has the earlier data. Overwrites in place are reported all the same, with
    /// another message.
    fn give_up_unflushed(&self) {
        let mut written = std::mem::take(&mut *self.unflushed.borrow_mut());
        // If the journal lacks room for all entries, dirty data comes first.
        written.sort_by_key(|id| self.map.borrow().state(*id).dirty == 0);
        let stamp = self.log.borrow().next();
        let mut journal = self.journal.borrow_mut();
        let mut unnamed = 0_u64;
        for id in written {
            let entry = self.map.borrow().state(id);
            if !entry.has(LIVE) {
                continue;
            }
            // The backing device also has the clean data, and reads go there.
            self.map.borrow_mut().set(id, entry.dirty, entry.dirty);
            self.map.borrow_mut().add_flags(id, UNFLUSHED);
            if (entry.dirty == 0 && entry.record_at == NO_RECORD)
                || (self.is_sync() && self.has_no_durable_trace(&entry))
            {
                continue;
            }
            match &mut *journal {
                Some(journal) if journal.room() > 0 => {
                    journal.append(stamp, self.dirty_record(id));
                }
                _ => {
                    unnamed += 1;
                    tracing::error!(
                        volume = entry.key.volume(),
                        block = entry.key.block(),
                        dirty = entry.dirty != 0,
                        "an unflushed block MAY BE LOST, or older after a restart"
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
                "the process journal had no space for the unflushed blocks named above"
            );
        }
    }

    /// Returns whether neither a durable record nor the process journal names a block. Then the
    /// backing device has the earlier data.
    fn has_no_durable_trace(&self, entry: &BlockState) -> bool {
        let first = || entry.has(FIRST) && self.log.borrow().in_flight(entry.record_at);
        !entry.has(TRACED) || (entry.record_at != NO_RECORD && first())
    }

    /// Returns whether a block's content is unknown: it was written, and then a flush of the cache
    /// device or the whole cache failed.
    pub(crate) fn is_in_doubt(&self, id: BlockId) -> bool {
        let covered =
            || self.map.borrow().has(id, UNFLUSHED) || self.covered.borrow().contains(&id);
        (self.flush_failed.get() && covered())
            || (self.unknown.get() && self.map.borrow().has(id, UNKNOWN))
    }

    /// Marks `granules` of a block as dirty, and the block as `UNKNOWN`. A write to these clean
    /// granules failed, and the cache failed before a record could drop them. An older record may
    /// make the next process take them for dirty, so their content is unknown.
    pub(crate) fn leave_in_doubt(&self, id: BlockId, granules: u64) {
        self.unknown.set(true);
        self.doubts.set(true);
        let mut map = self.map.borrow_mut();
        let entry = map.state(id);
        map.set(id, entry.valid | granules, entry.dirty | granules);
        map.add_flags(id, UNKNOWN);
    }

    /// Waits for a flush of the cache device that is in flight. The caller must know its result
    /// before it reports an error: if the flush fails, the data that it covered may be lost.
    pub(crate) async fn flush_in_flight(&self) {
        if self.devices.data_is_volatile() {
            self.flushing.acquire(1).await;
            self.flushing.release(1);
        }
    }

    /// Notes that a flush of the metadata device failed. Data on the same device is in doubt then.
    pub(crate) fn metadata_flush_failed(&self) {
        if self.devices.is_one() {
            self.set_flush_failed();
        }
    }
}
