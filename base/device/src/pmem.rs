//! Byte-addressable media as a device: loads and stores, no system call, no block layer.
//!
//! - A write bypasses the processor's caches and is fenced before it completes. A completed write
//!   is durable if the medium is. So there is no volatile cache, FUA costs nothing, and flush does
//!   nothing.
//! - The device writes lines of 64 bytes. The medium is atomic by 8, so that a power loss may tear
//!   a write ([`DeviceInfo::atomic_write_bytes`]). A layer that needs whole blocks uses a block
//!   translation table. A layer for such media writes self-validating lines, or uses the memory
//!   itself ([`PmemDevice::memory`]).
//! - On an ordinary file the page cache stands in for the medium, *not persistent, for test*. Its
//!   data survives the process, but not the machine ([`Persistence::Machine`]).
//!
//! The device completes inline, on the caller's thread.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{
    BlockDevice, Buf, Completion, Context, DeviceInfo, ErrorKind, Op, Persistence, Request, Result,
};
use forebay_io::pmem::{Backing, LINE_BYTES, Pmem, PmemMapping};

/// The unit in which ranges are zeroed, bytes.
const ZEROES_BYTES: usize = 64 << 10;

/// Byte-addressable media as a device whose blocks are lines.
#[derive(Debug)]
pub struct PmemDevice<P: Pmem> {
    memory: Arc<P>,
    info: DeviceInfo,
    zeroes: Buf,
}

/// Describes a mapping for the status.
#[must_use]
pub fn describe(memory: &PmemMapping) -> String {
    match memory.backing() {
        Backing::PersistentDevice => {
            format!("persistent memory (DAX device, {})", memory.writeback())
        }
        Backing::PersistentFile => format!("persistent memory (DAX file, {})", memory.writeback()),
        Backing::VolatileDevice => "memory device, not persistent".to_owned(),
        Backing::PageCache => "mapped file, not persistent, for test".to_owned(),
    }
}

impl PmemDevice<PmemMapping> {
    /// Opens a DAX character device or a file, and holds it exclusively. An empty name selects the
    /// path.
    ///
    /// # Errors
    /// As for [`PmemMapping::open`].
    pub fn open(path: impl AsRef<Path>, name: &str) -> Result<Rc<Self>> {
        let path = path.as_ref();
        Ok(Self::mapped(PmemMapping::open(path, None)?, path, name))
    }

    /// Opens it like [`PmemDevice::open`], but only for inspection: a file is neither changed nor
    /// allocated.
    ///
    /// # Errors
    /// As for [`PmemMapping::open`].
    pub fn open_to_look(path: impl AsRef<Path>, name: &str) -> Result<Rc<Self>> {
        let path = path.as_ref();
        Ok(Self::mapped(PmemMapping::open_to_look(path)?, path, name))
    }

    fn mapped(memory: PmemMapping, path: &Path, name: &str) -> Rc<Self> {
        let persistence = match memory.backing().is_persistent() {
            true => Persistence::Media,
            false => Persistence::Machine,
        };
        let name = match name {
            "" => path.display().to_string(),
            name => name.to_owned(),
        };
        let identity = memory.identity();
        let mut device = Self::new(Arc::new(memory), name, persistence);
        device.info.identity = identity;
        Rc::new(device)
    }
}

impl<P: Pmem> PmemDevice<P> {
    /// Creates a device on this memory, with this persistence.
    #[must_use]
    pub fn new(memory: Arc<P>, name: impl Into<String>, persistence: Persistence) -> Self {
        let line = u32::try_from(LINE_BYTES).expect("64");
        let info = DeviceInfo {
            logical_block_bytes: line,
            physical_block_bytes: line,
            atomic_write_bytes: 8,
            volatile_cache: false,
            byte_addressable: true,
            persistence,
            discard: false,
            ..DeviceInfo::new(name, memory.size_bytes())
        };
        Self {
            memory,
            info,
            zeroes: Buf::zeroed(ZEROES_BYTES),
        }
    }

    /// Creates a device on an emulated memory, with its description `emulated`.
    #[must_use]
    pub fn emulated(
        memory: Arc<P>,
        name: impl Into<String>,
        under: &DeviceInfo,
        emulated: String,
    ) -> Self {
        let mut device = Self::new(memory, name, under.persistence);
        device.info.identity = under.identity;
        device.info.emulated = Some(emulated);
        device
    }

    /// Returns the memory, for layers that use it directly.
    #[must_use]
    pub fn memory(&self) -> Arc<P> {
        Arc::clone(&self.memory)
    }

    fn run(&self, request: &Request) -> Result<()> {
        let context = || {
            format!(
                "memory {}: {:?} of {} bytes at {}",
                self.info.name, request.op, request.len, request.offset
            )
        };
        self.info.check(request).context(context)?;
        let memory = &*self.memory;
        match request.op {
            Op::Flush | Op::Discard => Ok(()),
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.as_ref().ok_or(ErrorKind::InvalidInput)?;
                if request.op == Op::Read {
                    return memory.read(request.offset, buf).context(context);
                }
                memory.stream(request.offset, buf);
                memory.fence();
                Ok(())
            }
            Op::WriteZeroes { .. } => {
                let mut done = 0;
                while done < request.len {
                    // At most the size of the zeroes, so it fits.
                    let part = (request.len - done).min(ZEROES_BYTES as u64) as usize;
                    memory.stream(request.offset + done, &self.zeroes.slice(0..part));
                    done += part as u64;
                }
                memory.fence();
                Ok(())
            }
        }
    }
}

impl<P: Pmem> BlockDevice for PmemDevice<P> {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    #[inline]
    fn submit(&self, request: Request, done: Completion) {
        done.complete(self.run(&request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::BlockDeviceExt;
    use forebay_io::rt::block_on_simulated;
    use forebay_io::sim::{SimPmem, Survival};

    #[test]
    fn a_completed_write_is_durable_and_reads_back() {
        let memory = SimPmem::new(1 << 20);
        let device = PmemDevice::new(Arc::clone(&memory), "p", Persistence::Media);
        block_on_simulated(1, async move {
            let block = Buf::scratch(1536);
            block.fill(7);
            device.write(512, block.clone()).await.expect("in range");
            device.write_zeroes(1024, 512).await.expect("in range");
            device.write(64, block.slice(0..64)).await.expect("a line");
            let after = memory.crash(Survival::None);
            let back = Buf::zeroed(2560);
            after.read(0, &back).expect("sound");
            let bytes = back.to_vec();
            for (index, byte) in bytes.iter().enumerate() {
                let written = (512..1024).contains(&index)
                    || (1536..2048).contains(&index)
                    || (64..128).contains(&index);
                assert_eq!(*byte, if written { 7 } else { 0 }, "byte {index}");
            }
            let read = Buf::zeroed(2560);
            device.read(0, read.clone()).await.expect("in range");
            assert_eq!(read.to_vec(), bytes);
            memory.spoil(600, 1);
            let error = device.read(512, block).await.expect_err("spoiled");
            assert!(error.report().contains("memory p"), "{error:?}");
            let error = device
                .discard(1 << 20, 512)
                .await
                .expect_err("past the end");
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
        });
    }

    #[test]
    fn a_file_says_that_it_is_not_persistent_and_is_held_alone() {
        let path = std::env::temp_dir().join(format!("fb-pmem-{}", std::process::id()));
        std::fs::write(&path, vec![0; 8192 + 100]).expect("a file");
        let device = PmemDevice::open(&path, "p").expect("a file");
        let info = device.info();
        assert_eq!((info.size_bytes, info.atomic_write_bytes), (8192, 8));
        assert!(info.byte_addressable && !info.volatile_cache);
        let words = describe(&device.memory());
        if info.persistence == Persistence::Media {
            eprintln!("SKIPPED: the temporary directory is on persistent memory");
        } else {
            assert_eq!(info.persistence, Persistence::Machine);
            assert!(words.contains("not persistent, for test"), "{words}");
        }
        let busy = PmemDevice::open(&path, "q").expect_err("held");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        std::fs::remove_file(&path).expect("it was there");
    }
}
