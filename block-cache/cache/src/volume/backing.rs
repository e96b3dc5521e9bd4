//! A volume's backing device and its unflushed data.
//!
//! A failed flush may have lost any data written since the last good flush. Data that the cache
//! wrote back is still dirty, and is written back once more. For that the device begins a new
//! *session*, and writes of an earlier session do not count. Data that clients wrote there exists
//! nowhere else. Then no flush succeeds until the next attach of the volume, and that attach
//! reports the loss (`lost`).
//!
//! A flush that fails because the peer of a remote device is away loses nothing.
//!
//! Some devices have unflushed changes in the memory of this process alone. The superblock notes
//! the first change of a client after each flush, before the device gets the change. The next
//! attach reports the loss if this process ends before a flush.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Op, Request, Result};
use forebay_io::sync::Semaphore;
use forebay_metadata::order::{self, Ordered, Part, Site};
use futures_util::future::LocalBoxFuture;

use crate::failpoints::{Fault, planted};

/// Number of ranges of failed writes that are recorded separately. Beyond that they are merged into
/// one.
const MANY_RANGES: usize = 256;

/// Notes durably that this process holds unflushed changes of clients. Returns at once if the note
/// is there.
pub(crate) type NoteUnflushed = Box<dyn Fn() -> LocalBoxFuture<'static, ()>>;

/// A backing device with a count of what was written since its last flush.
pub(crate) struct Backing {
    device: Rc<dyn BlockDevice>,
    /// Device that logs each range before it is written, once the volume continues without its
    /// cache.
    logged: OnceCell<Rc<dyn BlockDevice>>,
    volatile: bool,
    /// Whether the device has unflushed changes in the memory of this process alone.
    buffers_in_process: bool,
    /// Notes durably that this process holds unflushed changes of clients.
    note_unflushed: OnceCell<NoteUnflushed>,
    fua: bool,
    /// Writes that were started and completed, and how many of them a flush has covered. Those that
    /// made themselves durable are counted only while they are in flight.
    started: Cell<u64>,
    completed: Cell<u64>,
    flushed: Cell<u64>,
    durable_in_flight: Cell<u64>,
    /// The same of `started`, `completed` and `flushed` for what clients wrote.
    clients: [Cell<u64>; 3],
    session: Cell<u64>,
    /// The volume was given up: nothing more is sent to the device.
    given_up: Cell<bool>,
    /// Whether a write or a flush failed. The device may still show the data of that write until it
    /// loses power.
    failed_once: Cell<bool>,
    /// Ranges of failed client writes. Data that the device shows there may be lost with power, in
    /// spite of later flushes.
    doubtful: RefCell<Vec<Range<u64>>>,
    /// Whether a flush failed that clients' writes depended on, because the peer of the device is
    /// away, and none has succeeded since. The device's copies end with this process.
    is_away: Cell<bool>,
    /// Whether the superblock says that clients' writes may be lost.
    noted: Cell<bool>,
    /// Serializes flushes: of two concurrent ones, the one with the error for lost data might be
    /// answered last.
    flushing: Semaphore,
    failed: RefCell<Option<Error>>,
    /// Whether a flush runs that no caller waits for.
    behind: Cell<bool>,
    /// Whether a flush failed before the volume was attached.
    lost: Cell<bool>,
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backing")
            .field("started", &self.started)
            .field("completed", &self.completed)
            .field("flushed", &self.flushed)
            .finish_non_exhaustive()
    }
}

impl Backing {
    pub(crate) fn new(device: Rc<dyn BlockDevice>) -> Self {
        let info = device.info();
        // The device's cache may hold data of a dead process, written through this cache or without
        // it. A client that survived will flush it through this device.
        let written = u64::from(info.volatile_cache);
        Self {
            device,
            logged: OnceCell::new(),
            volatile: info.volatile_cache,
            buffers_in_process: info.buffers_in_process,
            note_unflushed: OnceCell::new(),
            fua: info.fua,
            started: Cell::new(written),
            completed: Cell::new(written),
            flushed: Cell::new(0),
            durable_in_flight: Cell::new(0),
            clients: [Cell::new(written), Cell::new(written), Cell::new(0)],
            session: Cell::new(0),
            given_up: Cell::new(false),
            failed_once: Cell::new(false),
            doubtful: RefCell::default(),
            is_away: Cell::new(false),
            noted: Cell::new(false),
            flushing: Semaphore::new(1),
            failed: RefCell::new(None),
            behind: Cell::new(false),
            lost: Cell::new(false),
        }
    }

    /// Returns the device. Writes go through [`Backing::write`] or [`Backing::change`].
    pub(crate) const fn device(&self) -> &Rc<dyn BlockDevice> {
        &self.device
    }

    /// Begins a flush that no caller waits for. Returns false if one runs.
    pub(crate) const fn begin_behind(&self) -> bool {
        !self.behind.replace(true)
    }

    /// Ends a flush that no caller waits for.
    pub(crate) fn end_behind(&self) {
        self.behind.set(false);
    }

    /// Notes that a flush failed before the volume was attached.
    pub(crate) fn set_lost(&self) {
        self.lost.set(true);
    }

    /// Whether anything was written, or is being written, that no flush has covered.
    pub(crate) fn unflushed(&self) -> bool {
        self.started.get() != self.flushed.get() || self.durable_in_flight.get() > 0
    }

    /// The same of what clients wrote, or may have written before this attachment.
    pub(crate) fn owes_clients(&self) -> bool {
        let [started, _, flushed] = &self.clients;
        started.get() != flushed.get() || self.durable_in_flight.get() > 0
    }

    /// Returns whether readable data is stable: no client write waits for a flush, and nothing has
    /// failed. Otherwise the device may lose it, for example if it is on another machine that
    /// restarts. A later read would then return the earlier data.
    pub(crate) fn keeps_readable_data(&self) -> bool {
        let [started, _, flushed] = &self.clients;
        let flushed = !self.volatile || started.get() == flushed.get();
        (flushed || planted(Fault::SplitUnflushed)) && self.has_never_failed()
    }

    /// Returns whether a flush succeeded since the attach. Then readable data that was not written
    /// through this attachment can no longer be lost.
    pub(crate) fn has_flushed(&self) -> bool {
        !self.volatile || self.flushed.get() > 0 || planted(Fault::CompareUnflushed)
    }

    /// Returns the session, which changes when a flush fails: earlier writes may be lost.
    pub(crate) fn session(&self) -> u64 {
        match planted(Fault::TrustAcrossSessions) {
            true => 0,
            false => self.session.get(),
        }
    }

    /// Stops all writes to the device: the cache's data for it is given up.
    pub(crate) fn give_up(&self) {
        self.given_up.set(true);
    }

    /// From here on what clients write goes through `device`, which lets this one have it.
    pub(crate) fn log_through(&self, device: Rc<dyn BlockDevice>) {
        let first = self.logged.set(device);
        debug_assert!(first.is_ok(), "it is asked for once");
    }

    /// Returns whether the device has unflushed changes in the memory of this process alone.
    pub(crate) const fn buffers_in_process(&self) -> bool {
        self.buffers_in_process
    }

    /// Calls `note` with each change of a client from here on, before the device gets the change.
    pub(crate) fn note_unflushed_by(&self, note: NoteUnflushed) {
        let first = self.note_unflushed.set(note);
        debug_assert!(first.is_ok(), "it is asked for once");
    }

    /// Returns whether no write and no flush has failed. After a failure the device may show data
    /// that it has lost.
    pub(crate) fn has_never_failed(&self) -> bool {
        !self.failed_once.get() || planted(Fault::CompareBehindFailure)
    }

    fn doubt(&self, range: Range<u64>) {
        let mut doubtful = self.doubtful.borrow_mut();
        doubtful.push(range);
        if doubtful.len() > MANY_RANGES {
            join_nearest(&mut doubtful);
        }
    }

    /// Whether a client's write failed in this range, so that what can be read there need not be
    /// what a power loss leaves.
    pub(crate) fn is_doubtful(&self, range: &Range<u64>) -> bool {
        let touches = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        self.doubtful.borrow().iter().any(touches) && !planted(Fault::ClaimBehindFailure)
    }

    /// Returns whether the superblock's note is out of date.
    pub(crate) fn owes_note(&self) -> bool {
        self.noted.get() != self.may_lose_writes()
    }

    /// Returns the superblock's former note, and the one that the caller writes: whether clients'
    /// writes may be lost if this process ends now.
    pub(crate) fn note(&self) -> (bool, bool) {
        let doubt = self.may_lose_writes();
        (self.noted.replace(doubt), doubt)
    }

    fn may_lose_writes(&self) -> bool {
        let [started, _, flushed] = &self.clients;
        // The first one stands for data of earlier processes.
        let is_buffered = self.buffers_in_process && started.get() > flushed.get().max(1);
        is_buffered || self.is_away.get() || self.failed.borrow().is_some()
    }

    /// Reads what the cache's own copy is compared with.
    pub(crate) async fn read_back(&self, offset: u64, buf: Buf) -> Result<()> {
        if self.given_up.get() {
            return Err(ErrorKind::ShuttingDown.into());
        }
        self.device.read(offset, buf).await
    }

    /// Writes what stays dirty in the cache until a flush has covered it.
    #[track_caller]
    pub(crate) fn write_back(
        &self,
        offset: u64,
        buf: Buf,
    ) -> impl Future<Output = Result<()>> + '_ {
        self.change_at(
            Site::here(),
            Request::write(offset, buf, false),
            false,
            false,
        )
    }

    /// Makes a client's change on the device. All such changes go through here. With `durable`, the
    /// data is on media when this returns.
    #[track_caller]
    pub(crate) fn change(
        &self,
        request: Request,
        durable: bool,
    ) -> impl Future<Output = Result<()>> + '_ {
        self.change_at(Site::here(), request, durable, true)
    }

    async fn change_at(
        &self,
        site: Site,
        mut request: Request,
        durable: bool,
        by_client: bool,
    ) -> Result<()> {
        if self.given_up.get() {
            return Err(ErrorKind::ShuttingDown.into());
        }
        let range = request.offset..request.offset + request.len;
        let fua = durable && self.volatile && self.fua;
        match &mut request.op {
            Op::Write { fua: flag } | Op::WriteZeroes { fua: flag, .. } => {
                *flag = fua && !site.lacks(Part::Fua);
            }
            _ => {}
        }
        let by_itself = (fua && request.op != Op::Discard) || !self.volatile;
        let counter = if by_itself {
            &self.durable_in_flight
        } else {
            &self.started
        };
        counter.set(counter.get() + 1);
        let [clients_started, clients_completed, _] = &self.clients;
        let count_client = |counter: &Cell<u64>| counter.set(counter.get() + 1);
        if by_client && !by_itself {
            count_client(clients_started);
            // It is counted first, so that no flush takes the note back meanwhile.
            if let Some(note) = self.note_unflushed.get() {
                note().await;
            }
        }
        let is_given_up = self.given_up.get();
        // Data that is written back stays in the cache, so the write does not make the cache's copy
        // stale.
        let logged = self.logged.get().filter(|_| by_client);
        let device = logged.unwrap_or(&self.device);
        let result = match is_given_up {
            true => Err(ErrorKind::ShuttingDown.into()),
            false => Ordered::new(site, device.start(request)).await,
        };
        if by_itself {
            counter.set(counter.get() - 1);
        } else {
            self.completed.set(self.completed.get() + 1);
            if by_client {
                count_client(clients_completed);
            }
        }
        if by_itself && self.volatile && result.is_err() {
            // A failed write may have reached the device's cache, where it can be read.
            self.started.set(self.started.get() + 1);
            self.completed.set(self.completed.get() + 1);
            count_client(clients_started);
            count_client(clients_completed);
        }
        if result.is_err() && by_client {
            self.doubt(range);
        }
        self.failed_once
            .set(self.failed_once.get() || result.is_err());
        result?;
        if durable && !by_itself && !Site::here().lacks(Part::Step) {
            self.flush().await?;
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn write(
        &self,
        offset: u64,
        buf: Buf,
        durable: bool,
    ) -> impl Future<Output = Result<()>> + '_ {
        self.change_at(
            Site::here(),
            Request::write(offset, buf, false),
            durable,
            true,
        )
    }

    /// Makes all earlier writes durable.
    ///
    /// A failed flush is never retried into success: the device may have dropped the data. Data
    /// that is still in the cache stays dirty. If there was other data, every later flush of this
    /// attachment fails too. Exception: a device whose peer is [`ErrorKind::Unreachable`] has every
    /// acknowledged change, and a later flush covers them.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.flushing.acquire(1).await;
        let result = self.flush_alone().await;
        self.flushing.release(1);
        result
    }

    async fn flush_alone(&self) -> Result<()> {
        self.check()?;
        let covered = [self.completed.get(), self.clients[1].get()];
        if self.volatile
            && let Err(error) = order::flush(self.device.as_ref()).await
        {
            if error.kind() == ErrorKind::Unreachable {
                self.is_away.set(self.is_away.get() || self.owes_clients());
                return Err(error);
            }
            let name = self.device.info().name;
            tracing::error!(device = name, error = %error.report(), "a flush of the backing device \
                                                                     failed");
            self.session.set(self.session.get() + 1);
            self.failed_once.set(true);
            if !self.owes_clients() {
                let what =
                    format!("a flush of {name} failed: its unflushed write-backs are repeated");
                return Err(Error::with_source(ErrorKind::Io, what, error));
            }
            let error = Error::with_source(
                ErrorKind::Io,
                format!(
                    "a flush of {name} failed: UNFLUSHED WRITES MAY BE LOST\n\
                     help: restart, and check the last writes; each flush fails until then"
                ),
                error,
            );
            if planted(Fault::RetryFailedFlush) {
                return Err(error);
            }
            self.failed.borrow_mut().get_or_insert(error);
        }
        self.check()?;
        self.is_away.set(false);
        // Writes that were in flight when the flush began may be covered or not: they count as not.
        self.flushed.set(self.flushed.get().max(covered[0]));
        self.clients[2].set(self.clients[2].get().max(covered[1]));
        Ok(())
    }

    /// Whether a flush has failed.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Returns the reason why client writes may be lost, as a message.
    pub(crate) fn loss(&self) -> Option<String> {
        match self.check() {
            Err(error) => Some(error.report()),
            Ok(()) => self.lost.get().then(|| {
                let cause = match self.buffers_in_process {
                    true => "an earlier process ended before a flush, or a flush failed",
                    false => "a flush failed before this start",
                };
                format!("{cause}: UNFLUSHED WRITES MAY BE LOST")
            }),
        }
    }
}

/// Joins the two ranges with the smallest gap between them, and the gap.
fn join_nearest(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    let gaps = ranges.windows(2);
    let gaps = gaps.map(|pair| pair[1].start.saturating_sub(pair[0].end));
    if let Some((at, _)) = gaps.enumerate().min_by_key(|(_, gap)| *gap) {
        let next = ranges.remove(at + 1);
        ranges[at].end = ranges[at].end.max(next.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_ranges_are_joined() {
        let mut ranges = vec![100..110, 0..10, 118..120, 30..40];
        join_nearest(&mut ranges);
        assert_eq!(ranges, [0..10, 30..40, 100..120]);
        // One range may contain another.
        let mut ranges = vec![0..100, 10..20, 200..300];
        join_nearest(&mut ranges);
        assert_eq!(ranges, [0..100, 200..300]);
    }
}
