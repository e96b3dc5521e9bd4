//! Faults that tests plant in order to prove that they are found. They exist only in tests.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The map is changed before the flog entry is durable.
    MapBeforeFlog,
    /// The sequence number is stored together with the fields that it validates.
    SequenceAtOnce,
    /// A free block is written while a reader still uses it.
    ReuseUnderReader,
}

/// The fault of this table, if it has one.
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
