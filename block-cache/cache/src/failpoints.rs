//! Faults to plant, so that the checkers can be shown to find them, beside the orderings that
//! [`forebay_metadata::order`] can take out. Compiled with the feature `plant`, which only the
//! tests package asks for; without it [`planted`] is a constant.

/// Something that the engine must not forget, named by what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rule 4: a write that comes while a block is written back is forgotten.
    ForgetRewrite,
    /// Rule 10: zeroes and discards that come while a block is written back are forgotten, and what
    /// is written back lands behind them.
    ForgetDiscard,
    /// Rule 5: clean copies are recorded while the backing device has not flushed what they claim.
    ClaimBeforeFlush,
    /// Rule 5: and where a client's write failed, and may be shown all the same.
    ClaimBehindFailure,
    /// Rule 9: a flush of a backing device that failed is tried again, and believed.
    RetryFailedFlush,
    /// Checksums: what goes the short way is not verified.
    SkipVerify,
    /// Checksums: one is published before its data is written, without a mark.
    SumBeforeData,
    /// Checksums: after a crash, those of what may have been overwritten are believed.
    TrustOpen,
    /// Checksums: what is written back is not verified.
    WriteCorruptBack,
    /// Rule 4: what the backing device has in its own volatile cache counts as what it has.
    CompareUnflushed,
    /// Rule 9: and so does what can be read behind a flush or a write that failed,
    CompareBehindFailure,
    /// in an earlier process, too,
    ForgetFailure,
    /// or in one of this boot that died and told nobody.
    CompareAfterProcessDeath,
    /// Rule 4: what a record calls dirty is compared as well,
    CompareRecorded,
    /// and what was changed since recovery.
    CompareChanged,
    /// Rule 4: a block that is found to be as the backing device has it is not looked at granule by
    /// granule.
    CompareFirstGranule,
    /// Rule 9: a clean hit is read from a backing device that may forget what it shows.
    SplitUnflushed,
    /// Rule 4: what was written back before a flush of the backing device failed is believed after
    /// a later one.
    TrustAcrossSessions,
    /// Dirty data that was abandoned is forgotten in memory alone.
    AbandonInMemory,
    /// Rule 7: clean data is believed though a newer record is damaged.
    TrustDamaged,
    /// Repair, and metadata that was cut off: what the log held is given up, and was not logged
    /// anew.
    GiveUpUnlogged,
    /// Rule 6: what is written past a failed cache is not awaited behind what that still writes
    /// back.
    DivergeBesideCleaner,
    /// Rule 6: what was written past a failed cache is served from it.
    ServeDiverged,
    /// Tracts: one is called clean while something in it is dirty.
    ClearDirtyTract,
    /// Tracts: one is called clean while a slot in it is not flushed, and may hold something older.
    ClearUnflushedTract,
    /// Tracts: a writer believes in a bit that is being cleared.
    ClearTractBehind,
    /// Tracts: what an opening takes for dirty is not said on media.
    LeaveTractsUnsettled,
    /// Early reads: a change does not wait for one that is under way.
    ChangeUnderEarlyRead,
    /// Early reads: what marks say of a block is not minded.
    SketchWithoutMarks,
    /// Early reads: what the process journal has is not minded.
    SketchWithoutJournal,
    /// Early reads: an answer counts though the cache went into service meanwhile.
    AnswerLate,
    /// Identity: what is dirty is compared with the backing device before an attach, as if it
    /// claimed to be there.
    SampleDirty,
    /// Identity: what differs there is forgotten.
    ForgetDifference,
    /// Rule 6: a failed cache is written past before the epoch is raised, and nothing is logged.
    DivergeUnannounced,
    /// Rule 9: a flush past a failed cache succeeds though that took along what no flush covered.
    FlushDiverged,
    /// Rule 9: and what is clean, over what may be durable as dirty, does not count.
    OweDirtyAlone,
    /// Identity: a volume is written back before those that are attached after it have been
    /// compared.
    CleanBeforeAllAttached,
    /// Identity: and what transit caches have for it is sent on,
    EvictBeforeAllAttached,
    /// or at the end of the start that was refused.
    DrainRefused,
    /// Rule 6: the backing device that a volume had last is not compared with the present one.
    TrustBacking,
    /// Identity: the process journal is not compared with the cache's devices and their last
    /// opening.
    TrustJournal,
    /// Rule 6: the records of the state directory are not compared with the cache.
    TrustState,
    /// Identity: the superblock says the next generation before the process journal announces it.
    RaiseUnannounced,
    /// Identity: a separate data device keeps the generation that it was formatted with.
    LeaveDataDevice,
    /// A clean end waits for a round behind the one that logs the close.
    AwaitRoundAfterClose,
    /// Checksums: a read that fails leaves the corrupt clean copies that it met.
    KeepCorrupt,
    /// Checksums: a write that fails before its first byte turns the clean granules dirty that it would have overwritten.
    DirtyUnwritten,
    /// Identity: the metadata asks for a generation that one of the two copies on the data device has alone.
    LeaveSpareCopy,
    /// Identity: the metadata device asks for a generation that the data device does not have yet.
    ExpectUnwritten,
    /// Identity: on other devices an announced generation is taken, and kept.
    KeepAnnounced,
    /// Identity: the states of data and metadata device are not compared.
    MixStates,
    /// Identity: a clean end does not raise the generation.
    EndUnraised,
    /// A device of a cache that was cut is not noticed, neither in service nor at a start.
    OverlookCut,
    /// A data device that is shorter than the cache is noted as cut, whichever device it is.
    NoteAnyShort,
    /// Each hole at a start is taken for a cut, whatever lies behind it and whatever a checksum
    /// says.
    TrustHoles,
    /// Rule 6: a failed cache is written past while the epoch is being raised.
    DivergeUnawaited,
    /// Rule 6: a write past a failed cache takes the place of dirty data that the next process
    /// keeps.
    WriteOverKept,
    /// Rule 6: an attach takes more for dirty than was when the cache failed.
    KeepUnlisted,
    /// Rule 9: a flush past a failed cache does not raise the epoch.
    FlushUnannounced,
}

#[cfg(any(test, feature = "plant"))]
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

    /// Returns `work`, for another thread, with the fault of this one.
    pub fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let fault = PLANTED.get();
        move || {
            PLANTED.set(fault);
            work()
        }
    }

    /// Returns whether a fault is planted.
    #[must_use]
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(any(test, feature = "plant"))]
pub use planted::{carried, plant, planted};

/// Returns whether a fault is planted: never, without the feature.
#[cfg(not(any(test, feature = "plant")))]
#[must_use]
pub const fn planted(_: Fault) -> bool {
    false
}

/// Returns `work`, as there is no fault to carry.
#[cfg(not(any(test, feature = "plant")))]
pub const fn carried<T, F: FnOnce() -> T>(work: F) -> F {
    work
}

#[cfg(feature = "plant")]
pub use forebay_metadata::order::{Part, SitePart, reached, take_out};
