//! Faults that tests plant, to see that they are found. Outside of tests there are none.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A request that goes to the device itself does not care what slots hold of its blocks.
    BypassOverSlot,
    /// A flush does not wait for evictions in flight.
    FlushIgnoresEvicting,
    /// Data that a request held is not retried after that request failed, or died with the process.
    HeldIsForgotten,
    /// FUA is acknowledged when the data is in a slot.
    FuaFromMemory,
    /// Evictions do not wait until they are allowed.
    EvictBeforeAllowed,
}

/// The fault of this cache, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(test)]
    planted: Option<Fault>,
}

impl Faults {
    #[cfg(test)]
    pub(crate) const fn planted(fault: Fault) -> Self {
        Self {
            planted: Some(fault),
        }
    }

    #[cfg(test)]
    pub(crate) fn has(self, fault: Fault) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(test))]
    #[inline]
    pub(crate) const fn has(self, _fault: Fault) -> bool {
        false
    }
}
