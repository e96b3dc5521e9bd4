//! Each system against a naive model of its promise, and against counts that are easy to verify.

use std::collections::HashMap;

use forebay_io::sim::Rng;
use forebay_pagecache::message::PageId;

use crate::clock::{Counts, Machines, Meter};
use crate::costs::Costs;
use crate::run::{Copies, System};
use crate::workload::Operation;

const STRONG: [&str; 6] = [
    "one-node",
    "dpc-strong",
    "dpc-replicas",
    "page-tokens",
    "extent-tokens",
    "n-chance",
];
const ALL: [&str; 8] = [
    "one-node",
    "dpc-strong",
    "dpc-replicas",
    "page-tokens",
    "extent-tokens",
    "n-chance",
    "dpc-relaxed",
    "close-to-open",
];

struct Desk {
    system: System,
    machines: Machines,
    counts: Counts,
    version: u64,
    newest: HashMap<PageId, u64>,
    stale: u64,
    spent_ns: u64,
}

impl Desk {
    fn new(name: &str, nodes: usize, pages: u32) -> Self {
        Self {
            system: System::new(name, nodes, pages, true).expect("there is one"),
            machines: Machines::new(Costs::DECLARED, nodes),
            counts: Counts::default(),
            version: 0,
            newest: HashMap::new(),
            stale: 0,
            spent_ns: 0,
        }
    }

    fn run(&mut self, node: usize, operation: &Operation) {
        self.version += 1;
        let mut meter = Meter {
            machines: &mut self.machines,
            counts: &mut self.counts,
            // Late enough for all earlier operations to have ended.
            now_ns: self.version * 1_000_000_000,
            spent_ns: 0,
        };
        let seen = self.system.run(node, operation, self.version, &mut meter);
        self.spent_ns = meter.spent_ns;
        assert_eq!(seen.len(), operation.reads.len(), "each page is read once");
        for (page, version) in seen {
            let newest = self.newest.get(&page).copied().unwrap_or(0);
            self.stale += u64::from(version != newest);
        }
        let wrote = operation.writes.iter().map(|page| (*page, self.version));
        self.newest.extend(wrote);
    }

    fn read(&mut self, node: usize, index: u64) {
        self.run(node, &pages(index..index + 1, 0..0, false));
    }

    fn write(&mut self, node: usize, index: u64) {
        self.run(node, &pages(0..0, index..index + 1, false));
    }
}

fn pages(reads: std::ops::Range<u64>, writes: std::ops::Range<u64>, session: bool) -> Operation {
    let inode = 7;
    let page = |index| PageId { inode, index };
    Operation {
        inode,
        file_pages: 1024,
        session,
        grows: false,
        reads: reads.map(page).collect(),
        writes: writes.map(page).collect(),
        fsync: false,
    }
}

/// Runs random operations in too little memory. Returns the number of stale reads.
fn anything(name: &str, sessions: bool) -> u64 {
    let mut desk = Desk::new(name, 3, 320);
    let rng = Rng::new(11);
    for _ in 0..6000 {
        let (start, len) = (rng.below(600), 1 + rng.below(4));
        let range = start..start + len;
        let mut operation = match rng.chance(1, 3) {
            true => pages(0..0, range, sessions),
            false => pages(range, 0..0, sessions),
        };
        operation.fsync = rng.chance(1, 20);
        operation.grows = rng.chance(1, 4);
        desk.run(rng.index(3), &operation);
    }
    desk.stale
}

#[test]
fn the_strong_never_read_anything_but_the_newest() {
    for name in STRONG {
        assert_eq!(anything(name, false), 0, "{name}, files that stay open");
        assert_eq!(anything(name, true), 0, "{name}, files that are closed");
    }
}

#[test]
fn a_close_is_visible_to_the_next_open() {
    for name in ALL {
        assert_eq!(anything(name, true), 0, "{name}");
    }
}

#[test]
fn files_that_stay_open_may_be_stale_under_close_to_open() {
    // This also shows that the test above finds a stale read if there is one.
    assert!(anything("close-to-open", false) > 0);
}

#[test]
fn the_distributed_cache_has_one_copy_of_a_page_and_private_caches_have_more() {
    for (name, most) in [
        ("one-node", 1),
        ("dpc-strong", 1),
        ("dpc-relaxed", 1),
        ("page-tokens", 3),
        ("close-to-open", 3),
    ] {
        let mut desk = Desk::new(name, 3, 320);
        for node in 0..3 {
            desk.run(node, &pages(0..32, 0..0, true));
        }
        let copies = Copies::of(desk.system.copies());
        assert_eq!((copies.most, copies.mean), (most, most as f64), "{name}");
        let reads = if most == 1 { 32 } else { 96 };
        assert_eq!(desk.counts.store_reads, reads, "{name}");
    }
}

#[test]
fn the_last_copy_is_passed_on_and_a_page_comes_from_a_peer() {
    let mut desk = Desk::new("n-chance", 2, 320);
    desk.read(0, 1);
    desk.read(1, 1);
    assert_eq!(desk.counts.store_reads, 1, "the second is the first's");
    assert_eq!(desk.counts.first_remote, 1);
    // Node 0 reads more than its memory: the rest is in node 1's memory and not read a second time.
    for index in 100..500 {
        desk.read(0, index);
    }
    let reads = desk.counts.store_reads;
    assert_eq!(reads, 401);
    for index in 100..500 {
        desk.read(0, index);
    }
    assert!(desk.counts.store_reads < reads + 200, "{:?}", desk.counts);
}

#[test]
fn a_token_is_asked_for_once_and_a_writer_takes_it() {
    for (name, messages) in [("page-tokens", [20, 20]), ("extent-tokens", [2, 4])] {
        let mut desk = Desk::new(name, 2, 320);
        for index in 0..10 {
            desk.read(0, index);
        }
        assert_eq!(desk.counts.messages, messages[0], "{name}");
        for index in 0..10 {
            desk.read(0, index);
        }
        assert_eq!(desk.counts.messages, messages[0], "{name}: they are kept");
        assert_eq!(desk.counts.hits_local, 10, "{name}");
        let before = desk.counts;
        desk.write(1, 0);
        assert_eq!(desk.counts.messages - before.messages, 4, "asked, revoked");
        let gone = if name == "page-tokens" { 1 } else { 10 };
        assert_eq!(desk.counts.invalidations, gone, "{name}");
        // The writer's data is in the store before another node reads it.
        desk.read(0, 0);
        assert_eq!(desk.counts.store_writes, 1, "{name}");
        assert_eq!(desk.stale, 0, "{name}");
    }
}

#[test]
fn a_mapped_page_costs_no_message_and_a_declared_time() {
    let mut desk = Desk::new("dpc-strong", 2, 320);
    desk.read(0, 1);
    let Costs {
        call_ns,
        page_ns,
        remote_ns,
        round_trip_ns,
        store_read_ns,
        ..
    } = Costs::DECLARED;
    assert!(desk.spent_ns > call_ns + page_ns + round_trip_ns + store_read_ns);
    let before = desk.counts;
    desk.read(0, 1);
    assert_eq!(desk.spent_ns, call_ns + page_ns, "in its own memory");
    desk.read(1, 1);
    assert_eq!(desk.counts.first_remote, 1);
    let first = desk.counts;
    assert_eq!(first.messages - before.messages, 2, "a lookup and a place");
    desk.read(1, 1);
    assert_eq!(desk.counts.messages, first.messages);
    assert_eq!(desk.counts.hits_remote, 1);
    assert_eq!(desk.spent_ns, call_ns + page_ns + remote_ns + 256);
}

#[test]
fn an_fsync_is_in_the_store() {
    for name in STRONG {
        let mut desk = Desk::new(name, 2, 320);
        let mut operation = pages(0..0, 0..8, true);
        operation.fsync = true;
        desk.run(1, &operation);
        assert_eq!(desk.counts.store_writes, 8, "{name}");
        assert!(desk.spent_ns > Costs::DECLARED.store_write_ns, "{name}");
        let System::Shared(_) = desk.system else {
            continue;
        };
        // A second flush has nothing to write.
        desk.run(
            1,
            &Operation {
                writes: Vec::new(),
                ..operation
            },
        );
        assert_eq!(desk.counts.store_writes, 8, "{name}");
    }
}
