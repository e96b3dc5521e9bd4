//! Counters of a volume. Only the engine reactor writes them; any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::Op;

use crate::histogram::{Histogram, HistogramSnapshot, add};

/// One of this many reads and writes is measured: two readings of the clock cost more than all
/// other work of a volume. It is a prime, so that it does not coincide with batches.
const SAMPLE_STRIDE: u64 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl OpKind {
    pub(crate) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write of zeroes",
        }
    }
}

#[derive(Debug)]
struct OpCounters {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    latency: Histogram,
}

impl OpCounters {
    const fn new() -> Self {
        Self {
            ops: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            latency: Histogram::new(),
        }
    }

    fn snapshot(&self) -> OpStats {
        OpStats {
            ops: self.ops.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            latency: self.latency.snapshot(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Counters {
    kinds: [OpCounters; 5],
    started: AtomicU64,
    ended: AtomicU64,
    limited: AtomicU64,
    limited_ns: AtomicU64,
    late: AtomicU64,
    ended_late: AtomicU64,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            kinds: [const { OpCounters::new() }; 5],
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            limited_ns: AtomicU64::new(0),
            late: AtomicU64::new(0),
            ended_late: AtomicU64::new(0),
        }
    }

    /// Counts a late request whose client got the error.
    pub(crate) fn is_late(&self) {
        add(&self.late, 1);
    }

    /// Counts the completion of a late request.
    pub(crate) fn ended_late(&self) {
        add(&self.ended_late, 1);
    }

    /// Counts a request that waits this long for the volume's limits.
    pub(crate) fn limit(&self, wait: Duration) {
        add(&self.limited, 1);
        add(
            &self.limited_ns,
            u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    /// Counts the start of a request. Returns whether its latency is to be measured.
    pub(crate) fn start(&self, kind: OpKind) -> bool {
        let number = self.started.load(Ordering::Relaxed);
        self.started.store(number + 1, Ordering::Relaxed);
        !matches!(kind, OpKind::Read | OpKind::Write) || number.is_multiple_of(SAMPLE_STRIDE)
    }

    /// Counts the end of a request.
    pub(crate) fn end(&self, kind: OpKind, bytes: u64, ok: bool, latency: Option<Duration>) {
        add(&self.ended, 1);
        let counters = &self.kinds[kind as usize];
        add(&counters.ops, 1);
        if ok {
            add(&counters.bytes, bytes);
        } else {
            add(&counters.errors, 1);
        }
        if let Some(latency) = latency {
            let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            counters.latency.record(latency_ns);
        }
    }

    /// Counts a request that was refused before it started.
    pub(crate) fn refuse(&self, kind: OpKind) {
        let counters = &self.kinds[kind as usize];
        add(&counters.ops, 1);
        add(&counters.errors, 1);
    }

    pub(crate) fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.started.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(crate) fn snapshot(&self) -> VolumeStats {
        let late = self.late.load(Ordering::Relaxed);
        let [read, write, flush, discard, write_zeroes] =
            self.kinds.each_ref().map(OpCounters::snapshot);
        VolumeStats {
            read,
            write,
            flush,
            discard,
            write_zeroes,
            in_flight: self.in_flight(),
            limited: self.limited.load(Ordering::Relaxed),
            limited_time: Duration::from_nanos(self.limited_ns.load(Ordering::Relaxed)),
            timed_out: late,
            overdue: late.saturating_sub(self.ended_late.load(Ordering::Relaxed)),
        }
    }
}

/// Counters of one kind of operation since the creation of the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Requests that ended, successful or not.
    pub ops: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Requests that failed or were refused.
    pub errors: u64,
    /// Time from arrival on the engine reactor to completion. Every flush, discard and write-zeroes
    /// is measured, and one in eleven of reads and writes.
    pub latency: HistogramSnapshot,
}

/// Counters of a volume since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Reads.
    pub read: OpStats,
    /// Writes.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// Discards.
    pub discard: OpStats,
    /// Writes of zeroes.
    pub write_zeroes: OpStats,
    /// Requests that have started and not ended.
    pub in_flight: u64,
    /// Requests that waited for the volume's limits.
    pub limited: u64,
    /// Total time of these waits.
    pub limited_time: Duration,
    /// Requests that timed out.
    pub timed_out: u64,
    /// Of these, those that the device has not completed: their ranges are in quarantine.
    pub overdue: u64,
}
