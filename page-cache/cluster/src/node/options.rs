//! Configuration of a node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_pagecache::client::Emulated;
use forebay_pagecache::message::NodeId;
use forebay_pagecache::node::Consistency;

use crate::coherence::Coherence;

/// Bounds of the default number of unpublished pages.
const UNPUBLISHED_MIN: u32 = 16;
const UNPUBLISHED_MAX: u32 = 128;

/// Least default limit of written pages.
const DIRTY_PAGES_MIN: usize = 16;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The pool.
    pub pool: PathBuf,
    /// Number in the cluster, which no other node has.
    pub id: NodeId,
    /// Memory that it offers to the cluster, in pages of [`crate::PAGE_BYTES`].
    pub pages: u32,
    /// Visibility of its writes.
    pub consistency: Consistency,
    /// Maximum number of unpublished pages.
    pub unpublished_pages: u32,
    /// Maximum number of pages of a read-ahead; 0 disables it.
    pub read_ahead_pages: u64,
    /// Whether this node has copies of pages in other nodes' memory.
    pub replicas: Replicas,
    /// Age at which written pages are put into the store, although no program has flushed them.
    pub expiry: Duration,
    /// Number of written pages above which all are put into the store, whatever their age. Above
    /// twice as many, an operation that writes waits for the store, at most for
    /// [`THROTTLE_MAX`](crate::node::THROTTLE_MAX).
    pub dirty_pages: usize,
    /// Time of the write-back of a file that a program closes.
    pub write_back: WriteBack,
    /// Number of threads for I/O of the store: its queue depth, without direct reads by io_uring.
    pub io_threads: usize,
    /// Longest wait of an operation for the source or the directory. A flush that gives up leaves
    /// its data in memory, to be written back later.
    pub limit: Duration,
    /// Coherence of the processors' caches with the pool.
    pub coherence: Coherence,
    /// Emulated delay of copies from or to other nodes' memory.
    pub emulated: Option<Emulated>,
    /// Time to wait for a directory, at the join and after the directory is gone. Programs wait as
    /// long.
    pub patience: Duration,
}

/// Copies of pages in other nodes' memory, for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// None: each page has one copy in the cluster.
    #[default]
    None,
    /// In frames of this node that nothing else needs. They leave before any page does, and before
    /// a write to their page.
    Idle,
}

/// Time of the write-back of a file that a program closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBack {
    /// At the expiry of its writes.
    #[default]
    Expiry,
    /// At the close, which waits for it.
    Close,
}

impl Options {
    /// Returns the options of a node of `pages` pages with strong consistency.
    #[must_use]
    pub fn new(pool: &Path, id: NodeId, pages: u32) -> Self {
        Self {
            pool: pool.to_owned(),
            id,
            pages,
            consistency: Consistency::Strong,
            // Writes of whole pages that are in progress at a time.
            unpublished_pages: (pages / 256).clamp(UNPUBLISHED_MIN, UNPUBLISHED_MAX),
            read_ahead_pages: 32,
            replicas: Replicas::None,
            expiry: Duration::from_secs(30),
            dirty_pages: (pages as usize / 5).max(DIRTY_PAGES_MIN),
            write_back: WriteBack::Expiry,
            io_threads: 16,
            limit: Duration::from_secs(60),
            coherence: Coherence::Hardware,
            emulated: None,
            patience: Duration::from_secs(60),
        }
    }
}
