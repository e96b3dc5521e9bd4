//! Consecutive pages are read and written with one request of the store.

use std::sync::atomic::Ordering;

use forebay_pagecache::node::Consistency;

use crate::cluster::{Cluster, PAGE};
use crate::{byte_of, page};

const PAGES: u64 = 64;

#[test]
fn consecutive_pages_take_few_requests() {
    let cluster = Cluster::new(1, 256, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    for index in 0..PAGES {
        node.write(page(index), 0, &[7; PAGE])
            .expect("it is written");
    }
    node.fsync(page(0).inode).expect("the store answers");
    let (_, writes) = cluster.shelf.requests();
    assert!(writes <= PAGES / 8, "{writes} writes of {PAGES} pages");
    for index in 0..PAGES {
        assert_eq!(byte_of(&cluster.shelf.page(page(index))), 7, "page {index}");
    }

    let before = cluster.shelf.requests().0;
    node.look_up_range(page(0).inode, 1000..1000 + PAGES / 2)
        .expect("connected");
    let mut out = [0; PAGE];
    for index in 1000..1000 + PAGES / 2 {
        node.read(page(index), &mut out).expect("it is read");
    }
    let reads = cluster.shelf.requests().0 - before;
    assert!(reads <= PAGES / 8, "{reads} reads of {} pages", PAGES / 2);
}

#[test]
fn an_unreadable_page_fails_alone() {
    let cluster = Cluster::new(1, 256, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    cluster.shelf.refuse_read(page(5));
    node.look_up_range(page(0).inode, 0..16).expect("connected");
    let mut out = [0; PAGE];
    for index in 0..16 {
        let read = node.read(page(index), &mut out);
        assert_eq!(read.is_ok(), index != 5, "page {index}");
    }
}

#[test]
fn evictions_of_clean_pages_share_packets() {
    const PAGES: u64 = 400;
    let cluster = Cluster::new(1, 64, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for index in 0..PAGES {
        let read = cluster.nodes[0].read(page(2 * index), &mut out);
        read.expect("it is read");
    }
    // Each page has a lookup and a publication.
    let packets = cluster.sent.load(Ordering::Relaxed);
    assert!(packets <= PAGES * 5 / 2, "{packets} packets");
}

#[test]
fn whole_pages_that_are_written_together_share_packets() {
    const PAGES: usize = 40;
    let cluster = Cluster::new(2, 128, Consistency::Strong, None);
    let bytes: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8 + 1; PAGE]).collect();
    let mut out = [0; PAGE];
    // Then it has joined.
    cluster.nodes[0]
        .read(page(0), &mut out)
        .expect("it is read");
    let sent = cluster.sent.load(Ordering::Relaxed);
    let mut stored = 0;
    let written = cluster.nodes[0].write_pages(page(3), &bytes, || stored += 1);
    written.expect("it is written");
    assert_eq!(stored, PAGES);
    // Lookups of two pages at a time, and their publications.
    let packets = cluster.sent.load(Ordering::Relaxed) - sent;
    assert!(packets <= PAGES as u64 * 2 * 3 / 4, "{packets} packets");
    for index in 0..PAGES {
        let read = cluster.nodes[1].read(page(3 + index as u64), &mut out);
        read.expect("it is read");
        assert_eq!(out, [index as u8 + 1; PAGE]);
    }
}
