//! I/O commands on namespaces.

use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Error, ErrorKind, Request};
use forebay_wire::nvme::io::{MAX_RANGES, RANGE_BYTES, Range, opcode};
use forebay_wire::nvme::{ALL_NAMESPACES, Command, Data, Status};

use super::MAX_TRANSFER_BYTES;
use super::connection::{Connection, Failure, Opening, Outcome, no_data};
use super::memory::Memory;
use super::receive::Capsule;

/// Length of the pieces in which Verify reads a range, bytes.
const VERIFY_BYTES: u32 = 1 << 20;

/// Executes a command of an I/O queue.
pub(super) async fn run(
    connection: &Connection,
    memory: &mut Memory<'_>,
    capsule: &Capsule,
) -> Outcome {
    let command = &capsule.command;
    if !connection.controller().is_ready() {
        return Err(Status::COMMAND_SEQUENCE_ERROR.into());
    }
    let io = Io {
        connection,
        writes: !matches!(
            command.opcode,
            opcode::READ | opcode::FLUSH | opcode::COMPARE | opcode::VERIFY
        ),
    };
    match command.opcode {
        opcode::READ => return io.read(memory, command).await,
        opcode::WRITE => io.write(memory, capsule).await,
        opcode::FLUSH => io.flush(command).await,
        opcode::WRITE_ZEROES => io.write_zeroes(command).await,
        opcode::DATASET_MANAGEMENT => io.dataset_management(memory, capsule).await,
        opcode::COMPARE => io.compare(memory, capsule).await,
        opcode::VERIFY => io.verify(memory, command).await,
        _ => Err(Status::INVALID_OPCODE.into()),
    }
    .map(|()| (0, None))
}

/// Flushes every namespace.
pub(super) async fn flush_all(connection: &Connection) -> Result<(), Failure> {
    let io = Io {
        connection,
        writes: true,
    };
    let mut outcome = Ok(());
    for namespace in connection.open_all() {
        let flushed = io.start(&namespace, Request::flush()).await;
        outcome = outcome.and(flushed);
    }
    outcome
}

struct Io<'a> {
    connection: &'a Connection,
    writes: bool,
}

impl Io<'_> {
    /// Returns the namespace, first byte and length of a command on a range.
    fn range(&self, command: &Command) -> Result<(Rc<Opening>, u64, u64), Failure> {
        let namespace = self.connection.open(command.nsid)?;
        let blocks = u64::from(command.blocks());
        let (offset, bytes) = bytes_of(&namespace, command.first_block(), blocks)?;
        Ok((namespace, offset, bytes))
    }

    /// Returns the same for a command that transfers data.
    fn transfer(&self, command: &Command) -> Result<(Rc<Opening>, u64, u32), Failure> {
        let (namespace, offset, bytes) = self.range(command)?;
        let bytes = u32::try_from(bytes).ok();
        let bytes = bytes.filter(|bytes| *bytes <= MAX_TRANSFER_BYTES);
        Ok((namespace, offset, bytes.ok_or(Status::INVALID_FIELD)?))
    }

    async fn start(&self, namespace: &Opening, request: Request) -> Result<(), Failure> {
        let done = namespace.device.start(request).await;
        done.map_err(|error| self.failure(namespace, &error))
    }

    fn failure(&self, namespace: &Opening, error: &Error) -> Failure {
        match error.kind() {
            // Only this volume was taken out of service: the others stay in use.
            ErrorKind::ShuttingDown if self.connection.open(namespace.nsid).is_err() => {
                Status::INVALID_NAMESPACE.into()
            }
            ErrorKind::ShuttingDown => self.connection.abandon(),
            kind => Status::of(kind, self.writes).into(),
        }
    }

    async fn read(&self, memory: &mut Memory<'_>, command: &Command) -> Outcome {
        let (namespace, offset, bytes) = self.transfer(command)?;
        match command.data()? {
            Data::Transport { length } if length == bytes => {}
            Data::Transport { .. } => return Err(Status::DATA_SGL_LENGTH_INVALID.into()),
            Data::InCapsule { .. } => return Err(Status::SGL_TYPE_INVALID.into()),
        }
        let buf = memory.take(bytes).await?;
        let request = Request::read(offset, buf.clone());
        self.start(&namespace, request).await?;
        Ok((0, Some(buf)))
    }

    async fn write(&self, memory: &mut Memory<'_>, capsule: &Capsule) -> Result<(), Failure> {
        let command = &capsule.command;
        let (namespace, offset, bytes) = self.transfer(command)?;
        let buf = memory.receive(capsule, bytes).await?;
        let request = Request::write(offset, buf, self.fua(command));
        self.start(&namespace, request).await
    }

    /// Returns whether a command must be durable before it completes: it has FUA set, or its host
    /// has disabled the volatile cache.
    fn fua(&self, command: &Command) -> bool {
        command.fua() || !self.connection.controller().write_cache()
    }

    async fn flush(&self, command: &Command) -> Result<(), Failure> {
        no_data(command)?;
        if command.nsid == ALL_NAMESPACES {
            return flush_all(self.connection).await;
        }
        let namespace = self.connection.open(command.nsid)?;
        self.start(&namespace, Request::flush()).await
    }

    async fn write_zeroes(&self, command: &Command) -> Result<(), Failure> {
        no_data(command)?;
        let (namespace, offset, bytes) = self.range(command)?;
        let (fua, unmap) = (self.fua(command), command.may_deallocate());
        let request = Request::write_zeroes(offset, bytes, fua, unmap);
        self.start(&namespace, request).await
    }

    async fn dataset_management(
        &self,
        memory: &mut Memory<'_>,
        capsule: &Capsule,
    ) -> Result<(), Failure> {
        let command = &capsule.command;
        let namespace = self.connection.open(command.nsid)?;
        let count = command.ranges();
        // Linux sends room for the maximum number of ranges, however many it uses.
        let length = command.data()?.length();
        if !(count * RANGE_BYTES..=MAX_RANGES * RANGE_BYTES).contains(&(length as usize)) {
            return Err(Status::DATA_SGL_LENGTH_INVALID.into());
        }
        let list = memory.receive(capsule, length).await?;
        if !command.deallocates() {
            // Hints on the use of ranges are ignored.
            return Ok(());
        }
        let range = |index: usize| {
            let mut entry = [0; RANGE_BYTES];
            list.copy_to(index * RANGE_BYTES, &mut entry);
            let range = Range::decode(entry);
            bytes_of(&namespace, range.first_block, range.blocks.into())
        };
        // Checks all ranges before the first is deallocated.
        let size_bytes = namespace.device.info().size_bytes;
        for index in 0..count {
            let (offset, bytes) = range(index)?;
            if offset > size_bytes || bytes > size_bytes - offset {
                return Err(Status::LBA_OUT_OF_RANGE.into());
            }
        }
        for index in 0..count {
            let (offset, bytes) = range(index)?;
            if bytes > 0 {
                let request = Request::discard(offset, bytes);
                self.start(&namespace, request).await?;
            }
        }
        if !self.connection.controller().write_cache() {
            self.start(&namespace, Request::flush()).await?;
        }
        Ok(())
    }

    async fn compare(&self, memory: &mut Memory<'_>, capsule: &Capsule) -> Result<(), Failure> {
        let (namespace, offset, bytes) = self.transfer(&capsule.command)?;
        if matches!(capsule.command.data()?, Data::Transport { .. }) {
            memory.reserve(2, bytes).await?;
        }
        let theirs = memory.receive(capsule, bytes).await?;
        let ours = memory.take(bytes).await?;
        let request = Request::read(offset, ours.clone());
        self.start(&namespace, request).await?;
        match same(&ours, &theirs) {
            true => Ok(()),
            false => Err(Status::COMPARE_FAILURE.into()),
        }
    }

    /// Reads a range and drops the data.
    async fn verify(&self, memory: &mut Memory<'_>, command: &Command) -> Result<(), Failure> {
        no_data(command)?;
        let (namespace, offset, bytes) = self.range(command)?;
        let request = Request::discard(offset, bytes);
        let inside = namespace.device.info().check(&request);
        inside.map_err(|error| self.failure(&namespace, &error))?;
        let piece_bytes = bytes.min(u64::from(VERIFY_BYTES));
        let piece = memory
            .take(u32::try_from(piece_bytes).expect("at most a piece"))
            .await?;
        let mut done = 0;
        while done < bytes {
            let this = usize::try_from((bytes - done).min(piece_bytes)).expect("at most a piece");
            let request = Request::read(offset + done, piece.slice(0..this));
            self.start(&namespace, request).await?;
            done += this as u64;
        }
        Ok(())
    }
}

/// Converts a range of blocks to its first byte and length.
fn bytes_of(namespace: &Opening, first_block: u64, blocks: u64) -> Result<(u64, u64), Status> {
    let block_bytes = 1_u64 << namespace.block_shift;
    let offset = first_block.checked_mul(block_bytes);
    let bytes = blocks.checked_mul(block_bytes);
    offset.zip(bytes).ok_or(Status::LBA_OUT_OF_RANGE)
}

fn same(one: &Buf, other: &Buf) -> bool {
    // SAFETY: a finished request has read the one, the other was received; both belong to this
    // command only.
    unsafe { one.bytes() == other.bytes() }
}
