//! Flags of blocks.

/// A boolean property of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Flag {
    /// The number has a block, or is being given one.
    Live,
    /// On the queue for the next round of the committer.
    Pending,
    /// Waits for a flush of the backing device before its clean granules are recorded.
    Deferred,
    /// Dirty in place under its region's mark: the record does not say so.
    Unrecorded,
    /// Written to since the cleaner last started on it.
    Rewritten,
    /// The cleaner is writing it back.
    Cleaning,
    /// A record of it may stand in the log or in the process journal.
    Traced,
    /// Turned clean since its last record.
    Cleaned,
    /// Its death is queued: nothing may log it any more.
    Dying,
    /// Written to since the last flush of the data device began.
    Unflushed,
    /// On the queue of records that no request waits for.
    Later,
    /// The bit-tree has the block as dirty, and does not know yet that it is clean.
    Marked,
    /// Counts as dirty since recovery, though no record says so.
    Recovered,
    /// Parts that no record called dirty at recovery may be compared with the backing device: they
    /// were not written since.
    Compared,
    /// A write to it failed, and then the cache, before a record could say which data is there.
    Unknown,
    /// The record that counts is the first: unless that is durable, none says anything of it.
    First,
}

/// A set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    const fn of(flag: Flag) -> Self {
        Self(1 << flag as u8)
    }

    /// Returns whether the set has one of these flags.
    #[inline]
    pub(crate) const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Adds flags.
    #[inline]
    pub(crate) const fn add(&mut self, flags: Self) {
        self.0 |= flags.0;
    }

    /// Removes flags.
    #[inline]
    pub(crate) const fn clear(&mut self, flags: Self) {
        self.0 &= !flags.0;
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// [`Flag::Live`].
pub(crate) const LIVE: Flags = Flags::of(Flag::Live);
/// [`Flag::Pending`].
pub(crate) const PENDING: Flags = Flags::of(Flag::Pending);
/// [`Flag::Deferred`].
pub(crate) const DEFERRED: Flags = Flags::of(Flag::Deferred);
/// [`Flag::Unrecorded`].
pub(crate) const UNRECORDED: Flags = Flags::of(Flag::Unrecorded);
/// [`Flag::Rewritten`].
pub(crate) const REWRITTEN: Flags = Flags::of(Flag::Rewritten);
/// [`Flag::Cleaning`].
pub(crate) const CLEANING: Flags = Flags::of(Flag::Cleaning);
/// [`Flag::Traced`].
pub(crate) const TRACED: Flags = Flags::of(Flag::Traced);
/// [`Flag::Cleaned`].
pub(crate) const CLEANED: Flags = Flags::of(Flag::Cleaned);
/// [`Flag::Dying`].
pub(crate) const DYING: Flags = Flags::of(Flag::Dying);
/// [`Flag::Unflushed`].
pub(crate) const UNFLUSHED: Flags = Flags::of(Flag::Unflushed);
/// [`Flag::Later`].
pub(crate) const LATER: Flags = Flags::of(Flag::Later);
/// [`Flag::Marked`].
pub(crate) const MARKED: Flags = Flags::of(Flag::Marked);
/// [`Flag::Recovered`].
pub(crate) const RECOVERED: Flags = Flags::of(Flag::Recovered);
/// [`Flag::Compared`].
pub(crate) const COMPARED: Flags = Flags::of(Flag::Compared);
/// [`Flag::Unknown`].
pub(crate) const UNKNOWN: Flags = Flags::of(Flag::Unknown);
/// [`Flag::First`].
pub(crate) const FIRST: Flags = Flags::of(Flag::First);
