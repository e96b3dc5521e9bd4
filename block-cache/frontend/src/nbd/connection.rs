//! Transmission phase of one connection: a reader, a task for each request, and batched replies.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Request, Result};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_wire::nbd::errno::{EINVAL, EOVERFLOW, ESHUTDOWN};
use forebay_wire::nbd::extended::{EXTENDED_REQUEST_BYTES, ExtendedRequest};
use forebay_wire::nbd::transmission::{self as wire, command, flag};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, errno};

use crate::net::Receiver;
use forebay_tls::Channel;

use super::context::block_status;
use super::handshake::Extensions;
use super::headers::Headers;
use super::reply::{Outbox, Payload, Reply};

/// Maximum memory of the requests of one connection, bytes. At the limit the connection is not
/// read.
pub(super) const BUDGET_BYTES: u64 = 64 << 20;
/// Minimum cost of a request, bytes.
const SMALLEST_BYTES: u64 = 4096;
/// Number of requests that are started before other tasks run. So the first of many requests is
/// answered before the last is parsed.
const BURST: u32 = 8;
/// Cost of a query for the status of blocks, bytes. It takes less memory, and a lot of work.
const STATUS_BYTES: u64 = 1 << 20;
/// Length of the pieces in which CACHE reads a range, bytes.
const CACHE_BYTES: u32 = 1 << 20;

/// Length of the pieces in which a range is freed, bytes.
const PIECE_BYTES: u64 = 1 << 30;

/// A request, with a header of either kind.
struct Incoming {
    flags: u16,
    command: u16,
    cookie: u64,
    /// First byte.
    offset: u64,
    /// Length of the range, bytes.
    length: u64,
    /// Length of the data that follow, bytes.
    payload_bytes: u64,
}

impl From<wire::Request> for Incoming {
    fn from(request: wire::Request) -> Self {
        Self {
            flags: request.flags,
            command: request.command,
            cookie: request.cookie,
            offset: request.offset,
            length: request.length.into(),
            payload_bytes: request.payload_bytes().into(),
        }
    }
}

impl From<ExtendedRequest> for Incoming {
    fn from(request: ExtendedRequest) -> Self {
        Self {
            flags: request.flags,
            command: request.command,
            cookie: request.cookie,
            offset: request.offset,
            length: request.length,
            payload_bytes: request.payload_bytes(),
        }
    }
}

impl Incoming {
    /// Returns the memory that the request may need, bytes.
    fn cost_bytes(&self) -> u64 {
        let bytes = match self.command {
            command::READ if self.length <= MAX_PAYLOAD_BYTES.into() => self.length,
            command::CACHE => CACHE_BYTES.into(),
            // Bounds the look-ups in the map, too.
            command::BLOCK_STATUS => STATUS_BYTES,
            _ => 0,
        };
        // Buffers come in powers of two.
        let bytes = bytes.max(self.payload_bytes).max(SMALLEST_BYTES);
        bytes.next_power_of_two()
    }
}

/// A connection in transmission.
pub(super) struct Connection<C> {
    channel: Rc<C>,
    device: Rc<dyn BlockDevice>,
    extensions: Extensions,
    budget: Semaphore,
    in_flight: Cell<u64>,
    /// Whether the client has left without a word. A long request of it ends after its piece: the
    /// next client may write to the rest.
    gone: Cell<bool>,
    idle: WaitList,
    outbox: Outbox,
    parts: RefCell<Vec<Buf>>,
}

/// Serves requests until the client disconnects, then waits for those in flight.
pub(super) async fn transmit<C: Channel>(
    channel: Rc<C>,
    mut receiver: Receiver<C>,
    device: Rc<dyn BlockDevice>,
    extensions: Extensions,
) -> Result<()> {
    let connection = Rc::new(Connection {
        channel,
        device,
        extensions,
        budget: Semaphore::new(BUDGET_BYTES),
        in_flight: Cell::new(0),
        gone: Cell::new(false),
        idle: WaitList::new(),
        outbox: Outbox::new(),
        parts: RefCell::default(),
    });
    let ended = connection.read_requests(&mut receiver).await;
    if ended.is_err() {
        connection.gone.set(true);
        connection.channel.shutdown();
    }
    connection
        .idle
        .until(|| connection.in_flight.get() == 0)
        .await;
    ended
}

impl<C: Channel> Connection<C> {
    async fn read_requests(self: &Rc<Self>, receiver: &mut Receiver<C>) -> Result<()> {
        let mut started = 0u32;
        while let Some(request) = self.next_request(receiver).await? {
            if request.command == command::DISC {
                return Ok(());
            }
            if request.payload_bytes > MAX_PAYLOAD_BYTES.into() {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "a request with {} bytes of data; the limit is {MAX_PAYLOAD_BYTES}",
                        request.payload_bytes
                    ),
                ));
            }
            let cost = request.cost_bytes();
            self.budget.acquire(cost).await;
            let mut payload = None;
            if request.payload_bytes > 0 {
                let bytes = usize::try_from(request.payload_bytes).expect("at most 32 MiB");
                let buf = Buf::scratch(bytes);
                receiver.take_payload(&buf).await?;
                payload = Some(buf);
            }
            self.in_flight.set(self.in_flight.get() + 1);
            rt::spawn(Rc::clone(self).serve(request, payload, cost));
            started = started.wrapping_add(1);
            if started.is_multiple_of(BURST) {
                rt::yield_now().await;
            }
        }
        self.gone.set(true);
        Ok(())
    }

    /// Receives the header of the next request. Returns `None` if the client has left.
    async fn next_request(&self, receiver: &mut Receiver<C>) -> Result<Option<Incoming>> {
        if self.extensions.headers == Headers::Extended {
            let header = receiver.take::<EXTENDED_REQUEST_BYTES>().await?;
            let request = header.map(|header| ExtendedRequest::decode(&header));
            return Ok(request.transpose()?.map(Incoming::from));
        }
        let header = receiver.take::<{ wire::REQUEST_BYTES }>().await?;
        let request = header.map(|header| wire::Request::decode(&header));
        Ok(request.transpose()?.map(Incoming::from))
    }

    async fn serve(self: Rc<Self>, request: Incoming, payload: Option<Buf>, cost: u64) {
        let outcome = self.run(&request, payload).await;
        let first = self.outbox.push(Reply {
            cookie: request.cookie,
            offset: request.offset,
            outcome,
            cost,
        });
        if first {
            self.send_replies().await;
        }
    }

    /// Executes a request. Returns the payload of the answer, or an error number.
    async fn run(&self, request: &Incoming, payload: Option<Buf>) -> Result<Payload, u32> {
        self.check(request)?;
        let Incoming { offset, length, .. } = *request;
        let fua = request.flags & flag::FUA != 0;
        let mut answer = Payload::None;
        let block = match request.command {
            command::READ => {
                let buf = Buf::scratch(usize::try_from(length).expect("at most 32 MiB"));
                answer = Payload::Data(buf.clone());
                Request::read(offset, buf)
            }
            command::WRITE => Request::write(offset, payload.ok_or(EINVAL)?, fua),
            command::FLUSH => Request::flush(),
            command::TRIM | command::WRITE_ZEROES => {
                return self.free(request, fua).await.map(|()| Payload::None);
            }
            command::BLOCK_STATUS => {
                let range = self.range(offset, length, false)?;
                let one = request.flags & flag::REQ_ONE != 0;
                let headers = self.extensions.headers;
                let status = block_status(&*self.device, range, one, headers).await?;
                return Ok(Payload::Status(Buf::copied(&status)));
            }
            _ => return self.cache(offset, length).await.map(|()| Payload::None),
        };
        let writes = request.command == command::WRITE;
        let error_number = |error: Error| errno(error.kind(), writes);
        self.device.start(block).await.map_err(error_number)?;
        Ok(answer)
    }

    /// Returns an error if the client has left without a word.
    const fn check_client(&self) -> Result<(), u32> {
        match self.gone.get() {
            true => Err(ESHUTDOWN),
            false => Ok(()),
        }
    }

    /// Discards a range or makes it read as zeroes, one piece after the other.
    async fn free(&self, request: &Incoming, fua: bool) -> Result<(), u32> {
        let error_number = |error: Error| errno(error.kind(), true);
        let Range { start, end } = self.range(request.offset, request.length, true)?;
        let mut at = start;
        while at < end {
            self.check_client()?;
            let len = (end - at).min(PIECE_BYTES);
            let piece = match request.command {
                command::TRIM => Request::discard(at, len),
                _ => Request::write_zeroes(at, len, fua, request.flags & flag::NO_HOLE == 0),
            };
            self.device.start(piece).await.map_err(error_number)?;
            at += len;
        }
        if fua && request.command == command::TRIM {
            self.device.flush().await.map_err(error_number)?;
        }
        Ok(())
    }

    /// Checks a request against the protocol.
    fn check(&self, request: &Incoming) -> Result<(), u32> {
        let headers = self.extensions.headers;
        // FUA is allowed with every command.
        let (allowed, ranged) = match request.command {
            command::BLOCK_STATUS if self.extensions.allocation => {
                (flag::FUA | flag::REQ_ONE, true)
            }
            command::READ if headers.have_chunks() => (flag::FUA | flag::DF, true),
            // Without the flag, an extended write has no data.
            command::WRITE if headers == Headers::Extended => (
                flag::FUA | request.flags & flag::PAYLOAD_LEN,
                request.payload_bytes > 0,
            ),
            command::READ | command::WRITE | command::TRIM | command::CACHE => (flag::FUA, true),
            command::WRITE_ZEROES => (flag::FUA | flag::NO_HOLE, true),
            command::FLUSH => (flag::FUA, false),
            _ => return Err(EINVAL),
        };
        if request.flags & !allowed != 0 || ranged != (request.length > 0) {
            return Err(EINVAL);
        }
        if !ranged && request.offset != 0 {
            return Err(EINVAL);
        }
        if request.command == command::READ && request.length > MAX_PAYLOAD_BYTES.into() {
            let fragment = request.flags & flag::DF == 0;
            return Err(if fragment { EINVAL } else { EOVERFLOW });
        }
        Ok(())
    }

    /// Returns the range of a request without data, if it lies on the device.
    fn range(&self, offset: u64, len: u64, changes: bool) -> Result<Range<u64>, u32> {
        let checked = self.device.info().check(&Request::discard(offset, len));
        checked.map_err(|error| errno(error.kind(), changes))?;
        Ok(offset..offset + len)
    }

    /// Reads a range and drops the data, so that the layers below may cache it.
    async fn cache(&self, offset: u64, len: u64) -> Result<(), u32> {
        let error_number = |error: Error| errno(error.kind(), false);
        let Range { start, end } = self.range(offset, len, false)?;
        let piece = Buf::scratch(CACHE_BYTES as usize);
        let mut at = start;
        while at < end {
            self.check_client()?;
            let this = (end - at).min(u64::from(CACHE_BYTES));
            let into = piece.slice(0..usize::try_from(this).unwrap_or(piece.len()));
            self.device.read(at, into).await.map_err(error_number)?;
            at += this;
        }
        Ok(())
    }

    /// Sends all queued replies. Only one task sends at a time.
    async fn send_replies(&self) {
        if self.in_flight.get() > 1 {
            // Other tasks that are ready add their replies first.
            rt::yield_now().await;
        }
        let mut parts = self.parts.take();
        let headers = self.extensions.headers;
        while let Some(batch) = self.outbox.gather(headers, &mut parts) {
            let sent = self.channel.send(&parts).await;
            parts.clear();
            if sent.is_err() {
                // The reader sees the end of the connection and logs the reason.
                self.channel.shutdown();
            }
            self.budget.release(batch.cost);
            self.in_flight.set(self.in_flight.get() - batch.replies);
        }
        self.parts.replace(parts);
        if self.in_flight.get() == 0 {
            self.idle.wake_all();
        }
    }
}
