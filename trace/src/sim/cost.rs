//! Modelled latency: two devices with a queue each, in a closed loop.
//!
//! An operation keeps its device busy for the longer of what its limit of operations and its limit of
//! bandwidth ask, and is complete one latency after that. Operations that no client waits for keep
//! the device busy as well. A request begins when the one `DEPTH` before it ended. It is a model,
//! and every figure from it is to be called so.

use std::collections::VecDeque;

/// What a device costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceCosts {
    /// Latency of a read, nanoseconds.
    pub read_latency_ns: u64,
    /// Latency of a write, nanoseconds.
    pub write_latency_ns: u64,
    /// Operations a second.
    pub iops: u64,
    /// Bytes a second.
    pub bytes_per_s: u64,
}

/// What both devices cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The cache device.
    pub cache: DeviceCosts,
    /// The backing device.
    pub core: DeviceCosts,
}

/// Requests under way at a time.
const DEPTH: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Device {
    costs: DeviceCosts,
    free_at_ns: u64,
}

impl Device {
    /// An operation that is issued at `now`; returns when it is complete.
    fn issue(&mut self, now_ns: u64, bytes: u64, latency_ns: u64) -> u64 {
        let by_count = 1_000_000_000 / self.costs.iops;
        let by_bytes = bytes * 1_000_000_000 / self.costs.bytes_per_s;
        self.free_at_ns = self.free_at_ns.max(now_ns) + by_count.max(by_bytes);
        self.free_at_ns + latency_ns
    }
}

/// The clock of one simulated cache.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    cache: Device,
    core: Device,
    /// When the requests under way end.
    ends_ns: VecDeque<u64>,
    /// When the present request began, and when what it waits for so far is complete.
    begin_ns: u64,
    done_ns: u64,
}

impl Clock {
    pub(super) fn new(costs: &Costs) -> Self {
        let device = |costs| Device {
            costs,
            free_at_ns: 0,
        };
        Self {
            cache: device(costs.cache),
            core: device(costs.core),
            ends_ns: VecDeque::with_capacity(DEPTH + 1),
            begin_ns: 0,
            done_ns: 0,
        }
    }

    pub(super) fn begin(&mut self) {
        if self.ends_ns.len() == DEPTH {
            let end = self.ends_ns.pop_front().expect("it is full");
            self.begin_ns = self.begin_ns.max(end);
        }
        self.done_ns = self.begin_ns;
    }

    /// The request ends; returns its latency.
    pub(super) fn end(&mut self) -> u64 {
        self.ends_ns.push_back(self.done_ns);
        self.done_ns - self.begin_ns
    }

    /// What is issued from here on waits for all that the request has asked for so far.
    pub(super) const fn now(&self) -> u64 {
        self.begin_ns
    }

    /// When all that the request waits for so far is complete.
    pub(super) const fn done(&self) -> u64 {
        self.done_ns
    }

    pub(super) fn read_core(&mut self, at_ns: u64, bytes: u64) {
        let latency = self.core.costs.read_latency_ns;
        self.done_ns = self.done_ns.max(self.core.issue(at_ns, bytes, latency));
    }

    pub(super) fn read_cache(&mut self, at_ns: u64, bytes: u64) {
        let latency = self.cache.costs.read_latency_ns;
        self.done_ns = self.done_ns.max(self.cache.issue(at_ns, bytes, latency));
    }

    pub(super) fn write_cache(&mut self, at_ns: u64, bytes: u64) {
        let latency = self.cache.costs.write_latency_ns;
        self.done_ns = self.done_ns.max(self.cache.issue(at_ns, bytes, latency));
    }

    pub(super) fn write_core(&mut self, at_ns: u64, bytes: u64) {
        let latency = self.core.costs.write_latency_ns;
        self.done_ns = self.done_ns.max(self.core.issue(at_ns, bytes, latency));
    }

    /// Nobody waits for these.
    pub(super) fn background_cache(&mut self, bytes: u64) {
        self.cache.issue(self.begin_ns, bytes, 0);
    }

    pub(super) fn background_core(&mut self, bytes: u64) {
        self.core.issue(self.begin_ns, bytes, 0);
    }
}
