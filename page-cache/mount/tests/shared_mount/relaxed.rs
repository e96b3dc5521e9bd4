//! Relaxed consistency: the times at which other nodes see a whole page that was written where no
//! node had one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::cluster::{Cluster, Worker, can_mount};
use super::locks::lock;
use super::open;

const PAGE: usize = 4096;
/// More pages than a node looks up one by one when it truncates.
const PAGES: u64 = 40;

/// A file that node 1 has open, and its name on node 2. Nothing of it is in memory.
fn new_file(cluster: &Cluster) -> (File, PathBuf, [Worker; 2]) {
    let nodes = [1, 2].map(|number| cluster.relaxed_node(number));
    let here = cluster.mountpoint(1).join("data");
    fs::write(&here, "").expect("made");
    (open(&here), cluster.mountpoint(2).join("data"), nodes)
}

/// Writes whole pages with this byte.
fn write(file: &File, byte: u8) {
    file.write_all_at(&[byte; 4 * PAGE], 0).expect("written");
}

/// Returns the first byte of each page of a file of four pages.
fn seen(file: &File) -> [u8; 4] {
    let mut bytes = [0; 4 * PAGE];
    file.read_exact_at(&mut bytes, 0).expect("read");
    std::array::from_fn(|page| bytes[page * PAGE])
}

#[test]
fn a_relaxed_write_is_seen_after_the_close() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("relaxed-close");
    let (mine, path, _nodes) = new_file(&cluster);
    write(&mine, 7);
    assert_eq!(seen(&mine), [7; 4], "the writer sees it");
    let other = open(&path);
    assert_eq!(other.metadata().expect("answers").len(), 4 * PAGE as u64);
    assert_eq!(seen(&other), [0; 4], "the pages are with their writer");
    drop(mine);
    assert_eq!(seen(&other), [7; 4]);
}

#[test]
fn a_relaxed_write_is_seen_after_fsync_and_after_an_unlock() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("relaxed-sync");
    let (mine, path, _nodes) = new_file(&cluster);
    let other = open(&path);
    write(&mine, 5);
    mine.sync_all().expect("durable");
    assert_eq!(seen(&other), [5; 4]);
    drop((mine, other));
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "").expect("made");
    let (mine, other) = (open(&cluster.mountpoint(1).join("data")), open(&path));
    lock(&mine, libc::F_WRLCK, 0, 1).expect("free");
    write(&mine, 6);
    assert_eq!(seen(&mine), [6; 4]);
    lock(&mine, libc::F_UNLCK, 0, 1).expect("ours");
    assert_eq!(seen(&other), [6; 4], "the next holder sees it");
}

#[test]
fn removed_data_that_only_its_writer_has_does_not_return() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("relaxed-cut");
    let (mine, path, _nodes) = new_file(&cluster);
    write(&mine, 9);
    mine.set_len(PAGES * PAGE as u64).expect("longer");
    mine.set_len(10).expect("shorter");
    mine.set_len(4 * PAGE as u64).expect("longer");
    assert_eq!(seen(&mine), [9, 0, 0, 0]);
    drop(mine);
    assert_eq!(seen(&open(&path)), [9, 0, 0, 0]);
}
