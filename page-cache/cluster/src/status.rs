//! What the directory says about the cluster.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::pool::Pool;

/// Longest wait for a directory's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cluster at one moment. Counters start at zero with the process that counts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// The tree that is cached.
    pub source: String,
    /// The directory's process.
    pub pid: u32,
    /// Starts of a directory on this pool, this one included.
    pub epoch: u64,
    /// Bytes of pages that the cluster may hold.
    pub capacity_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Nodes that a directory that was started anew waits for; it answers nobody before they are back or dead.
    pub awaited: Vec<u8>,
    /// Pages that are in memory: each once.
    pub pages: Pages,
    /// Lookups that found the page.
    pub found: u64,
    /// Lookups that had to be answered with a frame to fill.
    pub filled: u64,
    /// Pages whose invalidation was begun.
    pub invalidations: u64,
    /// Pages that were taken away to make room.
    pub evicted: u64,
    /// Write-backs that were asked for.
    pub write_backs: u64,
    /// Messages from nodes.
    pub messages_in: u64,
    /// Messages to nodes.
    pub messages_out: u64,
    /// Pages that nodes' deaths took with them and that may have been unsaved.
    pub lost_pages: u64,
    /// Dirty pages that outlived their node and were written back: `placement = "pool"`.
    #[serde(default)]
    pub rescued_pages: u64,
    /// Nodes that were ended because they did not answer.
    pub fenced: u64,
    /// Nodes that are there, or dead and not forgotten.
    pub nodes: Vec<NodeStatus>,
}

/// Pages by the state of the directory's protocol.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Pages {
    /// Being filled.
    pub exclusive: u32,
    /// Mapped by their own node alone.
    pub owner: u32,
    /// Mapped by others.
    pub shared: u32,
    /// Being taken away.
    pub to_be_invalidated: u32,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NodeStatus {
    /// Its number.
    pub id: u8,
    /// Its process.
    pub pid: u32,
    /// `alive`, `ending` or `dead`.
    pub state: String,
    /// Frames that it gives.
    pub frames: u32,
    /// Pages in them.
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

/// Asks the directory of a pool.
///
/// # Errors
/// `NotFound` if no directory answers there, or what the system says.
pub fn ask(pool: &Pool) -> Result<Status> {
    let mut stream = UnixStream::connect(pool.status_socket()).map_err(|error| {
        let context = format!(
            "no directory answers in the pool {}: start one with `forebay pagecache directory`, or name its pool with --pool",
            pool.path().display()
        );
        Error::with_source(ErrorKind::NotFound, context, error)
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| {
        let context = "the directory's answer is no status; is it of another version?";
        Error::with_source(ErrorKind::Disconnected, context, error)
    })
}

impl Status {
    /// As one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
