//! One frame of the cluster, as the directory knows it.

use crate::message::{NodeId, PageId, Place};

/// No frame: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The state of the page in a frame. *Invalid* is a page that has no frame at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The frame is free (or its node died), no page is in it.
    Invalid,
    /// One node fills the frame; lookups wait.
    Exclusive,
    /// Published, and mapped by nobody but the frame's own node.
    Owner,
    /// Published, and mapped by other nodes.
    Shared,
    /// Being taken away; lookups wait.
    ToBeInvalidated,
}

impl State {
    /// Whether a lookup is answered with the page's place.
    pub(super) const fn is_published(self) -> bool {
        matches!(self, Self::Owner | Self::Shared)
    }
}

/// May have been stored into since it was filled.
pub(super) const WRITTEN: u8 = 1;
/// A write-back was asked for and has not been answered.
pub(super) const WRITING: u8 = 2;
/// ... and nobody could store any more when it was asked for.
pub(super) const FINAL: u8 = 4;

/// What the directory knows of a frame and the page in it. Frames and entries have the same numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) page: PageId,
    pub(super) generation: u64,
    /// Nodes that may have it mapped, the owner included.
    pub(super) sharers: u32,
    /// Neighbours in the order of use (published pages) or among the free (`after` only).
    pub(super) before: u32,
    pub(super) after: u32,
    /// The node in whose memory the frame is: the owner of what is in it.
    pub(super) host: NodeId,
    /// Who fills it.
    pub(super) holder: NodeId,
    pub(super) state: State,
    pub(super) flags: u8,
}

/// Bytes that the table of pages takes for each page when it is least full: four of the frame's number and one
/// of control, in a table of powers of two that is at most seven eighths full.
pub(super) const TABLE_BYTES_MAX: usize = (size_of::<u32>() + 1) * 2 * 8 / 7 + 1;

const _: () = assert!(
    size_of::<Entry>() + TABLE_BYTES_MAX <= 64,
    "a page takes at most 64 bytes of the directory"
);

impl Entry {
    /// A frame of `host` with nothing in it.
    pub(super) const fn free(host: NodeId) -> Self {
        Self {
            page: PageId { inode: 0, index: 0 },
            generation: 0,
            sharers: 0,
            before: NONE,
            after: NONE,
            host,
            holder: host,
            state: State::Invalid,
            flags: 0,
        }
    }

    pub(super) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) const fn place(&self, frame: u32) -> Place {
        Place {
            frame,
            generation: self.generation,
        }
    }

    /// The state of a published page by who maps it.
    pub(super) const fn published(&self) -> State {
        if self.sharers & !self.host.bit() == 0 {
            State::Owner
        } else {
            State::Shared
        }
    }
}
