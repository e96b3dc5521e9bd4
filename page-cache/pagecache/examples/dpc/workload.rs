//! Operations of programs: the workloads of the study, and a mix for its sweeps.
//!
//! Sizes are in units of one node's memory. The paper's nodes have 32 GB each. Its RocksDB has 60
//! GB, its DiskANN index 40, its model 30 and its file sets about 32. The ratios here are the same,
//! the memory is smaller. All that is drawn depends on the seed, the node and the thread alone, so
//! that every system is asked for the same.

use std::rc::Rc;

use forebay_io::sim::Rng;
use forebay_pagecache::message::PageId;
use serde_json::Value;

/// Threads of each node: the number of processors of the paper's guests.
pub(crate) const THREADS: usize = 16;
/// Pages of each node's memory.
pub(crate) const MEMORY_PAGES: u32 = 8192;

/// Operation of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operation {
    pub(crate) inode: u64,
    /// Length of the file, pages.
    pub(crate) file_pages: u64,
    /// Whether the file is opened before and closed after the operation.
    pub(crate) session: bool,
    /// Whether the file's size changes.
    pub(crate) grows: bool,
    pub(crate) reads: Vec<PageId>,
    pub(crate) writes: Vec<PageId>,
    pub(crate) fsync: bool,
}

/// Kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Webserver,
    Fileserver,
    Varmail,
    Points,
    Vectors,
    Weights,
    Affinity,
    Mix,
}

/// A workload for a number of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    kind: Kind,
    /// Pages that all nodes share.
    set_pages: u64,
    /// Of a thousand operations of a mix: number on the shared pages, and number of writes.
    shared: u64,
    writes: u64,
    zipf: Rc<Zipf>,
    /// Distribution over a node's own pages in a mix, which are its part of as many further pages.
    own: Rc<Zipf>,
    /// Operations of each thread during the warm-up and the measurement.
    pub(crate) warm: u64,
    pub(crate) counted: u64,
}

const LOGS: u64 = 1 << 40;
const PRIVATE: u64 = 1 << 41;
const LOG_PAGES: u64 = 256;

impl Workload {
    /// Returns the workload of a job.
    pub(crate) fn of(job: &Value, nodes: usize) -> Result<Self, String> {
        let name = job["workload"].as_str().unwrap_or_default();
        // The size in units of a node's memory, and the operations of a thread. The warm-up fills
        // each cache several times, unless the filling itself is measured.
        let (kind, size, warm, counted) = match name {
            "webserver" => (Kind::Webserver, 1.0, 2048, 256),
            "fileserver" => (Kind::Fileserver, 1.0, 96, 48),
            "varmail" => (Kind::Varmail, 1.0, 384, 192),
            "points" => (Kind::Points, 60.0 / 32.0, 8192, 2048),
            "vectors" => (Kind::Vectors, 40.0 / 32.0, 1536, 512),
            "weights" => (Kind::Weights, 30.0 / 32.0, 0, 0),
            "affinity" => (Kind::Affinity, 2.0, 8192, 2048),
            "mix" => (Kind::Mix, 1.0, 4096, 1024),
            other => return Err(format!("no workload is called {other:?}")),
        };
        let size = job["size"].as_f64().unwrap_or(size);
        let set_pages = (f64::from(MEMORY_PAGES) * size) as u64;
        let slice = set_pages.div_ceil(THREADS as u64).div_ceil(CHUNK);
        let theta = job["theta"].as_f64().unwrap_or(0.99);
        let zipf = Rc::new(Zipf::new(set_pages, theta));
        let own = match kind {
            Kind::Mix | Kind::Affinity => Rc::new(Zipf::new(set_pages / nodes as u64, theta)),
            _ => Rc::clone(&zipf),
        };
        Ok(Self {
            kind,
            set_pages,
            shared: job["shared"].as_u64().unwrap_or(1000),
            writes: job["writes"].as_u64().unwrap_or(0),
            zipf,
            own,
            warm: job["warm"].as_u64().unwrap_or(warm),
            counted: match kind {
                Kind::Weights => slice,
                _ => job["counted"].as_u64().unwrap_or(counted),
            },
        })
    }
}

/// Pages that a loader reads at a time: 128 KiB.
const CHUNK: u64 = 32;

/// Operations of one thread.
pub(crate) struct Thread {
    workload: Workload,
    node: u64,
    thread: u64,
    done: u64,
    rng: Rng,
}

impl Thread {
    pub(crate) fn new(workload: &Workload, node: usize, thread: usize, seed: u64) -> Self {
        Self {
            workload: workload.clone(),
            node: node as u64,
            thread: thread as u64,
            done: 0,
            rng: Rng::labelled(seed, (node * THREADS + thread) as u64),
        }
    }

    /// Returns the next operation.
    pub(crate) fn next(&mut self) -> Operation {
        let nth = self.done;
        self.done += 1;
        match self.workload.kind {
            Kind::Webserver if nth % 11 == 10 => self.log(nth / 11),
            Kind::Webserver => self.file(4, 0..4, 0..0, false),
            Kind::Fileserver => match nth % 3 {
                0 => self.file(32, 0..0, 0..32, false),
                1 => self.file(32, 0..0, 28..32, false),
                _ => self.file(32, 0..32, 0..0, false),
            },
            Kind::Varmail => match nth % 3 {
                0 => self.file(8, 0..0, 0..4, true),
                1 => self.file(8, 0..4, 4..8, true),
                _ => self.file(8, 0..8, 0..0, false),
            },
            Kind::Points => {
                let page = self.workload.zipf.draw(&self.rng);
                self.read(0, [page].into_iter())
            }
            Kind::Vectors => {
                let pages: Vec<u64> = (0..4)
                    .map(|_| self.rng.below(self.workload.set_pages))
                    .collect();
                self.read(0, pages.into_iter())
            }
            Kind::Weights => {
                let slice = self.workload.counted * CHUNK;
                let start = self.thread * slice + nth * CHUNK;
                let end = (start + CHUNK).min(self.workload.set_pages);
                self.read(0, start.min(end)..end)
            }
            Kind::Affinity => self.affinity(),
            Kind::Mix => self.mix(),
        }
    }

    fn mix(&mut self) -> Operation {
        let shared = self.rng.chance(self.workload.shared, 1000);
        let (inode, zipf) = match shared {
            true => (0, &self.workload.zipf),
            false => (PRIVATE + self.node, &self.workload.own),
        };
        let page = zipf.draw(&self.rng);
        let mut operation = self.read(inode, [page].into_iter());
        if self.rng.chance(self.workload.writes, 1000) {
            operation.writes = std::mem::take(&mut operation.reads);
        }
        operation
    }

    /// Uses a page of a file that all nodes share: nine of ten are in the node's own part. One of
    /// twenty operations writes.
    fn affinity(&mut self) -> Operation {
        let part = self.workload.own.places.len() as u64;
        let page = match self.rng.chance(9, 10) {
            true => self.node * part + self.workload.own.draw(&self.rng),
            false => self.rng.below(self.workload.set_pages),
        };
        let mut operation = self.read(0, [page].into_iter());
        if self.rng.chance(1, 20) {
            operation.writes = std::mem::take(&mut operation.reads);
        }
        operation
    }

    /// Opens, uses and closes a random file of the set.
    fn file(
        &mut self,
        file_pages: u64,
        reads: std::ops::Range<u64>,
        writes: std::ops::Range<u64>,
        fsync: bool,
    ) -> Operation {
        let inode = 1 + self.rng.below(self.workload.set_pages / file_pages);
        let pages = |range: std::ops::Range<u64>| range.map(|index| PageId { inode, index });
        Operation {
            inode,
            file_pages,
            session: true,
            grows: !writes.is_empty(),
            reads: pages(reads).collect(),
            writes: pages(writes).collect(),
            fsync,
        }
    }

    /// Appends 16 KiB to the node's log.
    fn log(&mut self, nth: u64) -> Operation {
        let inode = LOGS + self.node;
        let start = (nth * THREADS as u64 + self.thread) * 4 % LOG_PAGES;
        Operation {
            inode,
            file_pages: LOG_PAGES,
            session: true,
            grows: true,
            writes: (start..start + 4)
                .map(|index| PageId { inode, index })
                .collect(),
            ..Operation::default()
        }
    }

    /// Reads pages of a file that stays open.
    fn read(&self, inode: u64, pages: impl Iterator<Item = u64>) -> Operation {
        let mut reads: Vec<PageId> = pages.map(|index| PageId { inode, index }).collect();
        reads.sort_unstable();
        reads.dedup();
        Operation {
            inode,
            file_pages: self.workload.set_pages,
            reads,
            ..Operation::default()
        }
    }
}

/// Zipf-distributed numbers below a bound: the n-th most popular one has a weight of n to the power
/// of -theta. Popular numbers are scattered.
#[derive(Debug)]
struct Zipf {
    /// Cumulative probability of this rank, in units of 2^-32.
    sums: Vec<f64>,
    places: Vec<u64>,
}

impl Zipf {
    fn new(bound: u64, theta: f64) -> Self {
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for rank in 1..=bound {
            sum += (rank as f64).powf(-theta);
            sums.push(sum);
        }
        let mut places: Vec<u64> = (0..bound).collect();
        let rng = Rng::new(bound);
        for at in (1..places.len()).rev() {
            places.swap(at, rng.index(at + 1));
        }
        Self { sums, places }
    }

    fn draw(&self, rng: &Rng) -> u64 {
        let whole = self.sums.last().copied().unwrap_or(0.0);
        let at = rng.below(1 << 32) as f64 / (1_u64 << 32) as f64 * whole;
        let rank = self.sums.partition_point(|sum| *sum <= at);
        self.places[rank.min(self.places.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zipf_set_has_the_share_of_its_most_popular() {
        let zipf = Zipf::new(1000, 1.0);
        let rng = Rng::new(5);
        let most = zipf.places[0];
        let hits = (0..100_000).filter(|_| zipf.draw(&rng) == most).count();
        // The harmonic number of 1000 is 7.485.
        assert!(
            (hits as f64 / 100_000.0 - 1.0 / 7.485).abs() < 0.01,
            "{hits}"
        );
        let uniform = Zipf::new(4, 0.0);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[uniform.draw(&rng) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_model_is_read_once_by_each_node() {
        let job = serde_json::json!({"workload": "weights"});
        let workload = Workload::of(&job, 2).expect("there is one");
        let mut seen = vec![0; workload.set_pages as usize];
        for thread in 0..THREADS {
            let mut thread = Thread::new(&workload, 1, thread, 1);
            for _ in 0..workload.counted {
                for page in thread.next().reads {
                    seen[page.index as usize] += 1;
                }
            }
        }
        assert!(seen.iter().all(|times| *times == 1));
    }
}
