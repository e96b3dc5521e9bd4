//! Write-back of writes that no program flushes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_block::ErrorKind;
use forebay_pagecache::client::FlushedAll;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::{Consistency, Dirty};

use crate::cluster::{Cluster, Node, PAGE};
use crate::{byte_of, page};

const NO_LIMIT: usize = usize::MAX;

/// Time since the start of a node.
const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn writes_are_stored_when_they_have_their_age() {
    for consistency in [Consistency::Strong, Consistency::Relaxed] {
        let cluster = Cluster::new(2, 64, consistency, None);
        let [a, b] = cluster.pair();
        let stored = |index| byte_of(&cluster.shelf.page(page(index)));
        a.write(page(3), 0, &[7; PAGE]).expect("it is written");
        a.write_back_expired(at(1), at(2), NO_LIMIT)
            .expect("connected");
        assert_eq!(stored(3), 0, "it is one second old");
        a.write(page(4), 0, &[8; PAGE]).expect("it is written");
        // The age is that of the first write.
        a.write(page(3), 0, &[9; PAGE]).expect("it is written");
        b.write_back_expired(at(2), at(1), NO_LIMIT)
            .expect("connected");
        assert_eq!(stored(3), 0, "another node's write-back");
        a.write_back_expired(at(2), at(2), NO_LIMIT)
            .expect("connected");
        assert_eq!(stored(3), 9);
    }
}

#[test]
fn more_written_pages_than_the_limit_are_stored_at_any_age() {
    let cluster = Cluster::new(1, 64, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    for index in 0..4 {
        node.write(page(index), 0, &[7; PAGE])
            .expect("it is written");
    }
    let stored = || byte_of(&cluster.shelf.page(page(0)));
    node.write_back_expired(at(1), at(100), 4)
        .expect("connected");
    assert_eq!(stored(), 0);
    node.write_back_expired(at(1), at(100), 3)
        .expect("connected");
    assert_eq!(stored(), 7);
}

/// The write-back has no user to report to. The next flush reports, once, and repeats it.
#[test]
fn a_refused_write_back_is_reported_by_the_next_flush() {
    for is_repaired in [true, false] {
        let cluster = Cluster::new(1, 64, Consistency::Strong, None);
        let node = &cluster.nodes[0];
        node.write(page(1), 0, &[7; PAGE]).expect("it is written");
        cluster.shelf.refuse(true);
        node.write_back_expired(at(1), at(1), NO_LIMIT)
            .expect("connected");
        cluster.shelf.refuse(!is_repaired);
        let flushed = node.fsync(1);
        match is_repaired {
            true => flushed.expect("the store has it now"),
            false => {
                let error = flushed.expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::Lost);
            }
        }
        let stored = byte_of(&cluster.shelf.page(page(1)));
        assert_eq!(stored, if is_repaired { 7 } else { 0 });
    }
}

/// The counters that a node reports: amount and age of its dirty data, failures and losses.
#[test]
fn dirty_data_is_counted_until_it_is_stored_or_lost() {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let [a, b] = cluster.pair();
    assert_eq!(b.dirty(), Dirty::default());
    // The age is that of the oldest write.
    for (index, now) in [(1, 5), (2, 9)] {
        b.write_back_expired(at(now), at(100), NO_LIMIT)
            .expect("connected");
        b.write(page(index), 0, &[7; PAGE]).expect("it is written");
    }
    let dirty = |pages, since| Dirty { pages, since };
    assert_eq!(b.dirty(), dirty(2, Some(at(5))));
    cluster.shelf.refuse(true);
    b.fsync(1).expect_err("refused");
    assert_eq!(b.dirty(), dirty(2, Some(at(5))));
    assert_eq!(b.counts().write_back_failures, 2);
    cluster.shelf.refuse(false);
    b.fsync(1).expect("the store has it now");
    assert_eq!(b.dirty(), Dirty::default());
    // In the memory of a node that dies.
    let mut out = [0; PAGE];
    a.read(page(3), &mut out).expect("it is read");
    b.write(page(3), 0, &[9; 8]).expect("it is written");
    assert_eq!(b.dirty().pages, 1);
    cluster.kill(0);
    b.fsync(1).expect_err("lost");
    assert_eq!(b.dirty(), Dirty::default());
    assert_eq!(b.counts().lost_pages, 1);
}

/// A flush of all files has no program to report to.
#[test]
fn a_flush_of_all_files_syncs_them_and_leaves_the_report_to_programs() {
    let cluster = Cluster::new(2, 64, Consistency::Relaxed, None);
    let [a, b] = cluster.pair();
    let of = |inode, index| PageId { inode, index };
    for (inode, index) in [(1, 0), (1, 1), (2, 0)] {
        a.write(of(inode, index), 0, &[7; PAGE])
            .expect("it is written");
    }
    b.write(of(3, 0), 0, &[8; PAGE]).expect("it is written");
    let flushed = |pages, failed: &[u64]| FlushedAll {
        pages,
        failed: failed.iter().copied().collect(),
    };
    assert_eq!(a.flush_all().expect("connected"), flushed(3, &[]));
    assert_eq!(byte_of(&cluster.shelf.page(of(1, 1))), 7);
    assert_eq!(byte_of(&cluster.shelf.page(of(3, 0))), 0, "of another node");
    assert_eq!(cluster.shelf.synced(), [1, 2]);
    // A file that is in the store already, but not durable.
    a.write(of(2, 0), 0, &[9; PAGE]).expect("it is written");
    a.write_back_expired(at(1), at(0), NO_LIMIT)
        .expect("connected");
    assert_eq!(a.flush_all().expect("connected"), flushed(0, &[]));
    assert_eq!(cluster.shelf.synced(), [2]);
    assert_eq!(a.flush_all().expect("connected"), flushed(0, &[]));
    assert_eq!(cluster.shelf.synced(), [] as [u64; 0], "nothing is left");
    // A sync that fails is reported by the next flush of a program, too.
    a.write(of(1, 0), 0, &[9; PAGE]).expect("it is written");
    cluster.shelf.fail_once();
    assert_eq!(a.flush_all().expect("connected"), flushed(0, &[1]));
    assert_eq!(a.fsync(1).expect_err("lost").kind(), ErrorKind::Lost);
    a.fsync(1).expect("it was reported");
    // A refused write, and a loss.
    a.write(of(1, 0), 0, &[10; PAGE]).expect("it is written");
    cluster.shelf.refuse(true);
    assert_eq!(a.flush_all().expect("connected"), flushed(0, &[1]));
    assert_eq!(a.fsync(1).expect_err("refused").kind(), ErrorKind::Lost);
    cluster.shelf.refuse(false);
    let mut out = [0; PAGE];
    b.read(of(4, 0), &mut out).expect("it is read");
    a.write(of(4, 0), 0, &[11; 8]).expect("it is written");
    cluster.kill(1);
    let mut all = a.flush_all().expect("connected");
    // The death may be reported after the first flush.
    while all.failed.is_empty() {
        a.write(of(1, 0), 0, &[12; PAGE]).expect("it is written");
        all = a.flush_all().expect("connected");
    }
    assert!(all.failed.contains(&4), "{all:?}");
    assert_eq!(a.fsync(4).expect_err("lost").kind(), ErrorKind::Lost);
    a.fsync(4).expect("it was reported");
    assert_eq!(
        a.flush_all().expect("connected").failed,
        flushed(0, &[]).failed
    );
}

/// Writes this number of pages in one operation.
fn write(node: &Node, pages: u64) {
    let mut throttle = node.throttle();
    for index in 0..pages {
        node.write(page(index), 0, &[7; PAGE])
            .expect("it is written");
        throttle.wait();
    }
}

#[test]
fn a_writer_waits_at_the_hard_limit_until_pages_are_stored() {
    const BACKGROUND: usize = 4;
    let cluster = Cluster::new(1, 64, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    node.limit_dirty(BACKGROUND, Duration::from_secs(60));
    // Before that, a whole page is read before it is written.
    node.wait_joined(Duration::from_secs(30)).expect("it joins");
    cluster.shelf.stall(Some(1));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // It is notified: this time does not pass.
                node.wait_dirty(Duration::from_secs(60));
                node.write_back_expired(at(1), at(100), BACKGROUND)
                    .expect("connected");
            }
        });
        let (done, ended) = channel();
        scope.spawn(move || {
            write(node, 40);
            done.send(()).expect("it is awaited");
        });
        let waits = ended.recv_timeout(Duration::from_millis(300));
        let dirty = node.dirty().pages;
        cluster.shelf.stall(None);
        let ended = ended.recv_timeout(Duration::from_secs(30));
        is_over.store(true, Ordering::Relaxed);
        node.end_flushes();
        assert!(waits.is_err(), "it did not wait");
        assert_eq!(dirty, 2 * BACKGROUND + 1);
        ended.expect("it continues");
    });
    assert!(node.dirty().pages <= 2 * BACKGROUND);
}

#[test]
fn a_writer_waits_once_for_a_store_that_does_not_answer() {
    let cluster = Cluster::new(1, 64, Consistency::Strong, None);
    let patience = Duration::from_millis(300);
    cluster.nodes[0].limit_dirty(1, patience);
    let begin = Instant::now();
    write(&cluster.nodes[0], 30);
    let took = begin.elapsed();
    assert!(took >= patience, "it did not wait");
    assert!(took < 10 * patience, "it waited for each page: {took:?}");
}

/// Returns a cluster in which node 1 has ended. Before, it wrote page 3 into the memory of node 0,
/// which does not know of the write.
fn with_ended_writer() -> Cluster {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let [host, writer] = cluster.pair();
    host.read(page(3), &mut [0; PAGE]).expect("it is read");
    writer.write(page(3), 0, &[7; PAGE]).expect("it is written");
    cluster.kill(1);
    cluster
}

#[test]
fn a_page_whose_writer_ended_is_stored() {
    let cluster = with_ended_writer();
    let stored = || byte_of(&cluster.shelf.page(page(3)));
    let write_back = |seconds| {
        cluster.nodes[0]
            .write_back_expired(at(seconds), at(30), NO_LIMIT)
            .expect("connected");
    };
    write_back(100);
    assert_eq!(stored(), 0, "it may be new");
    write_back(105);
    assert_eq!(stored(), 0, "the last search was five seconds ago");
    write_back(110);
    assert_eq!(stored(), 7);
}

#[test]
fn a_flush_of_all_files_stores_pages_whose_writer_ended() {
    let cluster = with_ended_writer();
    cluster.nodes[0].flush_all().expect("connected");
    assert_eq!(byte_of(&cluster.shelf.page(page(3))), 7);
}

/// A program's flush is in the store's sync when all files are flushed. Another node has stored its
/// page.
#[test]
fn a_flush_of_all_files_waits_for_a_sync_in_progress() {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let [host, node] = cluster.pair();
    host.read(page(1), &mut [0; PAGE]).expect("it is read");
    node.write(page(1), 0, &[7; PAGE]).expect("it is written");
    std::thread::scope(|scope| {
        cluster.shelf.stall_syncs(true);
        scope.spawn(|| node.fsync(1).expect("the store answers"));
        while cluster.shelf.syncs() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (done, ended) = channel();
        scope.spawn(move || {
            let flushed = node.flush_all().expect("connected");
            let _ = done.send(flushed);
        });
        let answer = ended.recv_timeout(Duration::from_millis(300));
        cluster.shelf.stall_syncs(false);
        assert!(answer.is_err(), "{answer:?} while the file is not durable");
        let flushed = ended.recv_timeout(Duration::from_secs(30));
        assert!(flushed.expect("it ends").failed.is_empty());
    });
}

/// Readers that always wait for the store do not keep a flush from its end.
#[test]
fn a_flush_ends_while_fills_are_always_requested() {
    // Free frames last for longer than the limit below.
    let cluster = Cluster::new(1, 8192, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    node.write(page(1), 0, &[7; PAGE]).expect("it is written");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        cluster.shelf.slow_down(Duration::from_millis(5));
        for reader in 0..16 {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut out = [0; PAGE];
                let mut index = 1000 * (reader + 1);
                while !is_over.load(Ordering::Relaxed) {
                    node.read(page(index), &mut out).expect("it is read");
                    index += 2;
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        let (done, ended) = channel();
        scope.spawn(move || {
            let _ = done.send(node.fsync(1));
        });
        let flushed = ended.recv_timeout(Duration::from_secs(5));
        is_over.store(true, Ordering::Relaxed);
        cluster.shelf.slow_down(Duration::ZERO);
        flushed.expect("it ends").expect("the store answers");
    });
}
