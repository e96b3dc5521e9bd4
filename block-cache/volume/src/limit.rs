//! Rate limits of a volume: operations and bytes a second, each as a token bucket.
//!
//! A bucket is one moment, *full at*: the time at which it would be full. A request may begin if
//! the bucket is not empty: it would be full no later than one burst from now. The request moves
//! *full at* by its own cost. A later request begins later, whatever it is, so requests stay in
//! order of arrival.

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use forebay_block::{Op, Request};

/// Maximum rates of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests a second, of any kind; no limit if `None`.
    pub iops: Option<NonZeroU32>,
    /// Bytes a second of reads and writes; no limit if `None`.
    pub bandwidth_bytes_per_s: Option<NonZeroU64>,
    /// Time of unused rate that an idle volume may use at once.
    pub burst: Duration,
}

impl Limits {
    /// Default burst.
    pub const DEFAULT_BURST: Duration = Duration::from_millis(100);

    /// No limits.
    pub const NONE: Self = Self {
        iops: None,
        bandwidth_bytes_per_s: None,
        burst: Self::DEFAULT_BURST,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::NONE
    }
}

/// Queue of a volume's requests that exceed its limits.
pub(crate) struct LimitQueue<T> {
    limits: Limits,
    operations_full_at: Duration,
    bytes_full_at: Duration,
    waiting: VecDeque<(Duration, T)>,
    /// Whether a task serves the queue.
    pub(crate) attended: bool,
}

impl<T> LimitQueue<T> {
    pub(crate) const fn new() -> Self {
        Self {
            limits: Limits::NONE,
            operations_full_at: Duration::ZERO,
            bytes_full_at: Duration::ZERO,
            waiting: VecDeque::new(),
            attended: false,
        }
    }

    /// Sets the limits of later requests.
    pub(crate) const fn set(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns whether every request may begin at once.
    pub(crate) fn is_open(&self) -> bool {
        let Limits {
            iops,
            bandwidth_bytes_per_s,
            ..
        } = self.limits;
        iops.is_none() && bandwidth_bytes_per_s.is_none() && self.waiting.is_empty()
    }

    /// Charges a request to the buckets. Returns the time at which it may begin.
    pub(crate) fn charge(&mut self, now: Duration, request: &Request) -> Duration {
        let burst = self.limits.burst;
        let mut begin = now;
        let mut take = |full_at: &mut Duration, amount: u64, per_s: u64| {
            begin = begin.max(full_at.saturating_sub(burst));
            *full_at = now.max(*full_at).saturating_add(worth(amount, per_s));
        };
        if let Some(iops) = self.limits.iops {
            take(&mut self.operations_full_at, 1, iops.get().into());
        }
        if let Some(rate) = self.limits.bandwidth_bytes_per_s {
            take(&mut self.bytes_full_at, moved_bytes(request), rate.get());
        }
        begin
    }

    /// Queues `one`, which may begin at `begin`, or returns it if it may begin now.
    pub(crate) fn queue(&mut self, now: Duration, begin: Duration, one: T) -> Option<T> {
        if begin <= now && self.waiting.is_empty() {
            return Some(one);
        }
        self.waiting.push_back((begin, one));
        None
    }

    /// Returns the time at which the first queued request may begin.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.waiting.front().map(|(begin, _)| *begin)
    }

    /// Removes and returns the first queued request, if it may begin.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<T> {
        self.next().filter(|begin| *begin <= now)?;
        self.waiting.pop_front().map(|(_, one)| one)
    }

    /// Removes and returns all queued requests.
    pub(crate) fn take_all(&mut self) -> VecDeque<(Duration, T)> {
        std::mem::take(&mut self.waiting)
    }
}

/// Returns the time that an amount takes at a rate.
fn worth(amount: u64, per_s: u64) -> Duration {
    let ns = u128::from(amount) * 1_000_000_000 / u128::from(per_s);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns the bytes that a request transfers: a discard transfers none.
const fn moved_bytes(request: &Request) -> u64 {
    match request.op {
        Op::Read | Op::Write { .. } => request.len,
        Op::Flush | Op::Discard | Op::WriteZeroes { .. } => 0,
    }
}
