//! The committer: the only part that makes the map durable.
//!
//! Commits go in rounds, one at a time. A round takes the records that were queued when it began.
//! It makes the data of those records durable, with one flush of the data device if anything was
//! written since the last. Then it writes the records, makes them durable, and wakes the waiting
//! requests. Requests that arrive meanwhile share the next round, and so share the cost of a flush.
//!
//! Some records have no waiting request, for example those of a block that turned clean or of a
//! promoted read. They use the free room of the last unit, which would be padding.
//! [`Committer::commit_all`] writes them as well. So does the timer, once they have waited for a
//! full interval.
//!
//! Rule 1 (data before the map) is the order of the two steps. A record describes the map at the
//! moment *before* the data flush was issued, never after. Therefore requests can be served during
//! a round.

mod batch;
mod failure;
mod log_reclaim;
pub(crate) mod queue;
pub(crate) mod rewrite;
mod round;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::sync::{Semaphore, WaitList};
use forebay_metadata::journal::Journal;
use forebay_metadata::log::Log;
use forebay_metadata::order::{Part, Site};
use forebay_metadata::record::{BlockRecord, Body};
use forebay_policy::{BlockId, Slot};

use crate::checksum::Checksums;
use crate::commit::log_reclaim::Tail;
use crate::commit::queue::{Entry, Later};
use crate::devices::CacheDevices;
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::map::marks::Marks;
use crate::map::{CLEANED, Map, NO_RECORD, TRACED, UNFLUSHED};
use crate::options::{Durability, Settings};
use crate::stats::Stats;
use crate::volume::Volumes;

/// Names a round, the first one being 1; see [`Committer::committed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A function of another part that is called at some point of the committer's work.
type Hook = Box<dyn Fn()>;

/// State of the committer.
pub(crate) struct Committer {
    devices: Rc<CacheDevices>,
    geometry: Geometry,
    settings: Rc<Settings>,
    map: Rc<RefCell<Map>>,
    marks: Rc<Marks>,
    checksums: Option<Rc<Checksums>>,
    volumes: Rc<Volumes>,
    stats: Rc<Stats>,
    /// Position of the next record in the log.
    log: RefCell<Log>,
    /// State of the log's reclaim.
    tail: RefCell<Tail>,
    /// Process journal, if there is one.
    journal: RefCell<Option<Journal>>,
    /// Position of the record of this opening. The next process must find it, however long this one
    /// lives.
    opened_at: Cell<u32>,
    /// Blocks whose records the next round logs.
    pending: RefCell<VecDeque<BlockId>>,
    /// Blocks whose records may wait.
    later: RefCell<Later>,
    /// Entries other than block records that the next round logs.
    entries: RefCell<Vec<Entry>>,
    /// Blocks of each volume whose clean granules wait for a flush of its backing device.
    deferred: RefCell<BTreeMap<u16, Vec<BlockId>>>,
    /// Kills of the last round, to be logged a second time. Without that, one damaged unit could
    /// revive a dead record.
    repeated_kills: RefCell<Vec<Slot>>,
    /// Number of rounds that have begun.
    started: Cell<u64>,
    /// Number of rounds that have ended.
    completed: Cell<u64>,
    /// Number of the last round that a task has requested.
    wanted: Cell<u64>,
    /// Last round that must also log the records that wait for room.
    wanted_all: Cell<u64>,
    /// Wakes the task of the committer.
    kick: WaitList,
    /// Wakes the tasks that wait for the end of a round.
    done: WaitList,
    /// Error with which the cache has failed.
    failed: RefCell<Option<Error>>,
    /// Whether the cache has not failed.
    alive: Cell<bool>,
    /// Whether some block may be in doubt: a flush failed or a block is `UNKNOWN`.
    doubts: Cell<bool>,
    /// Whether every acknowledged write is durable.
    is_sync: bool,
    /// Whether the data device has a volatile write cache.
    data_is_volatile: bool,
    /// Blocks written to since the last flush of the data device began.
    unflushed: RefCell<Vec<BlockId>>,
    /// Blocks that the flush in flight covers: in doubt with it.
    covered: RefCell<Vec<BlockId>>,
    /// Serializes flushes of the data device. A failed flush must be reported before the next one
    /// begins, which might call the lost data durable.
    flushing: Semaphore,
    /// Serializes flushes of a separate metadata device.
    metadata_flushing: Semaphore,
    /// Whether a flush, or a write with FUA, failed. Data since the last good flush may be lost
    /// then.
    flush_failed: Cell<bool>,
    /// Whether some block is `UNKNOWN`.
    unknown: Cell<bool>,
    /// Number of writes to the data device that have completed.
    data_written: Cell<u64>,
    /// Value of `data_written` that the last good flush covers.
    data_flushed: Cell<u64>,
    /// Whether the tasks of the committer end.
    stopping: Cell<bool>,
    /// Whether the close is logged: no batch comes after it.
    is_closed: Cell<bool>,
    /// Called after each round.
    on_round: RefCell<Vec<Hook>>,
    /// Called when the cache fails.
    on_failure: RefCell<Vec<Hook>>,
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer")
            .field("started", &self.started)
            .field("completed", &self.completed)
            .finish_non_exhaustive()
    }
}

impl Committer {
    /// Returns the committer of a log. The process journal comes later.
    pub(crate) fn new(base: &Foundation, log: Log) -> Self {
        Self {
            is_sync: base.settings.durability == Durability::Sync,
            data_is_volatile: base.devices.data_is_volatile(),
            devices: Rc::clone(&base.devices),
            geometry: base.geometry,
            settings: Rc::clone(&base.settings),
            map: Rc::clone(&base.map),
            marks: Rc::clone(&base.marks),
            checksums: base.checksums.clone(),
            volumes: Rc::clone(&base.volumes),
            stats: Rc::clone(&base.stats),
            tail: RefCell::new(Tail::new(log.capacity())),
            log: RefCell::new(log),
            journal: RefCell::new(None),
            opened_at: Cell::new(NO_RECORD),
            pending: RefCell::default(),
            later: RefCell::default(),
            entries: RefCell::default(),
            deferred: RefCell::default(),
            repeated_kills: RefCell::default(),
            started: Cell::new(0),
            completed: Cell::new(0),
            wanted: Cell::new(0),
            wanted_all: Cell::new(0),
            kick: WaitList::new(),
            done: WaitList::new(),
            failed: RefCell::new(None),
            alive: Cell::new(true),
            doubts: Cell::new(false),
            unflushed: RefCell::default(),
            covered: RefCell::default(),
            flushing: Semaphore::new(1),
            metadata_flushing: Semaphore::new(1),
            flush_failed: Cell::new(false),
            unknown: Cell::default(),
            // The device's cache may hold data of an earlier process.
            data_written: Cell::new(1),
            data_flushed: Cell::new(0),
            stopping: Cell::new(false),
            is_closed: Cell::new(false),
            on_round: RefCell::default(),
            on_failure: RefCell::default(),
        }
    }

    /// Ends the committer. Requests that wait for a round, or request one later, get an error.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.failed
            .borrow_mut()
            .get_or_insert_with(|| ErrorKind::ShuttingDown.into());
        self.alive.set(false);
        self.kick.wake_all();
        self.done.wake_all();
    }

    /// Returns the semaphore of flushes of the metadata device, which may be the data device.
    pub(crate) fn metadata_turn(&self) -> &Semaphore {
        match self.devices.is_one() {
            true => &self.flushing,
            false => &self.metadata_flushing,
        }
    }

    /// Returns the semaphore of flushes of the data device. One flush runs at a time, so that a
    /// failure is noted before a later flush succeeds.
    pub(crate) const fn data_turn(&self) -> &Semaphore {
        &self.flushing
    }

    /// Notes that a flush of the data device failed: data since the last good flush may be lost.
    pub(crate) fn data_flush_failed(&self) {
        self.set_flush_failed();
    }

    fn set_flush_failed(&self) {
        self.flush_failed.set(true);
        self.doubts.set(true);
    }

    /// Returns the number of queued records that the next round must log.
    pub(crate) fn urgent_records(&self) -> usize {
        self.pending.borrow().len() + self.entries.borrow().len()
    }

    /// The failure that stopped the cache from taking writes, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }

    /// Returns whether a flush failed, so that the data that it covered may be lost.
    pub(crate) const fn flush_failed(&self) -> bool {
        self.flush_failed.get()
    }

    /// Whether a block may be in doubt.
    #[inline]
    pub(crate) const fn has_doubts(&self) -> bool {
        self.doubts.get()
    }

    /// Whether the cache still takes writes.
    #[inline]
    pub(crate) const fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// Blocks written to that no good flush is known to cover.
    pub(crate) fn not_flushed(&self) -> HashSet<BlockId> {
        let (written, covered) = (self.unflushed.borrow(), self.covered.borrow());
        written.iter().chain(&*covered).copied().collect()
    }

    /// Registers `hook` to be called after each round.
    pub(crate) fn on_round(&self, hook: impl Fn() + 'static) {
        self.on_round.borrow_mut().push(Box::new(hook));
    }

    /// Registers `hook` to be called when the cache fails.
    pub(crate) fn on_failure(&self, hook: impl Fn() + 'static) {
        self.on_failure.borrow_mut().push(Box::new(hook));
    }

    /// Returns whether every acknowledged write is durable.
    #[inline]
    pub(crate) const fn is_sync(&self) -> bool {
        self.is_sync
    }

    /// Returns whether the mark of a clean end was logged, or the committer was stopped.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Returns the records that the log has room for.
    pub(crate) fn log_records(&self) -> u64 {
        self.log.borrow().capacity()
    }

    /// Returns the records of the log that are in use.
    pub(crate) fn log_used_records(&self) -> u64 {
        self.log.borrow().used()
    }

    /// Returns the number of the last batch that was begun.
    pub(crate) fn log_batch(&self) -> u64 {
        self.log.borrow().batch()
    }

    /// Returns whether the record at a position in the ring is not durable yet.
    pub(crate) fn is_in_flight(&self, record_at: u32) -> bool {
        self.log.borrow().in_flight(record_at)
    }

    /// Returns the memory of the search for live records in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.tail.borrow().memory_bytes()
    }

    /// Gives up the part of the log before all records that count.
    pub(crate) fn give_up_before(&self, counting: impl Iterator<Item = u32>) {
        let counting = counting.chain(std::iter::once(self.opened_at.get()));
        (self.log.borrow_mut()).give_up_before(counting.filter(|position| *position != NO_RECORD));
    }

    /// Returns the bytes of the metadata device that hold the records that count.
    pub(crate) fn live_log_bytes(&self) -> Vec<std::ops::Range<u64>> {
        self.log.borrow().live_bytes()
    }

    /// Gives up all records of the log.
    pub(crate) fn give_up_log(&self) {
        self.log.borrow_mut().give_up_before(std::iter::empty());
    }

    /// Returns whether there is a process journal.
    pub(crate) fn has_journal(&self) -> bool {
        self.journal.borrow().is_some()
    }

    /// Sets the process journal.
    pub(crate) fn set_journal(&self, journal: Option<Journal>) {
        *self.journal.borrow_mut() = journal;
    }

    /// Puts the record of a block's dirty data into the process journal. Returns whether there was
    /// room.
    pub(crate) fn journal_dirty(&self, id: BlockId) -> bool {
        let room = self.journal.borrow().as_ref().map(Journal::room);
        if room.unwrap_or(0) == 0 {
            return false;
        }
        let record = self.dirty_record(id);
        let stamp = self.log.borrow().next();
        if let Some(journal) = &mut *self.journal.borrow_mut() {
            journal.append(stamp, record);
        }
        self.map.borrow_mut().add_flags(id, TRACED);
        true
    }

    /// Returns the record of a block with these granules.
    fn block_record(&self, id: BlockId, valid: u64, dirty: u64) -> BlockRecord {
        let record = self.map.borrow().record(id, valid, dirty);
        match &self.checksums {
            None => record,
            Some(checksums) => checksums.complete(record),
        }
    }

    /// Returns the record of the data that its slot alone has: clean granules are worth nothing
    /// after a crash that their record did not survive.
    fn dirty_record(&self, id: BlockId) -> BlockRecord {
        let dirty = self.map.borrow().state(id).dirty;
        self.block_record(id, dirty, dirty)
    }

    fn push_body(&self, body: &Body) -> u32 {
        let mut log = self.log.borrow_mut();
        let lsn = log.push(body);
        u32::try_from(lsn % log.capacity()).expect("a ring has fewer than 2^32 positions")
    }
}

impl Committer {
    /// Waits until no durable record calls a granule of this block dirty that the map calls clean.
    /// After a crash such a record would win over the data that is about to be written to the
    /// backing device.
    #[track_caller]
    pub(crate) fn settle(&self, id: BlockId) -> impl Future<Output = Result<()>> + '_ {
        let site = Site::here();
        let entry = self.map.borrow().state(id);
        let in_flight =
            entry.record_at != NO_RECORD && self.log.borrow().in_flight(entry.record_at);
        let needed = (entry.has(CLEANED) || in_flight) && !site.lacks(Part::Step);
        async move {
            if !needed {
                return Ok(());
            }
            if entry.has(CLEANED) {
                self.queue_record(id);
            }
            self.commit().await
        }
    }

    /// The round that covers everything queued by [`Committer::queue_record`] and
    /// [`Committer::queue_entry`], and every write to the data device completed, up to now.
    pub(crate) fn next_round(&self) -> Ticket {
        Ticket(self.started.get() + 1)
    }

    /// Requests a round, unless it has begun.
    pub(crate) fn request(&self, round: Ticket) {
        if self.wanted.get() < round.0 {
            self.wanted.set(round.0);
            self.kick.wake_all();
        }
    }

    /// Requests the next round.
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
            if self.completed.get() >= ticket.0 {
                return Ok(());
            }
            if let Some(error) = self.failure() {
                return Err(error);
            }
            self.done.wait().await;
        }
    }

    /// As [`Committer::commit`], with the records that may wait.
    #[track_caller]
    pub(crate) fn commit_all(&self) -> impl Future<Output = Result<()>> + '_ {
        self.wanted_all.set(self.next_round().0);
        self.commit()
    }

    /// Makes everything written up to now durable, with the records that were requested at once.
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

    /// Notes that a write to a block completed, with any result.
    pub(crate) fn block_written(&self, id: BlockId) {
        self.data_written.set(self.data_written.get() + 1);
        if self.data_is_volatile && !self.map.borrow().has(id, UNFLUSHED) {
            self.map.borrow_mut().add_flags(id, UNFLUSHED);
            self.unflushed.borrow_mut().push(id);
        }
    }

    /// Checks that the cache still takes writes.
    ///
    /// # Errors
    /// The failure that stopped the cache.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.failure() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
