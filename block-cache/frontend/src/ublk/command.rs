//! Executes requests of the kernel on the volume.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, ErrorKind, Request, Result};
use forebay_io::sync::Semaphore;
use forebay_wire::ublk::{Descriptor, FUA, NOUNMAP, SECTOR_BYTES, op};

use super::driver::Port;

/// The volume and the port of a queue, with the memory for its requests.
pub(super) struct Executor<P: Port> {
    /// Port to the driver.
    pub(super) port: P,
    device: Rc<dyn BlockDevice>,
    budget: Semaphore,
    budget_bytes: u64,
}

/// Memory of a queue, given back on drop.
struct Cost<'a>(&'a Semaphore, u64);

impl Drop for Cost<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

impl<P: Port> Executor<P> {
    /// Creates the executor of a queue whose requests have at most `budget_bytes` of memory.
    pub(super) fn new(port: P, device: Rc<dyn BlockDevice>, budget_bytes: u64) -> Self {
        Self {
            port,
            device,
            budget: Semaphore::new(budget_bytes),
            budget_bytes,
        }
    }

    /// Executes the request of a tag. Returns the result for the driver.
    pub(super) async fn run(&self, tag: u16, request: Descriptor) -> Result<i32> {
        if request.op == op::FLUSH {
            // A flush has no position: its first sector is the maximum number.
            return self.device.flush().await.map(|()| 0);
        }
        let offset = request.start_sector.checked_mul(SECTOR_BYTES);
        let offset = offset.ok_or(ErrorKind::InvalidInput)?;
        let len = u64::from(request.sectors) * SECTOR_BYTES;
        let fua = request.flags & FUA != 0;
        match request.op {
            op::READ => {
                let (buf, _cost) = self.buffer(len).await?;
                let read = Request::read(offset, buf.clone());
                self.device.start(read).await?;
                self.port.copy_to_driver(tag, &buf)?;
                moved(len)
            }
            op::WRITE => {
                let (buf, _cost) = self.buffer(len).await?;
                self.port.copy_from_driver(tag, &buf)?;
                let write = Request::write(offset, buf, fua);
                self.device.start(write).await?;
                moved(len)
            }
            op::DISCARD => {
                let discard = Request::discard(offset, len);
                self.device.start(discard).await.map(|()| 0)
            }
            op::WRITE_ZEROES => {
                let unmap = request.flags & NOUNMAP == 0;
                let zeroes = Request::write_zeroes(offset, len, fua, unmap);
                self.device.start(zeroes).await.map(|()| 0)
            }
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Returns a buffer, once there is memory for it.
    async fn buffer(&self, len: u64) -> Result<(Buf, Cost<'_>)> {
        if len == 0 || len.next_power_of_two() > self.budget_bytes {
            return Err(ErrorKind::InvalidInput.into());
        }
        // Buffers come in powers of two.
        let cost = len.next_power_of_two().max(4096);
        self.budget.acquire(cost).await;
        let cost = Cost(&self.budget, cost);
        let buf = Buf::scratch(usize::try_from(len).map_err(|_| ErrorKind::InvalidInput)?);
        Ok((buf, cost))
    }
}

/// Returns the number of moved bytes, in the driver's type.
fn moved(len: u64) -> Result<i32> {
    Ok(i32::try_from(len).map_err(|_| ErrorKind::InvalidInput)?)
}

/// Translates an error for the kernel's block layer. Unknown kinds become I/O errors.
pub(super) const fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NoSpace | ErrorKind::Unsupported | ErrorKind::TimedOut => kind.errno(),
        _ => ErrorKind::Io.errno(),
    }
}
