//! Measurements on this machine: two nodes of the library in one process. The directory has a
//! thread, and each node's connection has one. Packets are on channels, and the store is in memory.
//! Remote memory is memory of the same machine.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_block::Result;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Node, PAGE};
use crate::silent;

/// Pages of each node's memory, and of each cell of the grid.
const FRAMES: u32 = 8192;
const PAGES: u64 = 1024;
/// Uses of each mapped page.
const ROUNDS: u64 = 10;

/// Threads, and number of pages in each operation of a thread.
const SHAPES: [(&str, u64, u64); 3] = [
    ("4 KiB, 1 thread", 1, 1),
    ("4 KiB, 32 threads", 32, 1),
    ("128 KiB, 8 threads", 8, 32),
];

/// Use of a page by a program.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// A call copies the page out.
    Read,
    /// A call stores the page.
    Write,
    /// The page is mapped and loaded in place.
    View,
}

/// All uses, by name.
const USES: [(&str, Use); 3] = [
    ("read", Use::Read),
    ("write", Use::Write),
    ("view", Use::View),
];

/// The steps of a miss.
const STEPS: [&str; 3] = ["look up and lock", "fill", "unlock and go on"];

/// Measures one round.
pub(crate) fn measure() -> Result<Value> {
    let mut figures = Vec::new();
    for (shape, threads, pages) in SHAPES {
        for (what, how) in USES {
            grid(
                &format!("{what}, {shape}"),
                threads,
                pages,
                how,
                &mut figures,
            )?;
        }
    }
    for (what, how) in USES {
        split(what, how, &mut figures)?;
    }
    hits(&mut figures)?;
    for pages in [1, 1000] {
        figures.push(invalidation(pages)?);
    }
    Ok(json!({ "figures": figures }))
}

fn page(inode: u64, index: u64) -> PageId {
    PageId { inode, index }
}

/// Measures an operation on pages that are not in memory, cached by the other node, or mapped
/// already.
fn grid(what: &str, threads: u64, pages: u64, how: Use, figures: &mut Vec<Value>) -> Result<()> {
    let cluster = Cluster::new(2, FRAMES, Consistency::Strong, None);
    let [other, node] = cluster.pair();
    let mut out = [0; PAGE];
    for index in 0..PAGES {
        other.read(page(2, index), &mut out)?;
    }
    for (state, inode, rounds) in [
        ("nowhere", 1, 1),
        ("cached remotely", 2, 1),
        ("mapped", 2, ROUNDS),
    ] {
        let sent = cluster.sent.load(Ordering::Relaxed);
        let begin = Instant::now();
        let spent = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || worker(node, thread, threads, pages, inode, rounds, how))
                })
                .collect();
            let spent = workers
                .into_iter()
                .map(|worker| worker.join().expect("it ends"));
            spent.sum::<Result<Duration>>()
        })?;
        let wall = begin.elapsed();
        let operations = (PAGES * rounds / pages) as f64;
        figures.push(json!({
            "what": format!("{what}, {state}"),
            "latency_ns": spent.as_nanos() as f64 / operations,
            "operations_per_s": operations / wall.as_secs_f64(),
            "packets": cluster.sent.load(Ordering::Relaxed) - sent,
        }));
    }
    Ok(())
}

/// Measures the operations of one thread.
fn worker(
    node: &Node,
    thread: u64,
    threads: u64,
    pages: u64,
    inode: u64,
    rounds: u64,
    how: Use,
) -> Result<Duration> {
    let mut bytes = [7; PAGE];
    let begin = Instant::now();
    for _ in 0..rounds {
        for operation in (thread..PAGES / pages).step_by(threads as usize) {
            for index in operation * pages..(operation + 1) * pages {
                match how {
                    Use::Read => node.read(page(inode, index), &mut bytes)?,
                    Use::Write => node.write(page(inode, index), 0, &bytes)?,
                    Use::View => node.map(page(inode, index))?.load(0, &mut bytes),
                }
            }
        }
    }
    Ok(begin.elapsed())
}

/// Splits the time of a miss on one thread, page by page. The parts end with the directory's
/// answer, the page's publication in its frame, and the program's continuation.
fn split(what: &str, how: Use, figures: &mut Vec<Value>) -> Result<()> {
    let cluster = Cluster::new(2, FRAMES, Consistency::Strong, None);
    let node = &cluster.nodes[1];
    // Both nodes have joined.
    for node in &cluster.nodes {
        node.read(page(2, 0), &mut [0; PAGE])?;
    }
    let mut steps = [0; 3];
    for index in 0..PAGES {
        *cluster.stamps.lock().expect("nobody panicked") = Some(Vec::new());
        let begin = Instant::now();
        worker(node, index, PAGES, 1, 1, 1, how)?;
        let end = Instant::now();
        let stamps = cluster.stamps.lock().expect("nobody panicked").take();
        let [asked, came, said] = stamps.unwrap_or_default()[..] else {
            panic!("a miss is a packet, its answer, and word that the page is there");
        };
        assert!(begin <= asked && asked <= came, "in this order");
        for (step, spent) in steps
            .iter_mut()
            .zip([came - begin, said - came, end - said])
        {
            *step += u64::try_from(spent.as_nanos()).expect("not for centuries");
        }
    }
    for (step, spent) in STEPS.into_iter().zip(steps) {
        figures.push(json!({
            "what": format!("{what}, {step}"),
            "latency_ns": spent as f64 / PAGES as f64,
            "packets": 0,
        }));
    }
    Ok(())
}

/// Measures hits in the node's own memory and in the other's, beside those of a single node;
/// alternating, the best of many rounds.
fn hits(figures: &mut Vec<Value>) -> Result<()> {
    const TURNS: u32 = 40;
    let alone = Cluster::new(1, 2 * FRAMES, Consistency::Strong, None);
    let both = Cluster::new(2, FRAMES, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for index in 0..PAGES {
        alone.nodes[0].read(page(1, index), &mut out)?;
        both.nodes[0].read(page(1, index), &mut out)?;
        both.nodes[1].read(page(1, index), &mut out)?;
    }
    let sent = both.sent.load(Ordering::Relaxed);
    let kinds: [(&str, &Node, bool); 4] = [
        ("hit of a node alone", &alone.nodes[0], false),
        ("local hit", &both.nodes[0], false),
        ("remote hit", &both.nodes[1], false),
        ("remote hit, view", &both.nodes[1], true),
    ];
    let mut best = [f64::INFINITY; 4];
    for _ in 0..TURNS {
        for ((_, node, view), best) in kinds.iter().zip(&mut best) {
            let begin = Instant::now();
            for index in 0..PAGES {
                if *view {
                    let mut word = [0; 8];
                    node.map(page(1, index))?.load(0, &mut word);
                } else {
                    node.read(page(1, index), &mut out)?;
                }
            }
            *best = best.min(begin.elapsed().as_nanos() as f64 / PAGES as f64);
        }
    }
    let packets = both.sent.load(Ordering::Relaxed) - sent;
    for ((what, ..), best) in kinds.iter().zip(best) {
        figures.push(json!({ "what": what, "latency_ns": best, "packets": packets }));
    }
    Ok(())
}

/// Measures the departure of a node with this number of pages that the other node maps: all are
/// invalidated, acknowledged and freed.
fn invalidation(pages: u64) -> Result<Value> {
    let cluster = Cluster::new(2, 1024, Consistency::Strong, None);
    let mut out = [0; PAGE];
    for node in &cluster.nodes {
        for index in 0..pages {
            node.read(page(1, index), &mut out)?;
        }
    }
    let sent = cluster.sent.load(Ordering::Relaxed);
    let begin = Instant::now();
    cluster.nodes[0].leave(Duration::from_secs(60))?;
    Ok(json!({
        "what": format!("invalidation of {pages}"),
        "latency_ns": begin.elapsed().as_nanos() as f64,
        "packets": cluster.sent.load(Ordering::Relaxed) - sent,
    }))
}

/// Runs remote hits by read and by view, in a process that the kernel ends at its first system
/// call. With `first`, the pages were not used before, so the process must be ended.
pub(crate) fn silent(first: bool) -> Result<()> {
    let cluster = Cluster::new(2, 256, Consistency::Strong, None);
    let [other, node] = cluster.pair();
    let mut out = [0; PAGE];
    for index in 0..128 {
        other.read(page(1, index), &mut out)?;
        if !first {
            node.read(page(1, index), &mut out)?;
        }
    }
    silent::forbid_system_calls();
    for index in (0..128).cycle().take(1_000_000) {
        node.read(page(1, index), &mut out)?;
        let mut word = [0; 8];
        node.map(page(1, index))?.load(0, &mut word);
    }
    silent::exit_well();
}

/// Returns whether the kernel sees no system call in remote hits, and sees the one of a first use.
pub(crate) fn is_silent() -> std::io::Result<bool> {
    let ends = |what: &str| -> std::io::Result<bool> {
        let mut process = std::process::Command::new(std::env::current_exe()?);
        process.args(["silent", what]);
        Ok(silent::came_to_its_end(process))
    };
    Ok(ends("hits")? && !ends("first")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_has_three_steps() {
        for (what, how) in USES {
            let mut figures = Vec::new();
            split(what, how, &mut figures).expect("it runs");
            let named = figures.iter().zip(STEPS).all(|(figure, step)| {
                figure["what"] == format!("{what}, {step}")
                    && figure["latency_ns"].as_f64().is_some_and(|ns| ns > 0.0)
            });
            assert!(named && figures.len() == STEPS.len(), "{figures:?}");
        }
    }

    #[test]
    fn each_use_sends_messages_only_until_the_page_is_mapped() {
        for (what, how) in USES {
            let mut figures = Vec::new();
            grid(what, 2, 4, how, &mut figures).expect("it runs");
            let packets: Vec<(&str, u64)> = figures
                .iter()
                .map(|figure| {
                    let what = figure["what"].as_str().expect("a name");
                    (what, figure["packets"].as_u64().expect("a count"))
                })
                .collect();
            let [(nowhere, filled), (remote, found), (mapped, none)] = packets[..] else {
                panic!("three states: {packets:?}");
            };
            assert_eq!(nowhere, format!("{what}, nowhere"));
            assert!(filled >= PAGES, "asked, published: {packets:?}");
            assert_eq!(remote, format!("{what}, cached remotely"));
            assert!(found > 0, "{packets:?}");
            assert_eq!((mapped, none), (&*format!("{what}, mapped"), 0));
        }
    }
}
