//! Requests that may have to wait.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Context, Error, ErrorKind, IoFuture, Op, Request, Result};

use crate::core::{Core, Placed};
use crate::fault::Fault;
use crate::lines::Outcome;
use crate::parts::{Lap, Part};
use crate::slots::State;

impl Core {
    /// Serves any request.
    pub(crate) async fn serve(self: Rc<Self>, request: Request) -> Result<()> {
        let result = match request.op {
            Op::Read => self.read(&request).await,
            Op::Write { fua } if !fua || self.faults.has(Fault::FuaFromMemory) => {
                let blocks = self.blocks(&request);
                self.write(&request, blocks).await
            }
            Op::Write { .. } => {
                let count = request.len / u64::from(self.info.logical_block_bytes);
                self.counters.add(|stats| stats.fua += count);
                self.run_durable(request).await
            }
            Op::WriteZeroes { fua: true, .. } => self.run_durable(request).await,
            Op::WriteZeroes { .. } | Op::Discard => self.run_exclusive(request).await,
            Op::Flush => {
                let lap = Lap::begin();
                let result = self.flush().await;
                self.times.end(lap, Part::Flush);
                result
            }
        };
        result.context(|| format!("transit cache {}", self.info.name))
    }

    async fn read(&self, request: &Request) -> Result<()> {
        let blocks = self.blocks(request);
        // Data read from a write in flight could be gone after a crash.
        self.changed
            .until(|| !self.range_locks.is_running(&blocks))
            .await;
        let mut started: Vec<IoFuture> = Vec::new();
        let mut missing = blocks.start..blocks.start;
        for block in blocks.clone() {
            if self.read_slot(block, request) {
                started.extend(self.read_through(request, missing));
                missing = block + 1..block + 1;
            } else {
                missing.end = block + 1;
            }
        }
        started.extend(self.read_through(request, missing));
        let mut result = Ok(());
        for io in started {
            result = result.and(io.await);
        }
        result
    }

    fn read_through(&self, request: &Request, blocks: Range<u64>) -> Option<IoFuture> {
        if blocks.is_empty() {
            return None;
        }
        let count = blocks.end - blocks.start;
        self.counters.add(|stats| stats.read_misses += count);
        let at = self.bytes(&blocks).start;
        Some(self.device.read(at, self.part(request, &blocks)))
    }

    /// Writes these of the request's blocks, into slots where there are some.
    pub(crate) async fn write(
        self: &Rc<Self>,
        request: &Request,
        mut blocks: Range<u64>,
    ) -> Result<()> {
        while let Some(block) = blocks.clone().next() {
            let data = self.part(request, &(block..block + 1));
            match self.place(block, &data, false) {
                Placed::Done => {
                    blocks.start += 1;
                    self.kick();
                }
                Placed::Locked => {
                    let changed = self.changed.wait();
                    self.allow_evictions_for(&(block..block + 1));
                    changed.await;
                }
                Placed::Evicting => {
                    self.counters.add(|stats| stats.collided += 1);
                    let lap = Lap::begin();
                    self.evicted(block).wait().await;
                    self.times.end(lap, Part::Wait);
                }
                Placed::Bypass => self.bypass(request, &mut blocks).await?,
                Placed::Wait => {
                    self.counters.add(|stats| stats.waited += 1);
                    let line = self.policy.borrow().line(block);
                    let wait = self.lines.wait(line, block, data);
                    self.kick();
                    let lap = Lap::begin();
                    let outcome = wait.await;
                    self.times.end(lap, Part::Wait);
                    match outcome {
                        Outcome::Placed => {
                            blocks.start += 1;
                            self.kick();
                        }
                        Outcome::Retry => (),
                        Outcome::Bypass => self.bypass(request, &mut blocks).await?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the first of the blocks to the device, with those behind it that have no slots
    /// either.
    async fn bypass(self: &Rc<Self>, request: &Request, blocks: &mut Range<u64>) -> Result<()> {
        let mut run = blocks.start..blocks.start + 1;
        while run.end < blocks.end && self.slots.borrow().find(run.end).is_none() {
            run.end += 1;
        }
        let count = run.end - run.start;
        self.counters.add(|stats| stats.bypassed += count);
        let at = self.bytes(&run).start;
        let part = Request::write(at, self.part(request, &run), false);
        blocks.start = run.end;
        let lap = Lap::begin();
        let result = self.run_exclusive(part).await;
        self.times.end(lap, Part::Through);
        result
    }

    /// Whether a write with FUA needs no flush behind it.
    const fn fua_is_durable(&self) -> bool {
        self.device_info.fua || !self.device_info.volatile_cache
    }

    /// As [`Self::run_exclusive`]. The request is on media when this returns.
    async fn run_durable(self: &Rc<Self>, request: Request) -> Result<()> {
        self.run_exclusive(request).await?;
        match self.fua_is_durable() {
            true => Ok(()),
            false => self.flush_device().await,
        }
    }

    /// Sends a request to the device, while no other request changes its blocks.
    pub(crate) async fn run_exclusive(self: &Rc<Self>, request: Request) -> Result<()> {
        let blocks = self.blocks(&request);
        let supersedes = request.op != Op::Discard;
        self.allow_evictions_for(&blocks);
        let lock = self.range_locks.add(blocks.clone());
        self.changed.until(|| self.range_locks.is_next(lock)).await;
        let mut held = Vec::new();
        while !self.faults.has(Fault::BypassOverSlot) {
            if !self.hold(&blocks, &mut held) {
                break;
            }
            self.changed.wait().await;
        }
        self.range_locks.run(lock);
        let result = match supersedes {
            true => {
                let marked = !self.faults.has(Fault::HeldIsForgotten);
                held.iter().for_each(|slot| self.memory.hold(*slot, marked));
                self.device.start(request).await
            }
            false => self.discard(&blocks, &held).await,
        };
        for slot in held {
            match (supersedes, &result) {
                (true, Ok(())) => self.free_held(slot),
                (true, Err(_)) if !self.faults.has(Fault::HeldIsForgotten) => {
                    self.write_held(slot).await;
                }
                _ => self.resume(slot),
            }
        }
        self.unlock_range(lock);
        result
    }

    /// Ends the request of a range.
    fn unlock_range(self: &Rc<Self>, lock: u64) {
        self.range_locks.remove(lock);
        self.changed.wake_all();
        self.serve_lines();
        self.kick();
    }

    /// Frees a held slot that was superseded, or is on media.
    fn free_held(&self, slot: u32) {
        self.memory.retire(slot);
        self.slots.borrow_mut().release(slot);
        self.policy.borrow_mut().left(slot, false);
    }

    /// Returns a held slot to its former state.
    fn resume(&self, slot: u32) {
        self.memory.hold(slot, false);
        self.slots.borrow_mut().resume(slot);
        self.policy.borrow_mut().returned(slot);
    }

    /// Writes a held slot to media, after the request that would have superseded it failed. That
    /// request was not acknowledged, and the device may have its data all the same. Reads see the
    /// slot, and that must not change when power is lost. If the device refuses this write too, the
    /// slot stays.
    async fn write_held(&self, slot: u32) {
        let block = self.slots.borrow().block(slot);
        let at = self.bytes(&(block..block + 1)).start;
        let data = self.memory.data(slot);
        let write = Request::write(at, data, self.device_info.fua);
        let mut written = self.device.start(write).await;
        if written.is_ok() && !self.fua_is_durable() {
            written = self.flush_device().await;
        }
        match written {
            Ok(()) => self.free_held(slot),
            Err(_) => self.resume(slot),
        }
    }

    /// Writes the slots that an earlier process left held to media, before any request uses their
    /// blocks.
    pub(crate) fn write_all_left_held(self: &Rc<Self>, slots: Vec<u32>) {
        let locked = self.withdraw_left_held(slots);
        for (_, lock) in &locked {
            self.range_locks.run(*lock);
        }
        self.write_left_held(locked);
    }

    /// Withdraws the slots that an earlier process left held from evictors and policy. Returns each
    /// slot with the range lock of its block.
    pub(crate) fn withdraw_left_held(&self, slots: Vec<u32>) -> Vec<(u32, u64)> {
        let locked = slots.into_iter().map(|slot| {
            let block = self.slots.borrow().block(slot);
            self.policy.borrow_mut().began(slot);
            self.slots.borrow_mut().hold(slot);
            (slot, self.range_locks.add(block..block + 1))
        });
        locked.collect()
    }

    /// Writes held slots to media. Their range locks run.
    pub(crate) fn write_left_held(self: &Rc<Self>, locked: Vec<(u32, u64)>) {
        if locked.is_empty() {
            return;
        }
        let core = Rc::clone(self);
        forebay_io::rt::spawn(async move {
            for (slot, lock) in locked {
                core.write_held(slot).await;
                core.unlock_range(lock);
            }
        });
    }

    /// Discards all blocks but those in these slots, which are newer than the device's. The device
    /// may leave discarded data unchanged, or not.
    async fn discard(&self, blocks: &Range<u64>, held: &[u32]) -> Result<()> {
        let mut newer: Vec<u64> = {
            let slots = self.slots.borrow();
            held.iter().map(|slot| slots.block(*slot)).collect()
        };
        newer.sort_unstable();
        let mut result = Ok(());
        let mut from = blocks.start;
        for end in newer.into_iter().chain([blocks.end]) {
            if from < end {
                let bytes = self.bytes(&(from..end));
                let discarded = self.device.discard(bytes.start, bytes.end - bytes.start);
                result = result.and(discarded.await);
            }
            from = end + 1;
        }
        result
    }

    /// Withdraws the slots of these blocks from evictors and policy. Returns whether one of these
    /// blocks is being evicted.
    fn hold(&self, blocks: &Range<u64>, held: &mut Vec<u32>) -> bool {
        let mut evicting = false;
        let mut found = Vec::new();
        self.slots
            .borrow()
            .each_in(blocks, |slot, state| found.push((slot, state)));
        let mut slots = self.slots.borrow_mut();
        let mut policy = self.policy.borrow_mut();
        for (slot, state) in found {
            match state {
                State::Copy => {
                    policy.dropped(slot);
                    slots.release(slot);
                    continue;
                }
                State::Valid => policy.began(slot),
                State::Failed => (),
                state => {
                    evicting |= state == State::Evicting;
                    continue;
                }
            }
            slots.hold(slot);
            held.push(slot);
        }
        evicting
    }

    /// Makes durable what was acknowledged before this.
    pub(crate) async fn flush(self: &Rc<Self>) -> Result<()> {
        // It covers all that was left.
        self.allow_evictions();
        let flush = self.slots.borrow_mut().begin_flush();
        let owed = self.slots.borrow().owed() as u64;
        self.counters.add(|stats| {
            stats.flushes += 1;
            stats.flushed += owed;
        });
        self.kick_all();
        self.changed
            .until(|| {
                let slots = self.slots.borrow();
                let ignores = self.faults.has(Fault::FlushIgnoresEvicting);
                slots.is_drained(flush) || (ignores && slots.is_begun(flush))
            })
            .await;
        if self.slots.borrow_mut().end_flush(flush) > 0 {
            return Err(self.refused());
        }
        self.flush_device().await
    }

    /// Returns the error for blocks that the device refused, by name. They are retried.
    fn refused(self: &Rc<Self>) -> Error {
        let mut refused: Vec<u32> = self.slots.borrow().refused().collect();
        let count = refused.len();
        let mut blocks = Vec::with_capacity(count);
        for slot in refused.drain(..) {
            let mut slots = self.slots.borrow_mut();
            blocks.push(slots.block(slot));
            slots.retry(slot);
            self.policy.borrow_mut().returned(slot);
        }
        self.kick();
        blocks.sort_unstable();
        let most = 8;
        let named: Vec<_> = blocks.iter().take(most).map(u64::to_string).collect();
        let more = if count > most { ", ..." } else { "" };
        let message = format!(
            "the device refused {count} acknowledged blocks of {} bytes ({}{more}): they stay in \
             memory and are retried\n\
             help: repair the device, then flush",
            self.info.logical_block_bytes,
            named.join(", "),
        );
        match self.refusal.take() {
            Some((block, error)) => {
                // A layer above takes other errors of a flush for a loss.
                let kind = match error.kind() {
                    ErrorKind::Unreachable => ErrorKind::Unreachable,
                    _ => ErrorKind::Io,
                };
                let source = error.context(format!("writing block {block}"));
                Error::with_source(kind, message, source)
            }
            None => Error::new(ErrorKind::Io, message),
        }
    }

    /// Flushes the device. After a failed flush no later one is trusted: data written since the
    /// last good flush has left its slots, and cannot be rewritten. Exception: a device whose peer
    /// is [`ErrorKind::Unreachable`] has that data, and a later flush covers it.
    async fn flush_device(&self) -> Result<()> {
        // One at a time: of two, the one with the error for lost data might be answered last.
        self.flushing.acquire(1).await;
        let result = self.flush_device_alone().await;
        self.flushing.release(1);
        result
    }

    async fn flush_device_alone(&self) -> Result<()> {
        let failed = self.flush_failed.borrow().clone();
        let error = match failed {
            Some(error) => error,
            None => match self.device.flush().await {
                Ok(()) => {
                    self.memory.set_poisoned(false);
                    return Ok(());
                }
                // The device has every acknowledged change until this process ends.
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    self.memory.set_poisoned(true);
                    return Err(error);
                }
                Err(error) => error,
            },
        };
        self.memory.set_poisoned(true);
        *self.flush_failed.borrow_mut() = Some(error.clone());
        Err(Error::with_source(
            ErrorKind::Lost,
            "a flush of the device failed: UNFLUSHED WRITES MAY BE LOST\n\
             help: check the data of the layer above, and restart",
            error,
        ))
    }
}
