//! Replicas on mounts.

use std::fs;
use std::os::unix::fs::FileExt;

use super::cluster::{Cluster, can_mount};
use super::open;

const PAGE: usize = 4096;
const PAGES: usize = 16;

#[test]
fn a_write_on_another_mount_is_read_at_once_in_place_of_a_replica() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("replicas");
    fs::write(cluster.source().join("data"), vec![1; PAGES * PAGE]).expect("written");
    let nodes = [cluster.node_with_replicas(1), cluster.node_with_replicas(2)];
    let [mine, other] = [1, 2].map(|number| open(&cluster.mountpoint(number).join("data")));
    let seen = |file: &fs::File, page: usize| {
        let mut out = [0; PAGE];
        file.read_exact_at(&mut out, (page * PAGE) as u64)
            .expect("read");
        assert!(out.iter().all(|byte| *byte == out[0]), "a torn page");
        out[0]
    };
    // Node 1 has the pages in its memory, and node 2 reads them often.
    (0..PAGES).for_each(|page| assert_eq!(seen(&mine, page), 1));
    cluster.wait(|status| {
        (0..PAGES).for_each(|page| assert_eq!(seen(&other, page), 1));
        status.pages.replicas >= 8
    });
    for page in 0..PAGES {
        mine.write_all_at(&[2; PAGE], (page * PAGE) as u64)
            .expect("written");
        assert_eq!(seen(&other, page), 2, "page {page}");
    }
    assert_eq!(cluster.status().pages.replicas, 0);
    drop((mine, other));
    nodes.into_iter().for_each(super::cluster::Worker::end);
    let stored = fs::read(cluster.source().join("data")).expect("there");
    assert!(stored == vec![2; PAGES * PAGE]);
}
