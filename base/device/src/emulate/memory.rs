//! Emulation of slower byte-addressable memory: declared latencies, bandwidths and an internal
//! unit.
//!
//! A single load takes the load latency. A copy out of several bytes takes the load latency, then
//! its bytes at the read bandwidth. Stores take no time. Streamed or flushed bytes take their share
//! of the write bandwidth, which all threads share, and a fence adds the store latency. The medium
//! reads and writes whole units, so that lengths are rounded up to units.
//!
//! Each load counts as a miss of the processor's caches, and the buffer of the internal unit is not
//! modelled. So adjacent accesses cost more here than on the real medium. The time of the inner
//! memory counts towards the declared time.
//!
//! A waiting thread spins, as in a stalled store. With [`Waiting::Yield`] it lets other threads
//! run, as if each had a processor of its own.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::pmem::{LINE_BYTES, Pmem};

/// Declared properties of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryProfile {
    /// Name of the profile.
    pub name: &'static str,
    /// Time of a load, nanoseconds.
    pub load_latency_ns: u64,
    /// Time of a fence behind stores, nanoseconds.
    pub store_latency_ns: u64,
    /// Unit in which the medium reads and writes, bytes.
    pub unit_bytes: u64,
    /// Read bandwidth of all threads together, bytes a second.
    pub read_bytes_per_s: u64,
    /// Write bandwidth of all threads together, bytes a second.
    pub write_bytes_per_s: u64,
}

impl MemoryProfile {
    /// An Intel Optane DC persistent memory module of 256 GB, first generation.
    ///
    /// A random load takes 305 ns, a non-temporal store 90 ns. The unit is 256 bytes. The bandwidth
    /// is 6.6 GB/s for reads and 2.3 GB/s for writes.
    ///
    /// Sources: J. Izraelevitz et al., "Basic Performance Measurements of the Intel Optane DC
    /// Persistent Memory Module", arXiv 1903.05714, 2019; J. Yang et al., "An Empirical Guide to
    /// the Behavior and Use of Scalable Persistent Memory", FAST 2020.
    pub const OPTANE_DIMM: Self = Self {
        name: "optane-dimm",
        load_latency_ns: 305,
        store_latency_ns: 90,
        unit_bytes: 256,
        read_bytes_per_s: 6_600_000_000,
        write_bytes_per_s: 2_300_000_000,
    };

    /// DRAM behind a CXL link of eight lanes: 155 ns for a load, 70 ns more than local DRAM (H. Li
    /// et al., "Pond: CXL-Based Memory Pooling Systems for Cloud Platforms", ASPLOS 2023). Stores
    /// are taken to cost the same. The bandwidth each way is 31.5 GB/s, that of eight lanes of PCI
    /// Express 5.0 (32 GT/s, 128b/130b).
    pub const CXL_DRAM: Self = Self {
        name: "cxl-dram",
        load_latency_ns: 155,
        store_latency_ns: 155,
        unit_bytes: 64,
        read_bytes_per_s: 31_500_000_000,
        write_bytes_per_s: 31_500_000_000,
    };

    /// All profiles.
    pub const ALL: [Self; 2] = [Self::OPTANE_DIMM, Self::CXL_DRAM];
}

impl FromStr for MemoryProfile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|profile| profile.name == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|profile| profile.name).join(" and ");
            Error::new(
                ErrorKind::InvalidInput,
                format!("there is no memory profile {text:?}\nhelp: name one of {names}"),
            )
        })
    }
}

/// Description: `emulated: optane-dimm, 305 ns load, 90 ns store, units of 256 bytes, 6.6 GB/s
/// read, 2.3 GB/s write`.
impl fmt::Display for MemoryProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "emulated: {}, {} ns load, {} ns store, units of {} bytes, {} GB/s read, {} GB/s write",
            self.name,
            self.load_latency_ns,
            self.store_latency_ns,
            self.unit_bytes,
            self.read_bytes_per_s as f64 / 1e9,
            self.write_bytes_per_s as f64 / 1e9,
        )
    }
}

/// Behaviour of a waiting thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The thread spins.
    #[default]
    Spin,
    /// The thread yields its processor.
    Yield,
}

/// A link that carries one transfer at a time, with the time at which it is free.
#[derive(Debug, Default)]
struct Link {
    free_at_ns: AtomicU64,
}

impl Link {
    /// Occupies the link for a transfer. Returns the end of the transfer.
    fn take(&self, now_ns: u64, transfer_ns: u64) -> u64 {
        let after = |free: u64| free.max(now_ns) + transfer_ns;
        let before = self
            .free_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                Some(after(free))
            });
        after(before.unwrap_or_else(|free| free))
    }
}

/// Origin of all times.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(now_ns) = tests::CLOCK_NS.get() {
        return now_ns;
    }
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

thread_local! {
    /// Time at which this thread's streamed and flushed bytes have reached any memory. Zero if
    /// there are none.
    static DUE_NS: Cell<u64> = const { Cell::new(0) };
}

/// A memory as slow as a profile.
#[derive(Debug)]
pub struct EmulatedPmem<P> {
    inner: Arc<P>,
    profile: MemoryProfile,
    waiting: Waiting,
    reads: Link,
    writes: Link,
}

impl<P: Pmem> EmulatedPmem<P> {
    /// Wraps `inner` and slows it down to `profile`.
    #[must_use]
    pub fn new(inner: Arc<P>, profile: MemoryProfile, waiting: Waiting) -> Self {
        Self {
            inner,
            profile,
            waiting,
            reads: Link::default(),
            writes: Link::default(),
        }
    }

    fn wait_until(&self, due_ns: u64) {
        #[cfg(test)]
        if let Some(now_ns) = tests::CLOCK_NS.get() {
            tests::CLOCK_NS.set(Some(now_ns.max(due_ns)));
            return;
        }
        let due = *START + Duration::from_nanos(due_ns);
        while Instant::now() < due {
            match self.waiting {
                Waiting::Spin => std::hint::spin_loop(),
                Waiting::Yield => std::thread::yield_now(),
            }
        }
    }

    /// Returns the time for which a range occupies a link, in whole units.
    fn transfer_ns(&self, offset: u64, len: u64, bytes_per_s: u64) -> u64 {
        let unit = self.profile.unit_bytes;
        let first = offset / unit * unit;
        let bytes = (offset + len).next_multiple_of(unit) - first;
        bytes * 1_000_000_000 / bytes_per_s
    }

    fn load(&self, offset: u64, len: u64) {
        let begin = now_ns();
        let transfer = self.transfer_ns(offset, len, self.profile.read_bytes_per_s);
        let due = self.reads.take(begin, transfer) + self.profile.load_latency_ns;
        self.wait_until(due);
    }

    fn send(&self, offset: u64, len: u64) {
        let transfer = self.transfer_ns(offset, len, self.profile.write_bytes_per_s);
        let due = self.writes.take(now_ns(), transfer);
        DUE_NS.set(DUE_NS.get().max(due));
    }
}

impl<P: Pmem> Pmem for EmulatedPmem<P> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, target: &Buf) -> Result<()> {
        let result = self.inner.read(offset, target);
        self.load(offset, target.len() as u64);
        result
    }

    fn load_u32(&self, offset: u64) -> u32 {
        let value = self.inner.load_u32(offset);
        self.load(offset, 4);
        value
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let value = self.inner.load_u64(offset);
        self.load(offset, 8);
        value
    }

    fn store_u32(&self, offset: u64, value: u32) {
        self.inner.store_u32(offset, value);
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.inner.store_u64(offset, value);
    }

    fn stream(&self, offset: u64, source: &Buf) {
        self.send(offset, source.len() as u64);
        self.inner.stream(offset, source);
    }

    #[track_caller]
    fn flush(&self, offset: u64, len: u64) {
        let first = offset / LINE_BYTES * LINE_BYTES;
        self.send(first, (offset + len).next_multiple_of(LINE_BYTES) - first);
        self.inner.flush(offset, len);
    }

    #[track_caller]
    fn fence(&self) {
        self.inner.fence();
        let due = DUE_NS.replace(0);
        if due > 0 {
            self.wait_until(due + self.profile.store_latency_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::sim::SimPmem;

    thread_local! {
        /// Virtual time of this thread, nanoseconds. It passes only while the thread waits.
        pub(super) static CLOCK_NS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Returns how long `work` waits, in microseconds of a virtual clock.
    fn waited_us(work: impl FnOnce()) -> u64 {
        CLOCK_NS.set(Some(0));
        work();
        let waited_ns = CLOCK_NS.take().expect("it was set");
        assert!(waited_ns.is_multiple_of(1000), "{waited_ns}");
        waited_ns / 1000
    }

    fn slow() -> EmulatedPmem<SimPmem> {
        let profile = MemoryProfile {
            name: "slow",
            load_latency_ns: 2_000_000,
            store_latency_ns: 3_000_000,
            unit_bytes: 256,
            read_bytes_per_s: 1_000_000,
            write_bytes_per_s: 100_000,
        };
        EmulatedPmem::new(SimPmem::new(1 << 16), profile, Waiting::Spin)
    }

    #[test]
    fn a_transfer_takes_latency_and_whole_units_at_the_bandwidth() {
        // Each memory starts with a clock of its own.
        let load = || _ = slow().load_u64(8);
        assert_eq!(waited_us(load), 2000 + 256);
        let read = || slow().read(0, &Buf::zeroed(1000)).expect("sound");
        assert_eq!(waited_us(read), 2000 + 1024);
        let memory = slow();
        let store = || {
            memory.store_u64(64, 7);
            memory.flush(64, 8);
            memory.fence();
        };
        assert_eq!(waited_us(store), 3000 + 2560);
        assert_eq!(memory.inner.load_u64(64), 7);
        let memory = slow();
        let stream = || {
            memory.store_u64(64, 7);
            memory.stream(0, &Buf::zeroed(512));
            memory.fence();
            // Nothing is left to wait for.
            memory.fence();
        };
        assert_eq!(waited_us(stream), 3000 + 5120);
        assert_eq!(memory.inner.load_u64(64), 0, "the stream overwrote it");
    }

    #[test]
    fn transfers_follow_each_other() {
        let memory = slow();
        let loads = || (0..3).for_each(|at| _ = memory.load_u64(at * 256));
        assert_eq!(waited_us(loads), 3 * (2000 + 256));
        let memory = slow();
        let streams = || {
            for at in 0..3 {
                memory.stream(at * 256, &Buf::zeroed(256));
            }
            memory.fence();
        };
        assert_eq!(waited_us(streams), 3 * 2560 + 3000);
    }

    /// On the real clock.
    #[test]
    fn threads_share_the_bandwidth() {
        let memory = slow();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    memory.stream(thread * 1024, &Buf::zeroed(256));
                    memory.fence();
                });
            }
        });
        let took = begin.elapsed();
        assert!(took >= Duration::from_micros(4 * 2560 + 3000), "{took:?}");
    }

    #[test]
    fn profiles_are_found_by_name_and_say_that_they_are_emulated() {
        for profile in MemoryProfile::ALL {
            assert_eq!(profile.name.parse::<MemoryProfile>().ok(), Some(profile));
            assert!(profile.to_string().starts_with("emulated: "), "{profile}");
        }
        let error = "flash".parse::<MemoryProfile>().expect_err("none");
        assert!(error.report().contains("cxl-dram"), "{error:?}");
    }
}
