//! Executes requests of the kernel on the volume.

use forebay_block::{BlockDeviceExt as _, Buf, ErrorKind, Request, Result};
use forebay_wire::ublk::{Descriptor, FUA, NOUNMAP, SECTOR_BYTES, op};

use super::driver::Port;
use super::queue::Queue;

/// Memory of a queue, given back on drop.
struct Cost<'a, P: Port>(&'a Queue<P>, u64);

impl<P: Port> Drop for Cost<'_, P> {
    fn drop(&mut self) {
        self.0.budget.release(self.1);
    }
}

/// Executes the request of a tag. Returns the result for the driver.
pub(super) async fn run<P: Port>(queue: &Queue<P>, tag: u16, request: Descriptor) -> Result<i32> {
    if request.op == op::FLUSH {
        // A flush has no position: its first sector is the maximum number.
        return queue.device.flush().await.map(|()| 0);
    }
    let offset = request.start_sector.checked_mul(SECTOR_BYTES);
    let offset = offset.ok_or(ErrorKind::InvalidInput)?;
    let len = u64::from(request.sectors) * SECTOR_BYTES;
    let fua = request.flags & FUA != 0;
    match request.op {
        op::READ => {
            let (buf, _cost) = buffer(queue, len).await?;
            let read = Request::read(offset, buf.clone());
            queue.device.start(read).await?;
            queue.port.give(tag, &buf)?;
            moved(len)
        }
        op::WRITE => {
            let (buf, _cost) = buffer(queue, len).await?;
            queue.port.take(tag, &buf)?;
            let write = Request::write(offset, buf, fua);
            queue.device.start(write).await?;
            moved(len)
        }
        op::DISCARD => {
            let discard = Request::discard(offset, len);
            queue.device.start(discard).await.map(|()| 0)
        }
        op::WRITE_ZEROES => {
            let unmap = request.flags & NOUNMAP == 0;
            let zeroes = Request::write_zeroes(offset, len, fua, unmap);
            queue.device.start(zeroes).await.map(|()| 0)
        }
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

/// Returns the number of moved bytes, in the driver's type.
fn moved(len: u64) -> Result<i32> {
    Ok(i32::try_from(len).map_err(|_| ErrorKind::InvalidInput)?)
}

/// Returns a buffer, once there is memory for it.
async fn buffer<P: Port>(queue: &Queue<P>, len: u64) -> Result<(Buf, Cost<'_, P>)> {
    if len == 0 || len.next_power_of_two() > queue.budget_bytes {
        return Err(ErrorKind::InvalidInput.into());
    }
    // Buffers come in powers of two.
    let cost = len.next_power_of_two().max(4096);
    queue.budget.acquire(cost).await;
    let cost = Cost(queue, cost);
    let buf = Buf::scratch(usize::try_from(len).map_err(|_| ErrorKind::InvalidInput)?);
    Ok((buf, cost))
}

/// Translates an error for the kernel's block layer. Unknown kinds become I/O errors.
pub(super) const fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NoSpace | ErrorKind::Unsupported | ErrorKind::TimedOut => kind.errno(),
        _ => ErrorKind::Io.errno(),
    }
}
