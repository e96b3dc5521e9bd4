//! `cargo bench --bench pagecache`: costs of a page of the distributed page cache for a program
//! that uses the library.
//!
//! It measures hits in the memory of the program's node and of another node, the first use of a
//! page of another node, and invalidation. It also measures hits in another node's memory with
//! software coherence, and with emulated latency and bandwidth.
//!
//! Directory and nodes are in this process. Everything else is as between processes: frames in
//! `/dev/shm` that each node maps itself, sockets, and a directory tree as the store. Times are
//! wall-clock times. Messages are the directory's count for all nodes, including two heartbeats a
//! second of each. System calls are those of the program's thread, counted in separate runs.

pub(crate) mod calls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::server::{self, Server};
use forebay_cluster::status::Status;
use forebay_cluster::{Coherence, Emulated, File, Node, NodeId, Options, PAGE_BYTES};

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Number of runs; results are medians.
    pub(crate) runs: usize,
    /// Pages of the file, which fits into either node.
    pub(crate) pages: u64,
    /// Uses of each mapped page in a run.
    pub(crate) rounds: u64,
}

const BENCH: Effort = Effort {
    runs: 15,
    pages: 1000,
    rounds: 100,
};

/// Memory of each node, pages.
const NODE_PAGES: u32 = 2048;
/// Node that has the pages. It joins for a run and leaves at its end; the other one stays.
const OWNER: u8 = 1;
const OTHER: u8 = 2;
/// A third node, for which all memory is remote.
const ELSE: u8 = 3;
const ELSE_PAGES: u32 = 16;
const FILE: &str = "data";

/// A kind of remote memory.
struct Elsewhere {
    what: &'static str,
    coherence: Coherence,
    latency_ns: u64,
    bytes_per_s: u64,
}

impl Elsewhere {
    const fn emulating(what: &'static str, latency_ns: u64, bytes_per_s: u64) -> Self {
        Self {
            what,
            coherence: Coherence::Hardware,
            latency_ns,
            bytes_per_s,
        }
    }

    fn emulated(&self) -> Option<Emulated> {
        (self.bytes_per_s > 0).then_some(Emulated {
            latency: Duration::from_nanos(self.latency_ns),
            bytes_per_s: self.bytes_per_s,
        })
    }
}

/// Software coherence, and emulated latencies and bandwidths.
const ELSEWHERE: [Elsewhere; 6] = [
    Elsewhere {
        what: "software coherence",
        coherence: Coherence::Software,
        latency_ns: 0,
        bytes_per_s: 0,
    },
    Elsewhere::emulating("emulated 0 ns, 16 GB/s", 0, 16_000_000_000),
    Elsewhere::emulating("emulated 400 ns, 8 GB/s", 400, 8_000_000_000),
    Elsewhere::emulating("emulated 400 ns, 16 GB/s", 400, 16_000_000_000),
    Elsewhere::emulating("emulated 400 ns, 32 GB/s", 400, 32_000_000_000),
    Elsewhere::emulating("emulated 1000 ns, 16 GB/s", 1000, 16_000_000_000),
];
/// Time without messages after which none are expected.
const SETTLED: Duration = Duration::from_millis(10);
/// Longest wait for the directory to report that a node has left.
const PATIENCE: Duration = Duration::from_secs(30);

/// Results of one kind of operation: one value of each run, for one operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) us: Vec<f64>,
    pub(crate) messages: Vec<f64>,
    pub(crate) calls: Vec<f64>,
}

/// Measured quantity of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meter {
    Clock,
    Calls,
}

/// One operation in one run: microseconds or calls, and messages.
struct Figure {
    what: String,
    cost: f64,
    messages: f64,
}

fn main() -> Result<()> {
    println!("machine: {}", machine());
    println!(
        "two nodes of one file of {} pages, nothing read ahead; median of {} runs (least to most); \
         of one operation",
        BENCH.pages, BENCH.runs
    );
    println!(
        "{:<48} {:>10} {:>22} {:>10} {:>13}",
        "", "us", "", "messages", "system calls"
    );
    for row in measure(BENCH)? {
        let Row {
            what,
            us,
            messages,
            calls,
        } = row;
        let [us, least, most] = spread(us);
        let range = format!("({least:.3} to {most:.3})");
        let ([messages, ..], [calls, ..]) = (spread(messages), spread(calls));
        println!("{what:<48} {us:>10.3} {range:>22} {messages:>10.2} {calls:>13.2}");
    }
    Ok(())
}

/// Measures all rows.
pub(crate) fn measure(effort: Effort) -> Result<Vec<Row>> {
    let bed = Bed::new(effort.pages)?;
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..effort.runs {
        let timed = bed.run(Meter::Clock, effort)?;
        let counted = bed.run(Meter::Calls, effort)?;
        for (at, (timed, counted)) in timed.into_iter().zip(counted).enumerate() {
            if at == rows.len() {
                rows.push(Row {
                    what: timed.what,
                    us: Vec::new(),
                    messages: Vec::new(),
                    calls: Vec::new(),
                });
            }
            rows[at].us.push(timed.cost);
            rows[at].messages.push(timed.messages);
            rows[at].calls.push(counted.cost);
        }
    }
    Ok(rows)
}

/// Returns median, minimum and maximum.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    ]
}

/// A directory and the node that stays, in their own directories.
struct Bed {
    pool: Pool,
    source: PathBuf,
    /// Dropped before its pool.
    other: Option<Node>,
}

impl Bed {
    fn new(pages: u64) -> Result<Self> {
        let name = format!("forebay-bench-{}", std::process::id());
        let mut bed = Self {
            pool: Pool::new(&PathBuf::from("/dev/shm").join(&name))?,
            source: std::env::temp_dir().join(&name),
            other: None,
        };
        std::fs::create_dir_all(&bed.source)?;
        let file = std::fs::File::create(bed.source.join(FILE))?;
        file.set_len(pages * PAGE_BYTES as u64)?;
        // A reserve beyond the frames: unpublished pages count too.
        let capacity = 2 * NODE_PAGES + 256;
        let options = server::Options::new(&bed.source, bed.pool.path(), capacity);
        let directory = Server::open(options)?;
        // It serves until the process ends.
        std::thread::spawn(move || directory.run());
        bed.other = Some(bed.join(OTHER)?);
        Ok(bed)
    }

    fn join(&self, number: u8) -> Result<Node> {
        self.join_with(number, |_| {})
    }

    fn join_with(&self, number: u8, change: impl FnOnce(&mut Options)) -> Result<Node> {
        let id = NodeId::new(number).expect("below 32");
        let mut options = Options::new(self.pool.path(), id, NODE_PAGES);
        // Without read-ahead, each page is looked up separately.
        options.read_ahead_pages = 0;
        change(&mut options);
        let pages = options.pages;
        let node = Node::join(options)?;
        assert_eq!(node.frames(), pages, "the pool has room for all");
        Ok(node)
    }

    fn status(&self) -> Result<Status> {
        command::status(&self.pool)
    }

    /// Returns the number of messages so far, once no more arrive: a node may have queued messages
    /// whose answer no program waits for.
    fn messages(&self) -> Result<u64> {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let status = self.status()?;
            let now = status.messages_in + status.messages_out;
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > SETTLED {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Joins a node that reads the first pages of the file into its memory. Returns the node, and
    /// the file as opened by both nodes.
    fn owner(&self, pages: u64) -> Result<(Node, File, File)> {
        let owner = self.join(OWNER)?;
        let other = self.other.as_ref().expect("it stays");
        let (ours, theirs) = (owner.open(FILE)?, other.open(FILE)?);
        map(&ours, pages)?;
        Ok((owner, ours, theirs))
    }

    /// Waits until the directory knows only this number of nodes.
    fn wait_left(&self, nodes: usize) -> Result<()> {
        let begin = Instant::now();
        while self.status()?.nodes.len() > nodes {
            if begin.elapsed() > PATIENCE {
                let context = "a node that left is not forgotten";
                return Err(Error::new(ErrorKind::TimedOut, context));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Measures each row once.
    fn run(&self, meter: Meter, effort: Effort) -> Result<Vec<Figure>> {
        let Effort { pages, rounds, .. } = effort;
        // One round is enough to count calls.
        let rounds = if meter == Meter::Calls { 1 } else { rounds };
        let each_round = |body: &dyn Fn() -> Result<()>| (0..rounds).try_for_each(|_| body());
        let mut figures = Vec::new();
        let mut row =
            |what: &str, operations, body: &mut (dyn FnMut() -> Result<()> + Send)| -> Result<()> {
                figures.push(self.figure(meter, what, operations, body)?);
                Ok(())
            };

        let (owner, ours, theirs) = self.owner(pages)?;
        row("first remote hit, map", pages, &mut || map(&theirs, pages))?;
        let uses = pages * rounds;
        row("local hit, map", uses, &mut || {
            each_round(&|| map(&ours, pages))
        })?;
        row("remote hit, map", uses, &mut || {
            each_round(&|| map(&theirs, pages))
        })?;
        row("local hit, read_at of 4 KiB", uses, &mut || {
            each_round(&|| read(&ours, pages))
        })?;
        row("remote hit, read_at of 4 KiB", uses, &mut || {
            each_round(&|| read(&theirs, pages))
        })?;
        for elsewhere in ELSEWHERE {
            let node = self.join_with(ELSE, |options| {
                options.pages = ELSE_PAGES;
                options.coherence = elsewhere.coherence;
                options.emulated = elsewhere.emulated();
            })?;
            let file = node.open(FILE)?;
            map(&file, pages)?;
            let what = format!("remote hit, read_at, {}", elsewhere.what);
            row(&what, uses, &mut || each_round(&|| read(&file, pages)))?;
            drop((file, node));
            self.wait_left(2)?;
        }
        drop((ours, theirs, owner));
        self.wait_left(1)?;

        // Removes a node that has this number of pages which the other node maps.
        for pages in [0, 1, pages] {
            let (owner, ours, theirs) = self.owner(pages)?;
            map(&theirs, pages)?;
            // Closed here, so that only the node is removed below.
            drop(ours);
            let mut owner = Some(owner);
            row(
                &format!("invalidation of {pages}: a node goes"),
                1,
                &mut || {
                    drop(owner.take());
                    Ok(())
                },
            )?;
            self.wait_left(1)?;
        }
        Ok(figures)
    }

    fn figure(
        &self,
        meter: Meter,
        what: &str,
        operations: u64,
        body: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<Figure> {
        let before = self.messages()?;
        let cost = match meter {
            Meter::Clock => {
                let begin = Instant::now();
                body()?;
                begin.elapsed().as_nanos() as f64 / 1000.0
            }
            Meter::Calls => {
                let (done, calls) = calls::of(body)?;
                done?;
                calls as f64
            }
        };
        let messages = self.messages()? - before;
        Ok(Figure {
            what: what.to_owned(),
            cost: cost / operations as f64,
            messages: messages as f64 / operations as f64,
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.other = None;
        // Waits until the directory has stopped writing there. On failure, the remaining files name
        // this process.
        let _ = self.wait_left(0);
        let _ = std::fs::remove_dir_all(self.pool.path());
        let _ = std::fs::remove_dir_all(&self.source);
    }
}

/// Maps the first pages, one after the other, and uses a word of each.
fn map(file: &File, pages: u64) -> Result<()> {
    let mut word = [0; 8];
    for page in 0..pages {
        file.map(page)?.load(0, &mut word);
        std::hint::black_box(&word);
    }
    Ok(())
}

/// Reads the first pages completely, one after the other.
fn read(file: &File, pages: u64) -> Result<()> {
    let mut out = [0; PAGE_BYTES];
    for page in 0..pages {
        file.read_at(page * PAGE_BYTES as u64, &mut out)?;
        std::hint::black_box(&out);
    }
    Ok(())
}

/// Description of the machine. Results of different machines are not comparable.
fn machine() -> String {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = text("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "{processors} x {}, Linux {}",
        model.map_or("unknown processor", |(_, name)| name),
        text("/proc/sys/kernel/osrelease").trim()
    )
}
