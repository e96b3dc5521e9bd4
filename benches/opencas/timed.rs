//! Devices with a declared time, to the nanosecond, on the virtual clock.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, Op, Persistence, Request,
};
use forebay_device::emulate::memory::MemoryProfile;
use forebay_io::rt;

/// Declared speed of a device. Latencies of requests overlap. They share the bandwidth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) name: &'static str,
    read_ns: u64,
    write_ns: u64,
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    /// Bytes that the medium moves at a time.
    unit_bytes: u64,
}

impl Speed {
    /// Four interleaved modules, as in the study's machine, each a [`MemoryProfile::OPTANE_DIMM`].
    pub(crate) const PMEM: Self = {
        let module = MemoryProfile::OPTANE_DIMM;
        Self {
            name: "pmem",
            read_ns: module.load_latency_ns,
            write_ns: module.store_latency_ns,
            read_bytes_per_s: 4 * module.read_bytes_per_s,
            write_bytes_per_s: 4 * module.write_bytes_per_s,
            unit_bytes: module.unit_bytes,
        }
    };
    /// Intel's Optane SSD DC P4800X as announced ("Intel Optane SSD DC P4800X Review", AnandTech,
    /// 2017). Typically under 10 us for 4 KiB either way, 2.4 GB/s read and 2.0 GB/s written.
    pub(crate) const NVME: Self = Self {
        name: "nvme",
        read_ns: 8_000,
        write_ns: 8_000,
        read_bytes_per_s: 2_400_000_000,
        write_bytes_per_s: 2_000_000_000,
        unit_bytes: 512,
    };
    /// Samsung's PM9A3, the study's fast backing device, with the figures of `Costs::CLOUD`
    /// (planner/trace/src/sim/cost.rs) without its network.
    pub(crate) const FAST: Self = Self {
        name: "fast",
        read_ns: 80_000,
        write_ns: 20_000,
        read_bytes_per_s: 3_500_000_000,
        write_bytes_per_s: 3_500_000_000,
        unit_bytes: 4096,
    };
    /// A SATA SSD, the study's slow one: declared, of no product. Its bandwidth is 6 Gb/s less
    /// 8b/10b and the protocol. Its latencies are those of flash behind a protected write buffer on
    /// such a link.
    pub(crate) const SLOW: Self = Self {
        name: "slow",
        read_ns: 120_000,
        write_ns: 50_000,
        read_bytes_per_s: 520_000_000,
        write_bytes_per_s: 480_000_000,
        unit_bytes: 4096,
    };

    /// Returns the time that the request occupies the link, and the time from then to its end.
    fn of(&self, request: &Request) -> (Duration, Duration) {
        let begin = request.offset / self.unit_bytes;
        let end = (request.offset + request.len).div_ceil(self.unit_bytes);
        let bytes = (end - begin) * self.unit_bytes;
        let (latency_ns, bytes_per_s) = match request.op {
            Op::Read => (self.read_ns, self.read_bytes_per_s),
            Op::Write { .. } => (self.write_ns, self.write_bytes_per_s),
            // No data travels, and nothing is volatile.
            Op::Discard | Op::WriteZeroes { .. } => return (Duration::ZERO, nanos(self.write_ns)),
            Op::Flush => return (Duration::ZERO, Duration::ZERO),
        };
        (
            nanos(bytes * 1_000_000_000 / bytes_per_s),
            nanos(latency_ns),
        )
    }
}

const fn nanos(count: u64) -> Duration {
    Duration::from_nanos(count)
}

/// Time until which a medium's link is occupied, shared by all devices on the medium.
pub(crate) type Link = Rc<Cell<Duration>>;

/// A part of a medium.
pub(crate) struct Timed {
    inner: Rc<dyn BlockDevice>,
    speed: Speed,
    free_at: Link,
}

impl Timed {
    pub(crate) fn wrap(
        inner: Rc<dyn BlockDevice>,
        speed: Speed,
        link: &Link,
    ) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            inner,
            speed,
            free_at: Rc::clone(link),
        })
    }
}

impl BlockDevice for Timed {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            persistence: Persistence::Media,
            ..self.inner.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let (transfer, latency) = self.speed.of(&request);
        let sent = self.free_at.get().max(rt::now()) + transfer;
        self.free_at.set(sent);
        let inner = self.inner.start(request);
        rt::spawn(async move {
            let outcome = inner.await;
            rt::Sleep::until(sent + latency).await;
            done.complete(outcome);
        });
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed")
            .field("speed", &self.speed.name)
            .finish_non_exhaustive()
    }
}

/// Memory with stores to lines, as a device whose blocks are lines.
pub(crate) struct Lines {
    info: DeviceInfo,
    bytes: RefCell<Vec<u8>>,
}

impl Lines {
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are shared as trait objects"
    )]
    pub(crate) fn new(name: &str, bytes: usize) -> Rc<dyn BlockDevice> {
        let mut info = DeviceInfo::new(name, bytes as u64);
        (info.logical_block_bytes, info.physical_block_bytes) = (64, 64);
        (info.atomic_write_bytes, info.byte_addressable) = (8, true);
        info.volatile_cache = false;
        Rc::new(Self {
            info,
            bytes: RefCell::new(vec![0; bytes]),
        })
    }
}

impl BlockDevice for Lines {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let checked = self.info.check(&request);
        if checked.is_ok() {
            let range = request.offset as usize..(request.offset + request.len) as usize;
            let bytes = &mut self.bytes.borrow_mut()[range];
            match (request.op, request.buf) {
                (Op::Read, Some(into)) => into.copy_from(0, bytes),
                (Op::Write { .. }, Some(from)) => from.copy_to(0, bytes),
                (Op::Discard | Op::WriteZeroes { .. }, _) => bytes.fill(0),
                _ => {}
            }
        }
        done.complete(checked);
    }
}
