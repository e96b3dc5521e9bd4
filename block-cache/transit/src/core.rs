//! State that the parts of an open cache share, and the steps that need no waiting.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Buf, DeviceInfo, Error, Request, Result};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};

use crate::evictions::{Evictions, Hold};
use crate::fault::Faults;
use crate::lines::{Lines, Outcome};
use crate::memory::Memory;
use crate::parts::{Lap, Part, Parts as Times};
use crate::policy::{Admission, Decide, LINES, View};
use crate::range_locks::RangeLocks;
use crate::slots::{Slots, State};
use crate::stats::Counters;

/// Without requests for so long, the device counts as idle.
pub(crate) const IDLE: Duration = Duration::from_micros(100);

/// Number of lists of tasks that wait for the end of an eviction, by block.
const EVICTED: usize = 64;

/// An open cache.
pub(crate) struct Core {
    /// Serves reads, flushes, and writes that bypass the slots.
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) device_info: DeviceInfo,
    /// Properties of the cache as a device.
    pub(crate) info: DeviceInfo,
    /// Its size, which may grow, bytes.
    pub(crate) size_bytes: Cell<u64>,
    pub(crate) memory: Memory,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) policy: RefCell<Box<dyn Decide>>,
    pub(crate) uses_idle_time: bool,
    pub(crate) range_locks: RangeLocks,
    pub(crate) hold: Hold,
    pub(crate) lines: Lines,
    pub(crate) evictions: Evictions,
    evicted: [WaitList; EVICTED],
    /// Something has ended that a flush, or a request for a range, may wait for.
    pub(crate) changed: WaitList,
    /// Last block that the device refused, with its error.
    pub(crate) refusal: RefCell<Option<(u64, Error)>>,
    /// Error of a failed flush of the device: earlier writes of this cache may be lost.
    pub(crate) flush_failed: RefCell<Option<Error>>,
    pub(crate) flushing: Semaphore,
    pub(crate) counters: Counters,
    pub(crate) times: Times,
    /// When the last request came, if the policy uses idle time.
    pub(crate) requested_at: Cell<Duration>,
    pub(crate) watching: Cell<bool>,
    pub(crate) faults: Faults,
}

/// Result of placing a block in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is in.
    Done,
    /// A request that bypasses the slots has the block, or waits for it.
    Locked,
    /// Its older version is being evicted.
    Evicting,
    /// No slot: it goes to the device.
    Bypass,
    /// No slot: it waits in its line.
    Wait,
}

/// How a read can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// It is: all was in slots.
    Done,
    /// By the device alone.
    Through,
    /// By both, or not yet.
    Slow,
}

/// The parts of an open cache that are given.
pub(crate) struct Parts {
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) device_info: DeviceInfo,
    pub(crate) info: DeviceInfo,
    pub(crate) memory: Memory,
    pub(crate) slots: Slots,
    pub(crate) policy: Box<dyn Decide>,
    pub(crate) evictions: Evictions,
    pub(crate) faults: Faults,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        Rc::new(Self {
            device: parts.device,
            device_info: parts.device_info,
            size_bytes: Cell::new(parts.info.size_bytes),
            info: parts.info,
            memory: parts.memory,
            slots: RefCell::new(parts.slots),
            uses_idle_time: parts.policy.uses_idle_time(),
            policy: RefCell::new(parts.policy),
            range_locks: RangeLocks::default(),
            hold: Hold::default(),
            lines: Lines::default(),
            evictions: parts.evictions,
            evicted: [const { WaitList::new() }; EVICTED],
            changed: WaitList::new(),
            refusal: RefCell::default(),
            flush_failed: RefCell::default(),
            flushing: Semaphore::new(1),
            counters: Counters::default(),
            times: Times::default(),
            requested_at: Cell::default(),
            watching: Cell::default(),
            faults: parts.faults,
        })
    }

    /// Checks a request against the device as it is now.
    pub(crate) fn check(&self, request: &Request) -> Result<()> {
        let block_bytes = self.info.logical_block_bytes;
        let checked = request.check(self.size_bytes.get(), block_bytes);
        if checked.is_ok() {
            return checked;
        }
        self.size_bytes.set(self.device.info().size_bytes);
        self.memory.note_size(self.size_bytes.get());
        request.check(self.size_bytes.get(), block_bytes)
    }

    const fn block_bytes(&self) -> u64 {
        self.info.logical_block_bytes as u64
    }

    /// The blocks of a request that was checked.
    pub(crate) const fn blocks(&self, request: &Request) -> Range<u64> {
        let first = request.offset / self.block_bytes();
        first..first + request.len / self.block_bytes()
    }

    /// Where blocks lie on the device, bytes.
    pub(crate) const fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * self.block_bytes()..blocks.end * self.block_bytes()
    }

    /// The part of a request's buffer that belongs to these blocks.
    pub(crate) fn part(&self, request: &Request, blocks: &Range<u64>) -> Buf {
        let bytes = self.bytes(blocks);
        let buf = request.buf.as_ref().expect("checked: it has a buffer");
        // Within the buffer, whose length fits.
        buf.slice((bytes.start - request.offset) as usize..(bytes.end - request.offset) as usize)
    }

    /// Takes the blocks that slots hold out of the holes of the device: they were written, and are
    /// not there yet.
    pub(crate) fn without_slots(&self, holes: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let slots = self.slots.borrow();
        let mut left = Vec::with_capacity(holes.len());
        for hole in holes {
            let first = hole.start / self.block_bytes();
            let blocks = first..hole.end.div_ceil(self.block_bytes());
            let mut held = Vec::new();
            slots.each_in(&blocks, |slot, _| held.push(slots.block(slot)));
            held.sort_unstable();
            let mut from = hole.start;
            for block in held {
                let bytes = self.bytes(&(block..block + 1));
                left.extend((from < bytes.start).then_some(from..bytes.start));
                from = bytes.end;
            }
            left.extend((from < hole.end).then_some(from..hole.end));
        }
        left
    }

    /// Returns the tasks that wait for the end of this block's eviction.
    pub(crate) const fn evicted(&self, block: u64) -> &WaitList {
        &self.evicted[block as usize % EVICTED]
    }

    /// Puts a block into a slot, if that is possible at once. With `first`, it is the first of its
    /// line.
    pub(crate) fn place(&self, block: u64, data: &Buf, first: bool) -> Placed {
        let lap = Lap::begin();
        if self.range_locks.has(&(block..block + 1)) {
            return Placed::Locked;
        }
        let mut slots = self.slots.borrow_mut();
        let mut policy = self.policy.borrow_mut();
        match slots.find(block).map(|slot| slots.state(slot)) {
            Some(State::Evicting) => return Placed::Evicting,
            Some(State::Held) => return Placed::Locked,
            Some(_) => (),
            None if !first && !self.lines.is_empty(policy.line(block)) => return Placed::Wait,
            None => match policy.admit(&slots, block) {
                Admission::Slot => (),
                Admission::Instead(copy) => {
                    policy.dropped(copy);
                    slots.release(copy);
                }
                Admission::Bypass => return Placed::Bypass,
                Admission::Wait => return Placed::Wait,
            },
        }
        let slot = slots
            .take()
            .expect("a slot is kept free for new versions, and one more was admitted");
        let lap = self.times.end(lap, Part::Metadata);
        self.memory.data(slot).copy_from_buf(data);
        let lap = self.times.end(lap, Part::Slot);
        self.memory.publish(slot, block, slots.next_version());
        let older = slots.publish(slot, block);
        if let Some((older, state)) = older {
            self.memory.retire(older);
            match state {
                State::Copy => policy.dropped(older),
                State::Failed => policy.left(older, false),
                _ => {
                    policy.began(older);
                    policy.left(older, false);
                }
            }
        }
        policy.entered(slot, block);
        self.counters.add(|stats| {
            stats.written += 1;
            stats.rewritten += u64::from(older.is_some());
        });
        self.times.end(lap, Part::Metadata);
        Placed::Done
    }

    /// Places those of a line for whom there is room now.
    pub(crate) fn serve_line(&self, line: usize) {
        while let Some((block, data)) = self.lines.first(line) {
            let outcome = match self.place(block, &data, true) {
                Placed::Wait => return,
                Placed::Done => Outcome::Placed,
                Placed::Locked | Placed::Evicting => Outcome::Retry,
                Placed::Bypass => Outcome::Bypass,
            };
            self.lines.leave(line, outcome);
        }
    }

    /// Places all for whom there is room now.
    pub(crate) fn serve_lines(&self) {
        (0..LINES).for_each(|line| self.serve_line(line));
    }

    /// Nothing frees slots any more, so waiting writes go to the device.
    pub(crate) fn release_lines(&self) {
        for line in 0..LINES {
            while !self.lines.is_empty(line) {
                self.lines.leave(line, Outcome::Bypass);
            }
        }
    }

    /// Serves a read that needs no waiting.
    pub(crate) fn try_read(&self, request: &Request) -> Read {
        let blocks = self.blocks(request);
        if self.range_locks.is_running(&blocks) {
            return Read::Slow;
        }
        let count = blocks.end - blocks.start;
        let slots = self.slots.borrow();
        if slots.in_use() == 0 {
            self.counters.add(|stats| stats.read_misses += count);
            return Read::Through;
        }
        let mut found = 0;
        slots.each_in(&blocks, |_, _| found += 1);
        match found {
            0 => {
                self.counters.add(|stats| stats.read_misses += count);
                return Read::Through;
            }
            _ if found < count => return Read::Slow,
            _ => drop(slots),
        }
        for block in blocks {
            self.read_slot(block, request);
        }
        Read::Done
    }

    /// Copies a block out of its slot, if it has one.
    pub(crate) fn read_slot(&self, block: u64, request: &Request) -> bool {
        let lap = Lap::begin();
        let slots = self.slots.borrow();
        let Some(slot) = slots.find(block) else {
            return false;
        };
        self.part(request, &(block..block + 1))
            .copy_from_buf(&self.memory.data(slot));
        self.times.end(lap, Part::Slot);
        if matches!(slots.state(slot), State::Valid | State::Copy) {
            self.policy.borrow_mut().read(slot);
        }
        self.counters.add(|stats| stats.read_hits += 1);
        true
    }

    /// Whether there have been no requests for a while, as far as the policy cares.
    pub(crate) fn is_idle(&self) -> bool {
        self.uses_idle_time && rt::now() >= self.requested_at.get() + IDLE
    }

    /// Returns the slot to evict now: first one that a flush waits for, then one that the policy
    /// chooses.
    pub(crate) fn next_to_evict(&self) -> Option<u32> {
        let slots = self.slots.borrow();
        slots.next_to_flush().or_else(|| {
            if self.evictions_wait() {
                return None;
            }
            self.policy.borrow_mut().next(View {
                slots: &slots,
                waiting: self.lines.waiting(),
                evicting: self.evictions.in_flight(),
                idle: self.is_idle(),
            })
        })
    }
}
