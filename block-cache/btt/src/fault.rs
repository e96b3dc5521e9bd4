//! Faults that tests plant, to see that they are found. Outside of tests there are none.

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The map is changed before the flog tells of it.
    MapBeforeFlog,
    /// The sequence number is stored together with what it vouches for.
    SequenceAtOnce,
    /// A free block is written to although a reader is still in it.
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
