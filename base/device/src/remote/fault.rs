//! Faults that tests plant, to see that they are found. Outside of tests there are none.

#[cfg(test)]
use std::cell::Cell;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// New requests do not wait for the resend of older changes.
    ResendLate,
    /// Nothing is sent again after a loss, and flushes succeed.
    FlushAcrossLoss,
    /// A flush frees the copies of changes that were acknowledged after its submission.
    FlushCoversLater,
    /// Ranges that cannot be sent again are not reported.
    LostUnreported,
    /// A range with an unanswered change takes other changes at once.
    NoQuarantine,
    /// A range with a resend that was lost takes other changes at once.
    NoQuarantineOfResend,
}

#[cfg(test)]
thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Plants a fault in all devices of this thread, or none.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Returns whether this fault is planted.
#[cfg(test)]
pub(crate) fn has(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Returns whether this fault is planted.
#[cfg(not(test))]
#[inline]
pub(crate) const fn has(_fault: Fault) -> bool {
    false
}
