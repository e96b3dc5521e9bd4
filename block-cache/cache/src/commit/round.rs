//! Rounds of the committer: its task, its timer, and the order of data flush and log write (rule
//! 1).

use std::rc::Rc;

use forebay_block::Result;
use forebay_io::rt;
use forebay_metadata::journal::Journal;
use forebay_metadata::log::LogExtent;
use forebay_metadata::order::{self, Ordered};

use super::Committer;
use crate::failpoints::{Fault, planted};
use crate::map::{PENDING, UNFLUSHED};

/// Number of tries to write log units before the cache gives up.
const WRITE_TRIES: u32 = 3;

impl Committer {
    /// The committer's task.
    pub(crate) async fn commit_loop(self: Rc<Self>) {
        loop {
            self.kick
                .until(|| self.wanted.get() > self.started.get() || self.stopping.get())
                .await;
            // A failure elsewhere, for example of a superblock's flush, ends this round as well. A
            // later round might call lost data durable.
            if self.stopping.get() || !self.is_alive() {
                return;
            }
            let began = rt::now();
            self.started.set(self.started.get() + 1);
            if let Err(error) = self.round().await {
                self.fail(error);
                return;
            }
            // A round that was under way may have taken the close. No later round begins, and the
            // one that was requested has nothing to log.
            let is_last = self.is_closed.get() && !planted(Fault::AwaitRoundAfterClose);
            self.completed.set(match is_last {
                true => self.wanted.get().max(self.started.get()),
                false => self.started.get(),
            });
            self.stats.commits.add(1);
            self.stats
                .commit_time_us
                .add(u64::try_from((rt::now() - began).as_micros()).unwrap_or(u64::MAX));
            self.done.wake_all();
        }
    }

    /// Requests a commit at intervals, so that power loss takes little and clean data is recorded.
    pub(crate) async fn commit_timer(self: Rc<Self>) {
        while !self.stopping.get() {
            rt::sleep(self.settings.commit_interval).await;
            if self.failure().is_some() {
                continue;
            }
            let overdue = self.later.borrow_mut().overdue();
            if overdue {
                let _ = self.commit_all().await;
            } else if self.urgent_records() > 0 {
                let _ = self.commit().await;
            }
        }
    }

    async fn round(&self) -> Result<()> {
        let journaled = self.journal.borrow().as_ref().map(Journal::head);
        if self.wanted_all.get() >= self.started.get() {
            while let Some(id) = self.pop_later() {
                self.queue_record(id);
            }
        }
        let mut quota = self.pending.borrow().len();
        loop {
            let (mut extents, more) = self.build_batch(&mut quota)?;
            if let Some(checksums) = &self.checksums {
                // As they are now: those of data that the flush covers.
                extents.extend(checksums.take_due());
            }
            self.flush_data().await?;
            if !extents.is_empty() {
                self.write_batch(extents).await?;
                self.check_alive()?;
                self.log.borrow_mut().committed();
                if let Some(journal) = self.journal.borrow().as_ref() {
                    journal.reached(self.log.borrow().batch());
                }
            }
            if !more {
                break;
            }
        }
        self.trim_queues();
        (self.marks).trim_repeated(|id| self.map.borrow().has(id, PENDING));
        self.on_round.borrow().iter().for_each(|hook| hook());
        if let Some((journal, to)) = self.journal.borrow_mut().as_mut().zip(journaled) {
            journal.trim(to);
        }
        Ok(())
    }

    /// Rule 1: the data that the batch's records point to is durable before they are written.
    pub(crate) async fn flush_data(&self) -> Result<()> {
        self.flushing.acquire(1).await;
        let written = self.data_written.get();
        if self.devices.data_is_volatile() && written != self.data_flushed.get() {
            // A write that comes while the flush runs is on the next list.
            let covered = std::mem::take(&mut *self.unflushed.borrow_mut());
            for id in &covered {
                self.map.borrow_mut().clear_flags(*id, UNFLUSHED);
            }
            *self.covered.borrow_mut() = covered;
            let result = order::flush(self.devices.data().as_ref()).await;
            let covered = self.covered.take();
            // Another flush that failed meanwhile may be the one that got the error for the lost
            // data.
            if result.is_err() || !self.is_alive() {
                self.unflushed.borrow_mut().extend(covered);
            }
            if result.is_err() {
                self.set_flush_failed();
            }
            self.flushing.release(1);
            result?;
            self.check_alive()?;
        } else {
            self.flushing.release(1);
        }
        self.data_flushed.set(written);
        Ok(())
    }

    async fn write_batch(&self, extents: Vec<LogExtent>) -> Result<()> {
        let turn = self.metadata_turn();
        turn.acquire(1).await;
        let result = self.write_extents(extents).await;
        if let Err(error) = &result {
            // Reported before the next flush may begin.
            self.fail(error.clone());
        }
        turn.release(1);
        result
    }

    async fn write_extents(&self, extents: Vec<LogExtent>) -> Result<()> {
        let fua = self.devices.metadata_is_volatile()
            && self.devices.metadata_has_fua()
            && extents.len() == 1;
        let start = |extent: &LogExtent| -> Ordered {
            let bytes = extent.buf.len() as u64;
            self.stats.log_bytes.add(bytes);
            let buf = extent.buf.clone();
            if fua {
                order::write_fua(self.devices.metadata().as_ref(), extent.offset, buf)
            } else {
                order::write(self.devices.metadata().as_ref(), extent.offset, buf)
            }
        };
        // All extents are issued at once. A failed extent is retried, which is safe as long as it
        // has not been acknowledged. With FUA there is no retry: the failure may have been a failed
        // flush.
        let tries = if fua { 1 } else { WRITE_TRIES };
        let mut running: Vec<Ordered> = extents.iter().map(start).collect();
        for (extent, first) in extents.iter().zip(running.drain(..)) {
            let mut result = first.await;
            for _ in 1..tries {
                if result.is_ok() {
                    break;
                }
                result = start(extent).await;
            }
            if result.is_err() && fua {
                self.metadata_flush_failed();
            }
            result?;
        }
        if self.devices.metadata_is_volatile()
            && !fua
            && let Err(error) = order::flush(self.devices.metadata().as_ref()).await
        {
            self.metadata_flush_failed();
            return Err(error);
        }
        Ok(())
    }
}
