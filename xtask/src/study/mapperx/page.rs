//! The page: docs/results/mapperx.md.

use super::result::{DIRTY_PERCENTS, Row, Run, Trace, all_over_dirty, median_and_most};
use crate::claims::Report;
use crate::study::table::{Table, number, percent, size};

/// What the page says of the run.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) minutes: f64,
}

/// What one write of metadata writes, at least; of the log, too.
const UNIT_BYTES: f64 = 4096.0;

/// Ways to know what was dirty, and what the tables call them.
const WAYS: [(&str, Option<f64>, &str); 10] = [
    ("ours", Some(2.0), "**ours, 0.01**"),
    ("ours", Some(3.0), "ours, 0.001"),
    ("ours", Some(4.0), "ours, 0.0001"),
    ("paper", Some(2.0), "Algorithm 1, 0.01"),
    ("paper", Some(3.0), "Algorithm 1, 0.001"),
    ("paper", Some(4.0), "Algorithm 1, 0.0001"),
    ("ours, all", Some(2.0), "ours, 0.01, every write"),
    ("paper, all", Some(2.0), "Algorithm 1, 0.01, every write"),
    ("marks", None, "marks"),
    ("exact", None, "exact"),
];

const HOW: &str = "\
A write-back cache of 10% of the trace's working set is simulated that keeps no data and drives the `policy` crate's own code: blocks of 32K to 256K, as `forebay format --block-size 32K,64K,128K,256K` makes. After each request
the least recently written dirty blocks are written back, with what the engine would write back beside them, until at most 5, 20 or 50% of the cached blocks are dirty. Beside the cache stand the ways to know after a crash what was dirty;
those with a tree run the `metadata` crate's own code, with one tree a volume, degree 4, 7 levels below the root (16,384 leaves), written in units of 4 KiB. (A trace with more than 64 volumes, which is what a cache knows, has them laid one behind another.)

- A *crash* falls at 30, 32, ... 100% of the trace. **Written back** is the number of cached blocks that the next process would write back; *of dirty* is that over the blocks that were dirty, *of cached* over all that were cached.
- **Metadata** is the units written over the client's writes, of all rounds: those that a client waited for, those that refine, coarsen or unmark. The first 20% of the writes are the warm-up, and apart. *Of bytes* is the same in bytes, 4 KiB for each of them. *Waited* are client writes that waited for a round.
- **ours**, **Algorithm 1**: the tree with our adjustment and with the paper's, at a target ratio of 0.01, 0.001 or 0.0001. Both write what nobody waits for only as far as the ratio allows; they differ in what they want to have written. The constants of our adjustment were chosen on CloudPhysics, MSN-FS and smartphone, with 5 and 20% dirty. Announced is a write to a block that is cached and clean. A new block needs no announcement: its record, which has
  to be written anyway, says that it is dirty. (A record that says so counts for a second after the block was written back, since the one that calls it clean waits for room in a batch.)
- **every write**: as in the paper, where the mapping says nothing of that: each write that turns a block dirty is announced, those that place a new block too.
- **marks** is what the log does today: writes in place are announced by a mark for 64 blocks, cleared after three seconds of quiet. There is no ratio that it keeps.
- **exact**: a write of metadata for each client write that turns a block dirty. **none**: everything that is cached is written back, 100% of cached, for no metadata.
- A trace that tells no operations is taken for writes altogether, which no cache sees; one that tells no times either is given so many requests a second as its publisher's words come to. Reads that bring in clean blocks are missing there.

Nothing here is timed. What writes wait for on an emulated SSD (the paper's micro-benchmarks) is in [mapperx-timing.md](mapperx-timing.md); the time to the first I/O in [cold.md](cold.md).";

/// The page as Markdown.
pub(super) fn render(header: &Header, report: &Report<Trace>) -> String {
    let Header {
        commit,
        date,
        minutes,
    } = header;
    let traces = &report.rows;
    let mut text = format!(
        "# The bit-tree: what a crash has written back (MapperX, the counting half)\n\nWritten by `cargo xtask study mapperx`, which took {minutes:.0} min; no figure is typed by hand. Commit {commit}, {date}. Everything is counted, and the same on any machine.\n"
    );
    if report.quick {
        text +=
            "\n**A quick run: fewer requests of the long traces. For a look, not for a result.**\n";
    }
    let mut section = |title: &str, body: &str| {
        text += &format!("\n## {title}\n\n{}\n", body.trim_end());
    };
    section("The answer", &answer(report));
    section("How", HOW);
    let counting = |as_writes: bool| -> Vec<&Trace> {
        let chosen = traces.iter().rev();
        chosen
            .filter(|trace| trace.counts() && trace.as_writes == as_writes)
            .collect()
    };
    section("All traces that count", &{
        let both: Vec<&Trace> = traces.iter().filter(|trace| trace.counts()).collect();
        format!(
            "Blocks written back over dirty blocks, median and worst over traces and crashes.\n\nTraces that tell which requests are writes:\n\n{}\nTraces taken for writes:\n\n{}\nAll:\n\n{}",
            overview(&counting(false)),
            overview(&counting(true)),
            overview(&both)
        )
    });
    let mut single = String::new();
    for trace in traces.iter().rev().filter(|trace| trace.counts()) {
        single += &trace_table(trace);
    }
    section("The traces that count", &single);
    let mut short = "Too short for a verdict: fewer than 10,000 writes after the warm-up. Those without any write are not shown.\n\n".to_owned();
    let others = traces.iter().rev().filter(|trace| !trace.counts());
    for trace in others.filter(|trace| trace.result.writes > 10) {
        short += &trace_table(trace);
    }
    section("The others", &short);
    text
}

fn answer(report: &Report<Trace>) -> String {
    let mut lines = Vec::new();
    for claim in report
        .claims
        .iter()
        .filter(|claim| claim.name.ends_with("median"))
    {
        lines.push(format!(
            "- {}: {:.2} times the dirty blocks at a ratio of 0.01 ({}): {}.",
            claim.name,
            claim.ours,
            claim.bar,
            if claim.holds { "holds" } else { "**fails**" }
        ));
    }
    let ratios: Vec<_> = (report.claims.iter())
        .filter(|claim| claim.name.contains("metadata"))
        .collect();
    let failed: Vec<String> = ratios
        .iter()
        .filter(|claim| !claim.holds)
        .map(|claim| format!("{} ({:.5})", claim.name, claim.ours))
        .collect();
    lines.push(format!(
        "- Metadata at most the ratio after the warm-up: holds on {} of {} runs{}.",
        ratios.len() - failed.len(),
        ratios.len(),
        match failed.is_empty() {
            true => String::new(),
            false => format!("; not on {}", failed.join(", ")),
        }
    ));
    let worst = report.rows.iter().filter(|trace| trace.counts());
    let worst = worst.flat_map(|trace| {
        let runs = trace.result.runs.iter();
        runs.filter_map(move |run| {
            let row = run.row("ours", Some(2.0))?;
            let (_, most) = median_and_most(run.over_dirty(row))?;
            Some((most, trace.title, run.dirty_percent))
        })
    });
    if let Some((most, title, dirty)) = worst.max_by(|one, other| one.0.total_cmp(&other.0)) {
        lines.push(format!(
            "- Worst of ours at 0.01: {most:.1} times the dirty blocks ({title}, {dirty}% dirty)."
        ));
    }
    lines.push("- The paper's own figure (0.6% of dm-cache's recovery on `proj` at 0.01) is of a trace that is not here.".into());
    lines.join("\n")
}

fn overview(traces: &[&Trace]) -> String {
    let mut table = Table::new(&[
        "tracking",
        "5% dirty: median",
        "worst",
        "20%: median",
        "worst",
        "50%: median",
        "worst",
        "metadata, most of its ratio",
    ]);
    for (name, nines, label) in WAYS {
        let mut cells = vec![label.to_owned()];
        for percent in DIRTY_PERCENTS {
            match median_and_most(all_over_dirty(traces, percent, name, nines)) {
                Some((median, most)) => cells.extend([times(median), times(most)]),
                None => cells.extend(["-", "-"].map(String::from)),
            }
        }
        let runs = traces.iter().flat_map(|trace| &trace.result.runs);
        let ratios = runs.filter_map(|run| Some(run.ratio(run.row(name, nines)?)));
        let most = ratios.fold(0.0, f64::max);
        cells.push(match nines {
            Some(nines) => percent(most * 10_f64.powf(nines)),
            None => format!("({} of writes)", percent(most)),
        });
        table.row(&cells);
    }
    let none = |percent: u64| {
        let runs = traces.iter().filter_map(|trace| trace.run(percent));
        let row = |run: &Run| Row {
            written_back: run.cached.clone(),
            ..Row::default()
        };
        median_and_most(runs.flat_map(|run| run.over_dirty(&row(run))).collect())
    };
    let mut cells = vec!["none".to_owned()];
    for percent in DIRTY_PERCENTS {
        match none(percent) {
            Some((median, most)) => cells.extend([times(median), times(most)]),
            None => cells.extend(["-", "-"].map(String::from)),
        }
    }
    cells.push("(0.0% of writes)".into());
    table.row(&cells);
    table.0
}

fn times(value: f64) -> String {
    match value {
        small if small < 100.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    }
}

fn trace_table(trace: &Trace) -> String {
    let result = &trace.result;
    let mut text = format!(
        "### {}\n\n{} requests, {} writes{}, {:.0} s; volumes: {}, {} in all; working set {}.\n\n",
        trace.title,
        number(result.requests),
        number(result.writes),
        if trace.as_writes {
            " (it does not say which)"
        } else {
            ""
        },
        result.seconds,
        number(result.volumes),
        size(result.volume_bytes as f64),
        size(result.working_set_bytes as f64),
    );
    let mean_write = result.write_bytes as f64 / (result.writes as f64).max(1.0);
    for run in &result.runs {
        let dirty: u64 = run.dirty.iter().sum();
        let cached: u64 = run.cached.iter().sum();
        text += &format!(
            "Dirty held at {}%: {} of {} blocks in the mean of the crashes.\n\n",
            run.dirty_percent,
            number(dirty / run.dirty.len().max(1) as u64),
            number(cached / run.cached.len().max(1) as u64),
        );
        let mut table = Table::new(&[
            "tracking",
            "written back, of cached: median",
            "worst",
            "of dirty: median",
            "worst",
            "metadata, of writes",
            "of bytes",
            "waited",
            "in the warm-up",
            "memory",
        ]);
        for (name, nines, label) in WAYS {
            let Some(row) = run.row(name, nines) else {
                continue;
            };
            let cells = |values: Vec<f64>, show: fn(f64) -> String| match median_and_most(values) {
                Some((median, most)) => [show(median), show(most)],
                None => ["-".to_owned(), "-".to_owned()],
            };
            let [cached, cached_most] = cells(run.over_cached(row), percent);
            let [dirty, dirty_most] = cells(run.over_dirty(row), times);
            let within = nines.is_none_or(|nines| run.ratio(row) <= 10_f64.powf(-nines));
            let ratio = format!("{:.5}", run.ratio(row));
            let share = |part: u64, whole: u64| part as f64 / (whole as f64).max(1.0);
            table.row(&[
                label.to_owned(),
                cached,
                cached_most,
                dirty,
                dirty_most,
                if within {
                    ratio
                } else {
                    format!("**{ratio}**")
                },
                percent(run.ratio(row) * UNIT_BYTES / mean_write),
                format!("{:.5}", share(row.waited, run.writes)),
                format!("{:.5}", share(row.warm_up_persists, run.warm_up_writes)),
                match row.memory_bytes {
                    0 => "-".to_owned(),
                    bytes => size(bytes as f64),
                },
            ]);
        }
        text += &table.0;
        text += "\n";
    }
    text
}
