//! A toy stack: two volumes on one device, a cache of sectors in memory, and an optional flaw.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, ErrorKind, Op, Request, Result,
};
use forebay_io::rt;
use forebay_io::sim::{DiskConfig, SimDisk, World};
use forebay_io::sync::Semaphore;
use forebay_testkit::stack::{Process, Promise, Running, Stack};

const VOLUME: u64 = 96 << 10;
const VOLUMES: usize = 2;
/// Offset of the toy's log of one sector.
const LOG: u64 = VOLUME * VOLUMES as u64;

/// A flaw of the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// FLUSH, and every write in sync, is acknowledged without a flush of the device.
    NoFlush,
    /// FUA is dropped.
    FuaDropped,
    /// Writes are acknowledged from memory and written at the next flush.
    AcknowledgesFirst,
    /// A flush that finds one in flight waits for that one.
    JoinsFlush,
    /// Large writes bypass the cache and leave its copies.
    StaleAfterBypass,
    /// A discard zeroes only the copy in memory, which is dropped later.
    DiscardUndone,
    /// Small writes read, merge and write 4 KiB, without a lock.
    UnlockedMerge,
    /// Long writes shift their last sector.
    Misplaced,
    /// The log's last write is replayed at every start, though newer data may lie there.
    ReplaysTooMuch,
    /// The journal counts after power loss: it lists data that was never written.
    TrustsOldJournal,
    /// A sector is written in two halves with I/O between.
    TearsSectors,
    /// After a failed flush, the next one counts.
    RetriesFlush,
    /// A control step that meets a write never ends.
    Hangs,
}

/// The toy's configuration.
#[derive(Debug)]
pub(crate) struct Toy {
    /// The flaw, if any.
    pub(crate) flaw: Option<Flaw>,
    /// The promise of an acknowledgement.
    pub(crate) promise: Promise,
}

struct Shared {
    disk: SimDisk,
    flaw: Option<Flaw>,
    promise: Promise,
    lock: Semaphore,
    /// Sectors in memory by byte address: contents, and whether they are dirty.
    cache: RefCell<BTreeMap<u64, (Vec<u8>, bool)>>,
    flushing: RefCell<Option<Rc<forebay_io::sync::Promise<Result<()>>>>>,
    writing: Cell<u32>,
    journal: Buf,
    /// A flush failed: the toy promises nothing from then on.
    broken: Cell<bool>,
}

/// An open toy.
pub(crate) struct OpenToy(Rc<Shared>);

struct Volume {
    shared: Rc<Shared>,
    base: u64,
}

impl Stack for Toy {
    type Running = OpenToy;

    fn world(&self, seed: u64) -> World {
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig::new("disk", LOG + 4096));
        world
    }

    fn volume_bytes(&self) -> Vec<u64> {
        vec![VOLUME; VOLUMES]
    }

    fn promise(&self) -> Promise {
        self.promise
    }

    fn format(&self, process: &Process) -> impl Future<Output = Result<()>> {
        let disk = process.disks[0].clone();
        async move { disk.write_fua(LOG, Buf::zeroed(4096)).await }
    }

    async fn open(&self, process: &Process) -> Result<OpenToy> {
        let disk = process.disks[0].clone();
        if self.flaw == Some(Flaw::ReplaysTooMuch) {
            let log = Buf::scratch(1024);
            disk.read(LOG, log.clone()).await?;
            let mut head = [0; 8];
            log.copy_to(0, &mut head);
            if u64::from_le_bytes(head) > 0 {
                let address = u64::from_le_bytes(head) - 1;
                disk.write(address, log.slice(512..1024)).await?;
            }
        }
        let mut boot = [0; 16];
        process.journal.copy_to(0, &mut boot);
        if self.flaw == Some(Flaw::TrustsOldJournal) && boot == process.boot_id {
            // The journal says that data in flight is written. Replay has to write it.
            disk.flush().await?;
        }
        process.journal.copy_from(0, &process.boot_id);
        Ok(OpenToy(Rc::new(Shared {
            disk,
            flaw: self.flaw,
            promise: self.promise,
            lock: Semaphore::new(1),
            cache: RefCell::default(),
            flushing: RefCell::default(),
            writing: Cell::new(0),
            journal: process.journal.clone(),
            broken: Cell::new(false),
        })))
    }
}

impl Running for OpenToy {
    fn volumes(&self) -> Vec<Rc<dyn BlockDevice>> {
        let volume = |index| -> Rc<dyn BlockDevice> {
            Rc::new(Volume {
                shared: Rc::clone(&self.0),
                base: index as u64 * VOLUME,
            })
        };
        (0..VOLUMES).map(volume).collect()
    }

    async fn control(&self, _volume: usize, draw: u64) -> Result<()> {
        // Drops clean copies.
        if self.0.flaw == Some(Flaw::Hangs) && self.0.writing.get() > 0 {
            return std::future::pending().await;
        }
        self.0.lock.acquire(1).await;
        let mut index = 0;
        self.0.cache.borrow_mut().retain(|_, (_, dirty)| {
            index += 1;
            *dirty || (index ^ draw).is_multiple_of(2)
        });
        self.0.lock.release(1);
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.0.flush().await
    }
}

impl BlockDevice for Volume {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("toy", VOLUME)
    }

    fn submit(&self, request: Request, done: Completion) {
        let (shared, base) = (Rc::clone(&self.shared), self.base);
        rt::spawn(async move { done.complete(shared.serve(base, request).await) });
    }
}

impl Shared {
    async fn serve(&self, base: u64, request: Request) -> Result<()> {
        if request.op == Op::Flush {
            return self.flush().await;
        }
        let small = request.len < 4096 && matches!(request.op, Op::Write { .. });
        if small && self.flaw == Some(Flaw::UnlockedMerge) {
            return self.merge(base, &request).await;
        }
        self.lock.acquire(1).await;
        self.writing
            .set(self.writing.get() + u32::from(request.op != Op::Read));
        let result = match request.op {
            Op::Read => self.read(base, &request).await,
            Op::Discard => self.discard(base, &request).await,
            _ => self.write(base, &request).await,
        };
        self.writing
            .set(self.writing.get() - u32::from(request.op != Op::Read));
        self.lock.release(1);
        result
    }

    async fn read(&self, base: u64, request: &Request) -> Result<()> {
        let buf = request.buf.as_ref().expect("a read has a buffer");
        self.disk.read(base + request.offset, buf.clone()).await?;
        let mut cache = self.cache.borrow_mut();
        for at in (0..request.len).step_by(512) {
            let address = base + request.offset + at;
            match cache.get(&address) {
                Some((bytes, _)) => buf.copy_from(at as usize, bytes),
                None => {
                    let bytes = buf.slice(at as usize..at as usize + 512).to_vec();
                    cache.insert(address, (bytes, false));
                }
            }
        }
        Ok(())
    }

    async fn discard(&self, base: u64, request: &Request) -> Result<()> {
        self.forget(base + request.offset, request.len);
        if self.flaw == Some(Flaw::DiscardUndone) {
            let mut cache = self.cache.borrow_mut();
            for at in (0..request.len).step_by(512) {
                let address = base + request.offset + at;
                cache.insert(address, (vec![0; 512], false));
            }
            return Ok(());
        }
        self.disk.discard(base + request.offset, request.len).await
    }

    fn forget(&self, address: u64, len: u64) {
        let mut cache = self.cache.borrow_mut();
        for at in (address..address + len).step_by(512) {
            cache.remove(&at);
        }
    }

    async fn write(&self, base: u64, request: &Request) -> Result<()> {
        let address = base + request.offset;
        let fua = matches!(
            request.op,
            Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. }
        );
        let buf = match &request.buf {
            Some(buf) => buf.clone(),
            None => Buf::zeroed(request.len as usize),
        };
        let bypass = self.flaw == Some(Flaw::StaleAfterBypass) && request.len > 8192;
        if !bypass {
            self.forget(address, request.len);
        }
        if self.flaw == Some(Flaw::AcknowledgesFirst) && !fua {
            let mut cache = self.cache.borrow_mut();
            for at in (0..request.len).step_by(512) {
                let bytes = buf.slice(at as usize..at as usize + 512).to_vec();
                cache.insert(address + at, (bytes, true));
            }
            return Ok(());
        }
        if self.flaw == Some(Flaw::ReplaysTooMuch) {
            let log = Buf::zeroed(1024);
            log.copy_from(0, &(address + 1).to_le_bytes());
            log.slice(512..1024).copy_from_buf(&buf.slice(0..512));
            if request.len > 16384 {
                self.disk.write_fua(LOG, log).await?;
            }
        }
        if self.flaw == Some(Flaw::Misplaced) && request.len > 24 << 10 {
            let shift = Buf::scratch(512);
            shift.copy_from_buf(&buf.slice(0..512));
            let end = buf.len() - 512;
            buf.slice(end..end + 512).copy_from_buf(&shift);
        }
        if self.flaw == Some(Flaw::TearsSectors) {
            let mixed = Buf::scratch(buf.len());
            self.disk.read(address, mixed.clone()).await?;
            mixed.slice(0..256).copy_from_buf(&buf.slice(0..256));
            self.disk.write(address, mixed).await?;
        }
        let sync = self.promise == Promise::Sync || self.flaw == Some(Flaw::TrustsOldJournal);
        let fua = fua && self.flaw != Some(Flaw::FuaDropped);
        self.disk.start(Request::write(address, buf, fua)).await?;
        if sync && self.promise == Promise::Sync && self.flaw != Some(Flaw::NoFlush) {
            return self.flush_disk().await;
        }
        Ok(())
    }

    async fn merge(&self, base: u64, request: &Request) -> Result<()> {
        let buf = request.buf.as_ref().expect("a write has a buffer");
        let start = request.offset / 4096 * 4096;
        let end = (request.offset + request.len).next_multiple_of(4096);
        let whole = Buf::scratch((end - start) as usize);
        self.disk.read(base + start, whole.clone()).await?;
        let at = (request.offset - start) as usize;
        whole.slice(at..at + buf.len()).copy_from_buf(buf);
        self.forget(base + start, end - start);
        let fua = request.op == Op::Write { fua: true };
        self.disk
            .start(Request::write(base + start, whole, fua))
            .await
    }

    async fn flush(&self) -> Result<()> {
        match self.flaw {
            Some(Flaw::NoFlush) => return Ok(()),
            Some(Flaw::JoinsFlush) => {
                let under_way = self.flushing.borrow().clone();
                if let Some(under_way) = under_way {
                    return under_way.get().await;
                }
                let promise = Rc::new(forebay_io::sync::Promise::new());
                *self.flushing.borrow_mut() = Some(Rc::clone(&promise));
                let result = self.flush_disk().await;
                *self.flushing.borrow_mut() = None;
                promise.set(result.clone());
                return result;
            }
            Some(Flaw::TrustsOldJournal) => {
                // "The journal has it", which does not outlive power loss.
                self.journal.copy_from(16, &[1]);
                return Ok(());
            }
            Some(Flaw::AcknowledgesFirst) => {
                self.lock.acquire(1).await;
                let dirty: Vec<_> = (self.cache.borrow_mut().iter_mut())
                    .filter(|(_, (_, dirty))| *dirty)
                    .map(|(&address, (bytes, dirty))| {
                        *dirty = false;
                        (address, Buf::copied(bytes))
                    })
                    .collect();
                for (address, buf) in dirty {
                    self.disk.write(address, buf).await?;
                }
                self.lock.release(1);
            }
            _ => (),
        }
        self.flush_disk().await
    }

    async fn flush_disk(&self) -> Result<()> {
        if self.broken.get() {
            return Err(ErrorKind::Lost.into());
        }
        let result = self.disk.flush().await;
        if result.is_err() && self.flaw != Some(Flaw::RetriesFlush) {
            self.broken.set(true);
        }
        result
    }
}
