//! Pages of files: reads, writes and syncs. They leave no second copy in the kernel's page cache.

use std::fs::FileTimes;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_pagecache::message::PageId;
use forebay_pagecache::store::{Interrupt, Reads, Store};

use super::Tree;
use crate::PAGE_BYTES;

/// Minimum time between two log lines about refused pages.
const COMPLAINTS: Duration = Duration::from_secs(10);

impl Store for Tree {
    fn name(&self, inode: u64) -> String {
        self.named(inode)
    }

    fn reads(&self) -> Option<(Box<dyn Reads + '_>, Interrupt)> {
        self.direct_reads()
    }

    fn read_pages(&self, first: PageId, into: &mut [u8]) -> Result<()> {
        let done = self.read(first.inode, first.index * PAGE_BYTES as u64, into)?;
        into[done..].fill(0);
        self.prepare_direct(first.inode);
        Ok(())
    }

    fn write_pages(&self, first: PageId, from: &[u8]) -> Result<()> {
        let written = self.write(first, from);
        if let Err(error) = &written {
            self.complain(error);
        }
        written
    }

    fn sync(&self, inode: u64) -> Result<()> {
        let file = self.file(inode)?;
        let synced = self.uncached.sync_data(&file);
        let mut state = self.lock();
        // The system reports the error once. A second sync would succeed without the dropped data.
        if synced.is_err() {
            state.failed.insert(inode);
        }
        let failed = state.failed.contains(&inode);
        drop(state);
        if failed {
            let context = format!(
                "fsync of {}: the system failed to write back: UNFLUSHED WRITES MAY BE LOST\n\
                 help: open the file, and write the data a second time",
                self.named(inode)
            );
            return Err(Error::new(ErrorKind::Lost, context));
        }
        Ok(())
    }
}

impl Tree {
    /// Reads from the source until `into` is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&self, inode: u64, start: u64, into: &mut [u8]) -> Result<usize> {
        let file = self.file(inode)?;
        let mut done = 0;
        while done < into.len() {
            let offset = start + done as u64;
            match self.uncached.read_at(&file, &mut into[done..], offset) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(|| self.named(inode)),
            }
        }
        Ok(done)
    }

    fn write(&self, first: PageId, from: &[u8]) -> Result<()> {
        let file = self.file(first.inode)?;
        let start = first.index * PAGE_BYTES as u64;
        let written = self.change(&file, || {
            let metadata = file.metadata()?;
            // Before data beyond the file's end is written, the file has its final length.
            let len = metadata.size().saturating_sub(start);
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(from.len());
            let mut done = 0;
            while done < len {
                let offset = start + done as u64;
                match self.uncached.write_at(&file, &from[done..len], offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if len == 0 {
                return Ok(());
            }
            // The file was modified when a program wrote, not now.
            file.set_times(FileTimes::new().set_modified(metadata.modified()?))
        });
        written.context(|| format!("writing {}", self.named(first.inode)))
    }

    /// Disables log lines about refused pages.
    pub(crate) fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// A flush reports that a write was refused, but not why; other operations report nothing.
    fn complain(&self, error: &Error) {
        let mut state = self.lock();
        let lately = state.complained.is_some_and(|at| at.elapsed() < COMPLAINTS);
        if !lately && !self.quiet {
            state.complained = Some(Instant::now());
            tracing::warn!(
                "page cache: the source {} refuses pages, which stay in memory, and fsync fails: \
                 {}",
                self.root.display(),
                error.report()
            );
        }
    }
}
