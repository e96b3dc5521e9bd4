//! The committer: the one place where the map becomes durable.
//!
//! Commits go in rounds, one at a time. A round takes what was queued when it began, makes the data
//! that those records point to durable (one flush of the data device, if anything was written since the
//! last one), then writes the records and makes them durable, then wakes who asked. Requests that
//! arrive meanwhile share the next round, so that the cost of a flush is divided among them.
//!
//! Rule 1 (data before the map) is the order of the two steps. That a record describes the map at the
//! moment *before* the data flush was issued, never after, makes it safe to go on serving meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Error, ErrorKind, IoFuture, Result};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::journal::Journal;
use forebay_metadata::log::{Log, LogExtent, Owner, OwnerKind};
use forebay_metadata::record::{BlockRecord, Body, KILL_SLOTS, MarkState};
use forebay_policy::SlotId;

use crate::engine::Engine;
use crate::map::{CLEANED, DEFERRED, LIVE, NO_RECORD, PENDING, TRACED, UNRECORDED};
use crate::plant::{Fault, planted};
use crate::region::RegionId;

/// Names a round; see [`Engine::committed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Something to log besides block records.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Kill(Vec<SlotId>),
    Mark(RegionId),
    Unmark { volume: u16, region: u64 },
    Open,
    Close,
}

/// How often a failed write of log units is tried again before the cache gives up.
const WRITE_TRIES: u32 = 3;

/// State of the committer.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) log: RefCell<Log>,
    pub(crate) journal: RefCell<Option<Journal>>,
    /// Where the record of this opening stands: the next process must find it, however long this one
    /// lives.
    opened_at: Cell<u32>,
    pending: RefCell<VecDeque<SlotId>>,
    entries: RefCell<Vec<Entry>>,
    /// Kills of the last round, to be logged a second time: one damaged unit must not bring a dead
    /// record back to life.
    echo: RefCell<Vec<SlotId>>,
    started: Cell<u64>,
    completed: Cell<u64>,
    wanted: Cell<u64>,
    kick: WaitList,
    done: WaitList,
    failed: RefCell<Option<Error>>,
    /// Writes to the data device that have completed, and how many of them are flushed.
    data_written: Cell<u64>,
    data_flushed: Cell<u64>,
    stopping: Cell<bool>,
}

impl Committer {
    pub(crate) fn new(log: Log, journal: Option<Journal>) -> Self {
        Self {
            log: RefCell::new(log),
            journal: RefCell::new(journal),
            opened_at: Cell::new(NO_RECORD),
            pending: RefCell::default(),
            entries: RefCell::default(),
            echo: RefCell::default(),
            started: Cell::new(0),
            completed: Cell::new(0),
            wanted: Cell::new(0),
            kick: WaitList::new(),
            done: WaitList::new(),
            failed: RefCell::new(None),
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

    /// A write to the data device completed (with whatever result).
    pub(crate) fn data_written(&self) {
        self.data_written.set(self.data_written.get() + 1);
    }

    /// Blocks whose records wait for a commit.
    pub(crate) fn backlog(&self) -> usize {
        self.pending.borrow().len() + self.entries.borrow().len()
    }

    /// The failure that stopped the cache from taking writes, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }

    fn push_body(&self, body: &Body, owner: Owner) -> u32 {
        let mut log = self.log.borrow_mut();
        let lsn = log.push(body, owner);
        u32::try_from(lsn % log.capacity()).expect("a ring has fewer than 2^32 places")
    }
}

impl Engine {
    /// Queues a slot: the next round records what it holds.
    pub(crate) fn queue_record(&self, slot: SlotId) {
        let mut map = self.map.borrow_mut();
        if !map.slot(slot).has(PENDING) {
            map.add_flags(slot, PENDING);
            self.commit.pending.borrow_mut().push_back(slot);
        }
    }

    /// Whether the log durably says of a slot all that the map says of its valid granules.
    pub(crate) fn record_is_durable(&self, slot: SlotId) -> bool {
        let entry = *self.map.borrow().slot(slot);
        !entry.has(PENDING | DEFERRED)
            && entry.record_at != NO_RECORD
            && !self.commit.log.borrow().in_flight(entry.record_at)
    }

    /// Waits until no durable record calls a granule of this slot dirty that the map calls clean: such a
    /// record would win, after a crash, over what is about to be written to the backing device.
    pub(crate) async fn settle(&self, slot: SlotId) -> Result<()> {
        let entry = *self.map.borrow().slot(slot);
        let in_flight =
            entry.record_at != NO_RECORD && self.commit.log.borrow().in_flight(entry.record_at);
        if entry.has(CLEANED) || in_flight {
            self.commit().await?;
        }
        Ok(())
    }

    /// Queues something else for the next round.
    pub(crate) fn queue_entry(&self, entry: Entry) {
        self.commit.entries.borrow_mut().push(entry);
    }

    /// Asks for a round that covers everything queued, and every write to the data device completed,
    /// up to now.
    pub(crate) fn request_commit(&self) -> Ticket {
        let round = self.commit.started.get() + 1;
        if self.commit.wanted.get() < round {
            self.commit.wanted.set(round);
            self.commit.kick.wake_all();
        }
        Ticket(round)
    }

    /// Waits until a round is durable.
    pub(crate) async fn committed(&self, ticket: Ticket) -> Result<()> {
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

    /// Makes everything queued and written up to now durable.
    pub(crate) async fn commit(&self) -> Result<()> {
        let ticket = self.request_commit();
        self.committed(ticket).await
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
        tracing::error!(error = %error.report(), "the cache device failed; reads go on where they can, writes are refused until restart");
        let error = Error::with_source(
            ErrorKind::Io,
            "the cache stopped taking writes after its device failed: restart to recover",
            error,
        );
        if let Some(journal) = &mut *self.commit.journal.borrow_mut() {
            journal.poison();
        }
        self.commit.failed.borrow_mut().get_or_insert(error);
        self.commit.done.wake_all();
        self.wake_everyone();
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
            if self.commit.stopping.get() {
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
            if self.commit.backlog() > 0 && self.commit.failure().is_none() {
                let _ = self.commit().await;
            }
        }
    }

    async fn round(&self) -> Result<()> {
        let journaled = self.commit.journal.borrow().as_ref().map(Journal::head);
        let mut quota = self.commit.pending.borrow().len();
        loop {
            let (extents, more) = self.build_batch(&mut quota)?;
            self.flush_data().await?;
            if !extents.is_empty() {
                self.write_batch(extents).await?;
                self.commit.log.borrow_mut().committed();
            }
            if !more {
                break;
            }
        }
        if let Some((journal, to)) = self.commit.journal.borrow_mut().as_mut().zip(journaled) {
            journal.trim(to);
        }
        Ok(())
    }

    /// Rule 1: the data that the batch's records point to is durable before they are written.
    async fn flush_data(&self) -> Result<()> {
        let written = self.commit.data_written.get();
        let skip = planted(Fault::RecordBeforeData);
        if self.data_volatile && written != self.commit.data_flushed.get() && !skip {
            self.data.flush().await?;
        }
        self.commit.data_flushed.set(written);
        Ok(())
    }

    async fn write_batch(&self, extents: Vec<LogExtent>) -> Result<()> {
        let fua = self.metadata_volatile && self.metadata_fua && extents.len() == 1;
        let start = |extent: &LogExtent| -> IoFuture {
            let bytes = extent.buf.len() as u64;
            self.stats.log_bytes.add(bytes);
            let buf = extent.buf.clone();
            if fua {
                self.metadata.write_fua(extent.offset, buf)
            } else {
                self.metadata.write(extent.offset, buf)
            }
        };
        // All extents are issued at once; a failed one is written again, which is safe as long as
        // nobody was told that it is there. Not so with FUA: what failed may have been a flush.
        let tries = if fua { 1 } else { WRITE_TRIES };
        let mut running: Vec<IoFuture> = extents.iter().map(start).collect();
        for (extent, first) in extents.iter().zip(running.drain(..)) {
            let mut result = first.await;
            for _ in 1..tries {
                if result.is_ok() {
                    break;
                }
                result = start(extent).await;
            }
            result?;
        }
        if self.metadata_volatile && !fua {
            self.metadata.flush().await?;
        }
        Ok(())
    }

    /// Builds one batch from what is queued, as the map is now. `quota` counts the queued slots that
    /// belong to this round. Returns what to write, and whether the round needs another batch.
    fn build_batch(&self, quota: &mut usize) -> Result<(Vec<LogExtent>, bool)> {
        let (first, limit) = {
            let log = self.commit.log.borrow();
            let unit = log.unit_records();
            let share = (log.capacity() / 16)
                .clamp(4 * unit, 1 << 15)
                .min(log.room());
            (log.next(), share - share % unit)
        };
        // The other half is for what the tail must log again: see docs/format.md, "Room".
        let fresh = first + limit.div_ceil(2);
        let room = || fresh.saturating_sub(self.commit.log.borrow().next());
        self.log_echo(room());
        let mut entries = std::mem::take(&mut *self.commit.entries.borrow_mut()).into_iter();
        while room() > 0 {
            let Some(entry) = entries.next() else { break };
            if let Some(rest) = self.log_entry(entry, room()) {
                self.commit.entries.borrow_mut().push(rest);
            }
        }
        self.commit.entries.borrow_mut().extend(entries);
        while *quota > 0 && room() > 0 {
            let next = self.commit.pending.borrow_mut().pop_front();
            let Some(slot) = next else {
                *quota = 0;
                break;
            };
            *quota -= 1;
            let pending = self.map.borrow().slot(slot).has(PENDING);
            if pending {
                self.map.borrow_mut().clear_flags(slot, PENDING);
                self.log_slot(slot);
            }
        }
        let more = *quota > 0 || !self.commit.entries.borrow().is_empty();
        if !self.commit.log.borrow().batch_is_empty() {
            self.clean_tail(first + limit);
            return Ok((self.commit.log.borrow_mut().seal(), more));
        }
        if more && limit == 0 {
            let log = self.commit.log.borrow();
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

    /// Logs the last round's kills again, but for slots that hold something new by now.
    fn log_echo(&self, room: u64) {
        let mut echo = std::mem::take(&mut *self.commit.echo.borrow_mut());
        echo.truncate(usize::try_from(room / 2).unwrap_or(usize::MAX) * KILL_SLOTS);
        let dead: Vec<SlotId> = {
            let map = self.map.borrow();
            echo.into_iter()
                .filter(|slot| !map.slot(*slot).has(LIVE))
                .collect()
        };
        self.log_kills(&dead);
    }

    fn log_kills(&self, dead: &[SlotId]) {
        for chunk in dead.chunks(KILL_SLOTS) {
            let mut slots = [0; KILL_SLOTS];
            slots[..chunk.len()].copy_from_slice(chunk);
            let count = u8::try_from(chunk.len()).expect("at most KILL_SLOTS");
            self.commit
                .push_body(&Body::Kill { slots, count }, Owner::NONE);
        }
    }

    /// Logs an entry, as far as `room` records go. Returns what is left of it.
    fn log_entry(&self, entry: Entry, room: u64) -> Option<Entry> {
        match entry {
            Entry::Kill(mut slots) => {
                let fits = usize::try_from(room)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(KILL_SLOTS);
                let rest = slots.split_off(fits.min(slots.len()));
                self.log_kills(&slots);
                self.commit.echo.borrow_mut().extend(slots);
                return (!rest.is_empty()).then_some(Entry::Kill(rest));
            }
            Entry::Mark(id) => self.log_mark(id),
            Entry::Unmark { volume, region } => {
                let body = Body::Mark {
                    volume,
                    region,
                    state: MarkState::None,
                };
                self.commit.push_body(&body, Owner::NONE);
            }
            Entry::Open => self.log_open(),
            Entry::Close => {
                self.commit.opened_at.set(NO_RECORD);
                self.commit.push_body(&Body::Close, Owner::NONE);
                // Nothing comes after it.
                self.commit.stopping.set(true);
            }
        }
        None
    }

    fn log_open(&self) {
        let body = Body::Open {
            boot_id: self.options.boot_id,
            journal: self.commit.journal.borrow().is_some(),
        };
        let at = self.commit.push_body(&body, Owner::NONE);
        self.commit.opened_at.set(at);
    }

    fn log_mark(&self, id: RegionId) {
        let Some((volume, region, state)) = self.regions.logged(id) else {
            return;
        };
        let body = Body::Mark {
            volume,
            region,
            state,
        };
        let at = self.commit.push_body(&body, Owner::mark(id));
        self.regions.set_record(id, at);
    }

    /// Logs what a slot holds now.
    ///
    /// Clean granules claim that the backing device holds the same; while writes to it wait for a
    /// flush, that is not durably so, and they are left out until it is.
    fn log_slot(&self, slot: SlotId) {
        let entry = *self.map.borrow().slot(slot);
        if !entry.has(LIVE) {
            return;
        }
        let volume = entry.key.volume();
        let unflushed = !planted(Fault::ClaimBeforeFlush)
            && self
                .volume_by_id(volume)
                .is_some_and(|v| v.backing.unflushed());
        let valid = if unflushed { entry.dirty } else { entry.valid };
        if valid != entry.valid && !entry.has(DEFERRED) {
            self.map.borrow_mut().add_flags(slot, DEFERRED);
            self.deferred.borrow_mut().push(slot);
        }
        if valid == 0 && !entry.has(TRACED) {
            return;
        }
        let block = BlockRecord {
            volume,
            block: entry.key.block(),
            slot,
            valid,
            dirty: entry.dirty,
        };
        let at = self
            .commit
            .push_body(&Body::Block(block), Owner::slot(slot));
        let mut map = self.map.borrow_mut();
        map.set_record(slot, at);
        map.add_flags(slot, TRACED);
        map.clear_flags(slot, CLEANED);
        if entry.has(UNRECORDED) {
            map.clear_flags(slot, UNRECORDED);
            self.regions.recorded(entry.key);
        }
    }

    /// Clean granules of `volume` that waited for a flush of its backing device may be recorded now.
    pub(crate) fn release_deferred(&self, volume: u16) {
        let waiting = std::mem::take(&mut *self.deferred.borrow_mut());
        for slot in waiting {
            let entry = *self.map.borrow().slot(slot);
            if !entry.has(DEFERRED) {
                continue;
            }
            if entry.key.volume() == volume {
                self.map.borrow_mut().clear_flags(slot, DEFERRED);
                self.queue_record(slot);
            } else {
                self.deferred.borrow_mut().push(slot);
            }
        }
    }

    /// Moves the tail on, logging again what still counts: first as far as the ring needs the room,
    /// then as far as the last unit's padding has some.
    fn clean_tail(&self, end: u64) {
        loop {
            let (oldest, place) = {
                let log = self.commit.log.borrow();
                let needed = log.used() > log.capacity() / 2;
                let worthwhile = log.used() > log.capacity() / 4 && log.unit_room() > 0;
                if !(needed && log.next() < end || worthwhile) {
                    return;
                }
                let Some((lsn, owner)) = log.oldest() else {
                    return;
                };
                let place = u32::try_from(lsn % log.capacity()).expect("a ring place");
                (owner, place)
            };
            match oldest.kind() {
                OwnerKind::None if self.commit.opened_at.get() == place => self.log_open(),
                OwnerKind::None => {}
                OwnerKind::Slot(slot) => {
                    let entry = *self.map.borrow().slot(slot);
                    if entry.has(LIVE) && entry.record_at == place {
                        self.map.borrow_mut().set_record(slot, NO_RECORD);
                        self.map.borrow_mut().clear_flags(slot, PENDING);
                        self.log_slot(slot);
                    }
                }
                OwnerKind::Mark(id) => {
                    if self.regions.record_at(id) == Some(place) {
                        self.log_mark(id);
                    }
                }
            }
            self.commit.log.borrow_mut().drop_oldest();
        }
    }
}
