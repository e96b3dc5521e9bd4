//! Devices on a virtual clock, whose time is that of declared threads and of a declared memory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Op, Request};
use forebay_device::emulate::memory::MemoryProfile;
use forebay_io::rt;
use forebay_io::sync::Semaphore;

use crate::costs::Service;
use crate::evictors::Evictors;
use crate::settings::{BLOCK_BYTES, Evict};

const fn ns(time: u64) -> Duration {
    Duration::from_nanos(time)
}

/// The memory of the profile, in several modules: the emulated one's rules
/// (base/device/src/emulate/memory.rs) on a virtual clock.
pub(crate) struct Memory {
    profile: MemoryProfile,
    /// Time at which each module is next idle.
    free_at: Box<[Cell<Duration>]>,
}

impl Memory {
    pub(crate) fn new(profile: MemoryProfile, modules: usize) -> Self {
        Self {
            profile,
            free_at: vec![Cell::default(); modules.max(1)].into(),
        }
    }

    const fn transfer(&self, bytes: u64) -> Duration {
        ns(bytes * 1_000_000_000 / self.profile.write_bytes_per_s)
    }

    /// Sends bytes to the module of a block. When they are there.
    fn send(&self, block: u64, bytes: u64) -> Duration {
        let module = &self.free_at[block as usize % self.free_at.len()];
        let due = module.get().max(rt::now()) + self.transfer(bytes);
        module.set(due);
        due
    }

    async fn fence(&self, due: Duration) {
        let until = due.max(rt::now()) + ns(self.profile.store_latency_ns);
        rt::sleep(until.saturating_sub(rt::now())).await;
    }

    /// Time of [`Memory::write_raw`] without concurrent writes.
    fn raw_alone(&self) -> Duration {
        self.transfer(u64::from(BLOCK_BYTES)) + ns(self.profile.store_latency_ns)
    }

    /// Time of [`Memory::write_table`] without concurrent writes.
    fn table_alone(&self) -> Duration {
        let unit = self.transfer(self.profile.unit_bytes) + ns(self.profile.store_latency_ns);
        self.transfer(u64::from(BLOCK_BYTES)) + unit * 3
    }

    /// A block is streamed and fenced.
    async fn write_raw(&self, block: u64) {
        let due = self.send(block, u64::from(BLOCK_BYTES));
        self.fence(due).await;
    }

    /// A write of the table (block-cache/btt/src/arena.rs).
    ///
    /// It writes the data, reads the map, and writes half of the log's entry. A fence, the other
    /// half, a fence, the map's entry and a fence follow. Log and map may lie in any module.
    async fn write_table(&self, block: u64) {
        let unit = self.profile.unit_bytes;
        let data = self.send(block, u64::from(BLOCK_BYTES));
        let load =
            self.profile.load_latency_ns + unit * 1_000_000_000 / self.profile.read_bytes_per_s;
        rt::sleep(ns(load)).await;
        let sent = self.send(block / 7, unit);
        self.fence(data.max(sent)).await;
        let published = self.send(block / 7, unit);
        self.fence(published).await;
        let mapped = self.send(block / 1024, unit);
        self.fence(mapped).await;
    }
}

/// State that the devices of a run share.
pub(crate) struct Machine {
    pub(crate) memory: Memory,
    /// Those that send writes: each does one thing at a time.
    pub(crate) writers: Box<[Semaphore]>,
    /// Those that evict.
    pub(crate) evictors: Evictors,
    pub(crate) service: Service,
}

impl Machine {
    pub(crate) fn new(memory: Memory, writers: usize, evictors: usize, service: Service) -> Self {
        Self {
            memory,
            writers: (0..writers.max(1)).map(|_| Semaphore::new(1)).collect(),
            evictors: Evictors::new(evictors, ns(service.look_ns)),
            service,
        }
    }

    /// The thread that sends writes of a block.
    pub(crate) fn writer(&self, block: u64) -> &Semaphore {
        &self.writers[block as usize % self.writers.len()]
    }

    /// Takes a thread for so long.
    pub(crate) async fn work(&self, thread: &Semaphore, time_ns: u64) {
        thread.acquire(1).await;
        rt::sleep(ns(time_ns)).await;
        thread.release(1);
    }

    /// A write to the table that takes `alone_ns` where nothing else uses the memory.
    async fn table(&self, block: u64, alone_ns: u64) {
        rt::sleep(ns(alone_ns).saturating_sub(self.memory.table_alone())).await;
        self.memory.write_table(block).await;
    }

    async fn raw(&self, block: u64) {
        let alone = ns(self.service.pmem_ns);
        rt::sleep(alone.saturating_sub(self.memory.raw_alone())).await;
        self.memory.write_raw(block).await;
    }

    /// Has a thread that evicts write a block: one that sends writes hands it over.
    async fn evict(self: Rc<Self>, block: u64) {
        self.work(self.writer(block), self.service.evict_ns).await;
        let thread = self.evictors.take().await;
        if thread.asleep {
            let waker = Rc::clone(&self);
            rt::spawn(async move { waker.work(waker.writer(block), waker.service.wake_ns).await });
            rt::sleep(ns(self.service.woken_ns)).await;
        }
        self.table(block, self.service.job_ns).await;
        self.evictors.put(thread);
    }
}

/// Kind of a modelled device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Raw,
    /// The table, by the thread that sends.
    Table,
    /// The table, by who evicts.
    Evictor(Evict),
}

/// A device that takes time and keeps nothing.
pub(crate) struct Modelled {
    machine: Rc<Machine>,
    kind: Kind,
    info: DeviceInfo,
}

impl Modelled {
    pub(crate) fn new(machine: &Rc<Machine>, kind: Kind, blocks: u64, block_bytes: u32) -> Self {
        let info = DeviceInfo {
            logical_block_bytes: block_bytes,
            physical_block_bytes: block_bytes,
            atomic_write_bytes: block_bytes,
            volatile_cache: false,
            fua: true,
            ..DeviceInfo::new("modelled", blocks * u64::from(block_bytes))
        };
        Self {
            machine: Rc::clone(machine),
            kind,
            info,
        }
    }
}

impl BlockDevice for Modelled {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op == Op::Flush {
            return done.complete(Ok(()));
        }
        let block = request.offset / u64::from(self.info.logical_block_bytes);
        let (machine, kind) = (Rc::clone(&self.machine), self.kind);
        rt::spawn(async move {
            let own = |thread| async move { Semaphore::acquire(thread, 1).await };
            match kind {
                Kind::Evictor(Evict::Pool | Evict::Syncer) => {
                    Rc::clone(&machine).evict(block).await
                }
                Kind::Raw | Kind::Table | Kind::Evictor(Evict::Writer) => {
                    let thread = machine.writer(block);
                    own(thread).await;
                    match kind {
                        Kind::Raw => machine.raw(block).await,
                        Kind::Table => machine.table(block, machine.service.btt_ns).await,
                        Kind::Evictor(_) => {
                            rt::sleep(ns(machine.service.evict_ns)).await;
                            machine.table(block, machine.service.btt_ns).await;
                        }
                    }
                    thread.release(1);
                }
            }
            done.complete(Ok(()));
        });
    }
}
