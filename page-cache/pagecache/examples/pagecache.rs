//! Two nodes share one copy of each page in real shared memory. Prints the time and the packets of
//! the first use, of later local and remote uses, and of stores.
//!
//! `cargo run --release -p forebay-pagecache --example pagecache`

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/threads/cluster.rs"]
mod cluster;
#[path = "../tests/threads/reads.rs"]
mod reads;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cluster::{Cluster, PAGE};
use forebay_block::Result;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;
use forebay_pagecache::segment::Segment;

const FRAMES: u32 = 4096;
const PAGES: u64 = 2048;
const ROUNDS: u64 = 20;

fn main() -> Result<()> {
    let path = format!("/dev/shm/forebay-pagecache-example-{}", std::process::id());
    let size_bytes = Segment::size_bytes(2 * FRAMES, PAGE);
    let (memory, _) = forebay_io::shm::open_shared(Path::new(&path), size_bytes)?;
    let cluster = Cluster::new(2, FRAMES, Consistency::Strong, Some(memory));
    let result = measure(&cluster);
    std::fs::remove_file(&path)?;
    result?;
    crowded()
}

/// Measures reads that each evict another page.
fn crowded() -> Result<()> {
    let cluster = Cluster::new(2, 256, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for round in 0..2 {
        let sent = cluster.sent.load(Ordering::Relaxed);
        let start = Instant::now();
        for index in 0..PAGES {
            cluster.nodes[0].read(PageId { inode: 2, index }, &mut out)?;
        }
        let each_ns = start.elapsed().as_nanos() / u128::from(PAGES);
        let packets = cluster.sent.load(Ordering::Relaxed) - sent;
        if round > 0 {
            let what = "read, nowhere, and another page goes for it";
            println!("{what:<48} {each_ns:>7} ns a page {packets:>6} packets");
        }
    }
    Ok(())
}

fn measure(cluster: &Cluster) -> Result<()> {
    let [local, remote] = cluster.pair();
    let page = |index| PageId {
        inode: 1,
        index: index * 7919 % PAGES,
    };
    let mut out = [0; PAGE];
    let timed =
        |what: &str, rounds: u64, body: &mut dyn FnMut(PageId) -> Result<()>| -> Result<()> {
            let sent = cluster.sent.load(Ordering::Relaxed);
            let start = Instant::now();
            for index in 0..PAGES * rounds {
                body(page(index))?;
            }
            let each_ns = start.elapsed().as_nanos() / u128::from(PAGES * rounds);
            let packets = cluster.sent.load(Ordering::Relaxed) - sent;
            println!("{what:<48} {each_ns:>7} ns a page {packets:>6} packets");
            Ok(())
        };
    timed("read, nowhere yet (fill)", 1, &mut |page| {
        local.read(page, &mut out)
    })?;
    timed("read, in this node's memory", ROUNDS, &mut |page| {
        local.read(page, &mut out)
    })?;
    timed("read, first from the other node's memory", 1, &mut |page| {
        remote.read(page, &mut out)
    })?;
    timed(
        "read, again from the other node's memory",
        ROUNDS,
        &mut |page| remote.read(page, &mut out),
    )?;
    timed(
        "view of a page in the other node's memory",
        ROUNDS,
        &mut |page| {
            let mut word = [0; 8];
            remote.map(page)?.load(0, &mut word);
            Ok(())
        },
    )?;
    timed(
        "write of 64 bytes, first by the other node",
        1,
        &mut |page| remote.write(page, 0, &[1; 64]),
    )?;
    timed("write of 64 bytes, again", ROUNDS, &mut |page| {
        remote.write(page, 0, &[2; 64])
    })?;
    let counts = remote.counts();
    println!(
        "the other node: {} hits in remote memory, {} in its own",
        counts.hits_remote, counts.hits_local
    );
    Ok(())
}
