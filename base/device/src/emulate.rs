//! A slower device than the one underneath: it declares latency, bandwidth and queue depth.
//!
//! The model, for a request that is served alone:
//!
//! ```text
//! time = latency of the operation + max(length / bandwidth, 1 / IOPS)     (read, write)
//! time = write latency + 1 / IOPS                             (discard, write-zeroes)
//! time = flush latency                                        (flush)
//! ```
//!
//! Requests that overlap overlap their latencies and share bandwidth and IOPS: transfers queue for
//! one link, in order of arrival, reads and writes alike. An idle link saves nothing up. At most
//! `queue_depth` requests are served at a time; the rest wait in order of arrival, and their time
//! starts when they are served. A request is submitted to the inner device when it is served. It
//! completes when its time has passed and the inner device is done. The inner device's own time is
//! part of the declared time.
//!
//! Time is that of the executor. On the simulator's virtual clock it is exact. On the real clock it
//! has the precision of the reactor's timers: some tens of microseconds late on an idle core, never
//! too soon. Nothing is allocated for each request once the executor's pools have grown.
//!
//! Measurements through this device are emulated. [`DeviceInfo::emulated`] says so in words, and
//! every layer above passes that on.

pub mod disk;
pub mod memory;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, IoFuture, Op, Request};
use forebay_io::rt;
use forebay_io::sync::Semaphore;

/// Declared properties. Zero adds no latency and sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Time of a read before its data travels, microseconds.
    pub read_latency_us: u64,
    /// Time of a write, discard or write-zeroes, microseconds.
    pub write_latency_us: u64,
    /// Time of a flush, microseconds.
    pub flush_latency_us: u64,
    /// Bandwidth that reads and writes share, bytes a second.
    pub bandwidth_bytes_per_s: u64,
    /// Reads, writes, discards and write-zeroes a second, together.
    pub iops: u32,
    /// Requests served at a time.
    pub queue_depth: u32,
}

impl Profile {
    fn latency(&self, op: Op) -> Duration {
        Duration::from_micros(match op {
            Op::Read => self.read_latency_us,
            Op::Write { .. } | Op::Discard | Op::WriteZeroes { .. } => self.write_latency_us,
            Op::Flush => self.flush_latency_us,
        })
    }

    /// Returns the time for which a request occupies the link.
    fn transfer(&self, request: &Request) -> Duration {
        if matches!(request.op, Op::Flush) {
            return Duration::ZERO;
        }
        let bytes = request.buf.as_ref().map_or(0, |_| request.len);
        let nanos = u128::from(bytes) * 1_000_000_000;
        let by_bytes = nanos.checked_div(u128::from(self.bandwidth_bytes_per_s));
        let by_number = 1_000_000_000_u128.checked_div(u128::from(self.iops));
        let nanos = by_bytes.max(by_number).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Description, for example `emulated: 1 ms read, 1 ms write, 100 MB/s`.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "emulated: ";
        let mut part = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            write!(f, "{separator}{text}")?;
            separator = ", ";
            Ok(())
        };
        for (latency_us, op) in [
            (self.read_latency_us, "read"),
            (self.write_latency_us, "write"),
            (self.flush_latency_us, "flush"),
        ] {
            if latency_us >= 1000 && latency_us.is_multiple_of(100) {
                part(f, format_args!("{} ms {op}", latency_us as f64 / 1e3))?;
            } else if latency_us > 0 {
                part(f, format_args!("{latency_us} us {op}"))?;
            }
        }
        let bandwidth = self.bandwidth_bytes_per_s as f64;
        if bandwidth >= 1e9 {
            part(f, format_args!("{} GB/s", (bandwidth / 1e7).round() / 1e2))?;
        } else if bandwidth > 0.0 {
            part(f, format_args!("{} MB/s", (bandwidth / 1e4).round() / 1e2))?;
        }
        if self.iops > 0 {
            part(f, format_args!("{} IOPS", self.iops))?;
        }
        if self.queue_depth > 0 {
            part(f, format_args!("queue depth {}", self.queue_depth))?;
        }
        if separator == "emulated: " {
            f.write_str("emulated: no limits")?;
        }
        Ok(())
    }
}

struct Shared {
    inner: Rc<dyn BlockDevice>,
    profile: Profile,
    /// Time at which the link is free, on the executor's clock.
    link_free: Cell<Duration>,
    /// Free slots of the queue; `None` for unlimited depth.
    places: Option<Semaphore>,
}

/// A device with declared latency and bandwidth. Needs an executor on this thread.
pub struct EmulateDevice {
    shared: Rc<Shared>,
}

impl EmulateDevice {
    /// Wraps `inner` and slows it down to `profile`.
    #[must_use]
    pub fn wrap(inner: Rc<dyn BlockDevice>, profile: Profile) -> Rc<dyn BlockDevice> {
        let depth = u64::from(profile.queue_depth);
        Rc::new(Self {
            shared: Rc::new(Shared {
                inner,
                profile,
                link_free: Cell::new(Duration::ZERO),
                places: (depth > 0).then(|| Semaphore::new(depth)),
            }),
        })
    }
}

/// A request at the inner device, with the earliest time of its completion.
struct Served {
    due: Duration,
    inner: IoFuture,
}

impl Shared {
    /// Reserves the request's time on the link and submits it to the inner device.
    fn serve(&self, request: Request) -> Served {
        let mut sent = rt::now();
        let transfer = self.profile.transfer(&request);
        if !transfer.is_zero() {
            sent = sent.max(self.link_free.get()) + transfer;
            self.link_free.set(sent);
        }
        Served {
            due: sent + self.profile.latency(request.op),
            inner: self.inner.start(request),
        }
    }

    async fn finish(&self, served: Served, done: Completion) {
        let outcome = served.inner.await;
        rt::Sleep::until(served.due).await;
        if let Some(places) = &self.places {
            places.release(1);
        }
        done.complete(outcome);
    }
}

/// Device info of an emulated device, with its description.
fn emulated(mut info: DeviceInfo, words: String) -> DeviceInfo {
    // Loads and stores would bypass the delays.
    info.byte_addressable = false;
    info.emulated = Some(match info.emulated {
        Some(inner) => format!("{words}; over {inner}"),
        None => words,
    });
    info
}

impl BlockDevice for EmulateDevice {
    fn info(&self) -> DeviceInfo {
        emulated(self.shared.inner.info(), self.shared.profile.to_string())
    }

    fn submit(&self, request: Request, done: Completion) {
        let shared = Rc::clone(&self.shared);
        let placed = shared
            .places
            .as_ref()
            .is_none_or(|places| places.try_acquire(1));
        if placed {
            // The time counts from here, not from when the task first runs.
            let served = shared.serve(request);
            rt::spawn(async move { shared.finish(served, done).await });
        } else {
            rt::spawn(async move {
                if let Some(places) = &shared.places {
                    places.acquire(1).await;
                }
                let served = shared.serve(request);
                shared.finish(served, done).await;
            });
        }
    }

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.shared.inner)
    }
}

impl fmt::Debug for EmulateDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulateDevice")
            .field("profile", &self.shared.profile)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
