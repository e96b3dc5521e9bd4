//! Policies for the use of slots: when a block gets one, and which goes to the device when.
//!
//! A policy only decides. It does no I/O and has no data. The cache itself orders requests on one
//! block and decides which blocks a flush covers. So a policy cannot break either.

mod caiti;

use std::fmt;

pub use caiti::Caiti;

pub use crate::links::{LINK_BYTES, Links, List, NONE};
pub use crate::slots::Slots;

/// A policy by name.
#[derive(Clone, Copy)]
pub struct Policy {
    name: &'static str,
    decider: fn(usize) -> Box<dyn Decide>,
}

impl Policy {
    /// I/O transit: see [`Caiti`].
    pub const CAITI: Self = Self::new("caiti", |_| Box::new(Caiti));

    /// A policy with this name. `decider` makes one for a cache with so many slots.
    #[must_use]
    pub const fn new(name: &'static str, decider: fn(usize) -> Box<dyn Decide>) -> Self {
        Self { name, decider }
    }

    /// Returns its name in configurations. The name identifies a policy.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.name
    }

    /// One for a cache with so many slots.
    pub(crate) fn decider(self, slots: usize) -> Box<dyn Decide> {
        (self.decider)(slots)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::CAITI
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Lines in which writes wait for slots, at most.
pub const LINES: usize = 16;

/// Decision on a write of a block that has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It gets a free slot.
    Slot,
    /// It gets a slot whose copy is not needed.
    Instead(u32),
    /// It goes to the device.
    Bypass,
    /// It waits in its line until slots leave.
    Wait,
}

/// State of the cache that a policy may read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The slots.
    pub slots: &'a Slots,
    /// Writes that wait for a slot.
    pub waiting: usize,
    /// Number of slots that are being evicted.
    pub evicting: usize,
    /// Whether there have been no requests for a while.
    pub idle: bool,
}

/// A policy at work. A slot is a *candidate* from [`Decide::entered`] to [`Decide::began`]; every
/// slot that entered leaves in the end.
pub trait Decide {
    /// Decides on a write of a block that has no slot.
    fn admit(&mut self, slots: &Slots, block: u64) -> Admission;

    /// The line in which a write of this block waits, below [`LINES`].
    fn line(&self, _block: u64) -> usize {
        0
    }

    /// The slot to evict now, a candidate; none where nothing is to be evicted yet.
    fn next(&mut self, view: View<'_>) -> Option<u32>;

    /// A block was written into a slot.
    fn entered(&mut self, _slot: u32, _block: u64) {}

    /// A block was read from a slot, a candidate or a copy.
    fn read(&mut self, _slot: u32) {}

    /// The slot is no candidate: its data is being evicted, or a request is about to supersede it.
    fn began(&mut self, _slot: u32) {}

    /// Notes that a slot is a candidate once more: the device refused it, or that request failed.
    fn returned(&mut self, _slot: u32) {}

    /// The slot is no candidate any more: it is free, or a copy if `_is_copy`.
    fn left(&mut self, _slot: u32, _is_copy: bool) {}

    /// A copy is free: its block was written, or its slot was needed.
    fn dropped(&mut self, _slot: u32) {}

    /// Whether slots stay as copies when the device has them.
    fn keeps(&self) -> bool {
        false
    }

    /// Returns whether it evicts more while there are no requests.
    fn uses_idle_time(&self) -> bool {
        false
    }

    /// Memory that it takes for each slot, bytes.
    fn slot_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests;
