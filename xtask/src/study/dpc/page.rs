//! The page: docs/results/dpc.md.

use serde_json::Value;

use super::super::table::{Table, number, percent, size};
use super::cells::{
    Cells, FEW, FREE, LINK, NODE_COUNTS, NODES, OPENING, OPENS, REMOTE, ROUND_TRIP, Row, SHARED,
    SIZES, SYSTEMS, Sweep, WORKLOADS, WRITES, beside_virtiofs, geometric, mean, speedup,
};
use super::measured::{self, Round};
use crate::claims::{Claim, figure, machine};

/// What the page says of the run.
pub(super) struct Header {
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) minutes: f64,
    /// Whether the modelled cells are of an earlier run.
    pub(super) earlier: bool,
    pub(super) costs: Value,
}

const HOW: &str = "\
One program runs all systems: the library's own directory, node, memory and store code ([pool](../../page-cache/pagecache/examples/dpc/pool.rs)), driven to rest after each operation, with everything counted that they want done. A private cache is the same with one node, so eviction, memory and store are the same too; \
each node has 8,192 pages of memory in every system, \"one node\" has that of all.

- **one-node**: all programs run where all the memory is; nothing is remote and no message is needed. What could be had at best.
- **close-to-open**: private caches. A file's version is asked for when it is opened; what was written goes to the store when it is closed.
- **page-tokens**, **extent-tokens**: private caches with read and write tokens of one page or of 1 MiB (the whole file, if it is shorter), which stay with a node until another needs them. All that an operation lacks is asked for in one packet; what a writer gives up goes to the store first.
- **n-chance**: page tokens; a page comes from another node's memory where there is a copy, at what remote memory costs, and the last copy in the cluster is passed on to a node drawn at random, twice (Dahlin and others, OSDI '94).
- **dpc-relaxed**, **dpc-strong**: the distributed cache.
- **virtiofs**: one node with a private cache; every write and every miss costs what virtiofs is said to cost.

Files' names and sizes are the tree's in this project, so opening a file asks nobody, here for any system; a change of size takes the file's word in the memory that all map, which is two lines of another's memory and, where two nodes meet, the directory's lock too (three packets); it costs the others nothing. *Opens that ask a server* shows the other choice. The tests hold each system against a naive model: \
tokens, N-chance, one node and `dpc-strong` never read anything but what was written last, whatever is drawn, and close-to-open does where it may.

Workloads keep the paper's sizes in units of a node's memory (32 GB there): RocksDB-like points 1.9 (zipf 0.99 over single pages), a vector index 1.25 (four random pages a step), a model 0.94 (read once, cold, by all nodes at a time), the file sets 1. webserver: ten files of 16 KiB read whole, then 16 KiB to the node's own log. fileserver: files of 128 KiB are written whole, grow by 16 KiB, are read whole. \
varmail: 16 KiB written and fsynced, read and 16 KiB more fsynced, read whole. All files are shared by all nodes, any of them is as likely. Sixteen threads a node begin the next operation when the last has ended and think nothing between; all but the model are counted after the caches are warm.

**Time is modelled**: each thread has a clock; an operation takes what the declared costs say, and waits for the store, the links and the server's one thread, which serve one after another. Costs were fixed before the first run, with their sources, in [costs](../../page-cache/pagecache/examples/dpc/costs.rs). Four things of the model were changed after the first figures were seen, none of them a cost: a link carries bytes both ways at once, as it was declared and not done; opens ask nobody, as in the product, where the first model asked the directory at each; points and vectors are warmed for longer (at first they were measured while nodes still used pages for the first time, which made points 14.7 us with `dpc-strong` and 11.7 with tokens); and N-chance tells in one packet what left a node. The first three favour the distributed cache. The protocol was changed once for what the figures said: a file's size was changed under the directory's lock, three packets each time, until it had a word in shared memory ([alone](../../page-cache/pagecache/src/segment/alone.rs)); the mean was 3.23 before.";

/// What the test of two machines has printed, by `RESULT=docs/results/dpc-machines.txt tests/guest/ivshmem.sh`.
const MACHINES: &str = include_str!("../../../../docs/results/dpc-machines.txt");

const NOT_RUN: &str = "\
## Not run\n\nNFS, virtiofs and JuiceFS: this kernel has no NFS and no virtiofs client, and JuiceFS needs a metadata service and an object store that are not here; what stands for virtiofs is a declared cost in the model. Page grids by mmap of a mount (the paper's Figures 7 and 9): a mount has shared mappings only in directories that are in the kernel's cache and not in the pool; views of the library, which load and do not store, are in the grid in their place.\n";

/// The page as Markdown.
pub(super) fn render(
    header: &Header,
    claims: &[Claim],
    cells: &Cells,
    rounds: &[Round],
    quick: bool,
) -> String {
    let mut text = format!(
        "# The distributed page cache: what one copy of each page is worth\n\nWritten by `cargo xtask study dpc{}`, which took {:.0} min{}; no figure is typed by hand. Commit {}, {}. Machine: {}, which matters to *Measured* alone: all else is counted or modelled.\n\n",
        match (quick, header.earlier) {
            (true, _) => " --quick",
            (false, true) => " --model FILE",
            (false, false) => "",
        },
        header.minutes,
        if header.earlier {
            " beside the modelled cells, which are of an earlier run"
        } else {
            ""
        },
        header.commit,
        header.date,
        machine(),
    );
    text += &claimed(claims);
    text += &why(cells);
    text += &format!("\n## What is compared\n\n{HOW}\n\n{}", costs(&header.costs));
    text += &times(cells);
    text += &counts(cells);
    if !quick {
        text += &nodes(cells);
        text += &sizes(cells);
        text += &mixes(cells);
        text += &swept_costs(cells);
        text += &losses(cells);
    }
    text += &measured::render(rounds);
    text += &format!(
        "\n## Two machines\n\nTwo virtual machines (Debian's kernel, QEMU's software emulation), each with a node whose memory is the same ivshmem device, over one disk; the directory is a process of the host. For correctness alone: their processors are emulated, so nothing is timed. \
         What `tests/guest/ivshmem.sh` printed; a first use is counted as a hit too, once it is mapped.\n\n```\n{MACHINES}```\n"
    );
    text + "\n" + NOT_RUN
}

fn claimed(claims: &[Claim]) -> String {
    let mut table = Table::new(&["claim", "paper", "ours", "bar", "holds"]);
    for claim in claims {
        table.row(&[
            format!("{} ({:?})", claim.name, claim.kind).to_lowercase(),
            claim.paper_or_peer.map_or_else(|| "-".into(), figure),
            figure(claim.ours),
            claim.bar.clone(),
            if claim.holds { "yes" } else { "**no**" }.into(),
        ]);
    }
    table.0
}

/// What keeps the mean where it is: what one node with all the memory would gain.
fn why(cells: &Cells) -> String {
    let bound = |workload: &str| {
        let time = |system| {
            cells
                .at(workload, system, NODES)
                .map(|row| row.operation_ns)
        };
        let tokens = time("page-tokens")?.min(time("extent-tokens")?);
        Some(tokens / time("one-node")?)
    };
    let bounds = WORKLOADS.map(bound);
    let each = WORKLOADS.iter().zip(bounds).map(|(workload, bound)| {
        let gain = speedup(|system| cells.at(workload, system, NODES));
        format!("{workload} {} of {}", times_of(gain), times_of(bound))
    });
    let each: Vec<String> = each.collect();
    let links = LINK.values.iter();
    let links: Vec<String> = links
        .map(|value| times_of(with_swept(cells, &LINK, *value)))
        .collect();
    let least = bounds
        .iter()
        .flatten()
        .copied()
        .fold(f64::INFINITY, f64::min);
    format!(
        "\nThe baseline of the first claim is the better grain of tokens, for each workload. One node with all the memory and nothing remote, which no distributed cache can be expected to pass, is {} times the tokens in the same mean, and {} times for the workload with the least to gain: there the store or the copies themselves are what is waited for. Of what one node would gain, `dpc-strong` gains: {}. The rest goes to copies over the links and to a store that all wait for alike: if every message cost nothing, the mean would be {} (*Other costs*), so no change of what nodes and directory say to each other reaches 5.6 with these links; three of four pages that any of four nodes may use with equal right are in another's memory, and all sixteen threads of a node wait for its one link. It is the links' bandwidth that decides: with 8, 24 and 32 GB/s the mean is {}.\n",
        times_of(geometric(bounds)),
        figure(least),
        each.join(", "),
        times_of(with_swept(cells, &FREE, 1.0)),
        links.join(", "),
    )
}

/// The mean with one cost of ours changed; tokens do not know it.
fn with_swept(cells: &Cells, sweep: &Sweep, value: f64) -> Option<f64> {
    mean(|workload, system| match system {
        "dpc-strong" => cells.swept(workload, system, sweep.name, value),
        _ => cells.at(workload, system, NODES),
    })
}

fn costs(costs: &Value) -> String {
    let mut table = Table::new(&["declared cost", ""]);
    for (name, value) in costs.as_object().into_iter().flatten() {
        table.row(&[format!("`{name}`"), number(value.as_u64().unwrap_or(0))]);
    }
    table.0
}

fn times_of(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

fn microseconds(row: Option<&Row>) -> String {
    row.map_or_else(
        || "-".into(),
        |row| format!("{:.1}", row.operation_ns / 1000.0),
    )
}

fn times(cells: &Cells) -> String {
    let mut text = format!(
        "\n## Time of an operation at {NODES} nodes\n\nModelled, microseconds, mean of all. *Beside tokens*: the better grain's time over that of `dpc-strong`. *Beside virtiofs*: operations a second of {NODES} nodes with `dpc-strong` over those of one node with virtiofs, as the paper compares (its geometric mean 5.6, at most 12.4).\n\n"
    );
    let mut titles = vec!["workload"];
    titles.extend(SYSTEMS);
    titles.extend(["beside tokens", "beside virtiofs"]);
    let mut table = Table::new(&titles);
    for workload in WORKLOADS {
        let mut row = vec![workload.to_owned()];
        let cell = |system: &str| cells.at(workload, system, NODES);
        row.extend(SYSTEMS.map(|system| microseconds(cell(system))));
        row.push(times_of(speedup(cell)));
        row.push(times_of(beside_virtiofs(cells, workload)));
        table.row(&row);
    }
    let mut row = vec!["geometric mean".to_owned()];
    row.extend(SYSTEMS.map(|_| String::new()));
    row.push(times_of(mean(|workload, system| {
        cells.at(workload, system, NODES)
    })));
    let virtiofs = WORKLOADS.map(|workload| beside_virtiofs(cells, workload));
    row.push(times_of(geometric(virtiofs)));
    table.row(&row);
    text += &table.0;
    text
}

fn counts(cells: &Cells) -> String {
    let mut text = format!(
        "\n## Counts at {NODES} nodes\n\nPer page that programs read or wrote: found mapped in the node's own memory, mapped in another's, and in memory but for a message (the first use, or another's copy). Store bytes, messages, packets and pages invalidated are of the whole run. Copies: places that hold a page, mean over the resident pages at the end, and the most at any look; `dpc-relaxed` may have one more with each node that wrote a page whole and has not closed the file.\n"
    );
    for workload in WORKLOADS {
        text += &format!("\n### {workload}\n\n");
        let mut table = Table::new(&[
            "",
            "local",
            "remote",
            "first",
            "store read",
            "store written",
            "messages",
            "packets",
            "invalidated",
            "copies",
            "most",
            "stale reads",
        ]);
        for system in SYSTEMS {
            let Some(row) = cells.at(workload, system, NODES) else {
                continue;
            };
            let part = |count: u64| percent(count as f64 / row.pages.max(1) as f64);
            table.row(&[
                system.to_owned(),
                part(row.hits_local),
                part(row.hits_remote),
                part(row.first_remote),
                size(row.store_read_bytes as f64),
                size(row.store_write_bytes as f64),
                number(row.messages),
                number(row.packets),
                number(row.invalidations),
                format!("{:.2}", row.copies_mean),
                number(row.copies_most),
                number(row.stale),
            ]);
        }
        text += &table.0;
    }
    text
}

fn nodes(cells: &Cells) -> String {
    let mut text = "\n## Nodes\n\nEach node brings its memory and its sixteen threads; the shared set stays what it is, and so do the store and the directory's one thread. Time beside the better grain of tokens; in brackets what one node with all the memory would gain.\n\n".to_owned();
    let titles: Vec<String> = NODE_COUNTS.map(|nodes| format!("{nodes} nodes")).to_vec();
    let mut all = vec!["workload"];
    all.extend(titles.iter().map(String::as_str));
    let mut table = Table::new(&all);
    for workload in WORKLOADS {
        let mut row = vec![workload.to_owned()];
        for nodes in NODE_COUNTS {
            let gain = speedup(|system| cells.at(workload, system, nodes));
            let bound = speedup(|system| {
                let system = if system == "dpc-strong" {
                    "one-node"
                } else {
                    system
                };
                cells.at(workload, system, nodes)
            });
            row.push(format!("{} ({})", times_of(gain), times_of(bound)));
        }
        table.row(&row);
    }
    let mut row = vec!["geometric mean".to_owned()];
    row.extend(
        NODE_COUNTS
            .map(|nodes| times_of(mean(|workload, system| cells.at(workload, system, nodes)))),
    );
    table.row(&row);
    text += &table.0;
    text
}

/// A sweep of the mix: every system's time, and ours beside tokens.
fn mix(cells: &Cells, sweep: &Sweep, unit: fn(f64) -> String, title: &str) -> String {
    let mut titles = vec![title];
    titles.extend(SYSTEMS);
    titles.extend(["beside tokens"]);
    let mut table = Table::new(&titles);
    for value in sweep.values {
        let cell = |system: &str| cells.swept("mix", system, sweep.name, *value);
        let mut row = vec![unit(*value)];
        row.extend(SYSTEMS.map(|system| microseconds(cell(system))));
        row.push(times_of(speedup(cell)));
        table.row(&row);
    }
    table.0
}

fn sizes(cells: &Cells) -> String {
    let gain = |size: f64| speedup(|system| cells.swept("mix", system, SIZES.name, size));
    let points: Vec<(f64, f64)> = SIZES
        .values
        .iter()
        .filter_map(|size| Some((*size, gain(*size)?)))
        .collect();
    let crossing = match crossover(&points) {
        Some(size) => format!(
            "They cross where the set is {size:.2} times one node's memory (between the measured sizes, by a straight line): below it every node has a copy of all that is hot and remote memory is a loss; above it what replicas push out is read from the store again."
        ),
        None => "They do not cross in this range.".to_owned(),
    };
    format!(
        "\n## Size of the shared set\n\nSingle pages, all read, zipf 0.99, {NODES} nodes; the set in units of one node's memory, so that {NODES} is the whole budget. {crossing}\n\n{}",
        mix(cells, &SIZES, |size| format!("{size}"), "set / node")
    )
}

/// Where the line through the points comes above one last.
fn crossover(points: &[(f64, f64)]) -> Option<f64> {
    points.windows(2).rev().find_map(|pair| {
        let [(a, before), (b, after)] = *pair else {
            return None;
        };
        (before < 1.0 && after >= 1.0).then(|| a + (b - a) * (1.0 - before) / (after - before))
    })
}

fn mixes(cells: &Cells) -> String {
    let part = |value: f64| percent(value / 1000.0);
    format!(
        "\n## Sharing\n\nSingle pages, all read; a shared set of twice a node's memory, and as much again that is each node's own part; by the part of operations on the shared set.\n\n{}\n## Writes\n\nThe same set, all shared; by the part of operations that write a page. Files stay open: close-to-open reads old pages then, as it may.\n\n{}",
        mix(cells, &SHARED, part, "shared"),
        mix(cells, &WRITES, part, "writes")
    )
}

fn swept_costs(cells: &Cells) -> String {
    let mut text = "\n## Other costs\n\nGeometric mean of the six workloads beside the better grain of tokens, with one cost changed. Tokens copy nothing from others' memory, so the first two change `dpc-strong` alone. *messages_free* is a bound: `dpc-strong` with a directory that answers at once and for nothing, tokens as declared.\n\n".to_owned();
    let mut table = Table::new(&["cost", "value", "mean"]);
    for sweep in [REMOTE, LINK, FREE] {
        for value in sweep.values {
            let gain = with_swept(cells, &sweep, *value);
            table.row(&[sweep.name.to_owned(), number(*value as u64), times_of(gain)]);
        }
    }
    for value in ROUND_TRIP.values {
        let gain = mean(|workload, system| cells.swept(workload, system, ROUND_TRIP.name, *value));
        let name = ROUND_TRIP.name.to_owned();
        table.row(&[name, number(*value as u64), times_of(gain)]);
    }
    let declared = mean(|workload, system| cells.at(workload, system, NODES));
    table.row(&["as declared".to_owned(), String::new(), times_of(declared)]);
    text += &table.0;
    let opens = |workload: &str, system: &str| {
        let asked = cells.swept(workload, system, OPENS.name, 1.0);
        // The others open nothing.
        asked.or_else(|| cells.at(workload, system, NODES))
    };
    text += &format!(
        "\n### Opens that ask a server\n\nIf files' names and sizes are the directory's, each open of the distributed cache asks it (it has no tokens for them), while tokens of names are kept by their nodes like others: the mean is then {}.\n\n",
        times_of(mean(opens))
    );
    let mut table = Table::new(&[
        "workload",
        "one-node",
        "page-tokens",
        "extent-tokens",
        "dpc-strong",
        "beside tokens",
    ]);
    for workload in OPENING {
        let mut row = vec![workload.to_owned()];
        row.extend(FEW.map(|system| microseconds(opens(workload, system))));
        row.push(times_of(speedup(|system| opens(workload, system))));
        table.row(&row);
    }
    text + &table.0
}

/// Every cell in which tokens are faster.
fn losses(cells: &Cells) -> String {
    let mut text = "\n## Where it loses\n\nEvery place above where the better grain of tokens takes less time than `dpc-strong`:\n\n".to_owned();
    let before = text.len();
    for row in cells.0.iter().filter(|row| row.job.system == "dpc-strong") {
        let job = &row.job;
        if [REMOTE.name, LINK.name, FREE.name].contains(&&*job.sweep) {
            continue;
        }
        let gain = speedup(|system| match &*job.sweep {
            "" => cells.at(&job.workload, system, job.nodes),
            sweep => cells.swept(&job.workload, system, sweep, job.value),
        });
        if let Some(gain) = gain.filter(|gain| *gain < 1.0) {
            let place = match &*job.sweep {
                "" => format!("{} nodes", job.nodes),
                sweep => format!("{} nodes, {sweep} = {}", job.nodes, job.value),
            };
            text += &format!("- {}, {place}: {gain:.2}\n", job.workload);
        }
    }
    if text.len() == before {
        text += "- nowhere\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_is_between_the_points_around_one() {
        let points = [(1.0, 0.5), (2.0, 0.8), (4.0, 1.2), (6.0, 3.0)];
        assert_eq!(crossover(&points), Some(3.0));
        assert_eq!(crossover(&points[..2]), None);
        assert_eq!(crossover(&points[2..]), None);
    }
}
