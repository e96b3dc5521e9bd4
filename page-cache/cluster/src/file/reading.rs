//! Reads that occupy no thread while they wait.

use std::cell::Cell;
use std::sync::Arc;

use forebay_block::Result;
use forebay_pagecache::client::Begun;

use super::{File, REQUEST_PAGES};
use crate::PAGE_BYTES;

/// Maximum length of a thread's buffer between two reads, bytes.
const BUFFER_BYTES: usize = 128 << 10;

thread_local! {
    /// Buffer of this thread for the bytes of a read.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// User of a read that occupies no thread while it waits.
pub trait Reader: Send + 'static {
    /// Takes the result of the read: the bytes, fewer at the end of the file. It must not wait, and
    /// the file may be closed by then.
    fn end(self, result: Result<&[u8]>);

    /// Executes work that may wait, on a thread for that.
    fn execute(self, work: impl FnOnce(Self) + Send + 'static)
    where
        Self: Sized;
}

/// A read in progress.
struct Reading<R> {
    file: Arc<File>,
    offset: u64,
    len: usize,
    /// Number of bytes that were read.
    done: usize,
    /// End of the pages that were looked up.
    requested: u64,
    /// The bytes, if some were read before a wait.
    bytes: Vec<u8>,
    reader: R,
}

impl File {
    /// Reads as [`File::read_at`], without a thread that waits for pages. The end is on this thread
    /// or on one of the node, after the release of `self`.
    pub fn read_then(self: Arc<Self>, offset: u64, len: usize, reader: impl Reader) {
        match self.ensure_named() {
            Ok(true) => {}
            // Reads of such a file use no frames and wait for the store.
            Ok(false) => return block(self, offset, vec![0; len], len, reader),
            Err(error) => {
                drop(self);
                return reader.end(Err(error));
            }
        }
        match self.available(offset, len) {
            Ok(len) => Reading {
                file: self,
                offset,
                len,
                done: 0,
                requested: 0,
                bytes: Vec::new(),
                reader,
            }
            .advance(),
            Err(error) => {
                drop(self);
                reader.end(Err(error));
            }
        }
    }

    /// Returns how many of `len` bytes at `offset` the file has.
    pub(super) fn available(&self, offset: u64, len: usize) -> Result<usize> {
        let available = self.size_bytes()?.saturating_sub(offset);
        Ok(usize::try_from(available).unwrap_or(usize::MAX).min(len))
    }

    /// Looks up the pages from `index` that a read up to `end` covers, several at once. Returns the
    /// end of those that were looked up.
    pub(super) fn look_up_ahead(&self, index: u64, requested: u64, end: u64) -> Result<u64> {
        if index < requested || index + 1 >= end {
            return Ok(requested);
        }
        let requested = end.min(index + REQUEST_PAGES);
        let client = self.node.client();
        client.look_up_range(self.inode, index..requested)?;
        Ok(requested)
    }
}

impl<R: Reader> Reading<R> {
    /// Reads until the end, or until a page has to be awaited.
    fn advance(mut self) {
        let mut bytes = match self.bytes.is_empty() {
            true => BUFFER.take(),
            false => std::mem::take(&mut self.bytes),
        };
        if bytes.len() < self.len {
            bytes.resize(self.len, 0);
        }
        // Not a reference into the file, which the continuation owns.
        let client = Arc::clone(self.file.node.client());
        while self.done < self.len {
            let (page, inside) = self.file.page(self.offset + self.done as u64);
            let end = (self.offset + self.len as u64).div_ceil(PAGE_BYTES as u64);
            match self.file.look_up_ahead(page.index, self.requested, end) {
                Ok(requested) => self.requested = requested,
                Err(error) => return self.end(Err(error), bytes),
            }
            let count = (self.len - self.done).min(PAGE_BYTES - inside);
            let part = &mut bytes[self.done..self.done + count];
            let begun = match count {
                PAGE_BYTES => client.begin_read(page, part),
                _ => {
                    let mut whole = [0; PAGE_BYTES];
                    let begun = client.begin_read(page, &mut whole);
                    part.copy_from_slice(&whole[inside..inside + count]);
                    begun
                }
            };
            match begun {
                Ok(Begun::Read) => self.done += count,
                Ok(Begun::Waits(waiting)) => {
                    self.keep(bytes);
                    return waiting.then(move |readable| match readable {
                        Ok(()) => self.advance(),
                        Err(error) => self.end(Err(error), Vec::new()),
                    });
                }
                Ok(Begun::Blocks) => {
                    let Self {
                        file,
                        offset,
                        len,
                        reader,
                        ..
                    } = self;
                    return block(file, offset, bytes, len, reader);
                }
                Err(error) => return self.end(Err(error), bytes),
            }
        }
        self.end(Ok(()), bytes);
    }

    /// Keeps the bytes for the next page, or the buffer for the next read.
    fn keep(&mut self, bytes: Vec<u8>) {
        match self.done {
            0 => give_back(bytes),
            _ => self.bytes = bytes,
        }
    }

    fn end(self, result: Result<()>, bytes: Vec<u8>) {
        let Self {
            file, len, reader, ..
        } = self;
        // Its user may close it from now on. The close waits, so it is not for this thread.
        drop(file);
        reader.end(result.map(|()| &bytes[..len]));
        give_back(bytes);
    }
}

/// Reads by a thread that may wait.
fn block(file: Arc<File>, offset: u64, mut bytes: Vec<u8>, len: usize, reader: impl Reader) {
    reader.execute(move |reader| {
        let result = file.read_at(offset, &mut bytes[..len]);
        drop(file);
        reader.end(result.map(|count| &bytes[..count]));
        give_back(bytes);
    });
}

/// Keeps a buffer for this thread's next read.
fn give_back(mut bytes: Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    bytes.truncate(BUFFER_BYTES);
    bytes.shrink_to(BUFFER_BYTES);
    BUFFER.set(bytes);
}
