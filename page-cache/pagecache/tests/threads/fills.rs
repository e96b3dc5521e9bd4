//! Fills by reads of the store that occupy no thread.

use std::time::Duration;

use forebay_block::{ErrorKind, Result};
use forebay_pagecache::client::Held;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;

use crate::cluster::{Cluster, PAGE};
use crate::reads::READS_MAX;
use crate::stalls::{STALLED, begin};
use crate::{LONG, byte_of, page};

fn stalled(index: u64) -> PageId {
    PageId {
        inode: STALLED,
        index: 2 * index,
    }
}

#[test]
fn reads_in_flight_of_a_stalled_file_delay_no_other() {
    let cluster = Cluster::submitting(128, LONG);
    let node = &cluster.nodes[0];
    let mut out = [0; PAGE];
    node.write(page(0), 0, &[7; PAGE]).expect("it is written");
    cluster.shelf.stall(Some(STALLED));
    let few = READS_MAX as u64 / 2;
    let waiting: Vec<_> = (0..few).map(|index| begin(node, stalled(index))).collect();
    for index in 0..100 {
        let other = begin(node, page(2 * index + 10));
        let readable = other.recv_timeout(LONG).expect("it is filled");
        readable.expect("the store answers for other files");
        node.read(page(0), &mut out).expect("it is in memory");
        assert_eq!(byte_of(&out), 7);
    }
    assert!(waiting.iter().all(|outcome| outcome.try_recv().is_err()));
    cluster.shelf.stall(None);
    for outcome in waiting {
        let readable = outcome.recv_timeout(LONG).expect("it is filled");
        readable.expect("the store answers");
    }
}

#[test]
fn more_fills_than_reads_at_a_time_wait_for_each_other() {
    let cluster = Cluster::submitting(256, LONG);
    let node = &cluster.nodes[0];
    cluster.shelf.stall(Some(STALLED));
    let all = 8 * READS_MAX as u64;
    let waiting: Vec<_> = (0..all).map(|index| begin(node, stalled(index))).collect();
    cluster.shelf.stall(None);
    for outcome in waiting {
        let readable = outcome.recv_timeout(LONG).expect("it is filled");
        readable.expect("the store answers");
    }
}

#[test]
fn a_read_in_flight_that_fails_is_repeated_once_and_then_reported() {
    let cluster = Cluster::submitting(64, LONG);
    let node = &cluster.nodes[0];
    cluster.shelf.refuse_read(page(4));
    let before = cluster.shelf.requests().0;
    let outcomes = [2, 4, 6].map(|index| begin(node, page(index)));
    let ended = outcomes.map(|outcome| outcome.recv_timeout(LONG).expect("it has ended"));
    let ended = ended.map(|ended: Result<()>| ended.map_err(|error| error.kind()));
    assert_eq!(ended, [Ok(()), Err(ErrorKind::Io), Ok(())]);
    let reads = cluster.shelf.requests().0 - before;
    assert_eq!(reads, 4, "one of three is repeated by a thread");
}

#[test]
fn a_read_in_flight_ends_at_its_limit_and_the_fill_continues() {
    let limit = Duration::from_millis(300);
    let cluster = Cluster::submitting(64, limit);
    let node = &cluster.nodes[0];
    cluster.shelf.stall(Some(STALLED));
    let mut out = [1; PAGE];
    let late = node.read(stalled(0), &mut out).expect_err("it is stalled");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    cluster.shelf.stall(None);
    node.read(stalled(0), &mut out).expect("it is filled");
    assert_eq!(byte_of(&out), 0);
}

#[test]
fn threads_fill_runs_that_are_too_long_for_a_read_in_flight() {
    const PAGES: u64 = 32;
    let cluster = Cluster::submitting(256, LONG);
    let node = &cluster.nodes[0];
    let before = cluster.shelf.requests().0;
    node.look_up_range(page(0).inode, 0..PAGES)
        .expect("connected");
    let mut out = [1; PAGE];
    for index in 0..PAGES {
        node.read(page(index), &mut out).expect("it is read");
        assert_eq!(byte_of(&out), 0);
    }
    let reads = cluster.shelf.requests().0 - before;
    assert!(reads <= PAGES / 8, "{reads} reads of {PAGES} pages");
}

#[test]
fn held_packets_are_sent_by_a_later_call() {
    // Without a thread that sends for others.
    let cluster = Cluster::with_limit(1, 64, (Consistency::Strong, LONG), None);
    let node = &cluster.nodes[0];
    node.read(page(0), &mut [0; PAGE]).expect("it is read");
    // The join, the lookup, and the publication by another thread.
    while node.link().flushes() < 3 {
        std::thread::yield_now();
    }
    let held = node.hold_packets(|| {
        node.read(page(0), &mut [0; PAGE]).expect("it is in memory");
    });
    assert_eq!(held, Held::default(), "a hit sends nothing");
    let before = node.link().flushes();
    let mut outcome = None;
    let held = node.hold_packets(|| {
        cluster.shelf.stall(Some(page(1).inode));
        outcome = Some(begin(node, page(2)));
    });
    assert!(held.packets && held.waits);
    assert_eq!(node.link().flushes(), before);
    node.send_packets();
    assert_eq!(node.link().flushes(), before + 1);
    cluster.shelf.stall(None);
    let readable = outcome.map(|outcome| outcome.recv_timeout(LONG));
    let readable = readable.expect("it has begun").expect("it is filled");
    readable.expect("the store answers");
}

#[test]
fn the_thread_with_reads_in_flight_ends_with_the_node() {
    let cluster = Cluster::submitting(64, LONG);
    let node = &cluster.nodes[0];
    node.read(page(0), &mut [0; PAGE]).expect("it is read");
    cluster.kill(0);
    cluster.join_fillers();
}
