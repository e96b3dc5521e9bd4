//! Consecutive pages are read and written with one request of the store.

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
