//! Executes requests of a guest on the volume.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Error, ErrorKind, Request};
use forebay_io::sync::Semaphore;
use forebay_wire::virtio_blk::{
    HEADER_BYTES, Header, ID_BYTES, SECTOR_BYTES, SEGMENT_BYTES, Segment, UNMAP, request, status,
};

use super::chain::Chain;
use super::export::{Export, MAX_RANGE_SECTORS, MAX_RANGES};
use super::memory::{BadAddress, Memory, Piece};

/// Maximum memory of the requests of one queue, bytes.
pub(super) const BUDGET_BYTES: u64 = 32 << 20;

/// The volume and the guest's memory of a queue, with the memory for its requests.
pub(super) struct Executor {
    pub(super) export: Arc<Export>,
    pub(super) memory: Arc<Memory>,
    device: Rc<dyn BlockDevice>,
    /// Whether the guest sends flushes. If not, every write must be durable when it ends.
    flushes: bool,
    budget: Semaphore,
    /// Whether the queue tracks its requests in flight, so that another process can execute them.
    tracked: bool,
}

/// Reason why a request fails.
#[derive(Clone, Copy)]
enum Failure {
    /// Status for the guest.
    Status(u8),
    /// The daemon is about to end, and the next one may execute the request.
    ShuttingDown,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported => UNSUPPORTED,
            ErrorKind::ShuttingDown => Self::ShuttingDown,
            _ => WRONG,
        }
    }
}

impl From<BadAddress> for Failure {
    fn from(_: BadAddress) -> Self {
        WRONG
    }
}

const WRONG: Failure = Failure::Status(status::IOERR);
const UNSUPPORTED: Failure = Failure::Status(status::UNSUPP);

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|(_, len)| u64::from(*len)).sum()
}

impl Executor {
    /// Creates the executor of a queue of `export`, whose guest has `memory`.
    pub(super) fn new(
        export: Arc<Export>,
        memory: Arc<Memory>,
        flushes: bool,
        tracked: bool,
    ) -> Self {
        Self {
            device: export.volume().open(),
            export,
            memory,
            flushes,
            budget: Semaphore::new(BUDGET_BYTES),
            tracked,
        }
    }

    /// Executes a request, and puts the status into its last writable byte. Returns the number of
    /// written bytes, or `None` if the request is left to the next process.
    pub(super) async fn run(&self, chain: &Chain) -> Option<u32> {
        // Data follows the header in readable memory, and precedes the status in writable memory.
        let outgoing = total(&chain.readable).checked_sub(HEADER_BYTES as u64);
        let incoming = total(&chain.writable).checked_sub(1);
        let (Some(outgoing), Some(incoming)) = (outgoing, incoming) else {
            return Some(0);
        };
        let wanted = Wanted {
            executor: self,
            chain,
            outgoing,
            incoming,
        };
        let (mut status, written) = match wanted.run().await {
            Ok(written) => (status::OK, written),
            Err(Failure::Status(status)) => (status, 0),
            Err(Failure::ShuttingDown) if self.outlives() => return None,
            Err(Failure::ShuttingDown) => (status::IOERR, 0),
        };
        let said = std::slice::from_mut(&mut status);
        Some(match self.memory.scatter(&chain.writable, incoming, said) {
            Ok(()) => written.saturating_add(1),
            Err(BadAddress) => 0,
        })
    }

    /// Returns whether the next process takes over the requests in flight.
    fn outlives(&self) -> bool {
        self.tracked && !self.export.succession.is_over()
    }
}

struct Wanted<'a> {
    executor: &'a Executor,
    chain: &'a Chain,
    /// Bytes of data from the guest.
    outgoing: u64,
    /// Bytes of room for data to the guest.
    incoming: u64,
}

/// Memory of a queue, given back on drop.
struct Cost<'a>(&'a Semaphore, u64);

impl Drop for Cost<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

impl Wanted<'_> {
    async fn run(&self) -> Result<u32, Failure> {
        let mut header = [0; HEADER_BYTES];
        self.executor
            .memory
            .gather(&self.chain.readable, 0, &mut header)?;
        let header = Header::decode(header);
        match header.kind {
            request::IN => self.read(header.sector).await,
            request::OUT => self.write(header.sector).await,
            request::FLUSH => {
                self.executor.device.flush().await?;
                Ok(0)
            }
            request::GET_ID => self.write_id(),
            request::DISCARD => self.ranges(false).await,
            request::WRITE_ZEROES => self.ranges(true).await,
            _ => Err(UNSUPPORTED),
        }
    }

    /// Returns a buffer for `len` bytes from a sector on, once there is memory for it, and the
    /// first byte.
    async fn buffer(&self, sector: u64, len: u64) -> Result<(Buf, u64, Cost<'_>), Failure> {
        let offset = sector.checked_mul(SECTOR_BYTES).ok_or(WRONG)?;
        if len == 0 || len > BUDGET_BYTES || !len.is_multiple_of(SECTOR_BYTES) {
            return Err(WRONG);
        }
        // Buffers come in powers of two.
        let cost = len.next_power_of_two().max(4096);
        self.executor.budget.acquire(cost).await;
        let cost = Cost(&self.executor.budget, cost);
        let buf = Buf::scratch(usize::try_from(len).map_err(|_| WRONG)?);
        Ok((buf, offset, cost))
    }

    async fn read(&self, sector: u64) -> Result<u32, Failure> {
        let (buf, offset, _cost) = self.buffer(sector, self.incoming).await?;
        let read = Request::read(offset, buf.clone());
        self.executor.device.start(read).await?;
        self.executor
            .memory
            .scatter_buf(&self.chain.writable, &buf)?;
        u32::try_from(self.incoming).map_err(|_| WRONG)
    }

    async fn write(&self, sector: u64) -> Result<u32, Failure> {
        let (buf, offset, _cost) = self.buffer(sector, self.outgoing).await?;
        let data = HEADER_BYTES as u64;
        self.executor
            .memory
            .gather_buf(&self.chain.readable, data, &buf)?;
        let write = Request::write(offset, buf, !self.executor.flushes);
        self.executor.device.start(write).await?;
        Ok(0)
    }

    fn write_id(&self) -> Result<u32, Failure> {
        if self.incoming < ID_BYTES as u64 {
            return Err(WRONG);
        }
        let mut serial = self.executor.export.serial();
        self.executor
            .memory
            .scatter(&self.chain.writable, 0, &mut serial)?;
        Ok(ID_BYTES as u32)
    }

    /// Discards ranges, or writes zeroes.
    async fn ranges(&self, zeroes: bool) -> Result<u32, Failure> {
        let mut bytes = [0; MAX_RANGES * SEGMENT_BYTES];
        let len = usize::try_from(self.outgoing).map_err(|_| WRONG)?;
        let list = bytes.get_mut(..len).ok_or(WRONG)?;
        if len == 0 || !len.is_multiple_of(SEGMENT_BYTES) {
            return Err(WRONG);
        }
        let data = HEADER_BYTES as u64;
        self.executor
            .memory
            .gather(&self.chain.readable, data, list)?;
        let device = &self.executor.device;
        if !zeroes && !device.info().discard {
            return Err(UNSUPPORTED);
        }
        let ranges = || {
            let (ranges, _) = list.as_chunks::<SEGMENT_BYTES>();
            ranges.iter().map(|range| Segment::decode(*range))
        };
        // Checks all ranges before the first is executed.
        for range in ranges() {
            let flags = if zeroes { UNMAP } else { 0 };
            if range.flags & !flags != 0 {
                return Err(UNSUPPORTED);
            }
            if range.sectors > MAX_RANGE_SECTORS || range.sector.checked_mul(SECTOR_BYTES).is_none()
            {
                return Err(WRONG);
            }
        }
        for range in ranges().filter(|range| range.sectors > 0) {
            let offset = range.sector * SECTOR_BYTES;
            let len = u64::from(range.sectors) * SECTOR_BYTES;
            let request = match zeroes {
                true => {
                    let unmap = range.flags & UNMAP != 0;
                    Request::write_zeroes(offset, len, !self.executor.flushes, unmap)
                }
                false => Request::discard(offset, len),
            };
            device.start(request).await?;
        }
        if !zeroes && !self.executor.flushes {
            device.flush().await?;
        }
        Ok(0)
    }
}
