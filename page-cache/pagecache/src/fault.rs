//! Errors that the simulation plants to see that it finds them. Outside of this crate's tests there are none.

/// A planted error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A node acknowledges an invalidation while views and stores still use the page.
    AcknowledgeMapped,
    /// A copy is not checked against the frame's generation.
    UncheckedGeneration,
    /// A page is published before it is filled.
    PublishUnfilled,
    /// A dead node stays among a page's sharers.
    KeepDeadSharer,
    /// A page that died is filled again while somebody still maps what is left of it.
    RefillMapped,
    /// A write-back calls what was stored during it clean.
    CleanRacing,
    /// A frame is reused when the first sharer has acknowledged.
    ReuseBeforeAcknowledged,
    /// A directory that is started anew does not look for pages that nobody maps.
    UnsavedForgotten,
    /// Who died is forgotten while others still have places in its memory.
    ForgetMapped,
    /// A page that outlived its node is given up without a write-back.
    PoolLost,
    /// Nobody hears that a page that outlived its node was given up since the store refuses it.
    UntoldUnrescued,
    /// A directory that is started anew does not tell of pages that the one before it had given up.
    GivenUpForgotten,
    /// A word is taken that another node has.
    TakeTaken,
    /// A dead node's words stay its own.
    KeepDeadAlone,
}

#[cfg(test)]
impl Fault {
    /// Every error.
    pub(crate) const ALL: [Self; 14] = [
        Self::AcknowledgeMapped,
        Self::UncheckedGeneration,
        Self::PublishUnfilled,
        Self::KeepDeadSharer,
        Self::RefillMapped,
        Self::CleanRacing,
        Self::ReuseBeforeAcknowledged,
        Self::UnsavedForgotten,
        Self::ForgetMapped,
        Self::PoolLost,
        Self::UntoldUnrescued,
        Self::GivenUpForgotten,
        Self::TakeTaken,
        Self::KeepDeadAlone,
    ];
}

/// Which errors are planted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(test)]
    pub(crate) planted: Option<Fault>,
}

impl Faults {
    /// Whether this error is planted.
    pub(crate) const fn has(self, fault: Fault) -> bool {
        #[cfg(test)]
        return matches!(self.planted, Some(planted) if planted as u8 == fault as u8);
        #[cfg(not(test))]
        {
            let _ = fault;
            false
        }
    }
}
