//! Grids of the page docs/results/adacache.md; `pages/adacache.tmpl` has its prose.

use super::claims::{BASELINES, MERGED, Verdict, verdict};
use super::paper_figures::{latency, paper};
use super::simulation::{GROUP_BYTES, Origin, PERCENT, Row, Simulation, Trace};
use super::table::{number, percent, ratio, size};
use crate::pages::{Data, Grid, Header, values_grid};

/// A choice of verdicts, and the figure of each.
type Part = (fn(&Verdict<'_>) -> bool, fn(&Verdict<'_>) -> f64);

/// Label of a configuration in the grids.
fn label(name: &str) -> String {
    match name.split_once('/') {
        Some(("whole", what)) => format!("{what}, whole"),
        Some(("sub", what)) => format!("{what}, sub-block"),
        Some(("runs", what)) => format!("{what}, sub-block, merged"),
        Some(("demand", what)) => format!("{what}, demand"),
        Some(("ours", "32K")) => "our rules with 32K alone".into(),
        Some(("ours", "shards")) => "ours in 64 shards".into(),
        _ => name.replace('+', " + "),
    }
}

/// Grids of the study, without those of its speed.
pub(super) fn grids(header: &Header, traces: &[Trace]) -> Data {
    let counting: Vec<&Trace> = traces
        .iter()
        .filter(|trace| trace.result.counts())
        .collect();
    let is_real = |trace: &&&Trace| matches!(trace.origin, Origin::Tuned | Origin::HeldOut);
    let real: Vec<&Trace> = counting.iter().filter(is_real).copied().collect();
    let sets: Vec<&Trace> = counting
        .iter()
        .filter(|trace| matches!(trace.origin, Origin::TableTwo | Origin::Public))
        .copied()
        .collect();
    Data(vec![
        values_grid(header),
        answer(&counting),
        verdicts(traces),
        paper(&real, &sets),
        latency(real.iter().chain(&sets).copied()),
        steps(&real),
        sizes(&real),
        shards(&real),
        selection(traces),
        trace_grid(traces),
        cells(traces),
    ])
}

/// Name of a set of traces.
fn set(origin: Origin) -> &'static str {
    match origin {
        Origin::Tuned => "real, tuned on",
        Origin::HeldOut => "real, held out",
        Origin::TableTwo => "generated",
        Origin::OtherSeed => "generated, other seed",
        Origin::Public => "public",
    }
}

fn answer(counting: &[&Trace]) -> Grid {
    let columns = [
        "set",
        "traces that count",
        "backend I/O holds",
        "mean",
        "latency holds",
        "its mean",
        "memory holds",
        "of 32K, mean",
        "less than our 32K",
        "of our 32K, mean",
    ];
    let mut grid = Grid::new("answer", &columns);
    for (name, origins) in [
        ("real", &[Origin::Tuned, Origin::HeldOut][..]),
        ("public, the paper's own selection", &[Origin::Public]),
        ("generated from the paper's Table II", &[Origin::TableTwo]),
        ("generated, another seed", &[Origin::OtherSeed]),
    ] {
        let of = counting
            .iter()
            .filter(|trace| origins.contains(&trace.origin));
        let verdicts: Vec<Verdict<'_>> = of
            .filter_map(|trace| verdict(&trace.result, PERCENT, &BASELINES))
            .collect();
        let all = verdicts.len();
        let mut row = vec![name.to_owned(), all.to_string()];
        let parts: [Part; 4] = [
            (|one| one.core_holds(), |one| one.core),
            (|one| one.latency_holds(), |one| one.latency),
            (|one| one.memory_holds(), |one| one.memory),
            (|one| one.memory_alike < 1.0, |one| one.memory_alike),
        ];
        for (holds, figure) in parts {
            let logs: f64 = verdicts.iter().map(|one| figure(one).ln()).sum();
            row.push(verdicts.iter().filter(|one| holds(one)).count().to_string());
            row.push(match all {
                0 => "-".to_owned(),
                all => format!("{:.2}", (logs / all as f64).exp()),
            });
        }
        grid.row(row);
    }
    grid
}

fn verdicts(traces: &[Trace]) -> Grid {
    let columns = [
        "set",
        "trace",
        "counts",
        "requests",
        "groups",
        "backend I/O",
        "backend I/O: best fixed",
        "latency",
        "latency: best fixed",
        "memory, of 32K",
        "memory, of our 32K",
        "verdict",
        "merged: backend I/O",
        "merged: latency",
    ];
    let mut grid = Grid::new("verdicts", &columns);
    for trace in traces {
        let result = &trace.result;
        let (Some(verdict), Some(merged)) = (
            verdict(result, PERCENT, &BASELINES),
            verdict(result, PERCENT, &MERGED),
        ) else {
            continue;
        };
        grid.row([
            set(trace.origin).to_owned(),
            trace.title.clone(),
            if result.counts() { "yes" } else { "-" }.to_owned(),
            number(result.requests()),
            number(result.groups()),
            ratio(verdict.core),
            label(verdict.core_best),
            ratio(verdict.latency),
            label(verdict.latency_best),
            ratio(verdict.memory),
            ratio(verdict.memory_alike),
            verdict.words(),
            ratio(merged.core),
            ratio(merged.latency),
        ]);
    }
    grid
}

/// Backend I/O and modelled latency of each step, over those of the paper's rules with sub-block
/// maps.
fn steps(traces: &[&Trace]) -> Grid {
    let titles = traces.iter().map(|trace| trace.title.as_str());
    let columns: Vec<&str> = ["rules"].into_iter().chain(titles).collect();
    let mut grid = Grid::new("steps", &columns);
    for (name, row) in [
        ("paper, whole", "whole/paper"),
        ("paper, sub-block: 1", "sub/paper"),
        ("+ merged write-backs", "runs/paper"),
        ("+ learned fills", "paper+runs+learned"),
        ("+ probation = ours", "ours"),
        ("ours without learned fills", "paper+runs+segments"),
        ("ours without merged write-backs", "paper+learned+segments"),
        ("our rules with 32K alone", "ours/32K"),
        ("paper, demand", "demand/paper"),
        ("32K, demand", "demand/32K"),
    ] {
        let mut cells = vec![name.to_owned()];
        for trace in traces {
            let (row, one) = (trace.result.row(row), trace.result.row("sub/paper"));
            let over = |of: fn(&Row) -> u64| of(row) as f64 / of(one) as f64;
            let (core, latency) = (over(Row::core_bytes), over(|row| row.latency_sum_ns));
            cells.push(format!("{core:.2} / {latency:.2}"));
        }
        grid.row(cells);
    }
    grid
}

/// Ours over the best fixed size with sub-block maps, by the size of the cache.
fn sizes(traces: &[&Trace]) -> Grid {
    let columns = [
        "trace",
        "cache",
        "backend I/O",
        "latency",
        "memory, of 32K",
        "holds",
    ];
    let mut grid = Grid::new("sizes", &columns);
    for trace in traces {
        for percent in [5, PERCENT, 20] {
            if let Some(one) = verdict(&trace.result, percent, &["sub"]) {
                let holds = one.core_holds() && one.latency_holds() && one.memory_holds();
                grid.row([
                    trace.title.clone(),
                    format!("{percent}%"),
                    ratio(one.core),
                    ratio(one.latency),
                    ratio(one.memory),
                    if holds { "yes" } else { "no" }.to_owned(),
                ]);
            }
        }
    }
    grid
}

fn shards(traces: &[&Trace]) -> Grid {
    let columns = [
        "trace",
        "groups a shard",
        "bytes hit, one",
        "bytes hit, 64 shards",
        "backend I/O, 64 shards by one",
    ];
    let mut grid = Grid::new("shards", &columns);
    for trace in traces {
        let one = trace.result.row("ours");
        let Some(shards) = trace.result.find("ours/shards", PERCENT) else {
            continue;
        };
        grid.row([
            trace.title.clone(),
            format!("{:.1}", (one.capacity_bytes / GROUP_BYTES) as f64 / 64.0),
            percent(one.byte_hit_ratio()),
            percent(shards.byte_hit_ratio()),
            ratio(shards.core_bytes() as f64 / one.core_bytes() as f64),
        ]);
    }
    grid
}

/// Sizes of requests in the grid of traces, KiB.
const REQUEST_KIB: [u64; 7] = [4, 8, 16, 32, 64, 128, 256];

pub(super) fn trace_grid(traces: &[Trace]) -> Grid {
    let mut columns = [
        "set",
        "trace",
        "reads",
        "read",
        "writes",
        "written",
        "volumes",
        "working set",
        "cache",
        "groups",
    ]
    .map(String::from)
    .to_vec();
    columns.extend(REQUEST_KIB.map(|kib| format!("at most {kib} KiB")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut grid = Grid::new("traces", &columns);
    for trace in shown(traces) {
        let result = &trace.result;
        let mut row = vec![
            set(trace.origin).to_owned(),
            trace.title.clone(),
            number(result.reads),
            size(result.read_bytes as f64),
            number(result.writes),
            size(result.write_bytes as f64),
            number(result.volumes),
            size(result.working_set_bytes as f64),
            size(result.row("ours").capacity_bytes as f64),
            number(result.groups()),
        ];
        row.extend(REQUEST_KIB.map(|kib| at_most(result, kib << 10)));
        grid.row(row);
    }
    grid
}

/// Share of the requests of at most this size.
fn at_most(result: &Simulation, bytes: u64) -> String {
    let mut sizes = result.sizes_at_most.iter();
    let requests = sizes.find(|(size, _)| *size == bytes);
    requests.map_or("-".to_owned(), |(_, requests)| {
        let share = *requests as f64 / result.requests() as f64;
        format!("{:.0}%", share * 100.0)
    })
}

/// Traces whose configurations are in the grids: all but those of the other seed.
fn shown(traces: &[Trace]) -> impl Iterator<Item = &Trace> {
    let shown = |trace: &&Trace| trace.origin != Origin::OtherSeed;
    traces.iter().filter(shown)
}

/// All configurations of the real traces; of the others, ours and the fixed sizes.
pub(super) fn cells(traces: &[Trace]) -> Grid {
    let columns = [
        "set",
        "trace",
        "rules",
        "read hits",
        "write hits",
        "from core",
        "to core",
        "from cache",
        "to cache",
        "mean block",
        "mean miss",
        "memory",
        "latency, modelled",
    ];
    let mut grid = Grid::new("cells", &columns);
    for trace in shown(traces) {
        let is_real = matches!(trace.origin, Origin::Tuned | Origin::HeldOut);
        let is_main = |row: &Row| {
            let family = row.name.split('/').next().unwrap_or_default();
            row.name == "ours" || ["whole", "sub"].contains(&family)
        };
        let rows = trace
            .result
            .rows
            .iter()
            .filter(|row| row.percent == PERCENT);
        let rows = rows.filter(|row| row.name != "ours/shards" && (is_real || is_main(row)));
        for row in rows {
            let hits = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), percent);
            grid.row([
                set(trace.origin).to_owned(),
                trace.title.clone(),
                label(&row.name),
                hits(row.reads.hit_ratio()),
                hits(row.writes.hit_ratio()),
                size(row.read_from_core.bytes as f64),
                size(row.write_to_core.bytes as f64),
                size(row.read_from_cache.bytes as f64),
                size(row.write_to_cache.bytes as f64),
                size(row.mean_block_bytes()),
                size(row.mean_missed_bytes()),
                size(row.memory_max_bytes as f64),
                format!("{:.0} us", row.latency_us()),
            ]);
        }
    }
    grid
}

/// The paper's Table II: reads, writes (millions), bytes read and written (GiB).
const TABLE_TWO: [(&str, [f64; 4]); 3] = [
    ("alibaba", [24.5, 25.5, 607.3, 375.9]),
    ("msr", [61.0, 9.0, 2416.8, 207.2]),
    ("systor", [40.7, 19.3, 1109.2, 271.9]),
];

fn selection(traces: &[Trace]) -> Grid {
    let columns = [
        "set",
        "volumes",
        "reads",
        "paper: reads",
        "writes",
        "paper: writes",
        "read",
        "paper: read",
        "written",
        "paper: written",
    ];
    let mut grid = Grid::new("selection", &columns);
    for (set, published) in TABLE_TWO {
        let of: Vec<&Simulation> = traces
            .iter()
            .filter(|trace| matches!(trace.origin, Origin::TableTwo | Origin::Public))
            .filter(|trace| trace.set == set)
            .map(|trace| &trace.result)
            .collect();
        let sum = |value: fn(&Simulation) -> u64| of.iter().map(|one| value(one)).sum::<u64>();
        let millions = |count: u64| format!("{:.1}M", count as f64 / 1e6);
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64);
        grid.row([
            set.to_owned(),
            of.len().to_string(),
            millions(sum(|one| one.reads)),
            format!("{}M", published[0]),
            millions(sum(|one| one.writes)),
            format!("{}M", published[1]),
            gib(sum(|one| one.read_bytes)),
            format!("{} GiB", published[2]),
            gib(sum(|one| one.write_bytes)),
            format!("{} GiB", published[3]),
        ]);
    }
    grid
}
