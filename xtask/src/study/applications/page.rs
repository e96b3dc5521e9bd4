//! The page: docs/results/applications.md.

use std::path::Path;

use super::super::table::{Table, number, size};
use super::cells::{DISTRIBUTIONS, MIXES, VALUES, db_bench_name, ycsb_name};
use super::plot::{PANELS, curve};
use super::results::{Pass, Results, Run, Transit};
use super::stack::{CACHE_BYTES, DIRTY_BYTES, MEDIUM_BYTES};
use super::{STAGING, SYSTEMS};
use crate::claims::{Report, figure, machine};

/// Within so much of the best, two figures of this machine are the same.
const SAME: f64 = 1.05;

/// The page as Markdown.
pub(super) fn render(
    results: &Results,
    report: &Report<Pass>,
    date: &str,
    seconds: f64,
    plot: &Path,
) -> String {
    let mut commits: Vec<&str> = results
        .passes
        .iter()
        .map(|pass| pass.commit.as_str())
        .collect();
    commits.dedup();
    let sum = |value: fn(&Pass) -> f64| results.passes.iter().map(value).sum::<f64>();
    let took = sum(|pass| pass.took_s);
    let mut text = format!(
        "# I/O transit caching: applications\n\nWritten by `cargo xtask study applications{}`, {} rounds of all systems, {:.0} min in all; no figure is typed by hand. Commit {}, {date}. Machine: {}. \
         Of its processors' time, processes of lower priority (not the study's) took {:.0} s and the machine's owner {:.1} s.\n",
        if report.quick { " --quick" } else { "" },
        results.rounds(),
        took / 60.0,
        commits.join(" and "),
        machine(),
        sum(|pass| pass.niced_s),
        sum(|pass| pass.steal_s),
    );
    if report.quick {
        text +=
            "\n**A quick run, of few cells, maybe beside others. For a look, not for a result.**\n";
    }
    text += &how(seconds);
    text += "\n## Claims\n\n";
    text += &claimed(report);
    text += &standing(results);
    text += &db_bench(results);
    text += &ycsb(results);
    text += &mixes(results);
    text += &distributions(results, plot);
    text += &transit(results);
    text += &killed(results);
    text + WHY
}

/// Why claims fail, after what there is to see.
const WHY: &str = "\
\n## What does not hold, and why

What is written here is what the tables show and what we take for the reason; the parts of it were not measured apart.

- **Programs that write through the kernel's cache** (fillrandom, the load of RocksDB, varmail). Most of their writes end in memory, and the device is behind it. Two processors carry the program, the kernel's write-back, the loop device, the daemon, and the thread that evicts, which keeps a processor for as long as a store to the emulated memory takes. So evicting at once takes from the program what the table alone, which stores each block once and in turn, does not. The systems lie within the spread of their rounds or a few hundredths beside it, but for btt alone, which is ahead where a program does nothing but write. The paper's machine has 36 cores; what the same policies do there is modelled in [caiti.md](caiti.md).
- **readrandom** comes behind the loads: what they left in slots is evicted beside it. A read that is not in a slot goes to the table as without a cache, and is never kept.
";

fn how(seconds: f64) -> String {
    format!(
        "\nPrograms on ext4 on a loop device (`--direct-io=on`) on the daemon's FUSE export of a block translation table (`btt`) on **emulated: optane-dimm** memory, alone and under a transit cache of {} with each policy. The medium is a file of {} in DRAM, *not persistent, for test*, made anew for each system in each round; loads, fences and bandwidth \
         wait as declared, and keep the processor while they do. So the daemon, its one thread that evicts, the kernel's workers for the loop device and the program share two processors: what the paper's eager eviction does in the background with many cores takes time from the program here.\n\n\
         *db_bench* is RocksDB's, with LevelDB's write buffer (4 MiB) and tables (2 MiB), one client, no compression: fillrandom writes as many values as there are keys ({}), overwrite half as many, readrandom and readhot (1% of the keys) read for {seconds} s. *YCSB*: {} \
         A is reads and updates, F reads and read-modify-writes, half each, {seconds} s of one client. *SQLite* has a write-ahead log and `synchronous = full`: every change is a transaction with a sync. The *mixes* are filebench's, smaller: eight threads, {seconds} s. Before each cell the file system is unmounted and mounted, so that everything is written and \
         the page cache is empty. The kernel keeps at most {} of it dirty: a cell is short, and what never leaves the page cache meets no policy. db_bench counts in whole microseconds and in buckets (between whose ends percentiles are interpolated), the others in nanoseconds. Medians of the rounds.\n",
        size(CACHE_BYTES as f64),
        size(MEDIUM_BYTES as f64),
        VALUES
            .map(|(bytes, values)| format!("{} of {bytes} B", number(values)))
            .join(", "),
        "RocksDB by its library, 100,000 records of 1,000 B loaded in scattered order, the same for every distribution.",
        size(DIRTY_BYTES as f64),
    )
}

fn claimed(report: &Report<Pass>) -> String {
    let mut table = Table::new(&["caiti's, beside another's", "paper", "ours", "bar", "holds"]);
    for claim in &report.claims {
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

/// Where Caiti stands in every cell.
fn standing(results: &Results) -> String {
    let (mut first, mut behind) = (0, Vec::new());
    let cells = results.cells();
    for cell in &cells {
        let median = |system: &str| results.median(system, cell, Run::mean_us);
        let others = STAGING.iter().chain(["btt"].iter());
        let best = others.map(|system| (median(system), *system));
        let best = best.min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((best_us, system)) = best else {
            continue;
        };
        let ratio = median("caiti") / best_us;
        if ratio > SAME {
            behind.push(format!("{cell} ({ratio:.2} of {system})"));
        } else {
            first += 1;
        }
    }
    format!(
        "\nBy mean response, beside the table alone and the four staging policies, Caiti is the best, or within {:.0}% of it, in {first} of {} cells. It is behind in: {}.\n",
        (SAME - 1.0) * 100.0,
        cells.len(),
        if behind.is_empty() {
            "none".into()
        } else {
            behind.join(", ")
        }
    )
}

/// A median with the least and the most of the rounds.
fn spread(results: &Results, system: &str, cell: &str, value: fn(&Run) -> f64) -> String {
    let median = results.median(system, cell, value);
    if !median.is_finite() {
        return "-".into();
    }
    let (least, most) = results.range(system, cell, value);
    let digits = if median < 100.0 { 1 } else { 0 };
    format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
}

fn plain(results: &Results, system: &str, cell: &str, value: impl Fn(&Run) -> f64) -> String {
    let median = results.median(system, cell, value);
    match median.is_finite() {
        true if median < 100.0 => format!("{median:.1}"),
        true => number(median as u64),
        false => "-".into(),
    }
}

/// A column: its title, and what is in its cells.
type Column<'a> = (String, Box<dyn Fn(&str) -> String + 'a>);

fn by_system(title: &str, columns: &[Column<'_>]) -> String {
    let titles: Vec<&str> = [title]
        .into_iter()
        .chain(columns.iter().map(|(title, _)| title.as_str()))
        .collect();
    let mut table = Table::new(&titles);
    for system in SYSTEMS {
        let cells = columns.iter().map(|(_, cell)| cell(system));
        table.row(
            &[system.to_owned()]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }
    table.0
}

fn db_bench(results: &Results) -> String {
    let there = results.cells();
    let mut text = "\n## db_bench: response, us\n".to_owned();
    for benchmark in ["fillrandom", "overwrite", "readrandom", "readhot"] {
        let mut columns: Vec<Column<'_>> = Vec::new();
        for (bytes, _) in VALUES {
            let cell = db_bench_name(benchmark, bytes);
            if !there.contains(&cell.as_str()) {
                continue;
            }
            let name = cell.clone();
            columns.push((
                format!("{bytes} B: mean"),
                Box::new(move |system| spread(results, system, &cell, Run::mean_us)),
            ));
            for (percent, title) in [(99.0, "p99"), (99.9, "p99.9")] {
                let cell = name.clone();
                columns.push((
                    title.into(),
                    Box::new(move |system| {
                        plain(results, system, &cell, |run| {
                            let side = if run.reads.count > 0 {
                                &run.reads
                            } else {
                                &run.writes
                            };
                            side.at(percent)
                        })
                    }),
                ));
            }
        }
        text += &format!("\n{}", by_system(benchmark, &columns));
    }
    text
}

fn ycsb(results: &Results) -> String {
    let there = results.cells();
    let mut names = vec![ycsb_name("rocksdb", "load", "")];
    for workload in ["a", "f"] {
        names.extend(DISTRIBUTIONS.map(|shape| ycsb_name("rocksdb", workload, shape)));
    }
    names.push(ycsb_name("sqlite", "load", ""));
    names.push(ycsb_name("sqlite", "a", "zipfian"));
    names.retain(|name| there.contains(&name.as_str()));
    let table = |title: &str, value: fn(&Run) -> f64, wide: bool| {
        let column = |name: &String| -> Column<'_> {
            let cell = name.clone();
            let show = move |system: &str| match wide {
                true => spread(results, system, &cell, value),
                false => plain(results, system, &cell, value),
            };
            (name.clone(), Box::new(show))
        };
        by_system(title, &names.iter().map(column).collect::<Vec<_>>())
    };
    format!(
        "\n## YCSB and SQLite\n\n{}\n{}\n{}\n{}\n{}",
        table("operations/s", Run::per_second, true),
        table("reads, mean us", Run::read_mean_us, false),
        table("reads, p99 us", |run| run.reads.at(99.0), false),
        table("writes, mean us", Run::write_mean_us, false),
        table("writes, p99 us", |run| run.writes.at(99.0), false),
    )
}

fn mixes(results: &Results) -> String {
    let mut text = "\n## Mixes of file operations\n\nA read is a file opened and read whole; a change is a file removed, or opened, written or appended to, and synced in varmail. Means with the least and the most of the rounds.\n".to_owned();
    for mix in MIXES {
        let wide = |value: fn(&Run) -> f64| -> Box<dyn Fn(&str) -> String + '_> {
            Box::new(move |system| spread(results, system, mix, value))
        };
        let narrow = |value: fn(&Run) -> f64| -> Box<dyn Fn(&str) -> String + '_> {
            Box::new(move |system| plain(results, system, mix, value))
        };
        let columns: Vec<Column<'_>> = vec![
            ("operations/s".into(), wide(Run::per_second)),
            ("all, mean us".into(), wide(Run::mean_us)),
            ("reads, mean us".into(), narrow(Run::read_mean_us)),
            ("reads, p99".into(), narrow(|run| run.reads.at(99.0))),
            ("changes, mean us".into(), narrow(Run::write_mean_us)),
            ("changes, p99".into(), narrow(|run| run.writes.at(99.0))),
        ];
        text += &format!("\n{}", by_system(mix, &columns));
    }
    text
}

/// The response times' distributions as tables, and where the plot is.
fn distributions(results: &Results, plot: &Path) -> String {
    let file = plot.file_name().unwrap_or_default().to_string_lossy();
    let mut text = format!(
        "\n## Distributions of response, us\n\n![Cumulative distributions of response times]({file})\n"
    );
    for (cell, side, title) in PANELS {
        let head = curve(results, SYSTEMS[0], cell, side);
        if head.is_empty() {
            continue;
        }
        let columns = head.into_iter().map(|(percent, _)| -> Column<'_> {
            let name = if percent < 100.0 {
                format!("p{percent}")
            } else {
                "most".into()
            };
            let show =
                move |system: &str| plain(results, system, cell, |run| side(run).at(percent));
            (name, Box::new(show))
        });
        text += &format!("\n{}", by_system(title, &columns.collect::<Vec<_>>()));
    }
    text
}

/// What became of the blocks that were written.
fn transit(results: &Results) -> String {
    let mut table = Table::new(&[
        "all cells",
        "written to slots",
        "bypassed",
        "waited",
        "evicted",
        "read from slots",
        "read from the table",
    ]);
    for system in SYSTEMS.into_iter().filter(|system| *system != "btt") {
        let runs = results.passes.iter().filter(|pass| pass.system == system);
        let all = runs.flat_map(|pass| &pass.cells).map(|run| run.transit);
        let all = all.fold(Transit::default(), |sum, one| {
            sum.zip(one, |one, other| one + other)
        });
        let counts = [
            all.written,
            all.bypassed,
            all.waited,
            all.evicted,
            all.read_hits,
            all.read_misses,
        ];
        let cells = counts.into_iter().map(number);
        table.row(
            &[system.to_owned()]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }
    format!(
        "\n## Blocks of 4 KiB, by what the transit cache did with them\n\n{}",
        table.0
    )
}

fn killed(results: &Results) -> String {
    let Some(kills) = &results.kills else {
        return String::new();
    };
    let mut table = Table::new(&["system", "kills", "acknowledged changes", "wrong"]);
    for system in SYSTEMS {
        let rows: Vec<_> = kills
            .rows
            .iter()
            .filter(|row| row["system"] == system)
            .collect();
        let sum = |key: &str| {
            rows.iter()
                .map(|row| row[key].as_u64().unwrap_or(0))
                .sum::<u64>()
        };
        table.row(&[
            system.to_owned(),
            rows.len().to_string(),
            number(sum("acknowledged")),
            number(sum("wrong")),
        ]);
    }
    format!(
        "\n## kill -9\n\nThe daemon is killed while RocksDB and SQLite (a sync for each change) and a writer of files (every other one synced) are at it, and started again on the same media; ext4 replays its journal, `e2fsck -fn` has nothing to say (or the run fails), and every change that was acknowledged as synced is read back and compared. \
         The checkers find 64 bytes that were changed behind a database's back, a change that was never made, and a file that differs ([tests/kill/applications.rs](../../tests/kill/applications.rs), [ext4.rs](../../tests/kill/ext4.rs); each system is killed once in `make test`).{}\n\n{}",
        if kills.skipped {
            " **Something was skipped: a database's library is missing.**"
        } else {
            ""
        },
        table.0
    )
}
