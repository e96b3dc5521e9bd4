//! The command that flushes all nodes.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use forebay_block::{ErrorKind, Result};
use forebay_cluster::PAGE_BYTES;
use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::status::Status;
use forebay_io::tree::{Lock, lock_byte};

use super::cluster::{Cluster, PATIENCE, SHORT_LEASE, Worker};
use super::libc_stop;

/// Lease that does not end in a test.
const LONG_LEASE: Duration = Duration::from_secs(600);

fn flush(cluster: &Cluster, patience: Duration) -> Result<u64> {
    command::flush(&Pool::new(cluster.pool()).expect("short"), patience)
}

/// Runs a flush in a thread of its own.
fn flushing(cluster: &Cluster) -> Receiver<Result<u64>> {
    let (sender, ended) = channel();
    let pool = Pool::new(cluster.pool()).expect("short");
    std::thread::spawn(move || sender.send(command::flush(&pool, PATIENCE)));
    ended
}

/// A node that is stopped, so that it does not answer.
fn stopped(cluster: &Cluster) -> Worker {
    let worker = cluster.worker(3, 64);
    assert_eq!(worker.receive(), "joined");
    worker.signal(libc_stop());
    // Threads stop one after the other, and one that still runs would answer.
    let tasks = format!("/proc/{}/task", worker.pid());
    let runs = || {
        let tasks = std::fs::read_dir(&tasks).expect("it lives").flatten();
        let mut states = tasks.map(|task| std::fs::read_to_string(task.path().join("status")));
        states.any(|state| state.is_ok_and(|state| !state.contains("State:\tT")))
    };
    while runs() {
        std::thread::sleep(Duration::from_millis(1));
    }
    worker
}

#[test]
fn a_flush_makes_the_writes_of_all_nodes_durable() {
    let cluster = Cluster::new("flush", 256, Duration::from_secs(5));
    let nodes = [1, 2].map(|number| cluster.join(number, 64));
    let files = [(0, "one"), (1, "two")].map(|(node, name): (usize, _)| {
        let file = nodes[node].create(name).expect("made");
        file.write_at(0, &[7; 3 * PAGE_BYTES]).expect("written");
        file
    });
    let bytes = flush(&cluster, PATIENCE).expect("flushed");
    assert_eq!(bytes, 6 * PAGE_BYTES as u64);
    for name in ["one", "two"] {
        let stored = std::fs::read(cluster.source().join(name)).expect("there");
        assert_eq!(stored, [7; 3 * PAGE_BYTES], "{name}");
    }
    assert_eq!(flush(&cluster, PATIENCE).expect("nothing is dirty"), 0);
    drop(files);
}

#[test]
fn a_flush_names_a_file_that_the_source_refuses_and_the_next_fsync_says_so_too() {
    let cluster = Cluster::new("flush-refused", 256, Duration::from_secs(5));
    let worker = cluster.worker(1, 128);
    assert_eq!(worker.receive(), "joined");
    let mine = cluster.join(2, 8);
    let (file, other) = (mine.create("mine"), mine.create("other"));
    let (file, other) = (file.expect("made"), other.expect("made"));
    // Most of its pages are in the memory of the other node, which cannot find the file any more.
    file.write_at(0, &[7; 32 * PAGE_BYTES]).expect("written");
    other.write_at(0, &[8; PAGE_BYTES]).expect("written");
    let inode = std::fs::metadata(cluster.source().join("mine"));
    let inode = inode.expect("there").ino().to_string();
    let second_name = cluster.source().join(".forebay/files").join(inode);
    std::fs::remove_file(&second_name).expect("its second name");
    let refused = flush(&cluster, PATIENCE).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Lost, "{refused:?}");
    let name = cluster.source().join("mine").display().to_string();
    assert!(refused.report().contains(&name), "{}", refused.report());
    assert!(!refused.report().contains("other"), "{}", refused.report());
    let stored = std::fs::read(cluster.source().join("other")).expect("there");
    assert_eq!(stored, [8; PAGE_BYTES]);
    let reported = file.fsync().expect_err("the program is notified too");
    assert_eq!(reported.kind(), ErrorKind::Lost);
    std::fs::hard_link(cluster.source().join("mine"), second_name).expect("linked");
    flush(&cluster, PATIENCE).expect("the source takes it now");
    let stored = std::fs::read(cluster.source().join("mine")).expect("there");
    assert_eq!(stored, [7; 32 * PAGE_BYTES]);
}

#[test]
fn a_flush_names_nodes_that_do_not_answer_in_time() {
    let cluster = Cluster::new("flush-silent", 256, LONG_LEASE);
    let mine = cluster.join(1, 64);
    let file = mine.create("mine").expect("made");
    file.write_at(0, &[7; PAGE_BYTES]).expect("written");
    let worker = stopped(&cluster);
    let late = flush(&cluster, Duration::from_secs(1)).expect_err("one is stopped");
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late:?}");
    let report = late.report();
    assert!(
        report.contains("node 3") && !report.contains("node 1"),
        "{report}"
    );
    let stored = std::fs::read(cluster.source().join("mine")).expect("there");
    assert_eq!(stored, [7; PAGE_BYTES], "the other node has flushed");
    worker.signal("CONT");
    flush(&cluster, PATIENCE).expect("it answers the next flush");
}

#[test]
fn a_flush_ends_with_a_node_that_dies_and_with_the_directory() {
    let mut cluster = Cluster::new("flush-dies", 256, SHORT_LEASE);
    let _mine = cluster.join(1, 64);
    let worker = stopped(&cluster);
    // Its lease ends, and then it is ended.
    let ended = flushing(&cluster).recv_timeout(PATIENCE).expect("it ends");
    let died = ended.expect_err("a node has ended");
    assert_eq!(died.kind(), ErrorKind::Disconnected, "{died:?}");
    assert!(died.report().contains("node 3"), "{}", died.report());
    drop(worker);
    cluster.wait(|status| status.nodes.len() == 1);
    let _worker = stopped(&cluster);
    let ended = flushing(&cluster);
    std::thread::sleep(Duration::from_millis(200));
    cluster.kill_directory();
    let gone = ended.recv_timeout(PATIENCE).expect("it ends");
    let gone = gone.expect_err("the directory has ended");
    assert_eq!(gone.kind(), ErrorKind::Disconnected, "{gone:?}");
    assert!(gone.report().contains("directory"), "{}", gone.report());
    // The next directory waits for the stopped node, for its lease.
    cluster.start_directory();
    let waits = flush(&cluster, PATIENCE).expect_err("it waits for a node");
    assert_eq!(waits.kind(), ErrorKind::Busy, "{waits:?}");
    cluster.wait(|status| status.awaited.is_empty());
    flush(&cluster, PATIENCE).expect("flushed");
}

/// A node that has written to a file is killed, while writers of the file wait for the lock of the
/// result.
fn killed(cluster: &mut Cluster) -> File {
    cluster.fill("data", 48);
    let mut worker = cluster.worker(0, 128);
    assert_eq!(worker.receive(), "joined");
    while !worker.receive().starts_with("F ") {}
    let source = cluster.source().join("data");
    let source = File::options().read(true).write(true).open(source);
    let source = source.expect("there");
    lock_byte(&source, i64::MAX - 2, Lock::Exclusive).expect("others end their writes");
    // It writes until its next flush waits.
    std::thread::sleep(Duration::from_millis(300));
    worker.kill();
    let is_dead = |status: &Status| status.nodes.iter().all(|node| node.state == "dead");
    cluster.wait(is_dead);
    assert!(
        cluster.status().pages.to_be_invalidated > 0,
        "unsaved pages"
    );
    source
}

#[test]
fn a_flush_waits_for_the_pages_of_dead_nodes() {
    let mut cluster = Cluster::placed("flush-dead", 256, SHORT_LEASE, "pool");
    let source = killed(&mut cluster);
    let late = flush(&cluster, Duration::from_secs(1)).expect_err("the source does not answer");
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late:?}");
    let inode = source.metadata().expect("there").ino();
    let name = format!("inode {inode}");
    assert!(late.report().contains(&name), "{}", late.report());
    let ended = flushing(&cluster);
    let outcome = ended.recv_timeout(Duration::from_millis(500));
    assert!(
        outcome.is_err(),
        "pages of the dead node are not in the source"
    );
    // The same after a restart of the directory, which is ready.
    cluster.kill_directory();
    ended
        .recv_timeout(PATIENCE)
        .expect("it ends")
        .expect_err("the directory has ended");
    cluster.start_directory();
    let ended = flushing(&cluster);
    let outcome = ended.recv_timeout(Duration::from_millis(500));
    assert!(
        outcome.is_err(),
        "pages of the dead node are not in the source"
    );
    lock_byte(&source, i64::MAX - 2, Lock::None).expect("given back");
    let bytes = ended
        .recv_timeout(PATIENCE)
        .expect("it ends")
        .expect("flushed");
    let status = cluster.status();
    assert_eq!(status.pages.to_be_invalidated, 0, "{status:?}");
    assert_eq!(
        bytes,
        status.rescued_pages * PAGE_BYTES as u64,
        "{status:?}"
    );
    assert!(bytes > 0 && status.lost_pages == 0, "{status:?}");
}

#[test]
fn a_flush_names_a_file_whose_pages_of_a_dead_node_the_source_refuses() {
    let rescue = Duration::from_secs(3);
    let mut cluster = Cluster::rescuing("flush-lost", 256, SHORT_LEASE, "pool", rescue);
    let source = killed(&mut cluster);
    let inode = source.metadata().expect("there").ino().to_string();
    // A process that has not opened the file cannot find it any more.
    cluster.kill_directory();
    let second_name = cluster.source().join(".forebay/files").join(&inode);
    std::fs::remove_file(second_name).expect("its second name");
    drop(source);
    cluster.start_directory();
    let lost = flush(&cluster, PATIENCE).expect_err("the source refuses the pages");
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost:?}");
    let name = format!("inode {inode}");
    assert!(lost.report().contains(&name), "{}", lost.report());
    assert!(cluster.status().lost_pages > 0);
    assert_eq!(
        flush(&cluster, PATIENCE).expect("one report of the loss"),
        0
    );
}
