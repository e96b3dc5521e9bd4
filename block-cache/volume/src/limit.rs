//! How much a volume lets through: operations and bytes a second, each with a bucket of what was not used.
//!
//! A bucket is one moment, *full at*: when it would be full again. A request may begin once the bucket holds anything,
//! that is when it would be full no later than a burst from then, and puts that moment off by the time that the request is
//! worth. Whoever comes later begins later, whatever it is, so requests stay in the order of their arrival.

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use forebay_block::{Op, Request};

/// What a volume lets through at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests a second, of any kind; without a limit if none.
    pub iops: Option<NonZeroU32>,
    /// Bytes a second that reads and writes move; without a limit if none.
    pub bandwidth_bytes_per_s: Option<NonZeroU64>,
    /// A volume that was idle may spend at once what it has not used in this time.
    pub burst: Duration,
}

impl Limits {
    /// How long a burst is where nobody says.
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

/// The requests of a volume with limits, and those of them that wait for their turn.
pub(crate) struct Line<T> {
    limits: Limits,
    operations_full_at: Duration,
    bytes_full_at: Duration,
    waiting: VecDeque<(Duration, T)>,
    /// Whether somebody lets through what waits.
    pub(crate) attended: bool,
}

impl<T> Line<T> {
    pub(crate) const fn new() -> Self {
        Self {
            limits: Limits::NONE,
            operations_full_at: Duration::ZERO,
            bytes_full_at: Duration::ZERO,
            waiting: VecDeque::new(),
            attended: false,
        }
    }

    /// Other limits, for what comes from now on.
    pub(crate) const fn set(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether everything may begin when it comes.
    pub(crate) fn is_open(&self) -> bool {
        let Limits {
            iops,
            bandwidth_bytes_per_s,
            ..
        } = self.limits;
        iops.is_none() && bandwidth_bytes_per_s.is_none() && self.waiting.is_empty()
    }

    /// Takes what a request is worth out of the buckets. When it may begin.
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

    /// Puts somebody at the end of the line who may begin at `begin`; gives it back if it may now.
    pub(crate) fn queue(&mut self, now: Duration, begin: Duration, one: T) -> Option<T> {
        if begin <= now && self.waiting.is_empty() {
            return Some(one);
        }
        self.waiting.push_back((begin, one));
        None
    }

    /// When the first in the line may begin.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.waiting.front().map(|(begin, _)| *begin)
    }

    /// The first in the line, if it may begin.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<T> {
        self.next().filter(|begin| *begin <= now)?;
        self.waiting.pop_front().map(|(_, one)| one)
    }

    /// All that wait.
    pub(crate) fn take_all(&mut self) -> VecDeque<(Duration, T)> {
        std::mem::take(&mut self.waiting)
    }
}

/// How long an amount takes at a rate.
fn worth(amount: u64, per_s: u64) -> Duration {
    let ns = u128::from(amount) * 1_000_000_000 / u128::from(per_s);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// What a request moves: a discard of a terabyte moves nothing.
const fn moved_bytes(request: &Request) -> u64 {
    match request.op {
        Op::Read | Op::Write { .. } => request.len,
        Op::Flush | Op::Discard | Op::WriteZeroes { .. } => 0,
    }
}
