//! `placement = "pool"`: pages in the memory of a dead node are not lost.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use forebay_block::{ErrorKind, Result};
use forebay_cluster::server::{self, Server};
use forebay_cluster::{File, Node, PAGE_BYTES, Placement};
use forebay_io::tree::{Lock, lock_byte};

use super::cluster::{Cluster, PATIENCE, SHORT_LEASE, Worker};

const PAGES: u64 = 40;

fn write_all(file: &File, byte: u8) {
    for page in 0..PAGES {
        let bytes = [byte + page as u8; PAGE_BYTES];
        let wrote = file.write_at(page * PAGE_BYTES as u64, &bytes);
        wrote.expect("written");
    }
}

/// Returns the number of pages with the written content.
fn right(bytes: &[u8], byte: u8) -> usize {
    let pages = bytes.chunks(PAGE_BYTES).enumerate();
    pages
        .filter(|(page, bytes)| bytes.iter().all(|found| *found == byte + *page as u8))
        .count()
}

/// One node writes mostly into the memory of another, which is killed. Returns the pages that the
/// writer finds, and the result of its flush.
fn killed(placement: &'static str) -> (usize, bool, u64) {
    let cluster = Cluster::placed(placement, 256, Duration::from_secs(5), placement);
    let mut worker = cluster.worker(1, 128);
    assert_eq!(worker.receive(), "joined");
    let mine = cluster.join(2, 8);
    let file = mine.create("mine").expect("made");
    let other = mine.open("mine").expect("there");
    write_all(&file, 1);
    worker.kill();
    // The data is intact for readers, or lost; the flush tells which.
    cluster.wait(|status| status.nodes.len() == 1);
    let mut bytes = vec![0; PAGES as usize * PAGE_BYTES];
    file.read_at(0, &mut bytes).expect("read");
    let synced = file.fsync();
    if let Err(error) = &synced {
        assert_eq!(error.kind(), ErrorKind::Lost);
    }
    file.fsync().expect("it is said once");
    // The lost data may be this node's.
    assert_eq!(other.fsync().is_ok(), synced.is_ok(), "said to each");
    other.fsync().expect("once");
    let later = mine.open("mine").expect("there");
    later.fsync().expect("who came later has lost nothing");
    let status = cluster.status();
    assert_eq!(synced.is_ok(), status.lost_pages == 0, "{status:?}");
    let mut restarted = cluster.worker(1, 64);
    assert_eq!(restarted.receive(), "joined", "the number is free");
    restarted.kill();
    (right(&bytes, 1), synced.is_ok(), status.rescued_pages)
}

#[test]
fn pages_outlive_the_node_in_whose_memory_they_are_or_one_flush_says_that_they_do_not() {
    let (found, synced, rescued) = killed("pool");
    assert_eq!((found, synced), (PAGES as usize, true));
    assert!(
        rescued > 8,
        "{rescued} pages were in the memory of the dead"
    );
    let (found, synced, rescued) = killed("default");
    assert!(found == PAGES as usize && synced && rescued > 8);
    let (found, synced, rescued) = killed("node");
    assert!(found < PAGES as usize && !synced && rescued == 0);
}

/// Kills all nodes and the directory. Returns whether the node had unwritten data then: it may just
/// have written back everything.
fn all_are_killed(attempt: u32) -> bool {
    let name = format!("all-{attempt}");
    let mut cluster = Cluster::placed(&name, 256, SHORT_LEASE, "pool");
    cluster.fill("data", 48);
    let mut worker = cluster.worker(0, 128);
    assert_eq!(worker.receive(), "joined");
    // It has flushed once, and continues to write.
    while !worker.receive().starts_with("F ") {}
    cluster.kill_directory();
    worker.kill();
    let other = |cluster: &Cluster| {
        let mut options = server::Options::new(cluster.source(), cluster.pool(), 300);
        options.placement = Some(Placement::Pool);
        Server::open(options).map(drop)
    };
    let Err(refused) = other(&cluster) else {
        return false;
    };
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
    assert!(refused.report().contains("256 pages"), "{refused:?}");
    cluster.start_directory();
    cluster.wait(|status| status.rescued_pages > 0 && status.pages.to_be_invalidated == 0);
    assert_eq!(cluster.status().lost_pages, 0);
    cluster.kill_directory();
    other(&cluster).expect("nothing is left that the source does not have");
    true
}

#[test]
fn another_placement_waits_until_the_pages_are_written() {
    let mut cluster = Cluster::placed("placed", 256, SHORT_LEASE, "pool");
    let mine = cluster.join(1, 64);
    let file = mine.create("data").expect("made");
    write_all(&file, 1);
    cluster.kill_directory();
    let other = |cluster: &Cluster, placement| {
        let mut options = server::Options::new(cluster.source(), cluster.pool(), 256);
        options.placement = Some(placement);
        Server::open(options).map(drop)
    };
    let refused = other(&cluster, Placement::Node).expect_err("pages would be lost");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
    assert!(refused.report().contains("--placement pool"), "{refused:?}");
    cluster.start_directory();
    file.fsync().expect("durable");
    cluster.kill_directory();
    other(&cluster, Placement::Node).expect("the source has all pages");
}

#[test]
fn pages_outlive_all_nodes_and_the_directory() {
    assert!(
        (0..10).any(all_are_killed),
        "a pool that holds what the source does not is refused"
    );
}

/// Creates an unflushed file of which most pages are in the memory of another node.
fn with_pages_of_another(cluster: &Cluster) -> (Worker, Node, Arc<File>) {
    let worker = cluster.worker(1, 128);
    assert_eq!(worker.receive(), "joined");
    let mine = cluster.join(2, 8);
    let file = mine.create("mine").expect("made");
    write_all(&file, 1);
    (worker, mine, Arc::new(file))
}

/// Runs a flush in its own thread.
fn flushing(file: &Arc<File>) -> Receiver<Result<()>> {
    let ((sender, ended), file) = (channel(), Arc::clone(file));
    std::thread::spawn(move || sender.send(file.fsync()));
    ended
}

/// Checks that another file works while the source refuses the first.
fn another_file_works(mine: &Node) {
    let other = Arc::new(mine.create("other").expect("made"));
    other.write_at(0, b"other").expect("written");
    let ended = flushing(&other).recv_timeout(PATIENCE);
    ended.expect("it waits for nobody").expect("flushed");
}

#[test]
fn a_slow_rescue_delays_only_lookups_of_the_page() {
    let cluster = Cluster::placed("slow", 256, SHORT_LEASE, "pool");
    let (mut worker, _mine, file) = with_pages_of_another(&cluster);
    let third = cluster.join(3, 8);
    // Writers of the file wait for this byte.
    let source = std::fs::File::options()
        .read(true)
        .write(true)
        .open(cluster.source().join("mine"));
    let source = source.expect("there");
    lock_byte(&source, i64::MAX - 2, Lock::Exclusive).expect("nobody has it");
    worker.kill();
    let ended = flushing(&file);
    std::thread::sleep(SHORT_LEASE * 2);
    let status = cluster.status();
    let alive = |node: &&forebay_cluster::status::NodeStatus| node.state == "alive";
    assert_eq!(status.nodes.iter().filter(alive).count(), 2, "{status:?}");
    another_file_works(&third);
    assert!(ended.try_recv().is_err(), "the page is not in the source");
    lock_byte(&source, i64::MAX - 2, Lock::None).expect("given back");
    let ended = ended.recv_timeout(PATIENCE).expect("it is now");
    ended.expect("and nothing is lost");
    assert!(cluster.status().rescued_pages > 8);
}

#[test]
fn pages_that_the_source_refuses_for_ever_are_lost_after_a_time_and_one_flush_says_so() {
    let (lease, rescue) = (Duration::from_secs(5), Duration::from_secs(2));
    let cluster = Cluster::rescuing("refused", 256, lease, "pool", rescue);
    let (mut worker, mine, file) = with_pages_of_another(&cluster);
    // A process that has not opened the file cannot find it any more.
    let inode = std::fs::metadata(cluster.source().join("mine"))
        .expect("there")
        .ino();
    let files = cluster.source().join(".forebay/files");
    std::fs::remove_file(files.join(inode.to_string())).expect("its second name");
    worker.kill();
    let ended = flushing(&file);
    another_file_works(&mine);
    let ended = ended.recv_timeout(PATIENCE).expect("it ends");
    let lost = ended.expect_err("what was in the dead node's memory is lost");
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost:?}");
    let name = cluster.source().join("mine").display().to_string();
    assert!(lost.report().contains(&name), "{lost:?}");
    cluster.wait(|status| status.nodes.len() == 1);
    let status = cluster.status();
    assert!(status.lost_pages > 8, "{status:?}");
    file.fsync().expect("it is said once");
    write_all(&file, 2);
    file.fsync().expect("written again");
    let stored = std::fs::read(cluster.source().join("mine")).expect("there");
    assert_eq!(right(&stored, 2), PAGES as usize);
    let mut restarted = cluster.worker(1, 64);
    assert_eq!(restarted.receive(), "joined", "the number is free");
    restarted.kill();
}
