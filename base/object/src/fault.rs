//! Faults that the simulation plants in order to prove that it finds them. They exist only in this
//! crate's tests.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A flush is good when its own objects are durable, with a gap before them.
    FlushOverGap,
    /// A new writer does not claim the log.
    NoClaim,
    /// Garbage collection deletes claims.
    DeleteClaims,
    /// A missing object is the end of the log, although there is a newer checkpoint.
    MissingIsEnd,
    /// A move is applied although its source has been overwritten.
    BlindMove,
    /// An object is deleted before a checkpoint covers its moves.
    DeleteUncovered,
    /// An object that exists is taken for the writer's own.
    ExistsIsOwn,
    /// A new writer does not occupy the places that orphans could take.
    NoBarriers,
    /// A writer creates objects far beyond the durable part of the log.
    UnboundedPipeline,
    /// A checkpoint is written before the log that it covers.
    CheckpointAhead,
    /// Objects of snapshots are deleted.
    DeletePinned,
    /// A snapshot is acknowledged without its record in the log.
    UnrecordedSnapshot,
    /// Replay applies objects of an earlier writer.
    ReplayOrphans,
    /// A missing object is the end of the log, although a later one proves that it has existed.
    HoleIsEnd,
}

/// All faults, for the test that finds them.
#[cfg(test)]
pub(crate) const ALL: [Fault; 14] = [
    Fault::FlushOverGap,
    Fault::NoClaim,
    Fault::DeleteClaims,
    Fault::MissingIsEnd,
    Fault::BlindMove,
    Fault::DeleteUncovered,
    Fault::ExistsIsOwn,
    Fault::NoBarriers,
    Fault::UnboundedPipeline,
    Fault::CheckpointAhead,
    Fault::DeletePinned,
    Fault::UnrecordedSnapshot,
    Fault::ReplayOrphans,
    Fault::HoleIsEnd,
];

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
