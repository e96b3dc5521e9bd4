//! Faults that the simulation plants in order to prove that it finds them. They exist only in this
//! crate's tests.

/// A planted fault.
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
    /// A lost page is filled again while a node still maps its old frame.
    RefillMapped,
    /// A write-back marks a store during it as clean.
    CleanRacing,
    /// A frame is reused when the first sharer has acknowledged.
    ReuseBeforeAcknowledged,
    /// A restarted directory does not look for unmapped pages.
    UnsavedForgotten,
    /// A dead node is forgotten while others still map places in its memory.
    ForgetMapped,
    /// A page that a node has filled and written before its death is discarded, since its
    /// publication did not arrive.
    FilledForgotten,
    /// A page that outlived its node is given up without a write-back.
    PoolLost,
    /// No node is notified when a page that outlived its node is given up, since the store refuses
    /// it.
    UnreportedLoss,
    /// A restarted directory does not report pages that the one before had given up.
    GivenUpForgotten,
    /// A node takes a word that another node has.
    TakeTaken,
    /// A dead node's words are not released.
    KeepDeadAlone,
    /// A node does not report its fills in progress to a restarted directory.
    FillForgotten,
    /// The driver begins a write-back while one of the same page is in progress, which a former
    /// directory requested.
    #[cfg(test)]
    WriteBackOverlaps,
    /// The driver marks the page of a write-back as clean before the store has it.
    #[cfg(test)]
    CleanBeforeStored,
    /// The end of a write-back that no program requested counts as the report of a loss.
    WriteBackReports,
    /// A flush whose program has given up counts as the report of a loss.
    CancelledReports,
    /// A store is permitted before the replicas of the page are dropped.
    ReplicaNotRevoked,
    /// A node reads a replica that it has reported as dropped.
    ReplicaUsedAfterDrop,
    /// A node reads its replicas after the directory that granted them has ended.
    ReplicaOutlivesDirectory,
    /// All nodes count as having published a file when the first one has.
    FirstAnswerCounts,
    /// A node reports a file as published before its pages are.
    AnswerUnpublished,
    /// A node answers that it asks before its next store, while a store is in progress.
    ProtectPinned,
    /// A node is permitted to store while others answer that they will ask, and the page counts as
    /// protected.
    ProtectionNotCancelled,
}

#[cfg(test)]
impl Fault {
    /// All faults.
    pub(crate) const ALL: [Self; 27] = [
        Self::AcknowledgeMapped,
        Self::UncheckedGeneration,
        Self::PublishUnfilled,
        Self::KeepDeadSharer,
        Self::RefillMapped,
        Self::CleanRacing,
        Self::ReuseBeforeAcknowledged,
        Self::UnsavedForgotten,
        Self::ForgetMapped,
        Self::FilledForgotten,
        Self::PoolLost,
        Self::UnreportedLoss,
        Self::GivenUpForgotten,
        Self::TakeTaken,
        Self::KeepDeadAlone,
        Self::CleanBeforeStored,
        Self::FillForgotten,
        Self::WriteBackOverlaps,
        Self::WriteBackReports,
        Self::CancelledReports,
        Self::ReplicaNotRevoked,
        Self::ReplicaUsedAfterDrop,
        Self::ReplicaOutlivesDirectory,
        Self::FirstAnswerCounts,
        Self::AnswerUnpublished,
        Self::ProtectPinned,
        Self::ProtectionNotCancelled,
    ];
}

/// Set of planted faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(test)]
    pub(crate) planted: Option<Fault>,
}

impl Faults {
    /// Returns whether this fault is planted.
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
