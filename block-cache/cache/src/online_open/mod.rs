//! Reads of a volume whose cache is still being opened. [`recover`](crate::recover) recovers the
//! cache meanwhile.
//!
//! Opening reads the log, which takes seconds for millions of cached blocks. The
//! [zones](crate::intent::zones) in the superblock are known before. If nothing in a zone can be
//! dirty, a read is served from the backing device at once. If something may be dirty, the read
//! waits for the answer of an [`OpeningMap`], and without an answer for the cache. Everything else
//! waits for the cache, in order.
//!
//! This is safe because nothing but reads is done here. So media still has the state that the last
//! process left, and opening changes nothing of it that these reads could observe. When the volume
//! is handed over, changes begin. A change of data that is being read here waits for that read, as
//! it would in the cache. Answers of an opening map count only before that.

mod checksums;
mod log_index;
mod map;

use std::cell::{Cell, OnceCell, RefCell};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Extents, ExtentsFuture, Op, Request,
    Result,
};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::superblock::{DirtyZones, Superblock};

use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;
use crate::options::{Devices, Durability, VolumeOptions};
use crate::volume::volume_info;
pub use map::OpeningMap;

/// A volume that serves reads of certainly clean data, until it is handed over to its cache.
pub struct OpeningVolume {
    info: DeviceInfo,
    volume: u16,
    zones: DirtyZones,
    map: Option<OpeningMap>,
    reads: Rc<Reads>,
}

/// Reads of the backing device, and requests that wait for the cache.
struct Reads {
    backing: Rc<dyn BlockDevice>,
    waiting: RefCell<Vec<(Request, Completion)>>,
    /// Number of reads for which the opening map was asked.
    asking: Cell<usize>,
    /// The cache's own device for the volume, or why there is none.
    opened: OnceCell<Result<Rc<dyn BlockDevice>>>,
    in_flight: RefCell<Vec<Range<u64>>>,
    ended: WaitList,
    count: Cell<u64>,
}

impl std::fmt::Debug for OpeningVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpeningVolume")
            .field("name", &self.info.name)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl OpeningVolume {
    /// Returns the volume that [`Cache::attach`](crate::Cache::attach) with the same arguments will
    /// make of `backing`. Returns `None` if the map is needed first, for one of these reasons:
    ///
    /// - The cache does not know where the volume may be dirty.
    /// - The volume was written without the cache, is another volume, or has another size than
    ///   before.
    /// - Data in the cache of the backing device must be flushed before any read, by code that can
    ///   record a failed flush. This is the case with [`Durability::Sync`], where data that is read
    ///   is durable, and after a failed flush.
    ///
    /// Reads of possibly dirty data ask `map`, which the opening also has. Without `map` they wait
    /// for the cache.
    #[must_use]
    pub fn new(
        devices: &Devices,
        superblock: &Superblock,
        durability: Durability,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        options: &VolumeOptions,
        map: Option<&OpeningMap>,
    ) -> Option<Rc<Self>> {
        let zones = superblock.zones.clone()?;
        let mut volumes = superblock.volumes.iter();
        let known = volumes.find(|volume| volume.name == name)?;
        let info = backing.info();
        let block = u64::from(info.logical_block_bytes);
        let identity = info.identity;
        let size_bytes = info.size_bytes - info.size_bytes % block;
        let geometry = Geometry::of(superblock);
        let is_same = known.size_bytes <= geometry.sizes().largest_volume_bytes()
            && known.size_bytes == size_bytes
            && known.identity.agrees_with(identity)
            && known.differs_at.is_none()
            && options.epoch <= known.epoch
            && !options.adopt;
        let others = (superblock.volumes.iter())
            .filter(|other| other.id != known.id)
            .any(|other| (other.identity).overlaps(other.size_bytes, identity, size_bytes));
        let flush_first =
            known.flush_failed || (durability == Durability::Sync && info.volatile_cache);
        if !is_same || others || flush_first {
            return None;
        }
        let data = devices.data.info();
        let (name, size_bytes) = (name.to_owned(), known.size_bytes);
        Some(Rc::new(Self {
            info: volume_info(name, size_bytes, &info, &data, geometry, durability),
            volume: known.id,
            zones,
            map: map.cloned(),
            reads: Rc::new(Reads {
                backing,
                waiting: RefCell::default(),
                asking: Cell::new(0),
                opened: OnceCell::new(),
                in_flight: RefCell::default(),
                ended: WaitList::new(),
                count: Cell::new(0),
            }),
        }))
    }

    /// Continues with the cache's device for the volume, or with an error. Waiting requests go to
    /// it in their order. A second call is ignored.
    pub fn hand_over(&self, opened: Result<Rc<dyn BlockDevice>>) {
        // The opening has done so, if it came as far as reading the log.
        if let Some(map) = &self.map {
            map.close();
        }
        if self.reads.opened.set(opened).is_ok() {
            for (request, done) in self.reads.waiting.take() {
                self.submit(request, done);
            }
        }
    }

    /// Returns the number of reads of certainly clean data that were served, or begun, before the
    /// cache was open.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.reads.count.get()
    }

    /// Requests that wait for the cache.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.reads.waiting.borrow().len() + self.reads.asking.get()
    }

    /// Whether the backing device has all of what a request reads, as far as is known without the
    /// map.
    fn is_clean_read(&self, request: &Request) -> bool {
        request.op == Op::Read && !self.zones.may_be_dirty(self.volume, bytes(request))
    }
}

fn bytes(request: &Request) -> Range<u64> {
    request.offset..request.offset + request.len
}

impl Reads {
    fn overlap(&self, bytes: &Range<u64>) -> bool {
        let in_flight = self.in_flight.borrow();
        (in_flight.iter()).any(|read| read.start < bytes.end && bytes.start < read.end)
    }

    fn read(self: &Rc<Self>, request: Request, done: Completion) {
        let bytes = bytes(&request);
        self.in_flight.borrow_mut().push(bytes.clone());
        self.count.set(self.count.get() + 1);
        let buf = request.buf.clone();
        let (reads, io) = (Rc::clone(self), self.backing.start(request));
        rt::spawn(async move {
            let result = io.await;
            {
                let mut in_flight = reads.in_flight.borrow_mut();
                let at = in_flight.iter().position(|read| *read == bytes);
                in_flight.swap_remove(at.expect("it was put there"));
            }
            reads.ended.wake_all();
            match (result, buf) {
                // The cache may have a copy.
                (Err(_), Some(buf)) => reads.ask_cache(Request::read(bytes.start, buf), done),
                (result, _) => done.complete(result),
            }
        });
    }

    /// Asks the opening map for a read, and without an answer the cache.
    fn ask(self: &Rc<Self>, (map, volume): (OpeningMap, u16), request: Request, done: Completion) {
        let reads = Rc::clone(self);
        reads.asking.set(reads.asking.get() + 1);
        rt::spawn(async move {
            let answered = map.read(volume, &request, &reads.backing).await;
            reads.asking.set(reads.asking.get() - 1);
            match answered {
                true => done.complete(Ok(())),
                false => reads.ask_cache(request, done),
            }
        });
    }

    /// Gives a read to the cache, when that is there.
    fn ask_cache(&self, request: Request, done: Completion) {
        match self.opened.get() {
            Some(Ok(opened)) => opened.submit(request, done),
            Some(Err(error)) => done.complete(Err(error.clone())),
            None => self.waiting.borrow_mut().push((request, done)),
        }
    }
}

impl BlockDevice for OpeningVolume {
    fn info(&self) -> DeviceInfo {
        match self.reads.opened.get() {
            Some(Ok(opened)) => opened.info(),
            _ => self.info.clone(),
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.reads.opened.get() {
            Some(Ok(opened)) => {
                let changes = !matches!(request.op, Op::Read | Op::Flush);
                let waits = changes && !planted(Fault::ChangeDuringOpeningRead);
                if !waits || self.reads.in_flight.borrow().is_empty() {
                    return opened.submit(request, done);
                }
                let (opened, reads) = (Rc::clone(opened), Rc::clone(&self.reads));
                rt::spawn(async move {
                    let bytes = bytes(&request);
                    reads.ended.until(|| !reads.overlap(&bytes)).await;
                    opened.submit(request, done);
                });
            }
            Some(Err(error)) => done.complete(Err(error.clone())),
            None => {
                if let Err(error) = self.info.check(&request) {
                    done.complete(Err(error));
                } else if self.is_clean_read(&request) {
                    self.reads.read(request, done);
                } else if let Some(map) = self.map.as_ref().filter(|_| request.op == Op::Read) {
                    self.reads.ask((map.clone(), self.volume), request, done);
                } else {
                    self.reads.waiting.borrow_mut().push((request, done));
                }
            }
        }
    }

    /// Before the cache is there, everything may be dirty.
    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        match self.reads.opened.get() {
            Some(Ok(opened)) => opened.extents(range),
            _ => Box::pin(ready(Ok(Extents::data(range)))),
        }
    }
}
