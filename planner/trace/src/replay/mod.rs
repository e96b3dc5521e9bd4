//! The replayer: real I/O as a trace says.
//!
//! Requests are issued in the order of the trace, at most so many at a time over all targets: as
//! fast as they are answered, or at the recorded times. Overlapping requests in flight are the
//! target's to order, as they were its clients', unless what was written is to be verified: then a
//! write waits for those in flight to the same pages of 4 KiB. Nothing is read ahead of its time:
//! what is written is a pattern that says volume, sector and number of the write (see [`pattern`]).
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

/// Requests that may end at once before other tasks get their turn.
const BURST: u32 = 16;
/// A request that starts later than this after its time is late.
const LATE: Duration = Duration::from_millis(1);
/// How long nobody is asked whether to stop, where requests are far apart.
const NAP: Duration = Duration::from_millis(200);

/// What is read from and written to.
#[derive(Clone)]
pub struct Target {
    /// What it is called.
    pub name: String,
    /// The device.
    pub device: Rc<dyn BlockDevice>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Target").field(&self.name).finish()
    }
}

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as others are answered.
    Max,
    /// At the recorded times, so many times as fast.
    Recorded(f64),
}

/// What becomes of writes and discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The target's data is overwritten.
    Replay,
    /// They are left out.
    Skip,
    /// The first one ends the replay with an error.
    Refuse,
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// When requests are issued.
    pub pace: Pace,
    /// Requests in flight at most, over all targets.
    pub depth: usize,
    /// What becomes of requests that reach past the end of their target.
    pub past_end: PastEnd,
    /// What becomes of writes.
    pub writes: Writes,
    /// Whether to remember what was written, to verify it at the end.
    pub verify: bool,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
pub struct OpReport {
    /// Those that went well.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From issue to completion.
    pub latency: Latencies,
}

/// Requests that were not issued at their times.
#[derive(Clone, Debug, Default)]
pub struct Late {
    /// Those that were more than a millisecond late.
    pub requests: u64,
    /// How late every request was.
    pub by: Latencies,
}

/// What came of a replay.
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
    /// Requests of the trace that were replayed, and answered as a whole.
    pub requests: u64,
    /// Writes and discards that were left out.
    pub skipped_writes: u64,
    /// What had to be changed so that requests fit their targets.
    pub fitted: Fitted,
    /// Lateness; none where requests have no times.
    pub late: Option<Late>,
    /// From the first request's issue to the last one's completion.
    pub elapsed: Duration,
    /// What was read back; see [`Report::verify`].
    pub verified: Option<Verified>,
    written: Option<Written>,
    /// What ended the replay before the trace's end.
    pub failed: Option<Error>,
}

impl Report {
    /// The kinds by their names.
    #[must_use]
    pub const fn ops(&self) -> [(&'static str, &OpReport); 4] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
        ]
    }

    /// Reads back what was written, if that was remembered ([`ReplayOptions::verify`]) and nothing
    /// has failed so far.
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

/// What the issuer shares with the requests in flight.
struct Shared {
    names: Vec<String>,
    places: Semaphore,
    report: RefCell<Report>,
    written: Option<RefCell<Written>>,
    last_end: Cell<Duration>,
}

/// Replays a trace: `next` gives its requests, whose volumes are numbers of `targets`, piece by
/// piece, and none at its end. `stop` is asked now and then whether to end before that.
///
/// Whatever goes wrong on the way is in the report, with what was measured until then.
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
    // The requests in flight have ended, and nobody else has it.
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
    /// Requests that have ended at once since others had their turn.
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

    /// False if it was told to stop meanwhile.
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
        // Late starts are those that wait for a place, too.
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

/// The outcome, if it is there already.
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
    /// Pieces of its request that are still to go well.
    left: Rc<Cell<usize>>,
    /// Of the write.
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
