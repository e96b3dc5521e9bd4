//! Nodes and the directory are killed under load, one after another.
//!
//! At every moment: all nodes read the data that a flush has acknowledged, and no page contains
//! words of another. At the end: all nodes can read and write every page, all see the same data,
//! and the store has it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, PATIENCE, Worker};
use super::role::{PAGES, WRITERS, count, read, write};
use forebay_cluster::PAGE_BYTES;

/// Acknowledged writes, by page.
type Acknowledged = BTreeMap<u64, u64>;

/// Reads the workers' lines so far.
fn listen(workers: &[Worker], acknowledged: &mut Acknowledged, losses: &mut u64) {
    for worker in workers {
        while let Ok(line) = worker.lines.try_recv() {
            let parts: Vec<&str> = line.split(' ').collect();
            if let ["F", page, count] = parts[..] {
                let page = page.parse().expect("a page");
                let count = count.parse().expect("a count");
                let before = acknowledged.entry(page).or_default();
                assert!(count > *before, "page {page}: {count} after {before}");
                *before = count;
            } else if line.starts_with("lost") {
                *losses += 1;
            }
        }
    }
}

#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let seconds =
        std::env::var("FOREBAY_KILL_SECONDS").map_or(8, |text| text.parse().expect("a number"));
    let mut cluster = Cluster::new("kill", 256, Duration::from_secs(5));
    cluster.fill("data", usize::try_from(PAGES).expect("few"));
    let frames = 24;
    let mut workers: Vec<Worker> = (0..WRITERS)
        .map(|own| cluster.worker(u8::try_from(own).expect("few"), frames))
        .collect();
    for worker in &workers {
        assert_eq!(worker.receive(), "joined");
    }
    let observer = cluster.join(9, 8);
    let file = observer.open("data").expect("there");
    let (mut acknowledged, mut losses) = (Acknowledged::new(), 0);
    let (mut kills, mut restarts) = (0_u64, 0_u64);
    let begin = Instant::now();
    let mut step = 0_usize;
    while begin.elapsed() < Duration::from_secs(seconds) || kills < 3 || restarts < 3 {
        assert!(
            begin.elapsed() < PATIENCE + Duration::from_secs(seconds),
            "it takes for ever"
        );
        step += 1;
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_millis(40 + (step as u64 * 67) % 250) {
            listen(&workers, &mut acknowledged, &mut losses);
            let page = (step as u64 * 13 + u64::from(pause.elapsed().subsec_micros())) % PAGES;
            let least = acknowledged.get(&page).copied().unwrap_or(0);
            let seen = read(&file, page).expect("the observer reads");
            assert!(
                seen >= least,
                "page {page} is {seen}, and {least} was acknowledged"
            );
        }
        if step.is_multiple_of(3) {
            // A node that is joining when its directory dies is refused by the next one, and ends.
            cluster.wait(|status| {
                let has =
                    |worker: &Worker| status.nodes.iter().any(|node| node.pid == worker.pid());
                workers.iter().all(has)
            });
            cluster.kill_directory();
            // A node may die while there is no directory.
            if step.is_multiple_of(2) {
                let victim = step / 3 % workers.len();
                workers[victim].kill();
                listen(&workers[victim..=victim], &mut acknowledged, &mut losses);
                kills += 1;
                cluster.start_directory();
                workers[victim] = cluster.worker(u8::try_from(victim).expect("few"), frames);
            } else {
                cluster.start_directory();
            }
            restarts += 1;
        } else {
            let victim = step % workers.len();
            workers[victim].kill();
            kills += 1;
            std::thread::sleep(Duration::from_millis(20));
            listen(&workers[victim..=victim], &mut acknowledged, &mut losses);
            workers[victim] = cluster.worker(u8::try_from(victim).expect("few"), frames);
        }
    }
    for worker in &mut workers {
        let ended = worker.end();
        let last = worker.lines.try_iter().last();
        assert!(
            ended,
            "a node does not end well; its last word: {last:?}; {:?}",
            cluster.status()
        );
    }
    let others = cluster.join(10, 24);
    let theirs = others.open("data").expect("there");
    let mut counts = Vec::new();
    for page in 0..PAGES {
        let seen = read(&file, page).expect("read");
        assert_eq!(
            read(&theirs, page).expect("read"),
            seen,
            "page {page} is two things"
        );
        let least = acknowledged.get(&page).copied().unwrap_or(0);
        assert!(
            seen >= least,
            "page {page} is {seen}, and {least} was acknowledged"
        );
        write(&file, page, seen + 1000).expect("written");
        assert_eq!(
            read(&theirs, page).expect("read"),
            seen + 1000,
            "page {page}"
        );
        counts.push(seen + 1000);
    }
    file.fsync().expect("durable");
    let stored = std::fs::read(cluster.source().join("data")).expect("read");
    for (page, (bytes, least)) in (0..).zip(stored.chunks(PAGE_BYTES).zip(counts)) {
        assert_eq!(count(page, bytes), least, "page {page} in the store");
    }
    let status = cluster.status();
    println!(
        "{kills} nodes killed, {restarts} starts of a directory, {} pages acknowledged, {losses} \
         flushes that said that something was lost; {status:?}",
        acknowledged.len()
    );
    assert!(!acknowledged.is_empty(), "no flush was acknowledged");
}
