//! Report of the directory about the cluster.

use forebay_terminal::record::{Holds, Value, Valued};
use forebay_terminal::records;

records! {
    /// State of the cluster at one moment. Counters start at zero with their process.
    #[derive(Default)]
    pub struct Status {
        /// Cached tree.
        source: String => label("source");
        /// Process of the directory.
        pid: u32;
        /// Number of starts of a directory on this pool, including this one.
        epoch: u64 => gauge("forebay_pagecache_directory_starts");
        /// Maximum bytes of pages in the cluster.
        capacity_bytes: u64 => gauge("forebay_pagecache_capacity_bytes");
        /// Size of a page.
        page_bytes: u64 => gauge("forebay_pagecache_page_bytes");
        /// Nodes that a restarted directory waits for. It answers no lookup before they have
        /// rejoined or are dead.
        awaited: Vec<u8> => gauge(
            "forebay_pagecache_awaited_nodes",
            "Nodes that a restarted directory waits for."
        );
        /// Pages in memory, each once, and replicas.
        pages: Pages;
        /// Lookups that found the page.
        found: u64 => counter("forebay_pagecache_found_lookups_total");
        /// Lookups that were answered with a frame to fill.
        filled: u64 => counter("forebay_pagecache_filled_lookups_total");
        /// Pages whose invalidation has started.
        invalidations: u64 => counter("forebay_pagecache_invalidated_pages_total");
        /// Pages that were evicted to make room.
        evicted: u64 => counter("forebay_pagecache_evicted_pages_total");
        /// Requested write-backs.
        write_backs: u64 => counter("forebay_pagecache_write_backs_total");
        /// Messages from nodes.
        messages_in: u64 => counter("forebay_pagecache_messages_in_total");
        /// Messages to nodes.
        messages_out: u64 => counter("forebay_pagecache_messages_out_total");
        /// Possibly dirty pages that were lost with nodes.
        lost_pages: u64 => counter("forebay_pagecache_lost_pages_total");
        /// Dirty pages that outlived their node and were written back: `placement = "pool"`.
        #[serde(default)]
        rescued_pages: u64 => counter("forebay_pagecache_rescued_pages_total");
        /// Nodes that were ended because they did not answer.
        fenced: u64 => counter("forebay_pagecache_fenced_nodes_total");
        /// Nodes that are members, or dead and not forgotten.
        nodes: Vec<NodeStatus> => records(always);
    }

    /// Number of pages by protocol state.
    #[derive(Copy, Default)]
    pub struct Pages {
        /// Pages that are being filled.
        exclusive: u32 => gauge("forebay_pagecache_exclusive_pages");
        /// Pages that only their own node maps.
        owner: u32 => gauge("forebay_pagecache_owner_pages");
        /// Pages that other nodes map.
        shared: u32 => gauge("forebay_pagecache_shared_pages");
        /// Pages that are being evicted.
        to_be_invalidated: u32 => gauge("forebay_pagecache_to_be_invalidated_pages");
        /// Replicas: copies for reads of one node.
        #[serde(default)]
        replicas: u32 => gauge("forebay_pagecache_replica_pages");
    }

    /// A node.
    #[derive(Default)]
    pub struct NodeStatus {
        /// Number of the node.
        id: u8 => label("node");
        /// Process of the node.
        pid: u32;
        /// `alive`, `ending` or `dead`.
        state: String => info("forebay_pagecache_node_info", state, "The node's state.");
        /// Number of its frames.
        frames: u32 => gauge("forebay_pagecache_frames");
        /// Pages in its frames.
        pages: Pages => records(always);
        /// Uses of pages in its own memory.
        hits_local: u64 => counter("forebay_pagecache_local_hits_total");
        /// Uses of pages in other nodes' memory.
        hits_remote: u64 => counter("forebay_pagecache_remote_hits_total");
        /// Uses that waited for the directory.
        misses: u64 => counter("forebay_pagecache_misses_total");
        /// Pages read ahead.
        read_ahead: u64 => counter("forebay_pagecache_read_ahead_pages_total");
        /// Writes of its programs.
        #[serde(default)]
        written: WrittenStatus => records(always);
    }
    columns:
        id "node"
        pid "process"
        state "state"
        hits_local ">hits here"
        hits_remote ">hits elsewhere"
        misses ">misses"
        read_ahead ">read ahead";

    /// Writes of a node's programs.
    #[derive(Copy, Default)]
    pub struct WrittenStatus {
        /// Written pages that may not be in the source. Evicted ones count until the next
        /// write-back.
        dirty_bytes: u64 => gauge("forebay_pagecache_dirty_bytes");
        /// Age of the oldest of them.
        oldest_s: u64 => gauge("forebay_pagecache_oldest_dirty_seconds");
        /// Writes of a page by this node that the source refused, and failed syncs.
        failures: u64 => counter("forebay_pagecache_write_back_failures_total");
        /// Pages that were lost before they were in the source.
        lost_pages: u64 => counter("forebay_pagecache_lost_written_pages_total");
    }
    columns:
        dirty_bytes ">dirty"
        oldest_s ">oldest"
        failures ">failed write-backs"
        lost_pages ">lost pages";
}

/// Lets the table show the only record of a field.
macro_rules! nested {
    ($($record:ty),+) => {$(
        impl Holds for $record {
            type Of = Self;
        }

        impl Valued for $record {
            fn value(&self) -> Value<'_> {
                Value::Records(vec![self])
            }
        }
    )+};
}
nested!(Pages, WrittenStatus);

impl Status {
    /// Returns the status as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
