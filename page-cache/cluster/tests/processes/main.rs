//! The cluster as real processes: this test program starts itself as directory and nodes, and kills
//! them.

mod cluster;
mod flush;
mod kill;
mod pool;
mod role;
mod source;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cluster::{Cluster, SHORT_LEASE, node_id};
use forebay_block::ErrorKind;
use forebay_cluster::server::{self, Server};
use forebay_cluster::status::{Status, WrittenStatus};
use forebay_cluster::{Node, Options, PAGE_BYTES};
use forebay_pagecache::message::{ToDirectory, ToNode};
use forebay_pagecache::protocol::{Packet, encode};

#[test]
fn files_are_one_for_all_nodes() {
    let cluster = Cluster::new("files", 256, Duration::from_secs(5));
    let (a, b) = (cluster.join(1, 64), cluster.join(2, 64));
    let (at_a, at_b) = (
        a.create("log").expect("made"),
        b.open("log").expect("there"),
    );
    for round in 0..50_u64 {
        let line = format!("line {round} of both\n");
        let file = if round % 2 == 0 { &at_a } else { &at_b };
        let offset = file.append(line.as_bytes()).expect("appended");
        let mut out = vec![0; line.len()];
        for file in [&at_a, &at_b] {
            let read = file.read_at(offset, &mut out).expect("read");
            assert_eq!((read, &out[..]), (line.len(), line.as_bytes()));
        }
    }
    at_b.write_at(5, b"ZERO").expect("written");
    let view = at_a.map(0).expect("mapped");
    let mut word = [0; 16];
    view.load(0, &mut word);
    assert_eq!(&word[..9], b"line ZERO");
    drop(view);
    assert_eq!(
        at_a.map(9).expect_err("behind the end").kind(),
        ErrorKind::OutOfRange
    );
    at_a.fsync().expect("durable");
    at_b.fsync().expect("durable");
    let text = std::fs::read_to_string(cluster.source().join("log")).expect("text");
    assert_eq!(text.lines().count(), 50);
    assert!(text.starts_with("line ZERO"), "{text}");
    for path in ["../log", "/etc/passwd", "", "."] {
        let refused = a.open(path).expect_err("not below the source");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{path}");
    }
    let status = cluster.status();
    assert_eq!(
        status.pages.shared + status.pages.owner,
        1,
        "one copy: {status:?}"
    );
    assert_eq!(status.nodes.len(), 2);
}

#[test]
fn the_status_shows_the_dirty_data_of_each_node() {
    let cluster = Cluster::new("dirty", 256, Duration::from_secs(5));
    let (a, _b) = (cluster.join(1, 64), cluster.join(2, 64));
    let file = a.create("data").expect("made");
    file.write_at(0, &[1; 3 * PAGE_BYTES]).expect("written");
    let of = |status: &Status, id| {
        let mut nodes = status.nodes.iter();
        nodes
            .find(|node| node.id == id)
            .expect("it is there")
            .written
    };
    cluster.wait(|status| of(status, 1).oldest_s >= 1);
    let status = cluster.status();
    assert_eq!(of(&status, 1).dirty_bytes, 3 * PAGE_BYTES as u64);
    assert_eq!(of(&status, 2), WrittenStatus::default());
    file.fsync().expect("durable");
    cluster.wait(|status| of(status, 1) == WrittenStatus::default());
}

#[test]
fn a_page_in_another_process_costs_no_message_after_the_first() {
    let cluster = Cluster::new("hits", 256, Duration::from_secs(5));
    let _worker = cluster.worker(1, 128);
    cluster.fill("data", 32);
    let mine = cluster.join(2, 64);
    let file = mine.open("data").expect("there");
    let mut out = [0; PAGE_BYTES];
    for page in 0..32 {
        file.read_at(page * PAGE_BYTES as u64, &mut out)
            .expect("read");
    }
    let before = mine.counts();
    for page in 0..32 {
        file.read_at(page * PAGE_BYTES as u64, &mut out)
            .expect("read");
    }
    let after = mine.counts();
    assert_eq!(after.misses, before.misses);
    let hits = |counts: &forebay_pagecache::node::Counts| counts.hits_local + counts.hits_remote;
    assert_eq!(hits(&after), hits(&before) + 32);
}

#[test]
fn a_leaving_node_loses_nothing_and_may_join_later() {
    let cluster = Cluster::new("leave", 256, Duration::from_secs(5));
    let stays = cluster.join(1, 64);
    let file = stays.create("data").expect("made");
    for round in 1..4_u8 {
        let goes = cluster.join(2, 64);
        let theirs = goes.open("data").expect("there");
        let mut out = [0; PAGE_BYTES];
        theirs.write_at(0, &[round; PAGE_BYTES]).expect("written");
        // The one that stays has stored into the other's memory.
        file.write_at(8, &[round + 100; 8]).expect("written");
        drop(theirs);
        drop(goes);
        file.read_at(0, &mut out).expect("read");
        assert_eq!((out[0], out[8]), (round, round + 100));
        file.fsync().expect("nothing was lost");
    }
    assert_eq!(cluster.status().lost_pages, 0);
    assert_eq!(cluster.status().fenced, 0);
}

/// The threads of a mount do the same when their process gets SIGTERM.
#[test]
fn a_leaving_node_waits_for_users_of_its_files() {
    let cluster = Cluster::new("leave-in-use", 256, Duration::from_secs(5));
    let goes = cluster.join(2, 64);
    let file = goes.create("data").expect("made");
    file.write_at(0, &[7; PAGE_BYTES]).expect("written");
    let (holds, held) = std::sync::mpsc::channel();
    let user = std::thread::spawn(move || {
        holds.send(()).expect("somebody waits");
        std::thread::sleep(Duration::from_millis(300));
        let wrote = file.write_at(PAGE_BYTES as u64, &[8; PAGE_BYTES]);
        wrote.expect("the node is there until then");
    });
    held.recv().expect("it runs");
    assert!(goes.leave());
    let stored = std::fs::read(cluster.source().join("data")).expect("there");
    assert_eq!(
        stored,
        [[7; PAGE_BYTES], [8; PAGE_BYTES]].concat(),
        "what is in its memory goes to the store before it says that it has left"
    );
    user.join().expect("it ended well");
    assert_eq!(cluster.status().lost_pages, 0);
}

#[test]
fn invalid_connections_do_no_harm() {
    let cluster = Cluster::new("strangers", 256, Duration::from_secs(5));
    let node = cluster.join(1, 64);
    let file = node.create("data").expect("made");
    let socket = cluster.pool().join("directory.sock");
    let mut held = Vec::new();
    for kind in 0..4 {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        let mut bytes = [0; 256];
        let count = stream.read(&mut bytes).expect("a greeting");
        let packet = Packet::<ToNode>::decode(&bytes[..count])
            .expect("one")
            .expect("whole");
        let Some(Ok(ToNode::Hello { nonce })) = packet.messages().next() else {
            panic!("no greeting");
        };
        let mut hello = Vec::new();
        let session = 0;
        encode(
            node_id(7),
            &[ToDirectory::Hello { nonce, session }],
            &mut hello,
        );
        match kind {
            0 => stream.write_all(&[0xaa; 1000]).expect("sent"),
            // Half a packet, then nothing.
            1 => stream.write_all(&hello[..9]).expect("sent"),
            // A number in use, with a nonce that was never sent.
            2 => {
                let (nonce, session) = (nonce ^ 2, 1);
                let mut wrong = Vec::new();
                encode(
                    node_id(1),
                    &[ToDirectory::Hello { nonce, session }],
                    &mut wrong,
                );
                stream.write_all(&wrong).expect("sent");
            }
            _ => drop(stream.shutdown(std::net::Shutdown::Both)),
        }
        held.push(stream);
    }
    let mut options = Options::new(cluster.pool(), node_id(1), 64);
    options.patience = Duration::from_secs(5);
    let refused = Node::join(options).expect_err("it is there already");
    assert!(
        refused.report().contains("choose another number"),
        "{refused:?}"
    );
    file.write_at(0, &[1; 100]).expect("written");
    file.fsync().expect("durable");
    assert_eq!(cluster.status().nodes.len(), 1);
}

#[test]
fn a_leave_survives_the_death_of_the_directory() {
    let mut cluster = Cluster::new("word", 256, Duration::from_secs(5));
    let node = cluster.join(1, 64);
    // Path of the new list of nodes.
    let blocked = cluster.pool().join("nodes.new");
    std::fs::create_dir(&blocked).expect("made");
    drop(node);
    cluster.wait_for_the_directorys_end();
    std::fs::remove_dir(&blocked).expect("removed");
    // This process continues, but has no node any more that needs the old capacity.
    let options = server::Options::new(cluster.source(), cluster.pool(), 300);
    Server::open(options).expect("nobody is there");
}

#[test]
fn a_restarted_directory_continues_with_the_pages_in_memory() {
    let mut cluster = Cluster::new("recreated", 256, Duration::from_secs(5));
    let (a, b) = (cluster.join(1, 64), cluster.join(2, 64));
    let (at_a, at_b) = (
        a.create("data").expect("made"),
        b.open("data").expect("there"),
    );
    at_a.write_at(0, &[1; 4 * PAGE_BYTES]).expect("written");
    let mut out = [0; PAGE_BYTES];
    at_b.read_at(0, &mut out).expect("read");
    cluster.kill_directory();
    at_b.read_at(0, &mut out)
        .expect("what is mapped needs no directory");
    at_b.write_at(PAGE_BYTES as u64 - 8, &[2; 8]).ok();
    cluster.start_directory();
    at_b.write_at(2 * PAGE_BYTES as u64, &[3; 8])
        .expect("written");
    at_a.read_at(2 * PAGE_BYTES as u64, &mut out).expect("read");
    assert_eq!((out[0], out[8]), (3, 1));
    at_a.fsync().expect("durable");
    at_b.fsync().expect("durable");
    let stored = std::fs::read(cluster.source().join("data")).expect("read");
    assert_eq!(
        (stored[0], stored[2 * PAGE_BYTES], stored.len()),
        (1, 3, 4 * PAGE_BYTES)
    );
    let status = cluster.status();
    assert_eq!(
        (status.epoch, status.filled),
        (2, 0),
        "all pages are where they were: {status:?}"
    );
    let other = Options::new(cluster.pool(), node_id(1), 64);
    assert!(Node::join(other).is_err(), "the number is in use as before");
}

#[test]
fn a_node_that_leaves_without_a_directory_is_not_ended() {
    let mut cluster = Cluster::new("alone", 256, SHORT_LEASE);
    cluster.linger = Duration::from_secs(3);
    let mut worker = cluster.worker(1, 64);
    assert_eq!(worker.receive(), "joined");
    let stays = cluster.join(2, 64);
    cluster.kill_directory();
    // Its input ends. It waits for a directory for a while and leaves. The process is kept.
    worker.close();
    assert_eq!(worker.receive(), "stopped");
    assert_eq!(worker.receive(), "left");
    cluster.start_directory();
    cluster.wait(|status| status.awaited.is_empty() && status.nodes.len() == 1);
    assert_eq!(cluster.status().fenced, 0);
    let file = stays.create("data").expect("made");
    file.write_at(0, b"on").expect("the cluster goes on");
    assert!(worker.end(), "its process ended by itself");
}

#[test]
fn a_node_that_hangs_is_ended_and_its_number_is_free() {
    let cluster = Cluster::new("hangs", 256, SHORT_LEASE);
    let worker = cluster.worker(3, 64);
    cluster.wait(|status| status.nodes.iter().any(|node| node.id == 3));
    worker.signal(libc_stop());
    cluster.wait(|status| status.nodes.is_empty());
    assert_eq!(cluster.status().fenced, 1);
    let _rejoined = cluster.join(3, 64);
}

#[test]
fn a_directory_that_is_stopped_ends_no_node_when_it_continues() {
    let cluster = Cluster::new("paused", 256, SHORT_LEASE);
    let workers: Vec<_> = (1..=3).map(|node| cluster.worker(node, 64)).collect();
    cluster.wait(|status| status.nodes.len() == workers.len());
    for _ in 0..3 {
        cluster.signal_directory("STOP");
        std::thread::sleep(SHORT_LEASE + Duration::from_secs(1));
        cluster.signal_directory("CONT");
        std::thread::sleep(Duration::from_millis(500));
    }
    let status = cluster.status();
    assert_eq!((status.fenced, status.nodes.len()), (0, 3), "{status:?}");
}

/// SIGSTOP on Linux.
const fn libc_stop() -> &'static str {
    "STOP"
}
