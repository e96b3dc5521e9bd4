//! Report of the directory about the cluster.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::pool::Pool;

/// Longest wait for a directory's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// State of the cluster at one moment. Counters start at zero with their process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// Cached tree.
    pub source: String,
    /// Process of the directory.
    pub pid: u32,
    /// Number of starts of a directory on this pool, including this one.
    pub epoch: u64,
    /// Maximum bytes of pages in the cluster.
    pub capacity_bytes: u64,
    /// Size of a page, bytes.
    pub page_bytes: u64,
    /// Nodes that a restarted directory waits for. It answers no lookup before they have rejoined
    /// or are dead.
    pub awaited: Vec<u8>,
    /// Pages in memory, each once.
    pub pages: Pages,
    /// Lookups that found the page.
    pub found: u64,
    /// Lookups that were answered with a frame to fill.
    pub filled: u64,
    /// Pages whose invalidation has started.
    pub invalidations: u64,
    /// Pages that were evicted to make room.
    pub evicted: u64,
    /// Requested write-backs.
    pub write_backs: u64,
    /// Messages from nodes.
    pub messages_in: u64,
    /// Messages to nodes.
    pub messages_out: u64,
    /// Possibly dirty pages that were lost with nodes.
    pub lost_pages: u64,
    /// Dirty pages that outlived their node and were written back: `placement = "pool"`.
    #[serde(default)]
    pub rescued_pages: u64,
    /// Nodes that were ended because they did not answer.
    pub fenced: u64,
    /// Nodes that are members, or dead and not forgotten.
    pub nodes: Vec<NodeStatus>,
}

/// Number of pages by protocol state.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Pages {
    /// Being filled.
    pub exclusive: u32,
    /// Mapped only by their own node.
    pub owner: u32,
    /// Mapped by other nodes.
    pub shared: u32,
    /// Being evicted.
    pub to_be_invalidated: u32,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NodeStatus {
    /// Number of the node.
    pub id: u8,
    /// Process of the node.
    pub pid: u32,
    /// `alive`, `ending` or `dead`.
    pub state: String,
    /// Number of its frames.
    pub frames: u32,
    /// Pages in its frames.
    pub pages: Pages,
    /// Uses of pages in its own memory.
    pub hits_local: u64,
    /// Uses of pages in other nodes' memory.
    pub hits_remote: u64,
    /// Uses that waited for the directory.
    pub misses: u64,
    /// Pages read ahead.
    pub read_ahead: u64,
}

/// Requests the status from the directory of a pool.
///
/// # Errors
/// `NotFound` if no directory answers there, or errors of the system.
pub fn ask(pool: &Pool) -> Result<Status> {
    let mut stream = UnixStream::connect(pool.status_socket()).map_err(|error| {
        let context = format!(
            "no directory answers in the pool {}\n\
             help: start one with `forebay pagecache directory`, or name its pool with --pool",
            pool.path().display()
        );
        Error::with_source(ErrorKind::NotFound, context, error)
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| {
        let context = "the directory's answer is not a status; is it of another version?";
        Error::with_source(ErrorKind::Disconnected, context, error)
    })
}

impl Status {
    /// Returns the status as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
