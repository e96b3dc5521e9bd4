//! The table of cache modes: what a read and a write do, by mode.
//!
//! | mode | read hit | read miss | write |
//! |---|---|---|---|
//! | `wb` | cache | fill | cache, dirty |
//! | `wt` | cache | fill | cache and backing device |
//! | `wa` | cache | fill | backing device; a copy is kept up to date |
//! | `wi` | cache | fill | backing device; a copy is dropped |
//! | `wo` | cache | bypass | cache, dirty |
//! | `pt` | bypass, but for dirty data | bypass | backing device; a copy is dropped |
//!
//! A request is split and locked before its mode is looked up.

use crate::options::Mode;

/// Data in the cache that a read which promotes nothing may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usable {
    /// Whatever is valid.
    AllValid,
    /// Dirty data: the backing device has the rest.
    DirtyOnly,
}

/// What a read does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadRule {
    /// Hits are read from the cache; missing data is filled, if the policy admits it.
    Fill,
    /// Usable data is read from the cache, the rest from the backing device; the cache stays as it
    /// is.
    Bypass(Usable),
}

/// What becomes of the clean copy of data that is written to the backing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRule {
    /// The copy is kept up to date, and granules that are written whole are added.
    Extend,
    /// The copy is kept up to date.
    Refresh,
    /// The copy is dropped.
    Drop,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteRule {
    /// Data goes to the cache, and to the backing device later.
    Dirty,
    /// Data goes to the cache and to the backing device.
    Both,
    /// Data goes to the backing device.
    Bypass(CopyRule),
}

impl Mode {
    /// Returns what a read does.
    pub(crate) const fn read_rule(self) -> ReadRule {
        match self {
            Self::WriteBack | Self::WriteThrough | Self::WriteAround | Self::WriteInvalidate => {
                ReadRule::Fill
            }
            Self::WriteOnly => ReadRule::Bypass(Usable::AllValid),
            Self::PassThrough => ReadRule::Bypass(Usable::DirtyOnly),
        }
    }

    /// Returns what a write does.
    pub(crate) const fn write_rule(self) -> WriteRule {
        match self {
            Self::WriteBack | Self::WriteOnly => WriteRule::Dirty,
            Self::WriteThrough => WriteRule::Both,
            Self::WriteAround => WriteRule::Bypass(CopyRule::Refresh),
            Self::WriteInvalidate | Self::PassThrough => WriteRule::Bypass(CopyRule::Drop),
        }
    }
}
