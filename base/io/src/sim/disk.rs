//! A simulated device: how an operation goes from its submission to its completion.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Op, Persistence, Request, Result,
};

use super::faults::{Failure, FaultPlan, OpClass, Trouble};
use super::media::{Data, Media, Part};
use super::rng::Rng;
use super::shared::Shared;
use super::store::IntegerMap;
use crate::rt;
use crate::sync::WaitList;

/// Properties of a simulated device.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Its name in traces and errors.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// At least the logical block.
    pub physical_block_bytes: u32,
    /// Whether acknowledged writes wait for a flush.
    pub volatile_cache: bool,
    /// Whether it offers FUA.
    pub fua: bool,
    /// Shortest and longest time of an operation, microseconds of the virtual clock.
    pub latency_us: (u64, u64),
}

impl DiskConfig {
    /// A device with 512-byte blocks, a volatile cache, FUA, and 20 to 200 µs an operation.
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            volatile_cache: true,
            fua: true,
            latency_us: (20, 200),
        }
    }
}

/// Operations that a device was given since it was made, by kind; bytes beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Writes, with those that had FUA.
    pub writes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
    /// Writes and write-zeroes with FUA.
    pub fua_writes: u64,
    /// Write-zeroes.
    pub zeroes: u64,
    /// Bytes of write-zeroes.
    pub zero_bytes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes of discards.
    pub discard_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Operations of any kind that were made to fail.
    pub failed: u64,
    /// Bits that rotted.
    pub rotted: u64,
}

/// Effect of an operation in flight.
#[derive(Clone, Copy)]
enum Step {
    Read,
    /// A write of this id.
    Write(u64),
    /// A flush that arrived at this time.
    Flush(u64),
}

struct InFlight {
    request: Request,
    done: Completion,
    step: Step,
    fails: Failure,
}

pub(super) struct Inner {
    shared: Rc<Shared>,
    info: DeviceInfo,
    latency_us: (u64, u64),
    rng: Rng,
    media: RefCell<Media>,
    in_flight: RefCell<IntegerMap<InFlight>>,
    faults: RefCell<FaultPlan>,
    seen: Cell<[u64; 4]>,
    gone: Cell<bool>,
    stalls: Cell<bool>,
    resumed: WaitList,
    counters: Cell<Counters>,
}

/// A simulated block device; its effects on data are in the [module's text](super).
///
/// Clones are handles to one device. The device outlives the simulated process.
#[derive(Clone)]
pub struct SimDisk {
    inner: Rc<Inner>,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk")
            .field("name", &self.inner.info.name)
            .field("in_flight", &self.inner.in_flight.borrow().len())
            .finish_non_exhaustive()
    }
}

impl SimDisk {
    pub(super) fn new(shared: Rc<Shared>, config: &DiskConfig, rng: Rng) -> Self {
        let info = DeviceInfo {
            name: config.name.clone(),
            size_bytes: config.size_bytes,
            logical_block_bytes: config.logical_block_bytes,
            physical_block_bytes: config.physical_block_bytes,
            atomic_write_bytes: config.logical_block_bytes,
            volatile_cache: config.volatile_cache,
            buffers_in_process: false,
            fua: config.fua,
            byte_addressable: false,
            persistence: Persistence::Media,
            discard: true,
            emulated: None,
            identity: forebay_block::Identity::default(),
        };
        let media = Media::new(config.logical_block_bytes as usize, config.volatile_cache);
        Self::build(shared, info, config.latency_us, rng, media)
    }

    fn build(
        shared: Rc<Shared>,
        info: DeviceInfo,
        latency_us: (u64, u64),
        rng: Rng,
        media: Media,
    ) -> Self {
        Self {
            inner: Rc::new(Inner {
                shared,
                info,
                latency_us,
                rng,
                media: RefCell::new(media),
                in_flight: RefCell::default(),
                faults: RefCell::default(),
                seen: Cell::default(),
                gone: Cell::default(),
                stalls: Cell::default(),
                resumed: WaitList::new(),
                counters: Cell::default(),
            }),
        }
    }

    /// The same device with the same contents in another world.
    pub(super) fn fork(&self, shared: Rc<Shared>) -> Self {
        assert!(
            self.inner.in_flight.borrow().is_empty(),
            "a device is forked when nothing runs on it"
        );
        let copy = Self::build(
            shared,
            self.inner.info.clone(),
            self.inner.latency_us,
            self.inner.rng.clone(),
            self.inner.media.borrow().clone(),
        );
        copy.inner.counters.set(self.inner.counters.get());
        copy
    }

    /// Returns whether two idle devices would behave the same from now on. Fault plans are not
    /// compared.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (one, other) = (&self.inner, &other.inner);
        one.rng == other.rng
            && one.counters == other.counters
            && *one.media.borrow() == *other.media.borrow()
    }

    /// Sets the faults from now on, and restarts the count of operations from zero.
    pub fn set_faults(&self, plan: FaultPlan) {
        *self.inner.faults.borrow_mut() = plan;
        self.inner.seen.set([0; 4]);
        self.inner.gone.set(false);
        self.inner.resume();
    }

    /// Operations since the device was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counters.get()
    }

    /// Flips `flips` bits, drawn by the seed, in a range of the stored data: bit rot.
    ///
    /// # Panics
    /// If the range is empty or reaches past the end.
    pub fn rot(&self, offset: u64, len: u64, flips: u32) {
        let size = self.inner.info.size_bytes;
        assert!(
            offset <= size && len <= size - offset,
            "bit rot past the end"
        );
        let mut media = self.inner.media.borrow_mut();
        media.rot(offset, len, flips, &self.inner.rng);
        let mut counters = self.inner.counters.get();
        counters.rotted += u64::from(flips);
        self.inner.counters.set(counters);
    }

    /// Copies the content that a reader would see now, without an operation (for checks by a
    /// harness).
    #[must_use]
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let buf = forebay_block::Buf::scratch(len);
        self.inner.media.borrow().read(offset, &buf);
        buf.to_vec()
    }

    /// Copies the content that a reader would see after a power loss that takes every unflushed
    /// write.
    #[must_use]
    pub fn peek_durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let buf = forebay_block::Buf::scratch(len);
        self.inner.media.borrow().read_durable(offset, &buf);
        buf.to_vec()
    }

    pub(super) fn media(&self) -> &RefCell<Media> {
        &self.inner.media
    }

    /// Takes the completions of operations in flight, which have no receiver any more.
    pub(super) fn drain(&self) -> Vec<Completion> {
        let mut all: Vec<_> = self.inner.in_flight.borrow_mut().drain().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter()
            .map(|(_, operation)| operation.done)
            .collect()
    }
}

impl Inner {
    fn latency(&self) -> Duration {
        let (least, most) = self.latency_us;
        let mut us = least + self.rng.below(most - least + 1);
        if self.rng.chance(1, 32) {
            us *= if self.rng.chance(1, 4) { 100 } else { 8 };
        }
        Duration::from_micros(us)
    }

    fn count(&self, request: &Request, fails: bool) {
        let mut counters = self.counters.get();
        counters.failed += u64::from(fails);
        match request.op {
            Op::Read => {
                counters.reads += 1;
                counters.read_bytes += request.len;
            }
            Op::Write { fua } => {
                counters.writes += 1;
                counters.write_bytes += request.len;
                counters.fua_writes += u64::from(fua);
            }
            Op::WriteZeroes { fua, .. } => {
                counters.zeroes += 1;
                counters.zero_bytes += request.len;
                counters.fua_writes += u64::from(fua);
            }
            Op::Discard => {
                counters.discards += 1;
                counters.discard_bytes += request.len;
            }
            Op::Flush => counters.flushes += 1,
        }
        self.counters.set(counters);
    }

    fn fails(self: &Rc<Self>, request: &Request) -> Failure {
        let class = OpClass::of(request.op);
        let mut seen = self.seen.get();
        seen[class as usize] += 1;
        self.seen.set(seen);
        self.meet_trouble(seen.iter().sum());
        match self.gone.get() {
            true => Failure::Once,
            false => self.faults.borrow().meet(request, seen),
        }
    }

    /// Applies the plan's trouble to the device at this operation.
    fn meet_trouble(self: &Rc<Self>, nth: u64) {
        match self.faults.borrow().from_nth {
            Some((from, Trouble::Vanishes)) if nth >= from => self.gone.set(true),
            Some((from, Trouble::Stalls(us))) if nth == from => {
                self.stalls.set(true);
                let device = Rc::clone(self);
                rt::spawn(async move {
                    rt::sleep(Duration::from_micros(us)).await;
                    device.resume();
                });
            }
            _ => {}
        }
    }

    fn resume(&self) {
        self.stalls.set(false);
        self.resumed.wake_all();
    }

    /// The operation arrives at the device: whatever is decided when it arrives is decided here.
    fn arrive(&self, request: &Request, id: u64, fails: bool) -> Step {
        let mut media = self.media.borrow_mut();
        let (fua, data) = match request.op {
            Op::Read => {
                // The buffer must not be read before the completion.
                let buf = request.buf.as_ref().expect("checked: a read has a buffer");
                buf.fill(0xa5);
                return Step::Read;
            }
            Op::Flush => return Step::Flush(media.submit_flush()),
            Op::Discard => (false, Data::Zeroes),
            Op::WriteZeroes { fua, .. } => (fua, Data::Zeroes),
            Op::Write { fua } => {
                let buf = request.buf.as_ref().expect("checked: a write has a buffer");
                (fua, Data::Bytes(Rc::new(buf.to_vec())))
            }
        };
        media.submit_write(id, request.offset, request.len, fua && self.info.fua, data);
        if request.op == Op::Discard {
            media.cripple(id, Part::Some(self.rng.below(9)), &self.rng);
        }
        if fails {
            media.cripple(id, Part::Some(self.rng.below(9)), &self.rng);
        }
        // Some of it may be visible long before the completion.
        if self.rng.chance(1, 4) {
            media.apply(id, Part::Some(1 + self.rng.below(8)), &self.rng);
        }
        Step::Write(id)
    }

    /// The operation takes all of its effect.
    fn take_effect(&self, operation: &InFlight) -> Result<()> {
        let mut media = self.media.borrow_mut();
        match operation.step {
            Step::Read => {
                if operation.fails == Failure::No {
                    let buf = operation.request.buf.as_ref();
                    media.read(operation.request.offset, buf.expect("a read has a buffer"));
                }
            }
            Step::Write(id) => {
                media.apply(id, Part::All, &self.rng);
                match operation.fails {
                    Failure::No => media.acknowledge(id),
                    Failure::Once => media.fail(id),
                    Failure::InSpell => media.fail_and_show(id, &self.rng),
                }
            }
            Step::Flush(at) if operation.fails != Failure::No => {
                media.fail_flush(at, self.faults.borrow().lose_at_failed_flush, &self.rng);
            }
            Step::Flush(at) => media.finish_flush(at),
        }
        if operation.fails != Failure::No {
            let context = format!(
                "{}: injected failure of {:?} at {}",
                self.info.name, operation.request.op, operation.request.offset
            );
            return Err(Error::new(ErrorKind::Io, context));
        }
        Ok(())
    }

    fn finish(&self, id: u64) {
        let Some(operation) = self.in_flight.borrow_mut().remove(&id) else {
            return;
        };
        let result = self.take_effect(&operation);
        self.shared
            .trace(&self.info.name, "done", &operation.request, result.is_err());
        operation.done.complete(result);
    }
}

impl BlockDevice for SimDisk {
    fn info(&self) -> DeviceInfo {
        self.inner.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let inner = &self.inner;
        if inner.shared.is_stopped() {
            return inner.shared.abandon(done);
        }
        if let Err(error) = inner.info.check(&request) {
            let context = format!(
                "{}: {:?} of {} bytes at {}",
                inner.info.name, request.op, request.len, request.offset
            );
            return done.complete(Err(error.context(context)));
        }
        let counted = request.op != Op::Read;
        if counted && inner.shared.stops_before_io() {
            inner
                .shared
                .trace(&inner.info.name, "stop before", &request, false);
            return inner.shared.abandon(done);
        }
        let id = inner.shared.next_id();
        let fails = inner.fails(&request);
        let is_to_fail = fails != Failure::No;
        inner.count(&request, is_to_fail);
        inner
            .shared
            .trace(&inner.info.name, "submit", &request, is_to_fail);
        let step = inner.arrive(&request, id, is_to_fail);
        let operation = InFlight {
            request,
            done,
            step,
            fails,
        };
        if counted && inner.shared.stops_after_io() {
            // It takes effect, and its completion is not delivered.
            let _ = inner.take_effect(&operation);
            return inner.shared.abandon(operation.done);
        }
        inner.in_flight.borrow_mut().insert(id, operation);
        let (device, latency) = (Rc::clone(inner), inner.latency());
        rt::spawn(async move {
            rt::sleep(latency).await;
            device.resumed.until(|| !device.stalls.get()).await;
            device.finish(id);
        });
    }
}
