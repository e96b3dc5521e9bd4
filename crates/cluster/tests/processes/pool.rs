//! `placement = "pool"`: what a dead node had in its memory is not lost.

use std::time::Duration;

use forebay_block::ErrorKind;
use forebay_cluster::server::{self, Server};
use forebay_cluster::{File, PAGE_BYTES, Placement};

use super::cluster::Cluster;

const PAGES: u64 = 40;

fn write_all(file: &File, byte: u8) {
    for page in 0..PAGES {
        let bytes = [byte + page as u8; PAGE_BYTES];
        let wrote = file.write_at(page * PAGE_BYTES as u64, &bytes);
        wrote.expect("written");
    }
}

/// Pages that show what was written.
fn right(bytes: &[u8], byte: u8) -> usize {
    let pages = bytes.chunks(PAGE_BYTES).enumerate();
    pages
        .filter(|(page, bytes)| bytes.iter().all(|found| *found == byte + *page as u8))
        .count()
}

/// One node writes mostly into the memory of another, which is killed. What the writer finds, and its flush.
fn killed(placement: &'static str) -> (usize, bool, u64) {
    let cluster = Cluster::placed(placement, 256, Duration::from_secs(5), placement);
    let mut worker = cluster.worker(1, 128);
    assert_eq!(worker.hear(), "joined");
    let mine = cluster.join(2, 8);
    let file = mine.create("mine").expect("made");
    write_all(&file, 1);
    worker.kill();
    // All is as it was for who reads, or lost; the flush tells which.
    cluster.wait(|status| status.nodes.len() == 1);
    let mut bytes = vec![0; PAGES as usize * PAGE_BYTES];
    file.read_at(0, &mut bytes).expect("read");
    let synced = file.fsync();
    if let Err(error) = &synced {
        assert_eq!(error.kind(), ErrorKind::Lost);
    }
    file.fsync().expect("it is said once");
    let status = cluster.status();
    assert_eq!(synced.is_ok(), status.lost_pages == 0, "{status:?}");
    let mut again = cluster.worker(1, 64);
    assert_eq!(again.hear(), "joined", "the number is free");
    again.kill();
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
    let (found, synced, rescued) = killed("node");
    assert!(found < PAGES as usize && !synced && rescued == 0);
}

/// Kills all nodes and the directory. Whether the node had anything then that the source had not: it may just have
/// written all of it back.
fn all_are_killed(attempt: u32) -> bool {
    let name = format!("all-{attempt}");
    let mut cluster = Cluster::placed(&name, 256, Duration::from_secs(1), "pool");
    cluster.fill("data", 48);
    let mut worker = cluster.worker(0, 128);
    assert_eq!(worker.hear(), "joined");
    // It has flushed once, and goes on writing.
    while !worker.hear().starts_with("F ") {}
    cluster.kill_directory();
    worker.kill();
    let other = |cluster: &Cluster| {
        let mut options = server::Options::new(cluster.source(), cluster.pool(), 300);
        options.placement = Placement::Pool;
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
fn pages_outlive_all_nodes_and_the_directory() {
    assert!(
        (0..10).any(all_are_killed),
        "a pool that holds what the source does not is refused"
    );
}
