//! Modelled time: what an operation takes by the declared costs, and what it waits for because
//! others use the same.

use crate::costs::{Costs, PAGE_BYTES};
use crate::pool::Did;

/// Something that serves one after another: the store, a link, the directory's thread. Operations
/// begin in the order of their clocks and are charged when they begin, so that it is a queue with
/// the arrivals in order.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    free_ns: u64,
}

impl Queue {
    /// How long who comes `now` waits and is served.
    fn take(&mut self, now_ns: u64, service_ns: u64) -> u64 {
        let start = self.free_ns.max(now_ns);
        self.free_ns = start + service_ns;
        self.free_ns - now_ns
    }
}

/// What all share.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) costs: Costs,
    store: Queue,
    server: Queue,
    /// Of each node's link, which is a link each way: what it fetches from others, and what others
    /// fetch from it.
    inward: Vec<Queue>,
    outward: Vec<Queue>,
}

/// What was counted after the caches were warm.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) pages: u64,
    pub(crate) hits_local: u64,
    pub(crate) hits_remote: u64,
    /// Pages that were somewhere in memory, but took a message: another node's copy, or the first
    /// use of its frame.
    pub(crate) first_remote: u64,
    pub(crate) store_reads: u64,
    pub(crate) store_writes: u64,
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) invalidations: u64,
    /// Reads of anything but what was written last.
    pub(crate) stale: u64,
    /// Modelled, of all operations, ns.
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

    /// Pages copied in the node's own memory.
    pub(crate) fn local(&mut self, pages: u64) {
        self.spent_ns += pages * self.machines.costs.page_ns;
    }

    /// A page copied from or to another node's memory. Both are charged as what they mostly are, a
    /// fetch.
    pub(crate) fn remote(&mut self, node: usize, host: usize) {
        let Costs {
            page_ns, remote_ns, ..
        } = self.machines.costs;
        let link_ns = self.machines.costs.link_ns();
        let ours = self.machines.inward[node].take(self.now_ns, link_ns);
        let theirs = self.machines.outward[host].take(self.now_ns, link_ns);
        // The queues count from the beginning of the operation: what it took itself is not waited
        // for twice.
        let waited = ours.max(theirs).saturating_sub(self.spent_ns).max(link_ns);
        self.spent_ns += page_ns + remote_ns + waited;
    }

    /// Packets to the server and back, and how many times one is waited for.
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
            // The round trip has the server's work for one packet each way in it; what others keep
            // it from is more.
            self.spent_ns += round_trips * round_trip_ns + served.saturating_sub(2 * packet_ns);
        }
    }

    /// Pages read from the store at once, and waited for.
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

    /// Pages written to the store at once; whether they are waited for.
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

    /// What a pool wrote to the store, waited for or not.
    pub(crate) fn pool_writes(&mut self, did: &Did) {
        self.store_writes(did.waited_writes, true);
        self.store_writes(did.store_writes - did.waited_writes, false);
    }

    /// Nothing goes on before `moment_ns`: another operation brings the page.
    pub(crate) fn wait_until(&mut self, moment_ns: u64) {
        self.spent_ns = self.spent_ns.max(moment_ns.saturating_sub(self.now_ns));
    }

    /// When the operation is over, if nothing else comes.
    pub(crate) const fn end_ns(&self) -> u64 {
        self.now_ns + self.spent_ns
    }
}

/// Bytes of so many pages.
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
