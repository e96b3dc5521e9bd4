//! Grids of the page docs/results/mapperx.md; `pages/mapperx.tmpl` has its prose.

use super::engine_crashes;
use super::result::{DIRTY_PERCENTS, MOST, Row, Run, Trace, all_over_dirty, median_and_most};
use crate::claims::Report;
use crate::pages::{Data, Grid, Header, claims_grid, values_grid};
use crate::study::table::{number, percent, size, times};

/// Least bytes that a write of metadata or of the log writes.
const UNIT_BYTES: f64 = 4096.0;

/// Trackers: name in the simulation, exponent of the target ratio, name and ratio in the grids.
const WAYS: [(&str, Option<f64>, &str, &str); 15] = [
    ("ours", Some(2.0), "ours", "0.01"),
    ("ours", Some(3.0), "ours", "0.001"),
    ("ours", Some(4.0), "ours", "0.0001"),
    ("places", Some(2.0), "ours, over places", "0.01"),
    ("places", Some(3.0), "ours, over places", "0.001"),
    ("places", Some(4.0), "ours, over places", "0.0001"),
    ("paper", Some(2.0), "Algorithm 1", "0.01"),
    ("paper", Some(3.0), "Algorithm 1", "0.001"),
    ("paper", Some(4.0), "Algorithm 1", "0.0001"),
    ("ours, all", Some(2.0), "ours, every write", "0.01"),
    ("paper, all", Some(2.0), "Algorithm 1, every write", "0.01"),
    ("marks", None, "marks", "-"),
    ("exact", None, "exact", "-"),
    ("foresight", Some(2.0), "foresight", "0.01"),
    ("recency", Some(2.0), "recency in hindsight", "0.01"),
];

/// Grids of the study.
pub(super) fn grids(header: &Header, report: &Report<Trace>) -> Data {
    let traces: Vec<&Trace> = report.rows.iter().rev().collect();
    let of = |as_writes: &[bool]| -> Vec<&Trace> {
        let counting = traces.iter().filter(|trace| trace.counts());
        let chosen = counting.filter(|trace| as_writes.contains(&trace.as_writes));
        chosen.copied().collect()
    };
    let mut values = values_grid(header);
    for (name, value) in engine_crashes::worst(&report.rows).into_iter().flatten() {
        values.row([name.to_owned(), value]);
    }
    let mut overview = Grid::new(
        "overview",
        &[
            "traces",
            "tracking",
            "ratio",
            "5% dirty: median",
            "5%: worst",
            "20%: median",
            "20%: worst",
            "50%: median",
            "50%: worst",
            "metadata, most of its ratio",
        ],
    );
    for (name, as_writes) in [
        ("with operations", &[false][..]),
        ("taken for writes", &[true]),
        ("all", &[false, true]),
    ] {
        add_overview(&mut overview, name, &of(as_writes));
    }
    Data(vec![
        values,
        claims_grid("claims", &report.claims, figure),
        engine_crashes::grid(&traces),
        bounds(&of(&[false, true])),
        overview,
        traces_grid(&traces),
        trees(&traces),
    ])
}

/// Medians with two decimals, ratios with five.
fn figure(value: f64) -> String {
    match value < 0.1 {
        true => format!("{value:.5}"),
        false => times(value),
    }
}

/// Returns the grid of the bounds, beside the bar.
fn bounds(traces: &[&Trace]) -> Grid {
    let mut grid = Grid::new(
        "bounds",
        &[
            "dirty",
            "ours, 0.01",
            "over places",
            "recency in hindsight",
            "foresight",
            "ours over foresight",
            "runs in which foresight is above 2",
        ],
    );
    for percent in DIRTY_PERCENTS {
        let of = |name| {
            let values = all_over_dirty(traces, percent, name, Some(2.0));
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
        grid.row([
            format!("{percent}%"),
            times(of("ours")),
            times(of("places")),
            times(of("recency")),
            times(of("foresight")),
            times(of("ours") / of("foresight")),
            format!("{above} of {all}"),
        ]);
    }
    grid
}

/// Median and worst as cells.
fn cells(values: Vec<f64>, show: fn(f64) -> String) -> [String; 2] {
    match median_and_most(values) {
        Some((median, most)) => [show(median), show(most)],
        None => ["-", "-"].map(String::from),
    }
}

fn add_overview(grid: &mut Grid, name: &str, traces: &[&Trace]) {
    for (system, nines, tracking, ratio) in WAYS {
        let mut row = [name, tracking, ratio].map(String::from).to_vec();
        for percent in DIRTY_PERCENTS {
            row.extend(cells(all_over_dirty(traces, percent, system, nines), times));
        }
        let runs = traces.iter().flat_map(|trace| &trace.result.runs);
        let ratios = runs.filter_map(|run| Some(run.ratio(run.row(system, nines)?)));
        let most = ratios.fold(0.0, f64::max);
        row.push(match nines {
            Some(nines) => percent(most * 10_f64.powf(nines)),
            None => format!("({} of writes)", percent(most)),
        });
        grid.row(row);
    }
    let mut row = [name, "none", "-"].map(String::from).to_vec();
    for percent in DIRTY_PERCENTS {
        let runs = traces.iter().filter_map(|trace| trace.run(percent));
        let all = |run: &Run| Row {
            written_back: run.cached.clone(),
            ..Row::default()
        };
        let values = runs.flat_map(|run| run.over_dirty(&all(run))).collect();
        row.extend(cells(values, times));
    }
    row.push("(0.0% of writes)".into());
    grid.row(row);
}

/// Whether a trace counts, and whether it has operations, in words.
fn yes(yes: bool) -> String {
    if yes { "yes" } else { "-" }.into()
}

pub(super) fn traces_grid(traces: &[&Trace]) -> Grid {
    let columns = [
        "trace",
        "counts",
        "operations known",
        "requests",
        "writes",
        "seconds",
        "volumes",
        "bytes of volumes",
        "working set",
    ];
    let mut grid = Grid::new("traces", &columns);
    for trace in shown(traces) {
        let result = &trace.result;
        grid.row([
            trace.title.to_owned(),
            yes(trace.counts()),
            yes(!trace.as_writes),
            number(result.requests),
            number(result.writes),
            format!("{:.0}", result.seconds),
            number(result.volumes),
            size(result.volume_bytes as f64),
            size(result.working_set_bytes as f64),
        ]);
    }
    grid
}

/// Traces that count, then those that are too short; without those that have no writes.
fn shown<'a>(traces: &'a [&'a Trace]) -> impl Iterator<Item = &'a Trace> {
    let counting = traces.iter().filter(|trace| trace.counts());
    let others = traces.iter().filter(|trace| !trace.counts());
    let others = others.filter(|trace| trace.result.writes > 10);
    counting.chain(others).copied()
}

pub(super) fn trees(traces: &[&Trace]) -> Grid {
    let columns = [
        "trace",
        "counts",
        "held dirty",
        "dirty blocks",
        "cached blocks",
        "tracking",
        "ratio",
        "of cached: median",
        "of cached: worst",
        "of dirty: median",
        "of dirty: worst",
        "metadata",
        "of bytes",
        "waited",
        "in the warm-up",
        "memory",
        "within ratio",
    ];
    let mut grid = Grid::new("trees", &columns);
    for trace in shown(traces) {
        for run in &trace.result.runs {
            let mean =
                |blocks: &[u64]| number(blocks.iter().sum::<u64>() / blocks.len().max(1) as u64);
            for (system, nines, tracking, ratio) in WAYS {
                let Some(row) = run.row(system, nines) else {
                    continue;
                };
                let mut cells = vec![
                    trace.title.to_owned(),
                    yes(trace.counts()),
                    format!("{}%", run.dirty_percent),
                    mean(&run.dirty),
                    mean(&run.cached),
                    tracking.to_owned(),
                    ratio.to_owned(),
                ];
                cells.extend(tree(trace, run, row, nines));
                grid.row(cells);
            }
        }
    }
    grid
}

/// Figures of one tracker in one run.
fn tree(trace: &Trace, run: &Run, row: &Row, nines: Option<f64>) -> Vec<String> {
    let result = &trace.result;
    let mean_write = result.write_bytes as f64 / (result.writes as f64).max(1.0);
    let share = |part: u64, whole: u64| part as f64 / (whole as f64).max(1.0);
    let mut figures = cells(run.over_cached(row), percent).to_vec();
    figures.extend(cells(run.over_dirty(row), times));
    figures.extend([
        format!("{:.5}", run.ratio(row)),
        percent(run.ratio(row) * UNIT_BYTES / mean_write),
        format!("{:.5}", share(row.waited, run.writes)),
        format!("{:.5}", share(row.warm_up_persists, run.warm_up_writes)),
        match row.memory_bytes {
            0 => "-".to_owned(),
            bytes => size(bytes as f64),
        },
        match nines {
            None => "-",
            Some(nines) if run.ratio(row) <= 10_f64.powf(-nines) => "yes",
            Some(_) => "no",
        }
        .to_owned(),
    ]);
    figures
}
