//! Directory entry of one frame.

use crate::message::{Access, NodeId, PageId, Place};

/// No frame: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// State of the page in a frame. *Invalid* also describes a page without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The frame has no page: it is free, or its node died.
    Invalid,
    /// One node fills the frame; lookups wait.
    Exclusive,
    /// Published, and mapped only by the frame's own node.
    Owner,
    /// Published, and mapped by other nodes.
    Shared,
    /// Being evicted; lookups wait.
    ToBeInvalidated,
    /// The frame holds a replica: a copy that only the frame's own node reads.
    Replica,
}

impl State {
    /// Returns whether a lookup is answered with the page's place.
    pub(super) const fn is_published(self) -> bool {
        matches!(self, Self::Owner | Self::Shared)
    }
}

/// The page may have been stored into since it was filled.
pub(super) const WRITTEN: u8 = 1;
/// A write-back was requested and has not been answered.
pub(super) const WRITING: u8 = 2;
/// No node could store any more when the write-back was requested.
pub(super) const FINAL: u8 = 4;
/// The node of a replica was asked to drop it, for the room that it leaves.
pub(super) const RECLAIMED: u8 = 8;
/// Nodes may store into the page without a lookup.
pub(super) const STORABLE: u8 = 16;
/// The page was written back since a node was last permitted to store into it.
pub(super) const SETTLED: u8 = 32;

/// Directory state of a frame and its page. Frames and entries have the same numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) page: PageId,
    pub(super) generation: u64,
    /// Nodes that may map it, including the owner.
    pub(super) sharers: u32,
    /// Nodes that have a replica of it. No node may store into the page while there are any.
    pub(super) replicas: u32,
    /// Neighbours in the order of use (published pages), in the order of age (replicas), or in the
    /// free list (`after` only).
    pub(super) before: u32,
    pub(super) after: u32,
    /// Node in whose memory the frame is: the owner of the page.
    pub(super) host: NodeId,
    /// Node that fills it.
    pub(super) holder: NodeId,
    pub(super) state: State,
    pub(super) flags: u8,
}

/// Maximum bytes of the page table for each page. An entry has four bytes of frame number and one
/// of control. The table's size is a power of two, and it is at most seven eighths full.
pub(super) const TABLE_BYTES_MAX: usize = (size_of::<u32>() + 1) * 2 * 8 / 7 + 1;

const _: () = assert!(
    size_of::<Entry>() + TABLE_BYTES_MAX <= 64,
    "a page takes at most 64 bytes of the directory"
);

/// Returns the flags of a page that is filled for this access.
pub(super) const fn flags_of(access: Access) -> u8 {
    match access {
        Access::Read => 0,
        Access::Write => WRITTEN | STORABLE,
    }
}

impl Entry {
    /// Creates the entry of an empty frame of `host`.
    pub(super) const fn free(host: NodeId) -> Self {
        Self {
            page: PageId { inode: 0, index: 0 },
            generation: 0,
            sharers: 0,
            replicas: 0,
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

    /// Returns the state of a published page according to its sharers.
    pub(super) const fn published(&self) -> State {
        if self.sharers & !self.host.bit() == 0 {
            State::Owner
        } else {
            State::Shared
        }
    }
}
