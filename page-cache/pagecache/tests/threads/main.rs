//! The page cache with threads and real memory. The same properties as in the simulation, at full
//! speed.

mod cluster;
mod fills;
mod reads;
mod runs;
mod silent;
mod stalls;
mod write_back;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, Node, PAGE};
use forebay_block::{Error, ErrorKind};
use forebay_pagecache::message::{LockRange, PageId};
use forebay_pagecache::node::Consistency;

/// Longest wait for an event that comes soon, on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn page(index: u64) -> PageId {
    PageId { inode: 1, index }
}

fn byte_of(page: &[u8]) -> u8 {
    assert!(page.iter().all(|byte| *byte == page[0]), "a torn page");
    page[0]
}

#[test]
fn a_write_is_seen_by_every_later_read() {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let [a, b] = cluster.pair();
    let mut out = [0; PAGE];
    for round in 1..=100 {
        a.write(page(3), 0, &[round; PAGE]).expect("it is written");
        b.read(page(3), &mut out).expect("it is read");
        assert_eq!(byte_of(&out), round);
        b.write(page(3), 8, &[round + 100; 8])
            .expect("it is written");
        a.read(page(3), &mut out).expect("it is read");
        assert_eq!((out[0], out[8]), (round, round + 100));
    }
}

#[test]
fn a_page_that_is_mapped_costs_no_message() {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for node in &cluster.nodes {
        for index in 0..32 {
            node.read(page(index), &mut out).expect("it is read");
        }
    }
    let view = cluster.nodes[1].map(page(7)).expect("it is mapped");
    let sent = cluster.sent.load(Ordering::Relaxed);
    for node in &cluster.nodes {
        for index in 0..32 {
            node.read(page(index), &mut out).expect("it is read");
        }
    }
    cluster.nodes[0]
        .write(page(7), 16, &[9; 8])
        .expect("it is written");
    let sent_more = cluster.sent.load(Ordering::Relaxed) - sent;
    assert!(
        sent_more <= 2,
        "the first store asks once, the rest nothing: {sent_more} packets"
    );
    let mut word = [0; 8];
    view.load(16, &mut word);
    assert_eq!(word, [9; 8], "a view is the copy itself");
    assert!(cluster.nodes[1].counts().hits_remote >= 32);
}

#[test]
fn more_pages_than_frames_go_to_the_store_and_come_back() {
    for consistency in [Consistency::Strong, Consistency::Relaxed] {
        let cluster = Cluster::new(2, 16, consistency, None);
        let mut out = [0; PAGE];
        for index in 0..200_u8 {
            let node = &cluster.nodes[usize::from(index) % 2];
            node.write(page(index.into()), 0, &[index + 1; PAGE])
                .expect("it is written");
        }
        for node in &cluster.nodes {
            node.close(1).expect("it is closed");
        }
        for index in 0..200_u8 {
            let node = &cluster.nodes[usize::from(index + 1) % 2];
            node.read(page(index.into()), &mut out).expect("it is read");
            assert_eq!(byte_of(&out), index + 1);
        }
        for node in &cluster.nodes {
            node.fsync(1).expect("it is flushed");
        }
        for index in 0..200_u8 {
            assert_eq!(byte_of(&cluster.shelf.page(page(index.into()))), index + 1);
        }
    }
}

#[test]
fn racing_programs_read_whole_pages_that_never_go_back() {
    let cluster = Cluster::new(3, 8, Consistency::Strong, None);
    std::thread::scope(|scope| {
        // One writer a page counts up; readers on all nodes; other pages push these out all the
        // time.
        for (number, node) in cluster.nodes.iter().enumerate() {
            let own = page(number as u64);
            scope.spawn(move || {
                for count in 1..=120 {
                    node.write(own, 0, &[count; PAGE]).expect("it is written");
                }
            });
            scope.spawn(move || {
                let (mut last, mut out) = ([0; 3], [0; PAGE]);
                for round in 0..600_u64 {
                    node.read(page(round % 3), &mut out).expect("it is read");
                    let seen = byte_of(&out);
                    let last = &mut last[(round % 3) as usize];
                    assert!(seen >= *last, "{seen} after {last}");
                    *last = seen;
                    node.read(page(100 + round % 40), &mut out)
                        .expect("it is read");
                }
            });
        }
    });
}

#[test]
fn a_replica_is_read_without_other_memory_and_is_never_old() {
    const PAGES: usize = 60;
    let cluster = Cluster::with_replicas(3, 64);
    let written: Vec<AtomicU8> = (0..PAGES).map(|_| AtomicU8::new(0)).collect();
    let mut out = [0; PAGE];
    for index in 0..PAGES as u64 {
        cluster.nodes[0]
            .read(page(index), &mut out)
            .expect("it is read");
    }
    let read_all = |node: &Node| {
        let mut out = [0; PAGE];
        for (index, written) in written.iter().enumerate() {
            let least = written.load(Ordering::Acquire);
            node.read(page(index as u64), &mut out).expect("it is read");
            assert!(byte_of(&out) >= least, "page {index} is older than {least}");
        }
    };
    for node in &cluster.nodes[1..] {
        // Replicas are granted while reads go on.
        let begin = Instant::now();
        loop {
            let before = node.counts();
            read_all(node);
            let local = node.counts().hits_local - before.hits_local;
            if local >= 40 {
                break;
            }
            assert!(begin.elapsed() < LONG, "{local} pages are read here");
        }
    }
    std::thread::scope(|scope| {
        for node in &cluster.nodes[1..] {
            scope.spawn(|| (0..40).for_each(|_| read_all(node)));
        }
        for (index, written) in written.iter().enumerate() {
            cluster.nodes[0]
                .write(page(index as u64), 0, &[1; PAGE])
                .expect("it is written");
            written.store(1, Ordering::Release);
        }
    });
    cluster.nodes.iter().for_each(read_all);
}

#[test]
fn pages_written_under_a_lock_are_read_together() {
    let cluster = Cluster::new(2, 16, Consistency::Strong, None);
    let range = |exclusive| LockRange {
        inode: 1,
        start: 0,
        end: 4,
        exclusive,
    };
    std::thread::scope(|scope| {
        for (node, step) in cluster.nodes.iter().zip([1, 2]) {
            scope.spawn(move || {
                for round in 0..60_u8 {
                    let byte = round * 2 + step;
                    let all =
                        || (0..4).try_for_each(|index| node.write(page(index), 0, &[byte; PAGE]));
                    node.locked(range(true), all).expect("they are written");
                    let mut out = [[0; PAGE]; 4];
                    let all = || {
                        (0..4).try_for_each(|index| node.read(page(index as u64), &mut out[index]))
                    };
                    node.locked(range(false), all).expect("they are read");
                    let first = byte_of(&out[0]);
                    assert!(out.iter().all(|page| byte_of(page) == first));
                }
            });
        }
    });
}

#[test]
fn a_death_is_reported_once_to_each_node_with_a_loss() {
    let cluster = Cluster::new(2, 16, Consistency::Strong, None);
    let [a, b] = cluster.pair();
    // Node 0 has the page; node 1 stores into node 0's memory.
    let mut out = [0; PAGE];
    a.read(page(1), &mut out).expect("it is read");
    b.write(page(1), 0, &[5; 8]).expect("it is written");
    b.write(page(2), 0, &[6; PAGE]).expect("it is written");
    b.fsync(1).expect("it is flushed");
    b.write(page(1), 0, &[7; 8]).expect("it is written");
    cluster.kill(0);
    let lost = b.fsync(1).expect_err("node 0's memory is gone");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    b.fsync(1).expect("it was said");
    b.read(page(1), &mut out).expect("it is read");
    assert_eq!(out[..8], [5; 8], "what was flushed is there");
    assert_eq!(cluster.lost(), [page(1)]);
    let gone = a.fsync(1);
    let read = a
        .read(page(99), &mut out)
        .expect_err("a dead node reads nothing new");
    assert_eq!(read.kind(), ErrorKind::Disconnected, "{gone:?}");
}

/// Runs the part of the process without system calls that the variable names.
const SILENT: &str = "FOREBAY_PAGECACHE_SILENT";

/// Not a test of its own: [`a_remote_hit_makes_no_system_call`] starts it in a process of its own.
#[test]
fn silent_process() {
    let Ok(what) = std::env::var(SILENT) else {
        return;
    };
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for index in 0..32 {
        cluster.nodes[0]
            .read(page(index), &mut out)
            .expect("it is read");
    }
    let remote = &cluster.nodes[1];
    if what == "hits" {
        for index in 0..32 {
            remote.read(page(index), &mut out).expect("it is read");
        }
    }
    silent::forbid_system_calls();
    for index in (0..32).cycle().take(10_000) {
        remote.read(page(index), &mut out).expect("it is read");
        let mut word = [0; 8];
        let view = remote.map(page(index)).expect("it is mapped");
        view.load(0, &mut word);
    }
    silent::exit_well();
}

#[test]
fn a_remote_hit_makes_no_system_call() {
    let process = |what| {
        let mut process = std::process::Command::new(std::env::current_exe().expect("this one"));
        process
            .args(["--exact", "silent_process"])
            .env(SILENT, what);
        process
    };
    // A message of the first uses may still be under way, and have the node's lock: in one of three
    // runs none is.
    let silent = (0..3).any(|_| silent::came_to_its_end(process("hits")));
    assert!(silent, "a hit made one");
    assert!(
        !silent::came_to_its_end(process("first")),
        "the first use asks the directory, and nobody noticed"
    );
}

#[test]
fn a_file_is_had_alone_without_a_message_unless_two_meet() {
    let cluster = Cluster::new(2, 64, Consistency::Strong, None);
    let count = AtomicU64::new(0);
    let add = |node: &cluster::Node| {
        node.alone(7, || {
            // Two steps, so that a second who is in here is seen.
            let before = count.load(Ordering::Relaxed);
            std::hint::spin_loop();
            count.store(before + 1, Ordering::Relaxed);
            Ok(())
        })
    };
    let sent = || cluster.sent.load(Ordering::Relaxed);
    let before = sent();
    for _ in 0..100 {
        add(&cluster.nodes[0]).expect("nobody else is there");
    }
    assert_eq!(sent(), before, "no packet");
    std::thread::scope(|scope| {
        for node in cluster.nodes.iter().chain(&cluster.nodes) {
            scope.spawn(move || {
                for _ in 0..500 {
                    add(node).expect("in turn");
                }
            });
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 100 + 4 * 500);
    let failed = cluster.nodes[0].alone(7, || Err::<(), _>(Error::from(ErrorKind::Io)));
    assert!(failed.is_err());
    add(&cluster.nodes[1]).expect("it was let go all the same");
}
