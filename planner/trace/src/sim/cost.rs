//! Modelled latency: two devices with a queue each, in a closed loop.
//!
//! An operation occupies its device for the longer of two times: that of the limit on operations,
//! and that of the limit on bandwidth. Operations run in order of issue, and complete one latency
//! after that. Operations for which no client waits occupy the device as well.
//!
//! A request begins when the one `DEPTH` before it ended. It also waits for data that an earlier
//! request has requested and that has not arrived. These are figures of a model and must be called
//! so.

/// Costs of operations of one kind on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WayCosts {
    /// Latency of an operation, nanoseconds.
    pub latency_ns: u64,
    /// Operations per second.
    pub iops: u64,
    /// Bytes per second.
    pub bytes_per_s: u64,
}

/// Costs of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceCosts {
    /// Reads.
    pub read: WayCosts,
    /// Writes.
    pub write: WayCosts,
}

/// Costs of both devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The cache device.
    pub cache: DeviceCosts,
    /// The backing device.
    pub core: DeviceCosts,
}

impl Costs {
    /// A general-purpose cloud volume behind a disaggregated NVMe cache. The costs are frozen: all
    /// published figures of the model have them, and they were fixed before the first was taken.
    ///
    /// - Backing device: a gp3 volume without a surcharge, 3,000 operations and 125 MiB a second in
    ///   either direction ("Amazon EBS volume types", AWS documentation). The page promises
    ///   single-digit milliseconds. 1 ms is the lower end, which favours no cache.
    /// - Cache device: Samsung PM9A3, the drive of AdaCache's testbed (its Table I). The
    ///   announcement of the U.2 form has 900,000 random reads and 200,000 random writes a second.
    ///   It has 3.5 GB/s of sequential writes. The testbed's PCIe 3.0 x4 limits reads to the same
    ///   3.5 GB/s. 80 us a read and 20 us a write at queue depth 1 are not in the announcement.
    ///   They are usual for TLC flash behind a protected write buffer. NVMe over Fabrics adds 10 us
    ///   to each (AdaCache, section II-A).
    pub const CLOUD: Self = Self {
        cache: DeviceCosts {
            read: WayCosts {
                latency_ns: 90_000,
                iops: 900_000,
                bytes_per_s: 3_500_000_000,
            },
            write: WayCosts {
                latency_ns: 30_000,
                iops: 200_000,
                bytes_per_s: 3_500_000_000,
            },
        },
        core: DeviceCosts {
            read: Self::GP3,
            write: Self::GP3,
        },
    };

    const GP3: WayCosts = WayCosts {
        latency_ns: 1_000_000,
        iops: 3_000,
        bytes_per_s: 125 << 20,
    };
}

/// Most requests in flight.
const DEPTH: usize = 8;

/// Read or write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Read,
    Write,
}

/// [`WayCosts`] without divisions.
#[derive(Clone, Copy, Debug)]
struct Rate {
    latency_ns: u64,
    per_op_ns: u64,
    /// Time of a byte, in units of 2^-24 ns.
    per_byte: u64,
}

impl Rate {
    fn new(costs: WayCosts) -> Self {
        Self {
            latency_ns: costs.latency_ns,
            per_op_ns: 1_000_000_000 / costs.iops,
            per_byte: (1_000_000_000 << 24) / costs.bytes_per_s,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Device {
    rates: [Rate; 2],
    free_at_ns: u64,
}

impl Device {
    fn new(costs: DeviceCosts) -> Self {
        Self {
            rates: [Rate::new(costs.read), Rate::new(costs.write)],
            free_at_ns: 0,
        }
    }

    /// Issues an operation at `at_ns` for a request that began at `begin_ns`. Returns the time of
    /// completion. Its turn is that of the request: an operation that waits for another does not
    /// idle the device.
    fn issue(&mut self, way: Way, begin_ns: u64, at_ns: u64, bytes: u64) -> u64 {
        let rate = &self.rates[way as usize];
        let busy_ns = rate.per_op_ns.max((bytes * rate.per_byte) >> 24);
        self.free_at_ns = self.free_at_ns.max(begin_ns) + busy_ns;
        self.free_at_ns.max(at_ns + busy_ns) + rate.latency_ns
    }
}

/// The clock of one simulated cache.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    cache: Device,
    core: Device,
    /// End times of the requests in flight, and the number of the oldest.
    ends_ns: [u64; DEPTH],
    oldest: usize,
    /// Begin of the present request, and the time of completion of all that it waits for.
    begin_ns: u64,
    done_ns: u64,
}

impl Clock {
    pub(super) fn new(costs: &Costs) -> Self {
        Self {
            cache: Device::new(costs.cache),
            core: Device::new(costs.core),
            ends_ns: [0; DEPTH],
            oldest: 0,
            begin_ns: 0,
            done_ns: 0,
        }
    }

    /// Begins a request.
    pub(super) fn begin(&mut self) {
        self.begin_ns = self.begin_ns.max(self.ends_ns[self.oldest]);
        self.done_ns = self.begin_ns;
    }

    /// Ends the request. Returns its latency, nanoseconds.
    pub(super) fn end(&mut self) -> u64 {
        self.ends_ns[self.oldest] = self.done_ns;
        self.oldest = (self.oldest + 1) % DEPTH;
        self.done_ns - self.begin_ns
    }

    /// Returns the time at which the present request began.
    pub(super) const fn now(&self) -> u64 {
        self.begin_ns
    }

    /// Returns the time at which all is complete that the request waits for.
    pub(super) const fn done(&self) -> u64 {
        self.done_ns
    }

    /// Makes the request wait for an operation that completes then.
    pub(super) fn wait(&mut self, until_ns: u64) {
        self.done_ns = self.done_ns.max(until_ns);
    }

    /// Issues an operation of the backing device at `at_ns`. Returns the time of completion.
    pub(super) fn core(&mut self, way: Way, at_ns: u64, bytes: u64) -> u64 {
        self.core.issue(way, self.begin_ns, at_ns, bytes)
    }

    /// Issues an operation of the cache device at `at_ns`. Returns the time of completion.
    pub(super) fn cache(&mut self, way: Way, at_ns: u64, bytes: u64) -> u64 {
        self.cache.issue(way, self.begin_ns, at_ns, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_queue_and_requests_wait_for_their_own_operations() {
        let mut clock = Clock::new(&Costs::CLOUD);
        clock.begin();
        let small = clock.core(Way::Read, 0, 4096);
        assert_eq!(small, 1_333_333);
        // It is queued after the first, and bound by bandwidth: 256 KiB take 2 ms.
        let large = clock.core(Way::Read, 0, 256 << 10);
        assert_eq!(large / 1_000, 3_333);
        clock.wait(small);
        assert_eq!(clock.end(), small);
        // Seven more may begin at once, the ninth when the first has ended.
        for _ in 0..7 {
            clock.begin();
            assert_eq!(clock.now(), 0);
            clock.end();
        }
        clock.begin();
        assert_eq!(clock.now(), small);
    }

    #[test]
    fn an_operation_that_waits_for_another_does_not_idle_the_device() {
        let mut clock = Clock::new(&Costs::CLOUD);
        clock.begin();
        assert_eq!(clock.core(Way::Read, 10_000_000, 4096), 11_333_333);
        assert_eq!(clock.core(Way::Read, 0, 4096), 1_666_666);
    }
}
