//! Modelled time: the declared costs of an operation, and its waits for shared resources.

use crate::costs::{Costs, PAGE_BYTES};
use crate::pool::Did;

/// A resource that serves one request after another: the store, a link, the directory's thread.
/// Operations are charged at their start, in the order of their clocks, so arrivals are in order.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    free_ns: u64,
}

impl Queue {
    /// Returns the time that a request arriving at `now` waits and is served.
    fn take(&mut self, now_ns: u64, service_ns: u64) -> u64 {
        let start = self.free_ns.max(now_ns);
        self.free_ns = start + service_ns;
        self.free_ns - now_ns
    }
}

/// Shared resources.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) costs: Costs,
    store: Queue,
    server: Queue,
    /// Link of each node, one for each direction: fetches from other nodes, and fetches by them.
    inward: Vec<Queue>,
    outward: Vec<Queue>,
}

/// Counts after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) pages: u64,
    pub(crate) hits_local: u64,
    pub(crate) hits_remote: u64,
    /// Pages in memory that took a message: another node's copy, or the first use of its frame.
    pub(crate) first_remote: u64,
    pub(crate) store_reads: u64,
    pub(crate) store_writes: u64,
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) invalidations: u64,
    /// Reads that did not return the latest write.
    pub(crate) stale: u64,
    /// Modelled time of all operations, ns.
    pub(crate) time_ns: u64,
}

impl Machines {
    pub(crate) fn new(costs: Costs, nodes: usize) -> Self {
        Self {
            costs,
            store: Queue::default(),
            server: Queue::default(),
            inward: vec![Queue::default(); nodes],
            outward: vec![Queue::default(); nodes],
        }
    }
}

/// One operation's time and counts.
pub(crate) struct Meter<'a> {
    pub(crate) machines: &'a mut Machines,
    pub(crate) counts: &'a mut Counts,
    pub(crate) now_ns: u64,
    pub(crate) spent_ns: u64,
}

impl Meter<'_> {
    /// A call into the cache.
    pub(crate) fn call(&mut self) {
        self.spent_ns += self.machines.costs.call_ns;
    }

    /// Charges pages copied in the node's own memory.
    pub(crate) fn local(&mut self, pages: u64) {
        self.spent_ns += pages * self.machines.costs.page_ns;
    }

    /// Charges a page copied from or to another node's memory. Both directions are charged as the
    /// more frequent one, a fetch.
    pub(crate) fn remote(&mut self, node: usize, host: usize) {
        let Costs {
            page_ns, remote_ns, ..
        } = self.machines.costs;
        let link_ns = self.machines.costs.link_ns();
        let ours = self.machines.inward[node].take(self.now_ns, link_ns);
        let theirs = self.machines.outward[host].take(self.now_ns, link_ns);
        // The queues count from the start of the operation, so its own time is not charged twice.
        let waited = ours.max(theirs).saturating_sub(self.spent_ns).max(link_ns);
        self.spent_ns += page_ns + remote_ns + waited;
    }

    /// Charges the links for a page that a node copies into a replica. No program waits for it.
    pub(crate) fn replicate(&mut self, node: usize, host: usize) {
        let link_ns = self.machines.costs.link_ns();
        self.machines.inward[node].take(self.now_ns, link_ns);
        self.machines.outward[host].take(self.now_ns, link_ns);
    }

    /// Charges packets to the server and back, and the number of round trips that are waited for.
    pub(crate) fn messages(&mut self, packets: u64, messages: u64, round_trips: u64) {
        self.counts.packets += packets;
        self.counts.messages += messages;
        let Costs {
            round_trip_ns,
            packet_ns,
            message_ns,
            ..
        } = self.machines.costs;
        let service = packets * packet_ns + messages * message_ns;
        let served = self.machines.server.take(self.now_ns, service);
        if round_trips > 0 {
            // A round trip includes the server's work for one packet in each direction; further
            // queueing is added.
            self.spent_ns += round_trips * round_trip_ns + served.saturating_sub(2 * packet_ns);
        }
    }

    /// Charges pages read from the store in parallel and waited for.
    pub(crate) fn store_reads(&mut self, pages: u64) {
        if pages == 0 {
            return;
        }
        self.counts.store_reads += pages;
        let costs = self.machines.costs;
        let service = costs.store_service_ns(pages, costs.store_reads_per_s);
        let served = self.machines.store.take(self.now_ns, service);
        self.spent_ns += costs.store_read_ns + served;
    }

    /// Charges pages written to the store in parallel; `waits` says whether they are waited for.
    pub(crate) fn store_writes(&mut self, pages: u64, waits: bool) {
        if pages == 0 {
            return;
        }
        self.counts.store_writes += pages;
        let costs = self.machines.costs;
        let service = costs.store_service_ns(pages, costs.store_writes_per_s);
        let served = self.machines.store.take(self.now_ns, service);
        if waits {
            self.spent_ns += costs.store_write_ns + served;
        }
    }

    /// Charges a pool's writes to the store.
    pub(crate) fn pool_writes(&mut self, did: &Did) {
        self.store_writes(did.waited_writes, true);
        self.store_writes(did.store_writes - did.waited_writes, false);
    }

    /// Waits until `moment_ns`, at which another operation has filled the page.
    pub(crate) fn wait_until(&mut self, moment_ns: u64) {
        self.spent_ns = self.spent_ns.max(moment_ns.saturating_sub(self.now_ns));
    }

    /// Returns the current end of the operation.
    pub(crate) const fn end_ns(&self) -> u64 {
        self.now_ns + self.spent_ns
    }
}

/// Returns the size of this number of pages, bytes.
pub(crate) const fn bytes(pages: u64) -> u64 {
    pages * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_operation_waits_for_an_earlier_one() {
        let mut queue = Queue::default();
        assert_eq!(queue.take(100, 10), 10);
        assert_eq!(queue.take(105, 10), 15);
        assert_eq!(queue.take(200, 10), 10, "nobody is there any more");
    }

    #[test]
    fn a_store_that_is_full_is_waited_for() {
        let mut machines = Machines::new(Costs::DECLARED, 1);
        let mut counts = Counts::default();
        let mut spent = Vec::new();
        for _ in 0..2 {
            let mut meter = Meter {
                machines: &mut machines,
                counts: &mut counts,
                now_ns: 0,
                spent_ns: 0,
            };
            meter.store_reads(1000);
            spent.push(meter.spent_ns);
        }
        let service = 1000 * 4096 * 10 / 35;
        assert_eq!(spent, [90_000 + service, 90_000 + 2 * service]);
        assert_eq!(counts.store_reads, 2000);
    }

    #[test]
    fn remote_pages_of_one_operation_follow_each_other_on_the_link() {
        let mut machines = Machines::new(Costs::DECLARED, 2);
        let mut counts = Counts::default();
        let mut meter = Meter {
            machines: &mut machines,
            counts: &mut counts,
            now_ns: 0,
            spent_ns: 0,
        };
        for _ in 0..10 {
            meter.remote(0, 1);
        }
        assert_eq!(meter.spent_ns, 10 * (710 + 400 + 256));
    }
}
