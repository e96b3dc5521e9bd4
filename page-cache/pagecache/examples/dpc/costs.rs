//! Costs of the model. They were fixed before the first result, each with its source. The study
//! then varies the doubtful ones. No cost was chosen or changed because of a result.

use serde_json::{Value, json};

/// Size of a modelled page, bytes. In the model's own memory it is [`crate::pool::PAGE`] bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Declared costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    /// Time of a read or write call with all pages in memory, without the copies, ns. A cached read
    /// of 4 KiB through FUSE's kernel cache takes 650 ns on the machine of this project, of which
    /// 50 are the copy.
    pub(crate) call_ns: u64,
    /// Time to copy a page from or to local memory, ns: 710 measured on that machine, with cold
    /// caches.
    pub(crate) page_ns: u64,
    /// Additional time of a page in another node's memory, ns, beside its bytes on the link: 400. A
    /// load from DDR takes below 100 ns (The Next Platform, *Just how bad is CXL memory latency*,
    /// 2022). A load from a CXL card takes two to five times that (arXiv 2405.14209). So this is
    /// the slowest card of that range, including switches. It is charged once a page, since the
    /// lines of a copy overlap.
    pub(crate) remote_ns: u64,
    /// Bandwidth of each node's link to other nodes' memory, in either direction: 16 GB/s, the
    /// middle of the varied range. A page is charged to the links of both nodes.
    pub(crate) link_bytes_per_s: u64,
    /// Round trip of a message to the directory or the token server, ns: 4,000 measured over Unix
    /// sockets, the transport of this project. It is the same for all systems.
    pub(crate) round_trip_ns: u64,
    /// Time of the server's thread for a packet, ns: a quarter of a round trip, which has four
    /// ends.
    pub(crate) packet_ns: u64,
    /// Time for each message in a packet, ns: 10 million small requests a second and core (eRPC,
    /// NSDI '19).
    pub(crate) message_ns: u64,
    /// Latency of a read from the shared store, ns. The store is the flash drive over NVMe over
    /// Fabrics of this project's AdaCache study (`Costs::CLOUD` in planner/trace/src/sim/cost.rs
    /// has the sources).
    pub(crate) store_read_ns: u64,
    /// Latency of a write to the store, ns.
    pub(crate) store_write_ns: u64,
    /// Reads of the store a second.
    pub(crate) store_reads_per_s: u64,
    /// Writes to the store a second.
    pub(crate) store_writes_per_s: u64,
    /// Bandwidth of the store, bytes a second.
    pub(crate) store_bytes_per_s: u64,
    /// Additional time of a call that reaches the virtiofs daemon, ns: 100,000, the lower end of
    /// the write latency in summaries of DPC's paper.
    pub(crate) virtiofs_ns: u64,
}

impl Costs {
    /// Declared costs.
    pub(crate) const DECLARED: Self = Self {
        call_ns: 600,
        page_ns: 710,
        remote_ns: 400,
        link_bytes_per_s: 16_000_000_000,
        round_trip_ns: 4_000,
        packet_ns: 1_000,
        message_ns: 100,
        store_read_ns: 90_000,
        store_write_ns: 30_000,
        store_reads_per_s: 900_000,
        store_writes_per_s: 200_000,
        store_bytes_per_s: 3_500_000_000,
        virtiofs_ns: 100_000,
    };

    /// Returns the declared costs with the changes of a job.
    pub(crate) fn of(job: &Value) -> Self {
        let mut costs = Self::DECLARED;
        let set = |name: &str, cost: &mut u64| {
            if let Some(value) = job[name].as_u64() {
                *cost = value;
            }
        };
        set("remote_ns", &mut costs.remote_ns);
        set("link_bytes_per_s", &mut costs.link_bytes_per_s);
        set("round_trip_ns", &mut costs.round_trip_ns);
        if job["messages_free"] == 1 {
            costs = Self {
                round_trip_ns: 0,
                packet_ns: 0,
                message_ns: 0,
                ..costs
            };
        }
        costs
    }

    /// Returns all costs, by name.
    pub(crate) fn to_json(self) -> Value {
        let Self {
            call_ns,
            page_ns,
            remote_ns,
            link_bytes_per_s,
            round_trip_ns,
            packet_ns,
            message_ns,
            store_read_ns,
            store_write_ns,
            store_reads_per_s,
            store_writes_per_s,
            store_bytes_per_s,
            virtiofs_ns,
        } = self;
        json!({
            "call_ns": call_ns,
            "page_ns": page_ns,
            "remote_ns": remote_ns,
            "link_bytes_per_s": link_bytes_per_s,
            "round_trip_ns": round_trip_ns,
            "packet_ns": packet_ns,
            "message_ns": message_ns,
            "store_read_ns": store_read_ns,
            "store_write_ns": store_write_ns,
            "store_reads_per_s": store_reads_per_s,
            "store_writes_per_s": store_writes_per_s,
            "store_bytes_per_s": store_bytes_per_s,
            "virtiofs_ns": virtiofs_ns,
        })
    }

    /// Returns the time that `pages` reads or writes occupy the store, ns.
    pub(crate) fn store_service_ns(&self, pages: u64, per_s: u64) -> u64 {
        let operations = pages * 1_000_000_000 / per_s;
        operations.max(pages * PAGE_BYTES * 1_000_000_000 / self.store_bytes_per_s)
    }

    /// Returns the time that a page occupies a link, ns.
    pub(crate) fn link_ns(&self) -> u64 {
        PAGE_BYTES * 1_000_000_000 / self.link_bytes_per_s
    }
}
