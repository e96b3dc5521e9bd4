//! How a cache knows what was overwritten in place before it crashed, and where it keeps that.

use std::fmt;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind, Result};

use super::{SECTOR_BYTES, Superblock};
use crate::tree::{DEFAULT_DEGREE, DEFAULT_LEVELS, Plane, Shape, TreeExtent};

/// How a cache knows after a crash which blocks are dirty though their records call them clean.
/// Chosen when it is formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DirtyTracking {
    /// `exact`: by marks of regions in the log.
    #[default]
    Exact,
    /// `abt`: by an adaptive bit-tree over the slots of the data.
    Abt,
    /// `none`: it does not, and takes all blocks for dirty.
    None,
}

impl DirtyTracking {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Abt, Self::None];

    /// Its name in configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Abt => "abt",
            Self::None => "none",
        }
    }

    pub(super) const fn encode(self) -> u8 {
        match self {
            Self::Exact => 0,
            Self::Abt => 1,
            Self::None => 2,
        }
    }

    pub(super) fn decode(byte: u8) -> Option<Self> {
        (Self::ALL.into_iter()).find(|tracking| tracking.encode() == byte)
    }

    /// Bytes on the device that holds the log, in units of so many, for any size of the cache.
    pub(super) fn bytes(self, unit_bytes: u32) -> u64 {
        match self {
            Self::Abt => tree_extent(u32::MAX, 0, unit_bytes).bytes(),
            Self::Exact | Self::None => 0,
        }
    }
}

impl fmt::Display for DirtyTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DirtyTracking {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        (Self::ALL.into_iter())
            .find(|tracking| tracking.as_str() == text)
            .ok_or_else(|| {
                let what = format!("dirty tracking {text:?}: choose one of exact, abt, none");
                Error::new(ErrorKind::InvalidInput, what)
            })
    }
}

fn tree_extent(slots: u32, offset: u64, unit_bytes: u32) -> TreeExtent {
    let shape = Shape::covering(u64::from(slots), DEFAULT_DEGREE, DEFAULT_LEVELS);
    TreeExtent {
        offset,
        // Its sectors are written and verified whole, on any media.
        unit_bytes: unit_bytes.max(SECTOR_BYTES),
        // Of no volume: it covers the slots of all.
        volume: 0,
        plane: Plane::Dirty,
        shape: shape.expect("fewer than 2^56 slots"),
    }
}

impl Superblock {
    /// Where the bit-tree over the slots of the data lies, if there is one.
    #[must_use]
    pub fn tree(&self) -> Option<TreeExtent> {
        (self.dirty_tracking == DirtyTracking::Abt)
            .then(|| tree_extent(self.slots, self.tree_offset, self.log.unit_bytes))
    }
}
