//! Emulation of a disk with an arm and a platter: the cost of a request depends on the position of
//! the previous one.
//!
//! The time of a single request is:
//!
//! ```text
//! time = seek + rotation until the sector is under the head + length / media rate
//! seek = 0 on the same track, else track seek + b * sqrt(distance / size of the device)
//! b    = (average seek - track seek) * 15 / 8
//! ```
//!
//! The factor makes seeks between uniformly random positions take the average seek time: the mean
//! of the root of such a distance is 8/15. A seek takes about the root of its distance while the
//! arm accelerates, and a disk orders its queue by positioning time. Both facts are from C.
//! Ruemmler and J. Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994. The
//! size of the inner device counts as the whole stroke, so that a small file seeks as a large disk
//! does. A track holds the data of one revolution at the media rate. It starts one track seek later
//! than its neighbour, so that long sequential runs lose no revolution.
//!
//! The disk orders at most `queue_depth` requests: the one with the shortest positioning time is
//! next. A thirty-second part of its waiting time is subtracted, so that no request waits for ever.
//! Manufacturers do not publish that part; the value is our choice. Further requests wait in order
//! of arrival. There is no write cache: completed writes are on the platter, and flush and discard
//! take no time.
//!
//! Every measurement through this device is marked as emulated.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Op, Request};
use forebay_io::rt;

/// Divisor of the waiting time that is subtracted from the positioning time.
const AGE: i64 = 32;

/// Declared properties of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskProfile {
    /// Name of the profile.
    pub name: &'static str,
    /// Seek to the next track, microseconds.
    pub track_seek_us: u64,
    /// Average seek, microseconds.
    pub average_seek_us: u64,
    /// Revolutions a minute.
    pub rpm: u64,
    /// Media rate, bytes a second.
    pub bytes_per_s: u64,
    /// Number of requests that the disk orders.
    pub queue_depth: usize,
}

impl DiskProfile {
    /// A 3.5-inch disk:
    ///
    /// - average seek 8.2 ms and 7,200 rpm: HGST, "Ultrastar 7K4000 (SAS) Hard Disk Drive
    ///   Specification", version 1.8, 2016, table 6
    /// - 171 MB/s: its sustained rate
    /// - track seek 1.1 ms: Hitachi, "Travelstar 5K320 SATA OEM Specification", table 7, write,
    ///   because the specification above gives none
    /// - 32 requests: the limit of SATA's native command queuing
    pub const HDD: Self = Self {
        name: "hdd",
        track_seek_us: 1100,
        average_seek_us: 8200,
        rpm: 7200,
        bytes_per_s: 171_000_000,
        queue_depth: 32,
    };

    /// All profiles.
    pub const ALL: [Self; 1] = [Self::HDD];

    /// Returns the profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    const fn revolution_ns(&self) -> u64 {
        60_000_000_000 / self.rpm
    }

    fn transfer_ns(&self, bytes: u64) -> u64 {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    fn track(&self, at: u64) -> u64 {
        self.transfer_ns(at) / self.revolution_ns()
    }

    /// Returns the angle until `at` is under the head, in time of rotation since time zero.
    fn angle_ns(&self, at: u64) -> u64 {
        let skew = self.track(at) % self.rpm.max(1) * self.track_seek_us * 1000;
        (self.transfer_ns(at) + skew) % self.revolution_ns()
    }

    fn seek_ns(&self, from: u64, to: u64, size: u64) -> u64 {
        if self.track(from) == self.track(to) {
            return 0;
        }
        let reach = (self.average_seek_us - self.track_seek_us) as f64 * 15.0 / 8.0;
        let share = from.abs_diff(to) as f64 / size.max(1) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some milliseconds"
        )]
        let seek_us = self.track_seek_us + (reach * share.sqrt()) as u64;
        seek_us * 1000
    }

    /// Returns the time from `now` until `to` is under the head, which is at `from`.
    fn positioning_ns(&self, now_ns: u64, from: u64, to: u64, size: u64) -> u64 {
        let seek = self.seek_ns(from, to, size);
        let turn = self.revolution_ns();
        seek + (self.angle_ns(to) + turn - (now_ns + seek) % turn) % turn
    }
}

/// Description: `emulated: hdd, 1.1 ms track seek, 8.2 ms average seek, 7200 rpm, 171 MB/s, queue
/// depth 32`.
impl fmt::Display for DiskProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "emulated: {}, {} ms track seek, {} ms average seek, {} rpm, {} MB/s, queue depth {}",
            self.name,
            self.track_seek_us as f64 / 1e3,
            self.average_seek_us as f64 / 1e3,
            self.rpm,
            self.bytes_per_s as f64 / 1e6,
            self.queue_depth,
        )
    }
}

/// A request that waits for the arm.
struct Queued {
    request: Request,
    done: Completion,
    came: Duration,
}

struct Shared {
    inner: Rc<dyn BlockDevice>,
    profile: DiskProfile,
    size: u64,
    /// Requests that the disk may order, then those that wait in order of arrival.
    queue: RefCell<VecDeque<Queued>>,
    /// Position of the head, and the time at which it got there.
    head: Cell<u64>,
    free: Cell<Duration>,
    is_busy: Cell<bool>,
}

/// A device as slow as a disk profile. Needs an executor on this thread.
pub struct EmulatedDisk {
    shared: Rc<Shared>,
}

impl EmulatedDisk {
    /// Wraps `inner` and slows it down to `profile`.
    #[must_use]
    pub fn wrap(inner: Rc<dyn BlockDevice>, profile: DiskProfile) -> Rc<dyn BlockDevice> {
        let size = inner.info().size_bytes;
        Rc::new(Self {
            shared: Rc::new(Shared {
                inner,
                profile,
                size,
                queue: RefCell::default(),
                head: Cell::new(0),
                free: Cell::new(Duration::ZERO),
                is_busy: Cell::new(false),
            }),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Removes the next request, and returns it with the time of its completion.
    fn next(&self) -> Option<(Queued, Duration)> {
        let (head, free) = (self.head.get(), self.free.get());
        let mut queue = self.queue.borrow_mut();
        let cost = |queued: &Queued| {
            let begin = free.max(queued.came);
            let to = queued.request.offset;
            let positioning = self
                .profile
                .positioning_ns(nanos(begin), head, to, self.size);
            let over = begin + Duration::from_nanos(positioning);
            // Counted from the moment that the arm is free.
            let waits = nanos(over - free.min(over)).cast_signed();
            waits - nanos(free.saturating_sub(queued.came)).cast_signed() / AGE
        };
        let known = queue.iter().take(self.profile.queue_depth).enumerate();
        let (place, _) = known.min_by_key(|(_, queued)| cost(queued))?;
        let queued = queue.remove(place)?;
        let begin = free.max(queued.came);
        let (at, len) = (queued.request.offset, queued.request.len);
        let busy = self
            .profile
            .positioning_ns(nanos(begin), head, at, self.size)
            + self.profile.transfer_ns(len);
        let over = begin + Duration::from_nanos(busy);
        self.head.set(at + len);
        self.free.set(over);
        Some((queued, over))
    }

    /// Serves queued requests, one after the other.
    async fn serve(self: Rc<Self>) {
        while let Some((Queued { request, done, .. }, over)) = self.next() {
            let outcome = self.inner.start(request).await;
            rt::Sleep::until(over).await;
            done.complete(outcome);
        }
        self.is_busy.set(false);
    }
}

impl BlockDevice for EmulatedDisk {
    fn info(&self) -> DeviceInfo {
        super::emulated(self.shared.inner.info(), self.shared.profile.to_string())
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request.op, Op::Flush | Op::Discard) {
            return self.shared.inner.submit(request, done);
        }
        self.shared.queue.borrow_mut().push_back(Queued {
            request,
            done,
            came: rt::now(),
        });
        if !self.shared.is_busy.replace(true) {
            rt::spawn(Rc::clone(&self.shared).serve());
        }
    }

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.shared.inner)
    }
}

impl fmt::Debug for EmulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedDisk")
            .field("profile", &self.shared.profile)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
