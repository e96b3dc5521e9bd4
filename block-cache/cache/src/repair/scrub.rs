//! The scrubber: reads cached data at a bounded rate and verifies it.
//!
//! It reads as a client does, under the shared lock of a block, so its findings have the same
//! consequences. Corrupt clean data is dropped and read from the backing device. Corrupt dirty data
//! is named and reads as an error from then on. Data without a known checksum gets one.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Request, Result};
use forebay_io::rt;
use forebay_policy::BlockId;

use crate::cache::Cache;
use crate::checksum::scrubber::ScrubProgress;
use crate::engine::Engine;
use crate::lock::lock_of;
use crate::map::LIVE;
use crate::slots::Verdict;

/// Bytes read at a time.
const READ_BYTES: u32 = 256 << 10;

impl Cache {
    /// Reads and verifies all cached data of the attached volumes, at most `bytes_per_second`.
    ///
    /// # Errors
    /// `Unsupported` for a cache without checksums, `Busy` if a scrub is running, `InvalidInput`
    /// for a rate of zero. Corrupt data is not an error of this function: see [`ScrubProgress`].
    pub async fn scrub(&self, bytes_per_second: u64) -> Result<ScrubProgress> {
        let engine = &self.engine;
        if engine.checksums.is_none() {
            let what = "the cache has no checksums to verify\n\
                        help: detach its volumes, and run `forebay format --checksums`";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if bytes_per_second == 0 {
            let what = "a scrub at a rate of zero would never end\nhelp: give a higher rate";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if self.scrub_progress().is_some_and(|scrub| scrub.running) {
            let what = "a scrub is in progress\nhelp: stop it first, or wait";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let blocks = engine.map.borrow().len() as u64;
        engine.scrubber.begin(blocks);
        let ids = engine.map.borrow().ids();
        let (began, mut read) = (rt::now(), 0);
        for id in ids {
            if engine.scrubber.is_stopping() || engine.service.is_stopping() {
                engine.scrubber.note(|scrub| scrub.stopped = true);
                break;
            }
            if !engine.map.borrow().has(id, LIVE) {
                continue;
            }
            read += engine.scrub_block(id).await;
            engine.scrubber.note(|scrub| scrub.blocks_done += 1);
            let due = Duration::from_secs_f64(read as f64 / bytes_per_second as f64);
            let passed = rt::now().saturating_sub(began);
            match due.checked_sub(passed) {
                // In short naps, so that who stops it need not wait.
                Some(rest) => rt::sleep(rest.min(Duration::from_secs(1))).await,
                None => rt::yield_now().await,
            }
        }
        engine.scrubber.note(|scrub| scrub.running = false);
        Ok(self.scrub_progress().unwrap_or_default())
    }

    /// Stops a scrub, which ends after the block that it is at. Returns whether one was under way.
    #[must_use]
    pub fn stop_scrub(&self) -> bool {
        self.engine.scrubber.stop();
        self.scrub_progress().is_some_and(|scrub| scrub.running)
    }

    /// How far the scrub is, or how the last one since the cache was opened ended.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<ScrubProgress> {
        self.engine.scrubber.progress()
    }
}

impl Engine {
    /// Reads a block. Returns how many bytes.
    async fn scrub_block(self: &Rc<Self>, id: BlockId) -> u64 {
        let found = self.map.borrow().state(id);
        let Some(volume) = self.volumes.get(found.key.volume()) else {
            return 0;
        };
        if volume.is_detaching() {
            return 0;
        }
        volume.enter();
        let geometry = self.geometry;
        let (region, granules) = lock_of(self.geometry, volume.id, found.block());
        let lock = self.locks.shared(region, granules).await;
        let entry = self.map.borrow().state(id);
        let is_there = entry.has(LIVE) && entry.key == found.key && entry.class == found.class;
        // Another block, perhaps of another volume, may be there by now.
        let (valid, limit) = match is_there {
            true => (entry.valid, volume.limit(geometry, entry.block())),
            false => (0, 0),
        };
        let (mut read, mut corrupt, mut dropped) = (0, None, Vec::new());
        for run in geometry.runs(entry.class, valid, 0..limit) {
            for start in run.clone().step_by(READ_BYTES as usize) {
                let part = start..run.end.min(start + READ_BYTES);
                let buf = Buf::scratch(part.len());
                read += part.len() as u64;
                let before = self.refetch_count();
                let found = (self.slots)
                    .read_verified(&volume, id, part.clone(), buf)
                    .await;
                if self.refetch_count() > before {
                    dropped.push((part, self.refetch_count() - before));
                }
                match found {
                    Ok(Verdict::Sound) => {}
                    Ok(Verdict::Corrupt(error)) => corrupt = Some(error),
                    Ok(Verdict::Unfetched(error)) | Err(error) => {
                        let first = error.report();
                        self.scrubber.note(|scrub| {
                            scrub.errors += 1;
                            scrub.first.get_or_insert(first);
                        });
                    }
                }
            }
        }
        drop(lock);
        for (part, pieces) in dropped {
            // Filled from the backing device, if the client's mode does so.
            let at = geometry.backing_offset(entry.block(), part.start);
            let read = Request::read(at, Buf::scratch(part.len()));
            let _ = self.serve(&volume, read).await;
            self.scrubber.note(|scrub| scrub.refetched += pieces);
        }
        volume.leave();
        self.scrubber.note(|scrub| {
            scrub.read_bytes += read;
            if let Some(error) = corrupt {
                scrub.corrupt_blocks += 1;
                scrub.first.get_or_insert(error.report());
            }
        });
        read
    }

    fn refetch_count(&self) -> u64 {
        let checksums = self.checksums.as_ref();
        checksums.map_or(0, |it| it.counters.refetched.get())
    }
}
