//! Requests for the data of files: reads, writes, copies, allocation and flushes.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forebay_block::Result;
use forebay_cluster::{Change, Reader};
use fuser::{Errno, OpenFlags, ReplyData, ReplyEmpty, ReplyWrite};

use crate::errors::errno_of;
use crate::handles::{Handle, Handles};
use crate::workers::{Unanswered, Workers};

/// Most bytes that one request copies.
const COPY_BYTES: usize = 1 << 20;

/// A request to read. It occupies no thread while it waits for pages.
pub(crate) struct Read {
    reply: ReplyData,
    workers: Arc<Workers>,
    /// Until the reply.
    _unanswered: Unanswered,
}

impl Read {
    /// Begins to answer a request. Answers it with an error if the mount ends.
    pub(crate) fn new(workers: &Arc<Workers>, reply: ReplyData) -> Option<Self> {
        let Some(unanswered) = workers.begin() else {
            reply.error(Errno::ENOTCONN);
            return None;
        };
        Some(Self {
            reply,
            workers: Arc::clone(workers),
            _unanswered: unanswered,
        })
    }
}

impl Reader for Read {
    fn end(self, result: Result<&[u8]>) {
        match result {
            Ok(bytes) => self.reply.data(bytes),
            Err(error) => self.reply.error(errno_of(&error)),
        }
    }

    fn execute(self, work: impl FnOnce(Self) + Send + 'static) {
        let workers = Arc::clone(&self.workers);
        workers.run(move || work(self));
    }
}

/// Reads `size` bytes at `offset` of an open file, unless the request is answered.
pub(crate) fn read(handles: &Handles, handle: u64, offset: u64, size: usize, read: Option<Read>) {
    let Some(read) = read else {
        return;
    };
    match handles.file(handle) {
        Ok(file) => file.read_then(offset, size, read),
        Err(error) => read.end(Err(error.into())),
    }
}

/// Writes to an open file: at its end if it is open for appending, else at `offset`.
pub(crate) fn write(
    handles: &Handles,
    (handle, flags): (u64, OpenFlags),
    offset: u64,
    data: &[u8],
    reply: ReplyWrite,
) {
    let write = || {
        let file = handles.file(handle)?;
        // The kernel's file size may be old: another node may have appended.
        match flags.0 & libc::O_APPEND {
            0 => file.write_at(offset, data)?,
            _ => file.append(data).map(drop)?,
        }
        match flags.0 & libc::O_DSYNC {
            0 => Ok(()),
            _ => file.fsync(),
        }
    };
    match write() {
        // At most the negotiated length.
        Ok(()) => reply.written(data.len() as u32),
        Err(error) => reply.error(errno_of(&error)),
    }
}

/// Copies bytes between two open files. It may copy less, and copies nothing at the end of the
/// file.
pub(crate) fn copy(
    handles: &Handles,
    (from, from_offset): (u64, u64),
    (to, to_offset): (u64, u64),
    len: u64,
    reply: ReplyWrite,
) {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(COPY_BYTES);
    let mut bytes = vec![0; len];
    let mut copy = || -> Result<usize> {
        let count = match handles.find(from)? {
            Handle::Mapped(mapped) => mapped.file.read_at(&mut bytes, from_offset)?,
            _ => handles.file(from)?.read_at(from_offset, &mut bytes)?,
        };
        match handles.find(to)? {
            Handle::Mapped(mapped) => mapped.file.write_all_at(&bytes[..count], to_offset)?,
            _ => handles.file(to)?.write_at(to_offset, &bytes[..count])?,
        }
        Ok(count)
    };
    match copy() {
        Ok(count) => reply.written(count as u32),
        Err(error) => reply.error(errno_of(&error)),
    }
}

/// Changes the blocks of a range of an open file (fallocate(2)).
pub(crate) fn allocate(
    handles: &Handles,
    handle: u64,
    range: Range<u64>,
    mode: i32,
    reply: ReplyEmpty,
) {
    let Some((change, keeps_size)) = Change::of_mode(mode) else {
        return reply.error(Errno::EOPNOTSUPP);
    };
    let change = || -> Result<()> {
        match handles.find(handle)? {
            Handle::Mapped(mapped) => Ok(change.apply(&mapped.file, range, keeps_size)?),
            _ => handles
                .file(handle)?
                .change_range(change, range, keeps_size),
        }
    };
    answer(change(), reply);
}

/// Makes the writes to an open file durable.
pub(crate) fn sync(handles: &Handles, handle: u64, reply: ReplyEmpty) {
    let sync = || -> Result<()> {
        match handles.find(handle)? {
            Handle::Mapped(mapped) => Ok(mapped.file.sync_all()?),
            _ => handles.file(handle)?.fsync(),
        }
    };
    answer(sync(), reply);
}

/// Answers a request without data.
pub(crate) fn answer(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno_of(&error)),
    }
}

/// Makes the writes to an open file visible to all nodes.
pub(crate) fn publish(handles: &Handles, handle: u64) -> Result<()> {
    match handles.find(handle) {
        Ok(Handle::File(file)) => file.publish(),
        _ => Ok(()),
    }
}

/// Publishes the writes to an open file before it is closed. Writes it back, if the node does so.
pub(crate) fn write_back(handles: &Handles, handle: u64) -> Result<()> {
    match handles.find(handle) {
        Ok(Handle::File(file)) => file.prepare_close(),
        _ => Ok(()),
    }
}
