//! Batches of records that a round of the committer writes. Their sources are the queues and the
//! live records at the log's tail.

use forebay_block::{Error, ErrorKind, Result};
use forebay_metadata::log::LogExtent;
use forebay_metadata::record::{Body, KILL_SLOTS, MarkState};
use forebay_policy::{BlockId, Slot};

use super::Committer;
use crate::commit::queue::Entry;
use crate::failpoints::{Fault, planted};
use crate::map::marks::MarkId;
use crate::map::{CLEANED, DEFERRED, DYING, FIRST, LIVE, NO_RECORD, PENDING, TRACED, UNRECORDED};

impl Committer {
    /// Builds one batch from the queues and the present map. `quota` counts the queued blocks that
    /// belong to this round. Returns the data to write, and whether the round needs another batch.
    pub(crate) fn build_batch(&self, quota: &mut usize) -> Result<(Vec<LogExtent>, bool)> {
        let (first, limit) = {
            let log = self.log.borrow();
            let unit = log.unit_records();
            // A part of the room only: batches that a crash tears take room, too.
            let share = (log.batch_records_max())
                .min((log.room() / 4).max(2 * unit))
                .min(log.room());
            (log.next(), share - share % unit)
        };
        // The other half is reserved for records from the tail: see docs/internals/format/log.md,
        // "Room".
        let fresh = first + limit.div_ceil(2);
        let room = || fresh.saturating_sub(self.log.borrow().next());
        self.repeat_kills(room());
        let mut entries = std::mem::take(&mut *self.entries.borrow_mut()).into_iter();
        while room() > 0 {
            let Some(entry) = entries.next() else { break };
            if let Some(rest) = self.log_entry(entry, room()) {
                self.entries.borrow_mut().push(rest);
            }
        }
        self.entries.borrow_mut().extend(entries);
        while *quota > 0 && room() > 0 {
            let next = self.pending.borrow_mut().pop_front();
            let Some(id) = next else {
                *quota = 0;
                break;
            };
            *quota -= 1;
            let pending = self.map.borrow().state(id).has(PENDING);
            if pending {
                self.map.borrow_mut().clear_flags(id, PENDING);
                self.log_block(id);
            }
        }
        let more = *quota > 0 || !self.entries.borrow().is_empty();
        if !self.log.borrow().batch_is_empty() {
            self.fill_unit(room);
            self.clean_tail(first + limit);
            return Ok((self.log.borrow_mut().seal(), more));
        }
        if more && limit == 0 {
            let log = self.log.borrow();
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the metadata log is full: {} of {} records are in use",
                    log.used(),
                    log.capacity()
                ),
            ));
        }
        Ok((Vec::new(), more))
    }

    /// Logs records that may wait in place of padding, but not in the tail's half of the batch.
    fn fill_unit(&self, room: impl Fn() -> u64) {
        while self.log.borrow().unit_room() > 0
            && room() > 0
            && let Some(id) = self.pop_later()
        {
            self.log_block(id);
        }
    }

    /// Logs the last round's kills a second time, except for slots with a newer record. If the
    /// first kill record were damaged and there were no second, the dead block would reappear.
    fn repeat_kills(&self, room: u64) {
        let mut repeated_kills = std::mem::take(&mut *self.repeated_kills.borrow_mut());
        let fits = usize::try_from(room / 2)
            .unwrap_or(usize::MAX)
            .saturating_mul(KILL_SLOTS);
        *self.repeated_kills.borrow_mut() =
            repeated_kills.split_off(fits.min(repeated_kills.len()));
        let dead: Vec<Slot> = {
            let map = self.map.borrow();
            repeated_kills
                .into_iter()
                .filter(|slot| {
                    let there = map.block_at(*slot);
                    there.is_none_or(|id| map.has(id, DYING) || !map.has(id, TRACED))
                })
                .collect()
        };
        self.log_kills(&dead);
    }

    fn log_kills(&self, dead: &[Slot]) {
        for chunk in dead.chunks(KILL_SLOTS) {
            let mut slots = [0; KILL_SLOTS];
            for (named, slot) in slots.iter_mut().zip(chunk) {
                *named = slot.get();
            }
            let count = u8::try_from(chunk.len()).expect("at most KILL_SLOTS");
            self.push_body(&Body::Kill { slots, count });
        }
    }

    /// Logs an entry within a limit of `room` records. Returns the part that did not fit.
    fn log_entry(&self, entry: Entry, room: u64) -> Option<Entry> {
        match entry {
            Entry::Kill(mut slots) => {
                let fits = usize::try_from(room)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(KILL_SLOTS);
                let rest = slots.split_off(fits.min(slots.len()));
                self.log_kills(&slots);
                self.repeated_kills.borrow_mut().extend(slots);
                return (!rest.is_empty()).then_some(Entry::Kill(rest));
            }
            Entry::Mark(id) => self.log_mark(id),
            Entry::Unmark { volume, region } => {
                let body = Body::Mark {
                    volume,
                    region,
                    state: MarkState::None,
                };
                self.push_body(&body);
            }
            Entry::Open => self.log_open(),
            Entry::Close => {
                self.opened_at.set(NO_RECORD);
                self.push_body(&Body::Close);
                // Nothing comes after it.
                self.is_closed.set(true);
                self.stopping.set(true);
            }
        }
        None
    }

    pub(crate) fn log_open(&self) {
        let body = Body::Open {
            boot_id: self.settings.boot_id,
            journal: self.journal.borrow().is_some(),
        };
        let at = self.push_body(&body);
        self.opened_at.set(at);
    }

    pub(crate) fn log_mark(&self, id: MarkId) {
        // The close voids marks. A mark after it would count at a later start.
        if self.is_closed.get() {
            return;
        }
        let Some((volume, region, state)) = self.marks.logged(id) else {
            return;
        };
        let body = Body::Mark {
            volume,
            region,
            state,
        };
        let at = self.push_body(&body);
        self.marks.set_record(id, at);
    }

    /// Logs the current content of a block.
    ///
    /// A clean granule claims that the backing device durably holds the same data. While writes to
    /// the backing device wait for a flush, that claim is false, so such granules are left out of
    /// the record. After a failed client write they are left out until the volume is detached. A
    /// later flush of such a device need not make the data durable that it shows.
    pub(crate) fn log_block(&self, id: BlockId) {
        let entry = self.map.borrow().state(id);
        if !entry.has(LIVE) {
            return;
        }
        let attached = self.volumes.get(entry.key.volume());
        let backing = attached.as_ref().map(|volume| &volume.backing);
        let unflushed =
            !planted(Fault::ClaimBeforeFlush) && backing.is_some_and(|backing| backing.unflushed());
        let start = self.geometry.backing_offset(entry.block(), 0);
        let bytes = start..start + self.geometry.block_bytes(entry.class);
        let doubtful = backing.is_some_and(|backing| backing.is_doubtful(&bytes));
        let valid = match unflushed || doubtful {
            true => entry.dirty,
            false => entry.valid,
        };
        if valid != entry.valid && !entry.has(DEFERRED) {
            self.map.borrow_mut().add_flags(id, DEFERRED);
            if !doubtful {
                self.defer(id);
            }
        }
        if valid == 0 && !entry.has(TRACED) {
            // There is no record that could be older.
            self.note_recorded(id);
            return;
        }
        let block = self.block_record(id, valid, entry.dirty);
        if let Some(checksums) = &self.checksums {
            checksums.joins(Slot::new(block.slot), block.class);
        }
        let at = self.push_body(&Body::Block(block));
        {
            let mut map = self.map.borrow_mut();
            map.set_record(id, at);
            map.clear_flags(id, CLEANED | FIRST);
            map.add_flags(
                id,
                if entry.has(TRACED) {
                    TRACED
                } else {
                    TRACED | FIRST
                },
            );
        }
        self.note_recorded(id);
    }

    /// Notes that the log now has for a block the state that its region's mark had.
    fn note_recorded(&self, id: BlockId) {
        let entry = self.map.borrow().state(id);
        if entry.has(UNRECORDED) {
            self.map.borrow_mut().clear_flags(id, UNRECORDED);
            self.marks.recorded(entry.key);
        }
    }

    /// Returns the number of blocks whose clean granules wait for a flush of a backing device.
    pub(crate) fn deferred_blocks(&self) -> usize {
        self.deferred.borrow().values().map(Vec::len).sum()
    }

    /// Notes that clean granules of a block wait for a flush. The number may be reused while
    /// entries of its earlier block still wait for a flush, which may never come.
    fn defer(&self, id: BlockId) {
        let full = 2 * self.map.borrow().numbers() as usize;
        let is_full = self.deferred_blocks() >= full;
        let map = self.map.borrow();
        let mut deferred = self.deferred.borrow_mut();
        if is_full {
            let waits =
                |id: BlockId, volume: u16| map.has(id, DEFERRED) && map.volume(id) == volume;
            for (volume, waiting) in deferred.iter_mut() {
                waiting.sort_unstable();
                waiting.dedup();
                waiting.retain(|other| *other != id && waits(*other, *volume));
            }
            deferred.retain(|_, waiting| !waiting.is_empty());
        }
        deferred.entry(map.volume(id)).or_default().push(id);
    }

    /// Clean granules of `volume` that waited for a flush of its backing device may be recorded
    /// now.
    pub(crate) fn release_deferred(&self, volume: u16) {
        let waiting = self.deferred.borrow_mut().remove(&volume);
        for id in waiting.into_iter().flatten() {
            let entry = self.map.borrow().state(id);
            // The number may have a block of another volume by now.
            if entry.has(DEFERRED) && entry.key.volume() == volume {
                self.map.borrow_mut().clear_flags(id, DEFERRED);
                self.queue_later(id);
            }
        }
    }
}
