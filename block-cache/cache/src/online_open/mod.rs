//! A volume of a cache that is still being opened.
//!
//! Opening reads the log, which takes seconds where millions of blocks are cached. What the
//! superblock says of [tracts](crate::intent::zones) is known before: where nothing can be dirty, a
//! read is served from the backing device at once. Where something may be, it waits for what an
//! [`EarlyMap`] tells, and if that does not for the cache. Everything else waits, in its order, for
//! the cache.
//!
//! Why that is right: nothing but reads is done here, so what is on media is what the last process
//! left, and opening changes none of it that these reads could tell. When the volume is handed
//! over, changes begin; one that touches what is being read here waits for the read, as it would in
//! the cache. (What an early map tells counts only before that.)

mod checksums;
mod log_index;
mod map;

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Op, Request, Result};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::superblock::{Superblock, Tracts};

use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;
use crate::options::{Devices, Durability, VolumeOptions};
use crate::volume::volume_info;
pub use map::EarlyMap;

/// A volume that serves reads of what is certainly clean, until it is handed over to its cache.
pub struct EarlyVolume {
    info: DeviceInfo,
    volume: u16,
    tracts: Tracts,
    map: Option<EarlyMap>,
    reads: Rc<Reads>,
}

/// Reads from the backing device, and what waits for the cache.
struct Reads {
    backing: Rc<dyn BlockDevice>,
    waiting: RefCell<Vec<(Request, Completion)>>,
    /// Reads that the early map was asked for.
    asking: Cell<usize>,
    /// The cache's own device for the volume, or why there is none.
    opened: OnceCell<Result<Rc<dyn BlockDevice>>>,
    under_way: RefCell<Vec<Range<u64>>>,
    ended: WaitList,
    count: Cell<u64>,
}

impl std::fmt::Debug for EarlyVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyVolume")
            .field("name", &self.info.name)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl EarlyVolume {
    /// The volume that [`Cache::attach`](crate::Cache::attach) with the same arguments will make of
    /// `backing`; none if that must look at the map first: the cache does not know where the volume
    /// may be dirty, or the volume was written without the cache, or is another or of another size
    /// than before. Or what the last process left in the cache of the device itself must be flushed
    /// before anything is read, by who can note that this failed: with [`Durability::Sync`], where
    /// what is read is durable, or after a flush that failed. What may be dirty is asked of `map`,
    /// which the opening has as well; without, it waits for the cache.
    #[must_use]
    pub fn new(
        devices: &Devices,
        superblock: &Superblock,
        durability: Durability,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        options: &VolumeOptions,
        map: Option<&EarlyMap>,
    ) -> Option<Rc<Self>> {
        let tracts = superblock.tracts.clone()?;
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
            known.flush_failed || durability == Durability::Sync && info.volatile_cache;
        if !is_same || others || flush_first {
            return None;
        }
        let data = devices.data.info();
        let (name, size_bytes) = (name.to_owned(), known.size_bytes);
        Some(Rc::new(Self {
            info: volume_info(name, size_bytes, &info, &data, geometry, durability),
            volume: known.id,
            tracts,
            map: map.cloned(),
            reads: Rc::new(Reads {
                backing,
                waiting: RefCell::default(),
                asking: Cell::new(0),
                opened: OnceCell::new(),
                under_way: RefCell::default(),
                ended: WaitList::new(),
                count: Cell::new(0),
            }),
        }))
    }

    /// Goes on with the cache's device for the volume, or with an error: what waits is given to it,
    /// in its order. A second call is ignored.
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

    /// Reads of what is certainly clean that were served, or begun, before the cache was open.
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
        request.op == Op::Read && !self.tracts.may_be_dirty(self.volume, bytes(request))
    }
}

fn bytes(request: &Request) -> Range<u64> {
    request.offset..request.offset + request.len
}

impl Reads {
    fn touch(&self, bytes: &Range<u64>) -> bool {
        let under_way = self.under_way.borrow();
        (under_way.iter()).any(|read| read.start < bytes.end && bytes.start < read.end)
    }

    fn read(self: &Rc<Self>, request: Request, done: Completion) {
        let bytes = bytes(&request);
        self.under_way.borrow_mut().push(bytes.clone());
        self.count.set(self.count.get() + 1);
        let again = request.buf.clone();
        let (reads, io) = (Rc::clone(self), self.backing.start(request));
        rt::spawn(async move {
            let result = io.await;
            {
                let mut under_way = reads.under_way.borrow_mut();
                let at = under_way.iter().position(|read| *read == bytes);
                under_way.swap_remove(at.expect("it was put there"));
            }
            reads.ended.wake_all();
            match (result, again) {
                // The cache may have a copy.
                (Err(_), Some(buf)) => reads.ask_cache(Request::read(bytes.start, buf), done),
                (result, _) => done.complete(result),
            }
        });
    }

    /// Asks the early map for a read, and then the cache.
    fn ask(self: &Rc<Self>, (map, volume): (EarlyMap, u16), request: Request, done: Completion) {
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

impl BlockDevice for EarlyVolume {
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
                let waits = changes && !planted(Fault::ChangeUnderEarlyRead);
                if !waits || self.reads.under_way.borrow().is_empty() {
                    return opened.submit(request, done);
                }
                let (opened, reads) = (Rc::clone(opened), Rc::clone(&self.reads));
                rt::spawn(async move {
                    let bytes = bytes(&request);
                    reads.ended.until(|| !reads.touch(&bytes)).await;
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
}
