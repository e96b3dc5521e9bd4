//! The page: docs/results/mapperx.md.

use super::engine::{self, times};
use super::result::{DIRTY_PERCENTS, MOST, Row, Run, Trace, all_over_dirty, median_and_most};
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
const WAYS: [(&str, Option<f64>, &str); 15] = [
    ("ours", Some(2.0), "**ours, 0.01**"),
    ("ours", Some(3.0), "ours, 0.001"),
    ("ours", Some(4.0), "ours, 0.0001"),
    ("places", Some(2.0), "**ours, over places, 0.01**"),
    ("places", Some(3.0), "ours, over places, 0.001"),
    ("places", Some(4.0), "ours, over places, 0.0001"),
    ("paper", Some(2.0), "Algorithm 1, 0.01"),
    ("paper", Some(3.0), "Algorithm 1, 0.001"),
    ("paper", Some(4.0), "Algorithm 1, 0.0001"),
    ("ours, all", Some(2.0), "ours, 0.01, every write"),
    ("paper, all", Some(2.0), "Algorithm 1, 0.01, every write"),
    ("marks", None, "marks"),
    ("exact", None, "exact"),
    ("foresight", Some(2.0), "*foresight, 0.01*"),
    ("recency", Some(2.0), "*recency in hindsight, 0.01*"),
];

const ANSWER: &str = "\
After a crash, what no record calls dirty and a mark or the bit-tree cannot rule out *may be dirty*. The next process reads it from both devices, and *writes back* what differs ([comparison](../internals/comparison.md)). The rows *engine* count what that wrote. The others count, in a simulation of the tree alone, the blocks that may be dirty: what recovery reads, and what earlier versions wrote back, for whom the bar failed.
";

const BOUNDS: &str = "\
Medians of blocks that may be dirty over dirty blocks. At a ratio of 0.01 a tracker writes once in a hundred client writes, so that it must have marked, each time, nearly all of the clean blocks that the next hundred turn dirty, or somebody waits beyond the ratio. With few dirty blocks most writes turn one dirty (the row *exact* of each trace says how many), and those that do are, by the way in which dirty blocks are held down, those that were not written to lately.
*Foresight* is what this costs who knows them; what lies between it and ours is the price of not knowing. *Recency in hindsight* is what it costs who guesses by the time of the last write, and was told how far to go.";

/// By hand, since what was tried is not in the tree any more.
const TRIED: &str = "\
Of our adjustment, on the traces that it was made on (medians at a ratio of 0.01, before and after; CloudPhysics, MSN-FS and smartphone, each with 5 and 20% dirty: 4.03, 1.25, 5.04, 1.58, 10.36, 2.54 as it is). None was kept:

- **A longer memory** (a window of 64 or 256 persists in place of 16): 3.65, 1.26, 3.74, 1.53, 10.99, 2.45 and 3.72, 1.25, 5.32, 1.99, 10.79, 2.39.
- **Less given to neighbours** (0.1 of a time in advance in place of half of one): 4.12, 1.25, 2.37, 1.43, 10.43, 2.34; with a window of 64: 3.83, 1.25, 5.94, 1.60, 11.89, 2.48. MSN-FS has 195 persists in all, and goes up and down by a factor of two with any change.
- **A price that moves less** (by a half, 0.3 or 0.1 in place of 1 for each wait): 3.46, 1.32, 8.15, 1.39, 9.95, 2.36; 3.65, 1.29, 8.12, 2.25, 9.73, 2.36; 3.10, 1.34, 11.39, 4.45, 9.31, 2.33.
- **Counts that fade, of single blocks**, with the number of them that is kept chosen in hindsight: smartphone with 20% dirty 3.57 to 4.15, w106 with 20% 2.05 to 2.96, ARC P3 with 20% 4.12 to 4.50, by the time in which they fade; ours had 2.54, 1.78 and 3.19.
- **The past once more**: besides such counts, the 256 blocks that turned dirty behind the last eight the time before are marked. Smartphone with 20% dirty 3.01, ARC P3 with 20% 2.93, with 5% 13.49, all in hindsight.";

const HOW: &str = "\
A write-back cache of 10% of the trace's working set is simulated that keeps no data and drives the `policy` crate's own code: blocks of 32K to 256K, as `forebay format --block-size 32K,64K,128K,256K` makes. After each request
the least recently written dirty blocks are written back, with what the engine would write back beside them, until at most 5, 20 or 50% of the cached blocks are dirty. Beside the cache stand the ways to know after a crash what was dirty;
those with a tree run the `metadata` crate's own code, with one tree a volume if nothing else is said, degree 4, 7 levels below the root (16,384 leaves), written in units of 4 KiB. (A trace with more than 64 volumes, which is what a cache knows, has them laid one behind another.)

- A *crash* falls at 30, 32, ... 100% of the trace. **May be dirty** is the number of cached blocks that the next process takes for dirty, and compares or writes back; *of dirty* is that over the blocks that were dirty, *of cached* over all that were cached.
- **Metadata** is the units written over the client's writes, of all rounds: those that a client waited for, those that refine, coarsen or unmark. The first 20% of the writes are the warm-up, and apart. *Of bytes* is the same in bytes, 4 KiB for each of them. *Waited* are client writes that waited for a round.
- **ours**, **Algorithm 1**: the tree with our adjustment and with the paper's, at a target ratio of 0.01, 0.001 or 0.0001. Both write what nobody waits for only as far as the ratio allows; they differ in what they want to have written. The constants of our adjustment were chosen on CloudPhysics, MSN-FS and smartphone, with 5 and 20% dirty. Announced is a write to a block that is cached and clean. A new block needs no announcement: its record, which has
  to be written anyway, says that it is dirty. (A record that says so counts for a second after the block was written back, since the one that calls it clean waits for room in a batch.)
- **over places**: the same tree over the places of the cache, which is where the engine has it ([bit-tree](../internals/format/bit-tree.md)): there one tree serves all volumes, and with caches as small as these a leaf is a place, of 32K. What it learns of a place is of the blocks that were there, and neighbours in it need not be neighbours in the volume.
- **every write**: as in the paper, where the mapping says nothing of that: each write that turns a block dirty is announced, those that place a new block too.
- **marks** is what the log does today: writes in place are announced by a mark for 64 blocks, cleared after three seconds of quiet. There is no ratio that it keeps.
- **exact**: a write of metadata for each client write that turns a block dirty. **none**: everything that is cached may be dirty, 100% of cached, for no metadata (dm-cache writes it back).
- *foresight* and *recency in hindsight* are bounds, counted on the same runs; no cache can have either. Both know single blocks, write any number of marks at once, and remember everything. *Foresight* writes once in 100 client writes, each time what is dirty and what will be announced in the next 100, so that nobody waits; one that also chose its moments could do a little better.
  *Recency* keeps the blocks marked that turned clean last, the fewest with which the whole run keeps the ratio. Where no number keeps it, everything that was ever dirty stays marked, and its ratio is in bold: it never foresees the first announcement of a block.
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
        "# The bit-tree: what a crash costs (MapperX, the counting half)\n\nWritten by `cargo xtask study mapperx`, which took {minutes:.0} min; no figure is typed by hand but those under \"What was tried\". Commit {commit}, {date}. Everything is counted, and the same on any machine.\n"
    );
    if report.quick {
        text +=
            "\n**A quick run: fewer requests of the long traces. For a look, not for a result.**\n";
    }
    let mut section = |title: &str, body: &str| {
        text += &format!("\n## {title}\n\n{}\n", body.trim_end());
    };
    section("The answer", &answer(report));
    section("In the engine", &engine::section(traces));
    section("What could be", &bounds(report));
    section("What was tried", TRIED);
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
            "Blocks that may be dirty over dirty blocks, median and worst over traces and crashes.\n\nTraces that tell which requests are writes:\n\n{}\nTraces taken for writes:\n\n{}\nAll:\n\n{}",
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
            "- {}: {:.2} times {} at a ratio of 0.01 ({}): {}.",
            claim.name,
            claim.ours,
            claim.unit.trim_start_matches("of "),
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
            "- Worst of ours at 0.01: {most:.1} times the dirty blocks may be dirty ({title}, {dirty}% dirty)."
        ));
    }
    lines.extend(engine::worst(&report.rows));
    lines.insert(0, ANSWER.into());
    lines.push("- The paper's own figure (0.6% of dm-cache's recovery on `proj` at 0.01) is of a trace that is not here.".into());
    lines.join("\n")
}

/// What bounds say of the bar.
fn bounds(report: &Report<Trace>) -> String {
    let traces: Vec<&Trace> = (report.rows.iter().filter(|trace| trace.counts())).collect();
    let mut table = Table::new(&[
        "dirty",
        "ours, 0.01",
        "over places",
        "recency in hindsight",
        "foresight",
        "ours over foresight",
        "runs in which foresight is above 2",
    ]);
    for percent in DIRTY_PERCENTS {
        let of = |name| {
            let values = all_over_dirty(&traces, percent, name, Some(2.0));
            median_and_most(values).map_or(f64::NAN, |(median, _)| median)
        };
        let runs = traces.iter().filter_map(|trace| trace.run(percent));
        let medians = runs.filter_map(|run| {
            let row = run.row("foresight", Some(2.0))?;
            median_and_most(run.over_dirty(row)).map(|(median, _)| median)
        });
        let (above, all) = medians.fold((0, 0), |(above, all), median| {
            (above + u32::from(median > MOST), all + 1)
        });
        table.row(&[
            format!("{percent}%"),
            times(of("ours")),
            times(of("places")),
            times(of("recency")),
            times(of("foresight")),
            times(of("ours") / of("foresight")),
            format!("{above} of {all}"),
        ]);
    }
    format!("{BOUNDS}\n\n{}", table.0)
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
            "may be dirty, of cached: median",
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
