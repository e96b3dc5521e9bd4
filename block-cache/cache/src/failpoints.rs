//! Faults to plant, to show that the checkers find them. [`forebay_metadata::order`] can leave out
//! orderings in addition. They are compiled with the feature `plant`, which only the tests package
//! enables; without it [`planted`] is a constant.

/// A deliberate fault, named by its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rule 4: forgets a write that arrives while its block is written back.
    ForgetRewrite,
    /// Rule 10: forgets zeroes and discards that arrive while a block is written back. The
    /// write-back then overwrites them.
    ForgetDiscard,
    /// Rule 5: records clean copies before the backing device has flushed the data that they claim.
    ClaimBeforeFlush,
    /// Rule 5: records clean copies after a failed client write, whose data the device may still
    /// show.
    ClaimBehindFailure,
    /// Rule 9: retries a failed flush of a backing device and trusts its success.
    RetryFailedFlush,
    /// Rule 9: does not note unflushed changes that only this process has.
    ForgetBuffered,
    /// Rule 9: trusts the data that slots show after an earlier process failed to flush them.
    TrustShown,
    /// Rule 9: as [`Fault::TrustShown`], for slots that a partial journal does not name.
    TrustUnnamed,
    /// Checksums: does not verify reads on the hit path.
    SkipVerify,
    /// Checksums: publishes a checksum before its data is written, without a mark.
    ChecksumBeforeData,
    /// Checksums: after a crash, trusts checksums of data that may have been overwritten.
    TrustOpen,
    /// Checksums: does not verify data that is written back.
    WriteCorruptBack,
    /// Rule 4: compares with data that is only in the backing device's volatile cache.
    CompareUnflushed,
    /// Rule 9: compares with data that was read after a failed flush or write.
    CompareBehindFailure,
    /// Rule 9: compares with such data after a failure in an earlier process.
    ForgetFailure,
    /// Rule 9: compares with such data after a process of this boot that died without reporting.
    CompareAfterProcessDeath,
    /// Rule 4: also compares data that a record calls dirty.
    CompareRecorded,
    /// Rule 4: also compares data that changed since recovery.
    CompareChanged,
    /// Rule 4: does not compare the remaining granules of a block whose first one is equal on the
    /// backing device.
    CompareFirstGranule,
    /// Rule 9: reads a clean hit from a backing device that may forget the data that it shows.
    SplitUnflushed,
    /// Rule 4: trusts a later flush for data that was written back before an earlier flush of the
    /// backing device failed.
    TrustAcrossSessions,
    /// Forgets abandoned dirty data in memory only.
    AbandonInMemory,
    /// Rule 7: trusts clean data although a newer record is damaged.
    TrustDamaged,
    /// Repair, and truncated metadata: gives up the old log without logging its content once more.
    GiveUpUnlogged,
    /// Rule 6: writes past a failed cache without waiting for its write-backs in flight.
    DegradeDuringWriteBack,
    /// Rule 6: serves reads from a failed cache for data that was written past it.
    ReadBehindDegraded,
    /// Zones: calls a zone clean while it has dirty data.
    ClearDirtyZone,
    /// Zones: calls a zone clean while one of its slots is not flushed and may hold older data.
    ClearUnflushedZone,
    /// Zones: makes a writer trust a bit that is being cleared.
    ClearZoneBehind,
    /// Zones: does not record on media the data that an opening takes for dirty.
    SkipFoundZones,
    /// Reads during the opening: a change does not wait for such a read in flight.
    ChangeDuringOpeningRead,
    /// Reads during the opening: ignores the marks of a block.
    IndexWithoutMarks,
    /// Reads during the opening: ignores the process journal.
    IndexWithoutJournal,
    /// Reads during the opening: uses an answer that arrives after the cache is in service.
    AnswerLate,
    /// Identity: before an attach, compares dirty data with the backing device as if that had it.
    SampleDirty,
    /// Identity: forgets data that differs there.
    ForgetDifference,
    /// Rule 6: writes past a failed cache before the epoch is raised, and logs nothing.
    DegradeUnannounced,
    /// Rule 9: a flush past a failed cache succeeds although unflushed data was lost with the
    /// cache.
    FlushBehindDegraded,
    /// Rule 9: ignores clean data that replaced data which may be durable as dirty.
    OweDirtyAlone,
    /// Identity: writes a volume back before the volumes that are attached after it were compared.
    CleanBeforeAllAttached,
    /// Identity: also evicts the volume's data from transit caches that early.
    EvictBeforeAllAttached,
    /// Identity: evicts that data at the end of a refused start.
    DrainRefused,
    /// Rule 6: does not compare a volume's last backing device with its present one.
    TrustBacking,
    /// Identity: does not compare the process journal with the cache's devices and their last
    /// opening.
    TrustJournal,
    /// Rule 6: does not compare the records of the state directory with the cache.
    TrustState,
    /// Identity: writes the next generation to the superblock before the process journal announces
    /// it.
    RaiseUnannounced,
    /// Rule 9: an opening forgets lost data without a note in the superblock.
    ForgetLoss,
    /// Identity: leaves the generation of a separate data device as it was formatted.
    LeaveDataDevice,
    /// A clean end waits for a round after the one that logs the close.
    AwaitRoundAfterClose,
    /// Checksums: a failed read does not drop the corrupt clean copies that it met.
    KeepCorrupt,
    /// Checksums: a write that fails before its first byte turns the clean granules dirty that it
    /// would have overwritten.
    DirtyUnwritten,
    /// Identity: the metadata expects a generation that only one of the two copies on the data
    /// device has.
    LeaveSpareCopy,
    /// Identity: the metadata device expects a generation that the data device does not have yet.
    ExpectUnwritten,
    /// Identity: accepts an announced generation on other devices.
    KeepAnnounced,
    /// Identity: does not compare the states of data and metadata device.
    MixStates,
    /// Identity: a clean end does not raise the generation.
    EndUnraised,
    /// Ignores the truncation of a cache device, both in service and at a start.
    OverlookCut,
    /// Records any data device that is shorter than the cache as truncated.
    NoteAnyShort,
    /// At a start, takes each hole for a truncation, regardless of the data after it and of
    /// checksums.
    TrustHoles,
    /// Rule 6: a failed cache is written past while the epoch is being raised.
    DegradeUnawaited,
    /// Rule 6: a write past a failed cache takes the place of dirty data that the next process
    /// keeps.
    OverwritePreserved,
    /// Rule 6: an attach takes more for dirty than was when the cache failed.
    KeepUnlisted,
    /// Rule 9: a flush past a failed cache does not raise the epoch.
    FlushUnannounced,
    /// Allocation: calls dirty data a hole if the backing device has one there.
    HoleOverDirty,
    /// Allocation: calls clean copies a hole of a backing device that may forget what it shows.
    HoleOverCopy,
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
