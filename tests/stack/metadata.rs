//! Place of the cache's metadata: with the data, on its own disk, or on byte-addressable media.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Buf, Persistence, Result};
use forebay_device::pmem::PmemDevice;
use forebay_io::pmem::Pmem;
use forebay_io::sim::{Rng, SimDisk, SimPmem, Survival};
use forebay_testkit::stack::Process;

/// Place of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    /// With the data.
    Beside,
    /// On its own disk.
    Disk,
    /// On byte-addressable media.
    Memory,
}

/// A fault in the stores of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// Fences are left out.
    Unfenced,
    /// Stores stay in the processor's caches, and flushes are left out.
    Unflushed,
}

thread_local! {
    static PLANTED: Cell<Option<StoreFault>> = const { Cell::new(None) };
}

/// Plants a fault in the memories that this thread opens from now on, or removes it.
#[allow(dead_code, reason = "not every test plants one")]
pub(crate) fn plant_store_fault(fault: Option<StoreFault>) {
    PLANTED.set(fault);
}

/// A memory, with a fault or without.
struct Faulty {
    memory: Arc<SimPmem>,
    fault: Option<StoreFault>,
}

impl Pmem for Faulty {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn read(&self, offset: u64, target: &Buf) -> Result<()> {
        self.memory.read(offset, target)
    }

    fn load_u32(&self, offset: u64) -> u32 {
        self.memory.load_u32(offset)
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.memory.load_u64(offset)
    }

    fn store_u32(&self, offset: u64, value: u32) {
        self.memory.store_u32(offset, value);
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.memory.store_u64(offset, value);
    }

    fn stream(&self, offset: u64, source: &Buf) {
        if self.fault != Some(StoreFault::Unflushed) {
            return self.memory.stream(offset, source);
        }
        for (at, word) in (offset..).step_by(8).zip(source.to_vec().as_chunks().0) {
            self.memory.store_u64(at, u64::from_le_bytes(*word));
        }
    }

    fn flush(&self, offset: u64, len: u64) {
        self.memory.flush(offset, len);
    }

    fn fence(&self) {
        if self.fault != Some(StoreFault::Unfenced) {
            self.memory.fence();
        }
    }
}

/// Its medium in a world.
pub(super) enum Medium {
    Disk(SimDisk),
    Memory(Arc<SimPmem>),
}

impl Metadata {
    pub(super) fn medium(self, process: &Process) -> Medium {
        match self {
            Self::Beside => Medium::Disk(process.disks[0].clone()),
            Self::Disk => Medium::Disk(process.disks[1].clone()),
            Self::Memory => Medium::Memory(Arc::clone(&process.memories[0])),
        }
    }

    /// Returns the device, unless it is that of the data.
    pub(super) fn device(self, process: &Process) -> Option<Rc<dyn BlockDevice>> {
        (self != Self::Beside).then(|| self.medium(process).device(process))
    }
}

impl Medium {
    pub(super) fn device(&self, process: &Process) -> Rc<dyn BlockDevice> {
        match self {
            Self::Disk(disk) => Rc::new(disk.clone()),
            Self::Memory(memory) => {
                let memory = Faulty {
                    memory: Arc::clone(memory),
                    fault: PLANTED.get(),
                };
                let device = PmemDevice::new(Arc::new(memory), "metadata", Persistence::Media);
                process.stopper.silences(Rc::new(device))
            }
        }
    }

    /// Flips this number of bits in a range.
    pub(super) fn rot(&self, rng: &Rng, offset: u64, len: u64, flips: u32) {
        match self {
            Self::Disk(disk) => disk.rot(offset, len, flips),
            Self::Memory(memory) => {
                for _ in 0..flips {
                    memory.rot(offset + rng.below(len), rng.below(8) as u32);
                }
            }
        }
    }

    /// Returns the bytes that a reader would get.
    pub(super) fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        match self {
            Self::Disk(disk) => disk.peek(offset, len),
            Self::Memory(memory) => {
                let buf = Buf::zeroed(len);
                memory.read(offset, &buf).expect("nothing is spoiled");
                buf.to_vec()
            }
        }
    }

    /// Returns the bytes that a reader would get after a power loss that takes every unflushed
    /// write.
    pub(super) fn peek_durable(&self, offset: u64, len: usize) -> Vec<u8> {
        match self {
            Self::Disk(disk) => disk.peek_durable(offset, len),
            Self::Memory(memory) => {
                let buf = Buf::zeroed(len);
                let durable = memory.crash(Survival::None);
                durable.read(offset, &buf).expect("nothing is spoiled");
                buf.to_vec()
            }
        }
    }
}
