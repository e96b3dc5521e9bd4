//! The replayer performs the I/O of a trace.
//!
//! Requests are issued in the order of the trace, with a limit on those in flight over all targets.
//! They are issued as fast as others complete, or at the recorded times. The target orders
//! overlapping requests in flight, as it did for its clients. If written data will be verified, a
//! write waits for writes in flight to the same pages of 4 KiB. The data of a write is a pattern of
//! volume, sector and number of the write (see [`pattern`]).
//!
//! The replayer belongs to a reactor, as its targets do.

mod fit;
mod latency;
pub mod pattern;
mod verify;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Context as _, Error, ErrorKind, IoFuture, Result,
};
use forebay_io::rt;
use forebay_io::sync::Semaphore;

pub use fit::{Fitted, PastEnd};
pub use latency::Latencies;
pub use verify::Verified;

use crate::{Op, Request};
use fit::{Fit, Piece};
use verify::Written;

/// Number of requests that may complete at once before other tasks run.
const BURST: u32 = 16;
/// A request that starts later than this is counted as late.
const LATE: Duration = Duration::from_millis(1);
/// Longest time between two checks whether to stop, if requests are far apart.
const NAP: Duration = Duration::from_millis(200);

/// A device to read from and write to.
#[derive(Clone)]
pub struct Target {
    /// Name of the target.
    pub name: String,
    /// The device.
    pub device: Rc<dyn BlockDevice>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Target").field(&self.name).finish()
    }
}

/// Time at which requests are issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as others complete.
    Max,
    /// At the recorded times, this many times as fast.
    Recorded(f64),
}

/// Treatment of writes and discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Overwrite the target's data.
    Replay,
    /// Skip them.
    Skip,
    /// End the replay with an error at the first one.
    Refuse,
}

/// Options of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Time at which requests are issued.
    pub pace: Pace,
    /// Most requests in flight, over all targets.
    pub depth: usize,
    /// Treatment of requests past the end of their target.
    pub past_end: PastEnd,
    /// Treatment of writes.
    pub writes: Writes,
    /// Whether to record writes, to verify them at the end.
    pub verify: bool,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
pub struct OpReport {
    /// Number of successful requests.
    pub requests: u64,
    /// Their total length, bytes.
    pub bytes: u64,
    /// Latencies from issue to completion.
    pub latency: Latencies,
}

/// Requests that were issued late.
#[derive(Clone, Debug, Default)]
pub struct Late {
    /// Number of requests that were more than a millisecond late.
    pub requests: u64,
    /// Lateness of every request.
    pub by: Latencies,
}

/// Result of a replay.
#[derive(Debug, Default)]
pub struct Report {
    /// Reads.
    pub read: OpReport,
    /// Writes.
    pub write: OpReport,
    /// Flushes.
    pub flush: OpReport,
    /// Discards.
    pub discard: OpReport,
    /// Number of replayed requests that completed as a whole.
    pub requests: u64,
    /// Number of skipped writes and discards.
    pub skipped_writes: u64,
    /// Counts of requests that were changed to fit their targets.
    pub fitted: Fitted,
    /// Lateness; `None` without recorded times.
    pub late: Option<Late>,
    /// Time from the first request's issue to the last one's completion.
    pub elapsed: Duration,
    /// Result of the verification; see [`Report::verify`].
    pub verified: Option<Verified>,
    written: Option<Written>,
    /// Error that ended the replay before the end of the trace.
    pub failed: Option<Error>,
}

impl Report {
    /// Returns the kinds with their names.
    #[must_use]
    pub const fn ops(&self) -> [(&'static str, &OpReport); 4] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
        ]
    }

    /// Reads back the written data, if writes were recorded ([`ReplayOptions::verify`]) and the
    /// replay has not failed.
    pub async fn verify(&mut self, targets: &[Target], depth: usize) {
        let Some(written) = self.written.take().filter(|_| self.failed.is_none()) else {
            return;
        };
        match verify::verify(targets, &written, depth).await {
            Ok(verified) => self.verified = Some(verified),
            Err(error) => self.failed = Some(error.context("what was written cannot be read back")),
        }
    }

    const fn op(&mut self, op: Op) -> &mut OpReport {
        match op {
            Op::Read => &mut self.read,
            Op::Write => &mut self.write,
            Op::Flush => &mut self.flush,
            Op::Discard => &mut self.discard,
        }
    }
}

/// State shared by the issuer and the requests in flight.
struct Shared {
    names: Vec<String>,
    places: Semaphore,
    report: RefCell<Report>,
    written: Option<RefCell<Written>>,
    last_end: Cell<Duration>,
}

/// Replays a trace. `next` returns its requests in batches, and none at the end. Their volumes are
/// numbers of `targets`. `stop` is called at intervals to check whether to end.
///
/// Any error is in the report, with the results so far.
///
/// # Panics
/// On a thread that runs no reactor; if a request's volume is no target, or the depth is zero.
pub async fn replay(
    targets: &[Target],
    options: &ReplayOptions,
    mut next: impl AsyncFnMut() -> Result<Option<Vec<Request>>>,
    stop: impl Fn() -> bool,
) -> Report {
    assert!(
        options.depth > 0,
        "a replay has at least one request in flight"
    );
    let shared = Rc::new(Shared {
        names: targets.iter().map(|target| target.name.clone()).collect(),
        places: Semaphore::new(options.depth as u64),
        report: RefCell::default(),
        written: options.verify.then(RefCell::default),
        last_end: Cell::default(),
    });
    let mut issuer = Issuer {
        targets,
        options,
        shared: Rc::clone(&shared),
        fits: targets
            .iter()
            .map(|t| Fit::new(&t.device.info(), options.past_end))
            .collect(),
        began: rt::now(),
        writes: 0,
        inline: 0,
    };
    if let Pace::Recorded(_) = options.pace {
        shared.report.borrow_mut().late = Some(Late::default());
    }
    let ended = issuer.run(&mut next, &stop).await;
    shared.places.acquire(options.depth as u64).await;
    let began = issuer.began;
    let mut report = shared.report.take();
    report.fitted = Fitted::sum(issuer.fits.iter().map(|fit| &fit.fitted));
    report.elapsed = shared.last_end.get().saturating_sub(began);
    if let Err(error) = ended {
        report.failed.get_or_insert(error);
    }
    drop(issuer);
    // The requests in flight have ended, so there is no other reference.
    report.written = Rc::into_inner(shared)
        .and_then(|shared| shared.written)
        .map(RefCell::into_inner);
    report
}

struct Issuer<'a> {
    targets: &'a [Target],
    options: &'a ReplayOptions,
    shared: Rc<Shared>,
    fits: Vec<Fit>,
    began: Duration,
    /// Number of the last write.
    writes: u32,
    /// Number of requests that completed at once since other tasks ran.
    inline: u32,
}

impl Issuer<'_> {
    async fn run(
        &mut self,
        next: &mut impl AsyncFnMut() -> Result<Option<Vec<Request>>>,
        stop: &impl Fn() -> bool,
    ) -> Result<()> {
        let mut first = true;
        while let Some(batch) = next().await? {
            if std::mem::take(&mut first) {
                self.began = rt::now();
            }
            for request in &batch {
                if stop() {
                    return Ok(());
                }
                let writes = matches!(request.op, Op::Write | Op::Discard);
                match self.options.writes {
                    Writes::Skip if writes => {
                        self.shared.report.borrow_mut().skipped_writes += 1;
                        continue;
                    }
                    Writes::Refuse if writes => {
                        let what = "the trace has writes, which destroy the data of the target";
                        return Err(Error::new(ErrorKind::ReadOnly, what));
                    }
                    _ => {}
                }
                if !self.wait_for_its_time(request.time_ns, stop).await {
                    return Ok(());
                }
                let target = request.volume as usize;
                let device = Rc::clone(&self.targets[target].device);
                let pieces = self.fits[target]
                    .fit(request)
                    .context(|| format!("target {}", self.targets[target].name))?;
                let left = Rc::new(Cell::new(pieces.count()));
                for piece in pieces {
                    self.issue(request.op, target, &device, piece, Rc::clone(&left))
                        .await;
                    if self.shared.report.borrow().failed.is_some() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the time of a request. Returns false if the replay was stopped meanwhile.
    async fn wait_for_its_time(&self, time_ns: u64, stop: &impl Fn() -> bool) -> bool {
        let Pace::Recorded(speed) = self.options.pace else {
            return true;
        };
        let due = self.began + Duration::from_nanos(time_ns).div_f64(speed);
        while rt::now() < due {
            rt::Sleep::until(due.min(rt::now() + NAP)).await;
            if stop() {
                return false;
            }
        }
        // Requests that wait for a place count as late, too.
        self.shared.places.acquire(1).await;
        self.shared.places.release(1);
        let by = rt::now().saturating_sub(due);
        if let Some(late) = &mut self.shared.report.borrow_mut().late {
            late.requests += u64::from(by > LATE);
            late.by.record(by);
        }
        true
    }

    async fn issue(
        &mut self,
        op: Op,
        target: usize,
        device: &Rc<dyn BlockDevice>,
        piece: Piece,
        left: Rc<Cell<usize>>,
    ) {
        let shared = Rc::clone(&self.shared);
        shared.places.acquire(1).await;
        let mut number = 0;
        if matches!(op, Op::Write | Op::Discard) {
            self.writes = self.writes.wrapping_add(1).max(1);
            number = self.writes;
            if let Some(written) = &shared.written {
                verify::claim(written, target, piece).await;
            }
        }
        let mut flight = Flight {
            shared,
            op,
            target,
            piece,
            left,
            number,
            issued: Duration::ZERO,
        };
        let buf = match op {
            Op::Read => Some(Buf::scratch(piece.len())),
            Op::Write => Some(pattern::buffer(
                target,
                piece.offset_bytes,
                piece.len(),
                number,
            )),
            Op::Flush | Op::Discard => None,
        };
        flight.issued = rt::now();
        let mut io = match (op, buf) {
            (Op::Read, Some(buf)) => device.read(piece.offset_bytes, buf),
            (Op::Write, Some(buf)) => device.write(piece.offset_bytes, buf),
            (Op::Discard, _) => device.discard(piece.offset_bytes, piece.len_bytes),
            (_, _) => device.flush(),
        };
        if let Some(outcome) = at_once(&mut io) {
            flight.end(outcome);
            self.inline += 1;
            if self.inline >= BURST {
                self.inline = 0;
                rt::yield_now().await;
            }
            return;
        }
        rt::spawn(async move {
            let outcome = io.await;
            flight.end(outcome);
        });
    }
}

/// Returns the outcome if it is available at once.
fn at_once(io: &mut IoFuture) -> Option<Result<()>> {
    match Pin::new(io).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// A request in flight.
struct Flight {
    shared: Rc<Shared>,
    op: Op,
    target: usize,
    piece: Piece,
    /// Number of pieces of its request that have not succeeded yet.
    left: Rc<Cell<usize>>,
    /// Number of the write.
    number: u32,
    issued: Duration,
}

impl Flight {
    fn end(self, outcome: Result<()>) {
        let now = rt::now();
        let shared = &self.shared;
        shared.last_end.set(now);
        let ok = outcome.is_ok();
        if let Some(written) = &shared.written
            && self.number > 0
        {
            let number = if ok && self.op == Op::Write {
                self.number
            } else {
                0
            };
            written.borrow_mut().end(self.target, self.piece, number);
        }
        {
            let mut report = shared.report.borrow_mut();
            match outcome {
                Ok(()) => {
                    self.left.set(self.left.get() - 1);
                    report.requests += u64::from(self.left.get() == 0);
                    let op = report.op(self.op);
                    op.requests += 1;
                    op.bytes += self.piece.len_bytes;
                    op.latency.record(now.saturating_sub(self.issued));
                }
                Err(error) => {
                    let Piece {
                        offset_bytes,
                        len_bytes,
                    } = self.piece;
                    report.failed.get_or_insert_with(|| {
                        error.context(format!(
                            "{:?} of {len_bytes} bytes at {offset_bytes} of {} failed",
                            self.op, shared.names[self.target]
                        ))
                    });
                }
            }
        }
        shared.places.release(1);
    }
}

#[cfg(test)]
mod tests;
