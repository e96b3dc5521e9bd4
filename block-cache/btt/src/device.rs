//! A table as a block device.

use std::sync::Arc;

use forebay_block::{
    Basis, BlockDevice, Completion, Context, DeviceInfo, ErrorKind, Identity, Op, Request, Result,
};
use forebay_io::pmem::Pmem;

use crate::Btt;

/// A table as a block device: a block is atomic, and durable when its write completes. Completes
/// inline.
#[derive(Debug)]
pub struct BttDevice<P: Pmem> {
    table: Arc<Btt<P>>,
    info: DeviceInfo,
}

/// Returns the identity of a table on a device: the device's own name, or the table's UUID if the
/// device has none. The UUID moves with the medium, and volumes cannot overwrite it.
fn named(under: Identity, uuid: &[u8; 16]) -> Identity {
    if under.basis != Basis::Place || *uuid == [0; 16] {
        return under;
    }
    // FNV-1a (Fowler, Noll, Vo).
    let medium = uuid.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Identity {
        start: Some(0),
        ..Identity::of(medium.max(1))
    }
}

impl<P: Pmem> BttDevice<P> {
    /// Creates the device. `under` is the info of the device that contains the table.
    #[must_use]
    pub fn new(table: Arc<Btt<P>>, name: impl Into<String>, under: &DeviceInfo) -> Self {
        let block_bytes = table.block_bytes();
        let info = DeviceInfo {
            name: name.into(),
            size_bytes: table.blocks() * u64::from(block_bytes),
            logical_block_bytes: block_bytes,
            physical_block_bytes: block_bytes,
            atomic_write_bytes: block_bytes,
            volatile_cache: false,
            fua: true,
            byte_addressable: false,
            discard: true,
            identity: named(under.identity, &table.uuid()),
            ..under.clone()
        };
        Self { table, info }
    }

    /// Executes a request on the calling thread, which may be any.
    ///
    /// # Errors
    /// As for [`Btt::read`], [`Btt::write`] and [`Btt::zero`]. `InvalidInput` or `OutOfRange` for
    /// an invalid request.
    pub fn run(&self, request: &Request) -> Result<()> {
        let result = self.carry_out(request);
        result.context(|| format!("block translation table {}", self.info.name))
    }

    fn carry_out(&self, request: &Request) -> Result<()> {
        self.info.check(request)?;
        let block_bytes = u64::from(self.info.logical_block_bytes);
        let first = request.offset / block_bytes;
        match request.op {
            // A completed write is durable.
            Op::Flush => Ok(()),
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.as_ref().ok_or(ErrorKind::InvalidInput)?;
                match request.op {
                    Op::Read => self.table.read(first, buf),
                    _ => self.table.write(first, buf),
                }
            }
            Op::Discard | Op::WriteZeroes { .. } => {
                self.table.zero(first, request.len / block_bytes)
            }
        }
    }
}

impl<P: Pmem> BlockDevice for BttDevice<P> {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    #[inline]
    fn submit(&self, request: Request, done: Completion) {
        done.complete(self.run(&request));
    }
}
