//! Faults to plant, so that the checkers can be shown to find them. Compiled with the feature `plant`,
//! which only the tests package asks for; without it [`planted`] is a constant.

/// An ordering that the engine must not lose, named by what happens without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rule 1: records are written without the data flush before them.
    RecordBeforeData,
    /// Rule 2: a slot is free before the kill of its block is durable.
    ReuseBeforeDead,
    /// Rule 3: a clean block is overwritten in place without a mark.
    UnmarkedOverwrite,
    /// Rule 4: blocks turn clean before the backing device was flushed.
    CleanBeforeFlush,
    /// Rule 4: a write that comes while a block is written back is forgotten.
    ForgetRewrite,
    /// Rule 5: a write goes to the backing device beside a cached copy without a mark.
    UnannouncedWrite,
    /// Rule 5: clean copies are recorded while the backing device has not flushed what they claim.
    ClaimBeforeFlush,
    /// Rule 9: a FLUSH does not ask the backing device.
    FlushHalfWay,
    /// Rule 9: a write is acknowledged before its record is where the next process finds it.
    ForgetJournal,
    /// Rule 10: zeroing does not wait until the clean copy is durably gone.
    ZeroBeforeDrop,
}

#[cfg(feature = "plant")]
mod planted {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault in every cache of this thread, or takes it out.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(crate) fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "plant")]
pub use planted::plant;
#[cfg(feature = "plant")]
pub(crate) use planted::planted;

/// Whether a fault is planted.
#[cfg(not(feature = "plant"))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
