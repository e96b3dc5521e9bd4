//! What a cache does with its slots: when a block gets one, and which goes to the device when.
//!
//! A policy decides and nothing else: it does no I/O and keeps no data. That requests on one block are in
//! order, and that a flush covers what it must, is not its business, so that it cannot break either.

mod caiti;
mod co_active;
mod lru;
mod pmbd;
mod pmbd_70;
mod without_bypass;
mod without_eviction;

use std::fmt;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind};

use crate::slots::Slots;

/// Which policy a cache has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// I/O transit: what is written is evicted at once, and a write that finds no free slot goes round.
    #[default]
    Caiti,
    /// As `Caiti`, but nothing is evicted before a flush.
    CaitiWithoutEviction,
    /// As `Caiti`, but a write that finds no free slot waits for one.
    CaitiWithoutBypass,
    /// The least recently used block makes room for a write that finds none.
    Lru,
    /// Sub-buffers that are emptied when they are full; writes to one wait until it is empty.
    Pmbd,
    /// Sub-buffers that are emptied in the background from 70% on.
    Pmbd70,
    /// Hot and cold, dirty and clean blocks; cold dirty ones are written while the device is idle.
    CoActive,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Caiti,
        Self::CaitiWithoutEviction,
        Self::CaitiWithoutBypass,
        Self::Lru,
        Self::Pmbd,
        Self::Pmbd70,
        Self::CoActive,
    ];

    /// Its name in configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Caiti => "caiti",
            Self::CaitiWithoutEviction => "caiti-without-eviction",
            Self::CaitiWithoutBypass => "caiti-without-bypass",
            Self::Lru => "lru",
            Self::Pmbd => "pmbd",
            Self::Pmbd70 => "pmbd-70",
            Self::CoActive => "co-active",
        }
    }

    /// One for a cache with so many slots.
    pub(crate) fn decider(self, slots: usize) -> Box<dyn Decide> {
        match self {
            Self::Caiti => Box::new(caiti::Caiti),
            Self::CaitiWithoutEviction => Box::new(without_eviction::WithoutEviction),
            Self::CaitiWithoutBypass => Box::new(without_bypass::WithoutBypass),
            Self::Lru => Box::new(lru::Lru::new(slots)),
            Self::Pmbd => Box::new(pmbd::Pmbd::new(slots)),
            Self::Pmbd70 => Box::new(pmbd_70::Pmbd70::new(slots)),
            Self::CoActive => Box::new(co_active::CoActive::new(slots)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Error::new(
                ErrorKind::InvalidInput,
                format!("there is no policy {text:?}: use one of {names}"),
            )
        })
    }
}

/// Lines in which writes wait for slots, at most.
pub(crate) const LINES: usize = 16;

/// What becomes of a write of a block that has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It gets a free slot.
    Slot,
    /// It gets a slot whose copy is not needed (`Kept`).
    Instead(u32),
    /// It goes to the device.
    Bypass,
    /// It waits in its line until slots leave.
    Wait,
}

/// What a policy looks at besides what it knows itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) slots: &'a Slots,
    /// Writes that wait for a slot.
    pub(crate) waiting: usize,
    /// Slots on their way to the device.
    pub(crate) evicting: usize,
    /// Whether there have been no requests for a while.
    pub(crate) idle: bool,
}

/// A policy at work. A slot is a *candidate* from [`Decide::entered`] to [`Decide::began`]; every slot that
/// entered leaves in the end.
pub(crate) trait Decide {
    /// What becomes of a write of a block that has no slot.
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

    /// The slot is no candidate: its data is on the way to the device, or a request is about to supersede it.
    fn began(&mut self, _slot: u32) {}

    /// It is a candidate again: the device refused it, or that request failed.
    fn returned(&mut self, _slot: u32) {}

    /// It left, no candidate any more: it is free, or, if `kept`, a copy.
    fn left(&mut self, _slot: u32, _kept: bool) {}

    /// A copy is free: its block was written, or its slot was needed.
    fn dropped(&mut self, _slot: u32) {}

    /// Whether slots stay as copies when the device has them.
    fn keeps(&self) -> bool {
        false
    }

    /// Whether it wants to be asked for more while there are no requests.
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
