//! The committer: the one place where the map becomes durable.
//!
//! Commits go in rounds, one at a time. A round takes what was queued when it began, makes the data
//! that those records point to durable (one flush of the data device, if anything was written since the
//! last one), then writes the records and makes them durable, then wakes who asked. Requests that
//! arrive meanwhile share the next round, so that the cost of a flush is divided among them.
//!
//! Records that no promise waits for (a block turned clean, a read was promoted) take what room the
//! others leave in the last unit, which would be padding. [`Engine::commit_all`] takes them along, and so
//! does the timer, once they have waited from one of its ticks to the next.
//!
//! Rule 1 (data before the map) is the order of the two steps. That a record describes the map at the
//! moment *before* the data flush was issued, never after, makes it safe to go on serving meanwhile.

mod batch;
mod log_reclaim;
pub(crate) mod queue;

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_metadata::journal::Journal;
use forebay_metadata::log::{Log, LogExtent};
use forebay_metadata::order::{self, Ordered, Part, Site};
use forebay_metadata::record::Body;
use forebay_policy::BlockId;

use crate::commit::log_reclaim::Tail;
use crate::commit::queue::{Entry, Later};
use crate::engine::Engine;
use crate::map::{CLEANED, FIRST, LIVE, NO_RECORD, PENDING, Slot, TRACED, UNFLUSHED, UNKNOWN};

/// Names a round, the first one being 1; see [`Engine::committed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// How often a failed write of log units is tried again before the cache gives up.
const WRITE_TRIES: u32 = 3;

/// State of the committer.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) log: RefCell<Log>,
    pub(crate) tail: RefCell<Tail>,
    pub(crate) journal: RefCell<Option<Journal>>,
    /// Where the record of this opening stands: the next process must find it, however long this one
    /// lives.
    pub(crate) opened_at: Cell<u32>,
    pub(crate) pending: RefCell<VecDeque<BlockId>>,
    pub(crate) later: RefCell<Later>,
    pub(crate) entries: RefCell<Vec<Entry>>,
    /// Kills of the last round, to be logged a second time: one damaged unit must not bring a dead
    /// record back to life.
    pub(crate) echo: RefCell<Vec<u32>>,
    started: Cell<u64>,
    completed: Cell<u64>,
    wanted: Cell<u64>,
    /// The last round that is to log what waits for room, too.
    wanted_all: Cell<u64>,
    kick: WaitList,
    done: WaitList,
    failed: RefCell<Option<Error>>,
    /// Slots written to since the last flush of the data device began.
    unflushed: RefCell<Vec<BlockId>>,
    /// Slots that the flush in flight covers: in doubt with it.
    covered: RefCell<Vec<BlockId>>,
    /// Flushes of the data device go one at a time: the failure of one must be told before another that
    /// began later calls durable what it lost.
    pub(crate) flushing: Semaphore,
    /// The same of a metadata device of its own.
    metadata_flushing: Semaphore,
    /// A flush, or a write that carried one, failed: what a device was given since the last good one
    /// may be gone.
    flush_failed: Cell<bool>,
    /// Some slot is `UNKNOWN`.
    unknown: Cell<bool>,
    /// Writes to the data device that have completed, and how many of them are flushed.
    data_written: Cell<u64>,
    data_flushed: Cell<u64>,
    pub(crate) stopping: Cell<bool>,
}

impl Committer {
    pub(crate) fn new(log: Log, journal: Option<Journal>) -> Self {
        Self {
            tail: RefCell::new(Tail::new(log.capacity())),
            log: RefCell::new(log),
            journal: RefCell::new(journal),
            opened_at: Cell::new(NO_RECORD),
            pending: RefCell::default(),
            later: RefCell::default(),
            entries: RefCell::default(),
            echo: RefCell::default(),
            started: Cell::new(0),
            completed: Cell::new(0),
            wanted: Cell::new(0),
            wanted_all: Cell::new(0),
            kick: WaitList::new(),
            done: WaitList::new(),
            failed: RefCell::new(None),
            unflushed: RefCell::default(),
            covered: RefCell::default(),
            flushing: Semaphore::new(1),
            metadata_flushing: Semaphore::new(1),
            flush_failed: Cell::new(false),
            unknown: Cell::default(),
            // What an earlier process wrote may sit in the device's cache.
            data_written: Cell::new(1),
            data_flushed: Cell::new(0),
            stopping: Cell::new(false),
        }
    }

    /// Ends the committer. Who still waits for a round, or asks for one, is told so.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.failed
            .borrow_mut()
            .get_or_insert_with(|| ErrorKind::ShuttingDown.into());
        self.kick.wake_all();
        self.done.wake_all();
    }

    /// Whose turn it is to flush the metadata device, which may be the data device.
    pub(crate) const fn metadata_turn(&self, one_device: bool) -> &Semaphore {
        match one_device {
            true => &self.flushing,
            false => &self.metadata_flushing,
        }
    }

    /// Returns the semaphore of flushes of the data device. One flush runs at a time, so that a failure is
    /// noted before a later flush succeeds.
    pub(crate) const fn data_turn(&self) -> &Semaphore {
        &self.flushing
    }

    /// A flush of the data device failed.
    pub(crate) fn data_flush_failed(&self) {
        self.flush_failed.set(true);
    }

    /// What the next round must log.
    fn waited_for(&self) -> usize {
        self.pending.borrow().len() + self.entries.borrow().len()
    }

    /// The failure that stopped the cache from taking writes, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }

    /// Whether a flush failed, so that what it should have covered may be gone.
    pub(crate) const fn flush_failed(&self) -> bool {
        self.flush_failed.get()
    }

    /// Whether a slot may be in doubt.
    pub(crate) const fn has_doubts(&self) -> bool {
        self.flush_failed.get() || self.unknown.get()
    }

    /// Whether the cache still takes writes.
    pub(crate) fn is_alive(&self) -> bool {
        self.failed.borrow().is_none()
    }

    /// Slots written to that no good flush is known to cover.
    pub(crate) fn not_flushed(&self) -> HashSet<BlockId> {
        let (written, covered) = (self.unflushed.borrow(), self.covered.borrow());
        written.iter().chain(&*covered).copied().collect()
    }

    pub(crate) fn push_body(&self, body: &Body) -> u32 {
        let mut log = self.log.borrow_mut();
        let lsn = log.push(body);
        u32::try_from(lsn % log.capacity()).expect("a ring has fewer than 2^32 places")
    }
}

impl Engine {
    /// Waits until no durable record calls a granule of this slot dirty that the map calls clean: such a
    /// record would win, after a crash, over what is about to be written to the backing device.
    #[track_caller]
    pub(crate) fn settle(&self, slot: BlockId) -> impl Future<Output = Result<()>> + '_ {
        let site = Site::here();
        let entry = self.map.borrow().slot(slot);
        let in_flight =
            entry.record_at != NO_RECORD && self.commit.log.borrow().in_flight(entry.record_at);
        let needed = (entry.has(CLEANED) || in_flight) && !site.lacks(Part::Step);
        async move {
            if !needed {
                return Ok(());
            }
            if entry.has(CLEANED) {
                self.queue_record(slot);
            }
            self.commit().await
        }
    }

    /// The round that covers everything queued by [`Engine::queue_record`] and [`Engine::queue_entry`],
    /// and every write to the data device completed, up to now.
    pub(crate) fn next_round(&self) -> Ticket {
        Ticket(self.commit.started.get() + 1)
    }

    /// Asks for a round, unless it has begun.
    pub(crate) fn request(&self, round: Ticket) {
        if self.commit.wanted.get() < round.0 {
            self.commit.wanted.set(round.0);
            self.commit.kick.wake_all();
        }
    }

    /// Asks for the next round.
    pub(crate) fn request_commit(&self) -> Ticket {
        let round = self.next_round();
        self.request(round);
        round
    }

    /// Waits until a round is durable.
    #[track_caller]
    pub(crate) fn committed(&self, ticket: Ticket) -> impl Future<Output = Result<()>> + '_ {
        let site = Site::here();
        async move {
            if site.lacks(Part::Wait) {
                return Ok(());
            }
            self.round_ended(ticket).await
        }
    }

    async fn round_ended(&self, ticket: Ticket) -> Result<()> {
        loop {
            if self.commit.completed.get() >= ticket.0 {
                return Ok(());
            }
            if let Some(error) = self.commit.failure() {
                return Err(error);
            }
            self.commit.done.wait().await;
        }
    }

    /// As [`Engine::commit`], with the records that may wait.
    #[track_caller]
    pub(crate) fn commit_all(&self) -> impl Future<Output = Result<()>> + '_ {
        self.commit.wanted_all.set(self.next_round().0);
        self.commit()
    }

    /// Makes everything written up to now durable, with the records that were asked for at once.
    #[track_caller]
    pub(crate) fn commit(&self) -> impl Future<Output = Result<()>> + '_ {
        let site = Site::here();
        let ticket = (!site.lacks(Part::Step)).then(|| self.request_commit());
        async move {
            match ticket {
                Some(ticket) if !site.lacks(Part::Wait) => self.round_ended(ticket).await,
                _ => Ok(()),
            }
        }
    }

    /// A write to a slot completed, with whatever result.
    pub(crate) fn slot_written(&self, slot: BlockId) {
        let commit = &self.commit;
        commit.data_written.set(commit.data_written.get() + 1);
        if self.data_volatile && !self.map.borrow().has(slot, UNFLUSHED) {
            self.map.borrow_mut().add_flags(slot, UNFLUSHED);
            commit.unflushed.borrow_mut().push(slot);
        }
    }

    /// Whether the cache still takes writes.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.commit.failure() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Stops taking writes, for good: what follows is an answer to `error`.
    pub(crate) fn fail(&self, error: Error) {
        if self.commit.is_alive() {
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
        if self.commit.flush_failed.get() {
            self.give_up_unflushed();
        }
        self.commit.failed.borrow_mut().get_or_insert(error);
        self.commit.done.wake_all();
        self.wake_everyone();
    }

    /// After a failed flush: names what was written since the last good one in the process journal, where the next
    /// process finds it. It reports what was dirty as lost; of these, entries of fresh writes are there already, and what
    /// was overwritten in place is added. What is clean the backing device has as well, and the next process forgets: a
    /// mark may have it take what is older for dirty.
    ///
    /// With `sync`, nothing of that was acknowledged, and what was written for the first time hides nothing: what was there
    /// before is on the backing device. What was overwritten in place is named all the same, in other words.
    fn give_up_unflushed(&self) {
        let mut written = std::mem::take(&mut *self.commit.unflushed.borrow_mut());
        // Where the journal has no room for all, what is dirty comes first.
        written.sort_by_key(|slot| self.map.borrow().slot(*slot).dirty == 0);
        let stamp = self.commit.log.borrow().next();
        let mut journal = self.commit.journal.borrow_mut();
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
                || self.sync_durability() && self.hides_nothing(&entry)
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
            journal.poison(self.sync_durability());
        }
        if unnamed > 0 {
            tracing::error!(
                blocks = unnamed,
                "named above: the process journal had no room"
            );
        }
    }

    /// Whether no durable record speaks of a slot, nor the process journal: what was there before is on the backing device.
    fn hides_nothing(&self, entry: &Slot) -> bool {
        let first = || entry.has(FIRST) && self.commit.log.borrow().in_flight(entry.record_at);
        !entry.has(TRACED) || entry.record_at != NO_RECORD && first()
    }

    /// Whether nobody knows what a slot holds: it was written to, and then a flush of the cache device failed, or the cache.
    pub(crate) fn is_in_doubt(&self, slot: BlockId) -> bool {
        self.commit.flush_failed.get()
            && (self.map.borrow().has(slot, UNFLUSHED)
                || self.commit.covered.borrow().contains(&slot))
            || self.commit.unknown.get() && self.map.borrow().has(slot, UNKNOWN)
    }

    /// What a failed write left of clean granules was to be dropped, and the cache failed before a record said so: an older
    /// one may have the next process take them for dirty. Until then they are neither old nor new.
    pub(crate) fn leave_in_doubt(&self, slot: BlockId, granules: u64) {
        self.commit.unknown.set(true);
        let mut map = self.map.borrow_mut();
        let entry = map.slot(slot);
        map.set(slot, entry.valid | granules, entry.dirty | granules);
        map.add_flags(slot, UNKNOWN);
    }

    /// Waits for a flush of the cache device that is in flight, so that it is known whether it failed: what it
    /// should have covered may be gone before that is told.
    pub(crate) async fn flush_in_flight(&self) {
        if self.data_volatile {
            self.commit.flushing.acquire(1).await;
            self.commit.flushing.release(1);
        }
    }

    /// The committer's task.
    pub(crate) async fn commit_loop(self: Rc<Self>) {
        loop {
            self.commit
                .kick
                .until(|| {
                    self.commit.wanted.get() > self.commit.started.get()
                        || self.commit.stopping.get()
                })
                .await;
            // What failed elsewhere (a superblock's flush, say) ends it as well: a round after that would
            // call durable what may be gone.
            if self.commit.stopping.get() || !self.commit.is_alive() {
                return;
            }
            let began = rt::now();
            self.commit.started.set(self.commit.started.get() + 1);
            if let Err(error) = self.round().await {
                self.fail(error);
                return;
            }
            self.commit.completed.set(self.commit.started.get());
            self.stats.commits.add(1);
            self.stats
                .commit_time_us
                .add(u64::try_from((rt::now() - began).as_micros()).unwrap_or(u64::MAX));
            self.commit.done.wake_all();
        }
    }

    /// Asks for a commit every so often, so that little is lost with the power and clean data is
    /// remembered.
    pub(crate) async fn commit_timer(self: Rc<Self>) {
        while !self.commit.stopping.get() {
            rt::sleep(self.options.commit_interval).await;
            if self.commit.failure().is_some() {
                continue;
            }
            let overdue = self.commit.later.borrow_mut().overdue();
            if overdue {
                let _ = self.commit_all().await;
            } else if self.commit.waited_for() > 0 {
                let _ = self.commit().await;
            }
        }
    }

    async fn round(&self) -> Result<()> {
        let journaled = self.commit.journal.borrow().as_ref().map(Journal::head);
        if self.commit.wanted_all.get() >= self.commit.started.get() {
            while let Some(slot) = self.pop_later() {
                self.queue_record(slot);
            }
        }
        let mut quota = self.commit.pending.borrow().len();
        loop {
            let (mut extents, more) = self.build_batch(&mut quota)?;
            if let Some(sums) = &self.sums {
                // As they are now: those of data that the flush covers.
                extents.extend(sums.take_due());
            }
            self.flush_data().await?;
            if !extents.is_empty() {
                self.write_batch(extents).await?;
                self.check_alive()?;
                self.commit.log.borrow_mut().committed();
                if let Some(journal) = self.commit.journal.borrow().as_ref() {
                    journal.reached(self.commit.log.borrow().batch());
                }
            }
            if !more {
                break;
            }
        }
        self.trim_queues();
        (self.regions).trim_repeated(|slot| self.map.borrow().has(slot, PENDING));
        self.unmark_clean();
        if let Some((journal, to)) = self.commit.journal.borrow_mut().as_mut().zip(journaled) {
            journal.trim(to);
        }
        Ok(())
    }

    /// Rule 1: the data that the batch's records point to is durable before they are written.
    pub(crate) async fn flush_data(&self) -> Result<()> {
        self.commit.flushing.acquire(1).await;
        let written = self.commit.data_written.get();
        if self.data_volatile && written != self.commit.data_flushed.get() {
            // A write that comes while the flush runs is on the next list.
            let covered = std::mem::take(&mut *self.commit.unflushed.borrow_mut());
            for slot in &covered {
                self.map.borrow_mut().clear_flags(*slot, UNFLUSHED);
            }
            *self.commit.covered.borrow_mut() = covered;
            let result = order::flush(self.data.as_ref()).await;
            let covered = self.commit.covered.take();
            // Another flush that failed meanwhile may be the one that was told of what is gone.
            if result.is_err() || !self.commit.is_alive() {
                self.commit.unflushed.borrow_mut().extend(covered);
            }
            if result.is_err() {
                self.commit.flush_failed.set(true);
            }
            self.commit.flushing.release(1);
            result?;
            self.check_alive()?;
        } else {
            self.commit.flushing.release(1);
        }
        self.commit.data_flushed.set(written);
        Ok(())
    }

    async fn write_batch(&self, extents: Vec<LogExtent>) -> Result<()> {
        let turn = self.commit.metadata_turn(self.is_one_device());
        turn.acquire(1).await;
        let result = self.write_extents(extents).await;
        if let Err(error) = &result {
            // Told before the next has its turn.
            self.fail(error.clone());
        }
        turn.release(1);
        result
    }

    async fn write_extents(&self, extents: Vec<LogExtent>) -> Result<()> {
        let fua = self.metadata_volatile && self.metadata_fua && extents.len() == 1;
        let start = |extent: &LogExtent| -> Ordered {
            let bytes = extent.buf.len() as u64;
            self.stats.log_bytes.add(bytes);
            let buf = extent.buf.clone();
            if fua {
                order::write_fua(self.metadata.as_ref(), extent.offset, buf)
            } else {
                order::write(self.metadata.as_ref(), extent.offset, buf)
            }
        };
        // All extents are issued at once; a failed one is written again, which is safe as long as
        // nobody was told that it is there. Not so with FUA: what failed may have been a flush.
        let tries = if fua { 1 } else { WRITE_TRIES };
        let mut running: Vec<Ordered> = extents.iter().map(start).collect();
        for (extent, first) in extents.iter().zip(running.drain(..)) {
            let mut result = first.await;
            for _ in 1..tries {
                if result.is_ok() {
                    break;
                }
                result = start(extent).await;
            }
            if result.is_err() && fua {
                self.metadata_flush_failed();
            }
            result?;
        }
        if self.metadata_volatile
            && !fua
            && let Err(error) = order::flush(self.metadata.as_ref()).await
        {
            self.metadata_flush_failed();
            return Err(error);
        }
        Ok(())
    }

    /// A flush of the metadata device failed: the data is in doubt if it lies on the same device.
    pub(crate) fn metadata_flush_failed(&self) {
        if self.is_one_device() {
            self.commit.flush_failed.set(true);
        }
    }

    /// Whether data and metadata lie on the same device.
    pub(crate) fn is_one_device(&self) -> bool {
        Rc::ptr_eq(&self.metadata, &self.data)
    }
}
