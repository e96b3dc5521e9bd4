//! Table of cache modes: effect of a read and a write, by mode.
//!
//! | mode | read hit | read miss | write |
//! |---|---|---|---|
//! | `wb` | cache | fill | cache, dirty |
//! | `wt` | cache | fill | cache and backing device |
//! | `wa` | cache | fill | backing device; updates a copy |
//! | `wi` | cache | fill | backing device; drops a copy |
//! | `wo` | cache | bypass | cache, dirty |
//! | `pt` | bypass, but for dirty data | bypass | backing device; drops a copy |
//!
//! The rule is looked up under the lock of a part, without a wait in between. Before the lock, the
//! mode only decides where a write is split, and whether a read fetches more.

use crate::options::Mode;

/// Data in the cache that a read which promotes nothing may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usable {
    /// All valid data.
    AllValid,
    /// Dirty data: the backing device has the rest.
    DirtyOnly,
}

/// Effect of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadRule {
    /// Hits are read from the cache; missing data is filled, if the policy admits it.
    Fill,
    /// Usable data is read from the cache, the rest from the backing device; the cache stays as it
    /// is.
    Bypass(Usable),
}

/// Effect of a write to the backing device on a clean copy of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRule {
    /// Updates the copy, and adds granules that are written whole.
    Extend,
    /// Updates the copy.
    Refresh,
    /// The copy is dropped.
    Drop,
}

/// Effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteRule {
    /// Data goes to the cache, and to the backing device later.
    Dirty,
    /// Data goes to the cache and to the backing device.
    Through,
    /// Data goes to the backing device.
    Bypass(CopyRule),
}

impl Mode {
    /// Returns the rule for reads.
    pub(crate) const fn read_rule(self) -> ReadRule {
        match self {
            Self::WriteBack | Self::WriteThrough | Self::WriteAround | Self::WriteInvalidate => {
                ReadRule::Fill
            }
            Self::WriteOnly => ReadRule::Bypass(Usable::AllValid),
            Self::PassThrough => ReadRule::Bypass(Usable::DirtyOnly),
        }
    }

    /// Returns the rule for writes.
    pub(crate) const fn write_rule(self) -> WriteRule {
        match self {
            Self::WriteBack | Self::WriteOnly => WriteRule::Dirty,
            Self::WriteThrough => WriteRule::Through,
            Self::WriteAround => WriteRule::Bypass(CopyRule::Refresh),
            Self::WriteInvalidate | Self::PassThrough => WriteRule::Bypass(CopyRule::Drop),
        }
    }
}
