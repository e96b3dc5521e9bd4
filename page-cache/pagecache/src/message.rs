//! What nodes and the directory say to each other.
//!
//! Messages are small and copied; a batch is a packet of many (see [`crate::protocol`]). Links are in order: what
//! one side sends arrives in the order in which it was sent, or not at all because the other side died.

use std::fmt;

/// Most nodes that one directory knows at a time: a page's sharers are bits of one word.
pub const NODES_MAX: u8 = 32;

/// A node's number, below [`NODES_MAX`]. It is used again once everybody has forgotten the one that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// The node with this number, if there can be one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < NODES_MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number, to index with.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The node's bit in a set of sharers.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self.0
    }
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
    /// The page in it, counted from 0.
    pub index: u64,
}

impl PageId {
    /// A hash for tables of pages: inodes and indices are small numbers, so all their bits are mixed.
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

/// Where a page's only copy is: a frame of the cluster, and which use of that frame is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The frame, counted through all nodes' memory.
    pub frame: u32,
    /// The use of the frame: each fill in the cluster has a generation of its own, never used again.
    pub generation: u64,
}

/// What a mapping is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores. The directory remembers that the page may be dirty.
    Write,
}

/// A range of pages of one file that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The file.
    pub inode: u64,
    /// First page.
    pub start: u64,
    /// First page behind the range.
    pub end: u64,
    /// Alone, or with others that share.
    pub exclusive: bool,
}

impl LockRange {
    /// Whether both cannot be held at a time.
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
    /// The node gives memory to the cluster.
    Join {
        /// Frames for pages of any node.
        frames: u32,
        /// Pages that it may hold beside them before they are published.
        unpublished_pages: u32,
    },
    /// Look up and lock: where is the page? If nowhere, the node gets a frame to fill, alone.
    Lookup {
        /// The page.
        page: PageId,
        /// What for.
        access: Access,
    },
    /// The fill has ended: unlock, others may map the page.
    Publish {
        /// Where it is.
        place: Place,
    },
    /// The fill failed: unlock, the page is nowhere.
    Abandon {
        /// Where it would have been.
        place: Place,
    },
    /// The node neither maps nor stores into the page any more.
    Invalidated {
        /// Where the page was.
        place: Place,
    },
    /// The owner's answer to [`ToNode::WriteBack`].
    WrittenBack {
        /// Where the page is.
        place: Place,
        /// Whether the store has all that was in the page when it was asked.
        ok: bool,
    },
    /// What the node wrote to the page is to be in the store.
    Flush {
        /// The page.
        page: PageId,
        /// Where it was when the node wrote to it.
        place: Place,
    },
    /// The node's programs used the page lately.
    Used {
        /// Where the page is.
        place: Place,
    },
    /// The node wants a range of pages locked.
    Lock {
        /// The node's own number for this lock.
        ticket: u64,
        /// What to lock.
        range: LockRange,
    },
    /// The node lets go of a lock, or no longer waits for it.
    Unlock {
        /// The lock's number.
        ticket: u64,
    },
    /// First of all, in answer to [`ToNode::Hello`]: the peer is there now, and who it is.
    Hello {
        /// What the directory has said.
        nonce: u64,
        /// The nonce with which this node joined, if it comes back to a directory that was started anew; else 0.
        session: u64,
    },
    /// The node lives; what it has counted.
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
    /// The node wants to go: the pages in its memory are to leave it first.
    Leave {},
    /// The node has no place in a dead node's memory any more.
    Forgotten {
        /// The dead node.
        node: NodeId,
    },
    /// The node was here before the directory was started anew; what it has follows.
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
        /// Where.
        place: Place,
        /// What it may do with it.
        access: Access,
    },
    /// A lock that the node holds or waits for.
    Relock {
        /// The lock's number.
        ticket: u64,
        /// What is locked.
        range: LockRange,
        /// Held, or waited for.
        held: bool,
    },
    /// That was all that the node has.
    HadAll {},
}

/// From the directory to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToNode {
    /// The node is in: these frames are its own.
    Joined {
        /// The first.
        first_frame: u32,
        /// How many: what the budget had left, at most what was offered.
        frames: u32,
        /// Pages that it may hold before they are published, at most what was asked for.
        unpublished_pages: u32,
    },
    /// The page is nowhere; the node has the frame alone and fills it, then publishes or abandons.
    Fill {
        /// The page.
        page: PageId,
        /// The frame, and the generation to give it.
        place: Place,
        /// What may be done with it once it is filled.
        access: Access,
    },
    /// The page is there; the node may map it.
    Map {
        /// The page.
        page: PageId,
        /// Where.
        place: Place,
        /// What may be done with it.
        access: Access,
    },
    /// Unmap, wait for stores and views to end, then acknowledge.
    Invalidate {
        /// The page.
        page: PageId,
        /// Where it is.
        place: Place,
    },
    /// To the owner: write the page to the store if it is dirty.
    WriteBack {
        /// The page.
        page: PageId,
        /// Where it is.
        place: Place,
    },
    /// The answer to [`ToDirectory::Flush`].
    Flushed {
        /// The page.
        page: PageId,
        /// Where it was when the node wrote to it.
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
        /// Which.
        node: NodeId,
        /// Its first frame.
        first_frame: u32,
        /// How many it had.
        frames: u32,
    },
    /// What a peer hears first.
    Hello {
        /// A number to be said back: who does is there now.
        nonce: u64,
    },
    /// No page is in the dead node's memory any more: its number and its frames may come back as another's.
    Forget {
        /// Which.
        node: NodeId,
    },
    /// No page is in the memory of the node that asked to leave: it may go.
    Left {},
    /// The node may not join or come back.
    Refused {
        /// Why not.
        why: Refusal,
    },
}

/// Why a node may not join or come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A node with its number is there.
    NumberInUse,
    /// The directory knows nobody with its number who joined when it did.
    Unknown,
    /// The directory cannot see its process, and could not end it.
    Unseen,
}

impl Refusal {
    /// The refusal of `node` in words: why, and what to do.
    #[must_use]
    pub fn of(self, node: NodeId) -> String {
        match self {
            Self::NumberInUse => {
                format!("{node} is in the cluster already: choose another number")
            }
            Self::Unknown => format!(
                "{node} was declared dead, or the pool was made anew: start it again (what it wrote and had not flushed may be lost)"
            ),
            Self::Unseen => format!(
                "the directory cannot see the process of {node}, and could not end it if it hung: run both as one user, in one PID namespace"
            ),
        }
    }
}
