//! State of the slots: a state machine without I/O, clock or threads.
//!
//! ```text
//!          take            publish            begin              end
//! Free ──────────▶ Pending ────────▶ Valid ──────────▶ Evicting ─────▶ Free, or Kept
//!                                    │  ▲                  │
//!                               hold │  │ resume      fail │
//!                                    ▼  │                  ▼
//!                    Free ◀──────── Held ◀────────────── Failed ─────▶ Valid
//!                          release             hold             retry
//! ```
//!
//! - A block has at most one slot that is not free. A new version of it goes to another slot, which
//!   replaces the older one when it is published. So a process that ends leaves one of the two
//!   whole.
//! - *One version in flight.* An `Evicting` slot is never superseded: a write that would do so
//!   waits. A `Held` slot stands for a request that writes to the device itself and supersedes the
//!   slot if it succeeds.
//! - Slots that the device does not have yet (*owed*: `Valid`, `Evicting`, `Held`, `Failed`) have
//!   the time since which their block is owed. A new version inherits that, with its place in the
//!   queue. A flush waits for the slots that were owed when it arrived, and rewriting a block does
//!   not delay the flush.

use std::ops::Range;

use crate::links::{LINK_BYTES, Links, List, NONE};
use crate::memory::Found;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Free.
    Free,
    /// Its data is being written.
    Pending,
    /// It has a block that the device does not have.
    Valid,
    /// As `Valid`, and a write of it to the device is under way.
    Evicting,
    /// As `Valid`, and a request that will supersede it has the block.
    Held,
    /// As `Valid`; the device refused it.
    Failed,
    /// A copy of what the device has.
    Copy,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u64,
    /// The version since which the block is owed to the device.
    since: u64,
    /// The next slot of the set, or the next free one.
    chain: u32,
    state: State,
}

/// Memory of a slot here, bytes, with its share of the table of sets.
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>() + LINK_BYTES + size_of::<u32>();

/// A flush that waits.
#[derive(Debug)]
struct Flush {
    number: u64,
    /// It covers what is owed since this version or before.
    upto: u64,
    /// So many slots are still owed, and so many of them the device refused.
    owed: usize,
    failed: usize,
}

/// All slots of a cache, as far as they are not data.
#[derive(Debug)]
pub struct Slots {
    slots: Box<[Slot]>,
    /// The first slot of each set of blocks.
    sets: Box<[u32]>,
    links: Links,
    /// The write-back queue: `Valid` slots, longest owed first.
    queue: List,
    /// The free slots, longest free first. A slot that a thread has just read from is in another
    /// processor's caches, and takes three times as long to write to.
    free: u32,
    free_last: u32,
    free_len: usize,
    owed: usize,
    failed: usize,
    /// The last version that was published.
    version: u64,
    flushes: Vec<Flush>,
    flush_number: u64,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let count = u32::try_from(count).expect("as many slots as have numbers");
        let slot = |index: u32| Slot {
            block: 0,
            since: 0,
            chain: if index + 1 < count { index + 1 } else { NONE },
            state: State::Free,
        };
        let sets = 1 << count.max(1).ilog2();
        Self {
            slots: (0..count).map(slot).collect(),
            sets: vec![NONE; sets].into(),
            links: Links::new(count as usize),
            queue: List::default(),
            free: if count > 0 { 0 } else { NONE },
            free_last: count.wrapping_sub(1),
            free_len: count as usize,
            owed: 0,
            failed: 0,
            version: 0,
            flushes: Vec::new(),
            flush_number: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots for blocks without one. One free slot is reserved for new
    /// versions of blocks with one.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.free_len.saturating_sub(1)
    }

    /// Slots whose blocks the device does not have.
    pub(crate) const fn owed(&self) -> usize {
        self.owed
    }

    pub(crate) const fn in_use(&self) -> usize {
        self.slots.len() - self.free_len
    }

    /// The slot to evict whose block is owed to the device for the longest time.
    #[must_use]
    pub const fn oldest(&self) -> Option<u32> {
        self.queue.front()
    }

    pub(crate) fn state(&self, slot: u32) -> State {
        self.slots[slot as usize].state
    }

    pub(crate) fn block(&self, slot: u32) -> u64 {
        self.slots[slot as usize].block
    }

    fn slot(&mut self, slot: u32, is: State, becomes: State) -> &mut Slot {
        let slot = &mut self.slots[slot as usize];
        assert_eq!(slot.state, is, "block {}", slot.block);
        slot.state = becomes;
        slot
    }

    fn set_of(&self, block: u64) -> usize {
        // Fibonacci hashing, so that strides spread, too.
        let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed as usize & (self.sets.len() - 1)
    }

    /// The slot that has this block.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> Option<u32> {
        let mut at = self.sets[self.set_of(block)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.block == block {
                return Some(at);
            }
            at = slot.chain;
        }
        None
    }

    /// Calls `visit` with every slot that has a block of this range.
    pub(crate) fn each_in(&self, blocks: &Range<u64>, mut visit: impl FnMut(u32, State)) {
        if self.free_len == self.slots.len() {
            return;
        }
        let long = blocks.end - blocks.start > self.slots.len() as u64;
        if long {
            for (index, slot) in (0..).zip(&self.slots) {
                let idle = matches!(slot.state, State::Free | State::Pending);
                if !idle && blocks.contains(&slot.block) {
                    visit(index, slot.state);
                }
            }
            return;
        }
        for slot in blocks.clone().filter_map(|block| self.find(block)) {
            visit(slot, self.state(slot));
        }
    }

    /// The slots that the device refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = u32> + '_ {
        let all = (0..).zip(&self.slots);
        all.filter(|(_, slot)| slot.state == State::Failed)
            .map(|(index, _)| index)
    }

    /// Returns a free slot, for data that is to be written. None if there is none.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let slot = (self.free != NONE).then_some(self.free)?;
        self.free = self.slots[slot as usize].chain;
        self.free_len -= 1;
        self.slot(slot, State::Free, State::Pending);
        Some(slot)
    }

    fn give_back(&mut self, slot: u32) {
        let it = &mut self.slots[slot as usize];
        it.state = State::Free;
        it.chain = NONE;
        match self.free {
            NONE => self.free = slot,
            _ => self.slots[self.free_last as usize].chain = slot,
        }
        self.free_last = slot;
        self.free_len += 1;
    }

    fn link(&mut self, slot: u32) {
        let set = self.set_of(self.slots[slot as usize].block);
        self.slots[slot as usize].chain = self.sets[set];
        self.sets[set] = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let next = self.slots[slot as usize].chain;
        let set = self.set_of(self.slots[slot as usize].block);
        if self.sets[set] == slot {
            self.sets[set] = next;
            return;
        }
        let mut at = self.sets[set];
        while self.slots[at as usize].chain != slot {
            at = self.slots[at as usize].chain;
        }
        self.slots[at as usize].chain = next;
    }

    /// The version that the next [`Slots::publish`] makes.
    pub(crate) const fn next_version(&self) -> u64 {
        self.version + 1
    }

    /// The slot's data is in: it has the block now. Returns the slot that had it before, which is
    /// free.
    pub(crate) fn publish(&mut self, slot: u32, block: u64) -> Option<(u32, State)> {
        self.version += 1;
        let version = self.version;
        self.publish_as(slot, block, version)
    }

    /// Takes back what an earlier process left in fresh slots, in order of version.
    pub(crate) fn take_back(&mut self, left: &[Found]) {
        for found in left {
            self.slot(found.slot, State::Free, State::Pending);
        }
        self.free = NONE;
        self.free_len = 0;
        for slot in (0..self.slots.len() as u32).rev() {
            if self.state(slot) == State::Free {
                self.give_back(slot);
            }
        }
        for found in left {
            assert!(found.version > self.version, "they are in order");
            self.version = found.version;
            let older = self.publish_as(found.slot, found.block, found.version);
            assert!(older.is_none(), "there is one version of each block");
        }
    }

    fn publish_as(&mut self, slot: u32, block: u64, version: u64) -> Option<(u32, State)> {
        let older = self.find(block).map(|older| (older, self.state(older)));
        let it = self.slot(slot, State::Pending, State::Valid);
        it.block = block;
        it.since = version;
        match older {
            None | Some((_, State::Copy)) => {
                self.owed += 1;
                self.queue.push_back(&mut self.links, slot);
            }
            Some((older, State::Valid)) => {
                self.slots[slot as usize].since = self.slots[older as usize].since;
                self.queue.replace(&mut self.links, older, slot);
            }
            Some((older, State::Failed)) => {
                self.slots[slot as usize].since = self.slots[older as usize].since;
                self.count_failed(older, false);
                self.enqueue(slot);
            }
            Some((_, state)) => panic!("block {block} is {state:?} and has a new version"),
        }
        if let Some((older, _)) = older {
            self.unlink(older);
            self.give_back(older);
        }
        self.link(slot);
        older
    }

    /// Puts a slot into the queue by its age: a slot that returns may be old.
    fn enqueue(&mut self, slot: u32) {
        let since = self.slots[slot as usize].since;
        let mut at = self.queue.front();
        while let Some(other) = at.filter(|other| self.slots[*other as usize].since < since) {
            at = self.links.next(other);
        }
        self.queue.insert(&mut self.links, slot, at.unwrap_or(NONE));
    }

    /// A write of the slot to the device begins. Returns the block.
    pub(crate) fn begin(&mut self, slot: u32) -> u64 {
        let block = self.slot(slot, State::Valid, State::Evicting).block;
        self.queue.remove(&mut self.links, slot);
        block
    }

    /// The device has it: the slot is free, or, with `keep`, a copy.
    pub(crate) fn end(&mut self, slot: u32, keep: bool) {
        self.slot(slot, State::Evicting, State::Copy);
        self.note_written(slot);
        if !keep {
            self.release(slot);
        }
    }

    /// The device refused it.
    pub(crate) fn fail(&mut self, slot: u32) {
        self.slot(slot, State::Evicting, State::Failed);
        self.count_failed(slot, true);
    }

    /// Another attempt for what the device refused.
    pub(crate) fn retry(&mut self, slot: u32) {
        self.slot(slot, State::Failed, State::Valid);
        self.count_failed(slot, false);
        self.enqueue(slot);
    }

    /// A request that goes to the device itself has the slot's block now.
    pub(crate) fn hold(&mut self, slot: u32) {
        match self.state(slot) {
            State::Valid => self.queue.remove(&mut self.links, slot),
            State::Failed => self.count_failed(slot, false),
            state => panic!("a slot is held that is {state:?}"),
        }
        self.slots[slot as usize].state = State::Held;
    }

    /// Makes a held slot valid after that request failed or left the block unchanged.
    pub(crate) fn resume(&mut self, slot: u32) {
        self.slot(slot, State::Held, State::Valid);
        self.enqueue(slot);
    }

    /// The slot's contents are not needed any more: superseded, or a copy.
    pub(crate) fn release(&mut self, slot: u32) {
        match self.state(slot) {
            State::Held => self.note_written(slot),
            State::Copy => (),
            state => panic!("a slot is let go that is {state:?}"),
        }
        self.unlink(slot);
        self.give_back(slot);
    }

    /// The slot's block is not owed any more.
    fn note_written(&mut self, slot: u32) {
        self.owed -= 1;
        let since = self.slots[slot as usize].since;
        for flush in self.flushes.iter_mut().filter(|flush| since <= flush.upto) {
            flush.owed -= 1;
        }
    }

    fn count_failed(&mut self, slot: u32, failed: bool) {
        let change = |count: &mut usize| match failed {
            true => *count += 1,
            false => *count -= 1,
        };
        change(&mut self.failed);
        let since = self.slots[slot as usize].since;
        for flush in self.flushes.iter_mut().filter(|flush| since <= flush.upto) {
            change(&mut flush.failed);
        }
    }

    /// A flush of all that is owed now. Returns its number.
    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.flush_number += 1;
        self.flushes.push(Flush {
            number: self.flush_number,
            upto: self.version,
            owed: self.owed,
            failed: self.failed,
        });
        self.flush_number
    }

    fn flush(&self, number: u64) -> &Flush {
        let found = self.flushes.iter().find(|flush| flush.number == number);
        found.expect("a flush is asked for until it ends")
    }

    /// Whether the device has, or has refused, all that a flush covers.
    pub(crate) fn is_drained(&self, number: u64) -> bool {
        let flush = self.flush(number);
        flush.owed == flush.failed
    }

    /// Whether all that a flush covers is at least under way.
    pub(crate) fn is_begun(&self, number: u64) -> bool {
        let upto = self.flush(number).upto;
        self.oldest()
            .is_none_or(|slot| self.slots[slot as usize].since > upto)
    }

    /// A flush is over. Returns how many of the slots that it covers the device refused.
    pub(crate) fn end_flush(&mut self, number: u64) -> usize {
        let failed = self.flush(number).failed;
        self.flushes.retain(|flush| flush.number != number);
        failed
    }

    /// Returns the slot that has been owed longest, of those that a flush waits for and that are
    /// not in flight.
    pub(crate) fn next_to_flush(&self) -> Option<u32> {
        let waiting = self
            .flushes
            .iter()
            .filter(|flush| flush.owed > flush.failed);
        let upto = waiting.map(|flush| flush.upto).max()?;
        self.oldest()
            .filter(|slot| self.slots[*slot as usize].since <= upto)
    }
}
