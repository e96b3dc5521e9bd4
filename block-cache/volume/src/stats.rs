//! Counters of a volume. The engine reactor alone writes them; any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::Op;

use crate::histogram::{Histogram, HistogramSnapshot, add};

/// Reads and writes whose latency is not measured for each one that is: reading the clock twice
/// costs more than all else that a volume does. A prime, so that it does not beat with batches.
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

    /// Counts a request that was told late to its client.
    pub(crate) fn is_late(&self) {
        add(&self.late, 1);
    }

    /// Counts the device's end of such a request.
    pub(crate) fn ended_late(&self) {
        add(&self.ended_late, 1);
    }

    /// Counts a request that waits so long for the volume's limits.
    pub(crate) fn limit(&self, wait: Duration) {
        add(&self.limited, 1);
        add(
            &self.limited_ns,
            u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    /// Counts a request that starts; whether its latency is to be measured.
    pub(crate) fn start(&self, kind: OpKind) -> bool {
        let number = self.started.load(Ordering::Relaxed);
        self.started.store(number + 1, Ordering::Relaxed);
        !matches!(kind, OpKind::Read | OpKind::Write) || number.is_multiple_of(SAMPLE_STRIDE)
    }

    /// Counts the end of a request that started.
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

/// One kind of operation since the volume was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Requests that ended, well or not.
    pub ops: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// Requests that failed or were refused.
    pub errors: u64,
    /// Time from arrival on the engine reactor to the completion. Every flush, discard and
    /// write-zeroes is measured; of reads and writes, one in eleven.
    pub latency: HistogramSnapshot,
}

/// What a volume has done since it was made.
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
    /// How long they waited for these, together.
    pub limited_time: Duration,
    /// Requests that timed out.
    pub timed_out: u64,
    /// Of these, those that the device has not ended: what they change is in quarantine.
    pub overdue: u64,
}
