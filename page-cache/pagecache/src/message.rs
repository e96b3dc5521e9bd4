//! Messages between nodes and the directory.
//!
//! Messages are small and copied. A packet is a batch of messages (see [`crate::protocol`]). Links
//! keep the order: a message arrives after all earlier ones of its sender, or not at all if one
//! side died.

use std::fmt;

/// Maximum number of nodes of a directory: a page's sharers are bits of one word.
pub const NODES_MAX: u8 = 32;

/// A node's number, below [`NODES_MAX`]. It is reused after all nodes have forgotten its former
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// Creates a node number, or returns `None` if it is too large.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < NODES_MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the node's bit in a set of sharers.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// Iterates over the nodes of a set, which has one bit for each ([`NodeId::bit`]).
pub(crate) fn nodes(set: u32) -> impl Iterator<Item = NodeId> {
    (0..NODES_MAX)
        .filter_map(NodeId::new)
        .filter(move |node| set & node.bit() != 0)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The file.
    pub inode: u64,
    /// The page in the file, counted from 0.
    pub index: u64,
}

impl PageId {
    /// Returns a hash for tables of pages. Inodes and indices are small numbers, so all bits are
    /// mixed.
    #[must_use]
    pub const fn hash64(self) -> u64 {
        let mixed = (self.inode ^ self.index.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of inode {}", self.index, self.inode)
    }
}

/// Location of a page's only copy: a frame of the cluster, and the generation of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The frame, counted through all nodes' memory.
    pub frame: u32,
    /// Generation of the content. Each fill in the cluster has its own, which is never reused.
    pub generation: u64,
}

/// Purpose of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores. The directory remembers that the page may be dirty.
    Write,
}

/// A range of pages of one file to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The file.
    pub inode: u64,
    /// First page.
    pub start: u64,
    /// First page after the range.
    pub end: u64,
    /// Exclusive, or shared with other shared locks.
    pub exclusive: bool,
}

impl LockRange {
    /// Returns whether both cannot be held at the same time.
    #[must_use]
    pub const fn conflicts(&self, other: &Self) -> bool {
        self.inode == other.inode
            && (self.exclusive || other.exclusive)
            && self.start < other.end
            && other.start < self.end
    }
}

/// From a node to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToDirectory {
    /// The node offers memory to the cluster.
    Join {
        /// Frames for pages of any node.
        frames: u32,
        /// Number of pages that it may have unpublished, in addition to the frames.
        unpublished_pages: u32,
    },
    /// Looks up and locks a page. If the page is not in memory, the node gets an exclusive frame to
    /// fill.
    Lookup {
        /// The page.
        page: PageId,
        /// Purpose.
        access: Access,
    },
    /// The fill has ended: the page is unlocked, and other nodes may map it.
    Publish {
        /// Place of the page.
        place: Place,
    },
    /// The fill failed: the page is unlocked and not in memory.
    Abandon {
        /// Place that the page would have had.
        place: Place,
    },
    /// The node neither maps the page nor stores into it any more.
    Invalidated {
        /// Former place of the page.
        place: Place,
    },
    /// The owner's answer to [`ToNode::WriteBack`].
    WrittenBack {
        /// Place of the page.
        place: Place,
        /// Whether the store has the page as it was at the request.
        ok: bool,
    },
    /// Requests that the node's writes to the page be in the store.
    Flush {
        /// The page.
        page: PageId,
        /// Place of the page at the node's write.
        place: Place,
    },
    /// The node's programs used the page recently.
    Used {
        /// Place of the page.
        place: Place,
    },
    /// Requests the lock of a range of pages.
    Lock {
        /// The node's own number for this lock.
        ticket: u64,
        /// Range to lock.
        range: LockRange,
    },
    /// Releases a lock, or ends the wait for it.
    Unlock {
        /// The lock's number.
        ticket: u64,
    },
    /// First message, in answer to [`ToNode::Hello`]: identifies the peer.
    Hello {
        /// Nonce of the directory.
        nonce: u64,
        /// Nonce with which this node joined, if it rejoins a restarted directory; else 0.
        session: u64,
    },
    /// The node is alive. Contains its counters.
    Alive {
        /// Uses of pages in its own memory.
        hits_local: u64,
        /// Uses of pages in other nodes' memory.
        hits_remote: u64,
        /// Uses that waited for the directory.
        misses: u64,
        /// Pages read ahead.
        read_ahead: u64,
    },
    /// Writes of the node's programs that may not be in the store. Sent with [`Self::Alive`].
    Dirty {
        /// Number of their pages.
        pages: u64,
        /// Age of the oldest of them, milliseconds; 0 without any.
        oldest_ms: u64,
        /// Writes of a page by this node that the store refused, and failed syncs.
        write_back_failures: u64,
        /// Pages that were lost before they were in the store.
        lost_pages: u64,
    },
    /// The node wants to leave: the pages in its memory must leave it first.
    Leave {},
    /// The node has no place in a dead node's memory any more.
    Forgotten {
        /// The dead node.
        node: NodeId,
    },
    /// The node was a member before the directory was restarted; its state follows.
    Rejoin {
        /// Its first frame.
        first_frame: u32,
        /// Its frames.
        frames: u32,
    },
    /// The node maps this page.
    Have {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
        /// Permitted access.
        access: Access,
    },
    /// The node is filling this frame, and will publish or abandon it.
    Filling {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
        /// Granted access.
        access: Access,
    },
    /// A lock that the node holds or waits for.
    Relock {
        /// The lock's number.
        ticket: u64,
        /// Locked range.
        range: LockRange,
        /// Held, or waited for.
        held: bool,
    },
    /// The node's state is complete.
    HadAll {},
    /// A file of which a write was refused or lost. Precedes [`Self::FlushedAll`], which counts all
    /// of them; only the first are named.
    NotFlushed {
        /// Number of the request.
        ticket: u64,
        /// The file.
        inode: u64,
    },
    /// The answer to [`ToNode::FlushAll`].
    FlushedAll {
        /// Number of the request.
        ticket: u64,
        /// Number of dirty pages that are durable now.
        pages: u64,
        /// Number of files of which a write was refused or lost.
        failed: u64,
    },
    /// Requests a replica of a page that the node maps and reads often. There is no answer if the
    /// directory grants none.
    Replicate {
        /// Place of the page.
        place: Place,
    },
    /// The node does not read the replica any more.
    Dropped {
        /// Place of the replica.
        place: Place,
    },
    /// The answer to [`ToNode::Protect`].
    Protected {
        /// Place of the page.
        place: Place,
        /// Whether the node asks before its next store. If not, it may be storing.
        ok: bool,
    },
    /// Requests that all other nodes publish their unpublished pages of a file.
    PublishAll {
        /// The node's own number for this request.
        ticket: u64,
        /// The file.
        inode: u64,
    },
    /// The answer to [`ToNode::PublishFile`].
    PublishedFile {
        /// Number of the request.
        request: u64,
    },
}

/// From the directory to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToNode {
    /// The node has joined: these frames are its own.
    Joined {
        /// First frame.
        first_frame: u32,
        /// Number of frames: the rest of the budget, at most the offered number.
        frames: u32,
        /// Maximum number of unpublished pages, at most the requested number.
        unpublished_pages: u32,
    },
    /// The page is not in memory. The node has the frame exclusively, fills it, then publishes or
    /// abandons it.
    Fill {
        /// The page.
        page: PageId,
        /// The frame, and its new generation.
        place: Place,
        /// Permitted access after the fill.
        access: Access,
    },
    /// The page is in memory; the node may map it.
    Map {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
        /// Permitted access.
        access: Access,
    },
    /// The node must unmap the page, wait for stores and views to end, then acknowledge.
    Invalidate {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// The owner must write the page to the store if it is dirty.
    WriteBack {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// The answer to [`ToDirectory::Flush`].
    Flushed {
        /// The page.
        page: PageId,
        /// Place of the page at the node's write.
        place: Place,
        /// Whether the store has it.
        ok: bool,
    },
    /// The lock is held.
    Locked {
        /// The lock's number.
        ticket: u64,
    },
    /// A node died, and its memory with it.
    Died {
        /// The dead node.
        node: NodeId,
        /// Its first frame.
        first_frame: u32,
        /// Number of its frames.
        frames: u32,
    },
    /// First message to a peer.
    Hello {
        /// Nonce that the peer must return.
        nonce: u64,
    },
    /// No page is in the dead node's memory any more: its number and frames may be reused.
    Forget {
        /// The dead node.
        node: NodeId,
    },
    /// No page is in the memory of the node that asked to leave: it may leave.
    Left {},
    /// The node must make all its writes durable that may not be so, then answer.
    FlushAll {
        /// Number of the request, which no other directory of the pool uses.
        ticket: u64,
    },
    /// The node may copy the page into this frame of its own, and read it there.
    Replica {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
        /// Place of the replica.
        copy: Place,
    },
    /// The node must not read its replica of the page any more, then report that
    /// ([`ToDirectory::Dropped`]). A node without a replica of the page ignores it.
    DropReplica {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// The node should not store into the page before a lookup permits it, and must answer.
    Protect {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// The node must publish its unpublished pages of the file, then answer.
    PublishFile {
        /// Number of the request, which no other directory of the pool uses.
        request: u64,
        /// The file.
        inode: u64,
    },
    /// The answer to [`ToDirectory::PublishAll`].
    PublishedAll {
        /// The node's number for the request.
        ticket: u64,
    },
    /// The node may not join or rejoin.
    Refused {
        /// Reason.
        why: Refusal,
    },
}

/// Reason why a node may not join or rejoin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A node with its number is a member.
    NumberInUse,
    /// The directory knows no node with its number and nonce.
    Unknown,
    /// The directory cannot see its process, and could not end it.
    Unseen,
}

impl Refusal {
    /// Returns the error text of the refusal of `node`, with the remedy.
    #[must_use]
    pub fn of(self, node: NodeId) -> String {
        match self {
            Self::NumberInUse => {
                format!("{node} is in the cluster already\n    help: choose another number")
            }
            Self::Unknown => format!(
                "{node} was declared dead, or the pool was recreated: ITS UNFLUSHED WRITES MAY BE \
                 LOST\n    \
                 help: start it again"
            ),
            Self::Unseen => format!(
                "the directory cannot see the process of {node}, and could not end it if it \
                 hung\n    \
                 help: run both as one user, in one PID namespace"
            ),
        }
    }
}
