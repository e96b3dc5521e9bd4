//! Grids of the page docs/results/caiti.md; `pages/caiti.tmpl` has its prose.

use super::claims::PAPER;
use super::modelled::{CACHES_MIB, JOBS, ahead};
use super::runs::{Run, Spread, cell, modelled};
use super::{DEPTHS, FLUSHES_KIB, Model, Results, SYSTEMS, WAITINGS};
use crate::claims::{Claim, figure};
use crate::pages::{Data, Grid, Header, claims_grid, values_grid};
use crate::study::table::{number, percent};

/// Grids of the study.
pub(super) fn grids(header: &Header, claims: &[Claim], results: &Results) -> Data {
    let mut slots = Grid::new("slots", &["policy", "metadata of a slot, bytes"]);
    for system in SYSTEMS.into_iter().skip(2) {
        let cell = cell(&results.measured.runs, "full spin", system);
        let bytes = cell.median(|run| run.slot_bytes as f64);
        slots.row([system.to_owned(), format!("{bytes:.0}")]);
    }
    Data(vec![
        values(header, results),
        claims_grid("claims", claims, figure),
        service(results),
        declared(results),
        measured(results),
        depths(results),
        flushes(results),
        parts(results),
        slots,
        two_cores(results),
        many_cores(results),
        modelled_depths(results),
        modelled_sweep(results, "modelled-threads", "jobs", &JOBS, ""),
        modelled_sweep(results, "modelled-caches", "cache", &CACHES_MIB, " MiB"),
    ])
}

fn values(header: &Header, results: &Results) -> Grid {
    let measured = &results.measured;
    let runs = || measured.runs.iter().chain(&results.parts);
    let real_time = runs().filter(|run| run.real_time).count();
    let steal_s: f64 = runs().map(|run| run.steal_s).sum();
    let emulated = measured.runs.first().map(|run| run.emulated.as_str());
    let mut grid = values_grid(header);
    for (name, value) in [
        ("emulated", emulated.unwrap_or("-").to_owned()),
        ("measured_commit", measured.commit.clone()),
        ("rounds", measured.rounds.to_string()),
        ("seconds", measured.seconds.to_string()),
        ("steal_s", format!("{steal_s:.2}")),
        ("runs", runs().count().to_string()),
        ("real_time_runs", real_time.to_string()),
    ] {
        grid.row([name.to_owned(), value]);
    }
    grid
}

/// Service times that the model takes from measured runs.
fn service(results: &Results) -> Grid {
    let service = &results.service;
    let mut grid = Grid::new("service", &["service time", "ns"]);
    let mut row = |name: String, ns: f64| grid.row([name, format!("{ns:.0}")]);
    for (name, ns) in [
        ("the client and the executor, a write", service.client_ns),
        ("a write to raw memory", service.pmem_ns),
        ("a write to the table", service.btt_ns),
        ("a write to the table by an evicting thread", service.job_ns),
        (
            "an evicting thread looks for a job before it sleeps",
            service.look_ns,
        ),
        ("waking it, on the cache's thread", service.wake_ns),
        ("waking it, until it runs", service.woken_ns),
    ] {
        row(name.to_owned(), ns);
    }
    for (system, place, evict) in &service.cached {
        row(format!("{system}: a write into a slot"), *place);
        row(
            format!("{system}: an eviction, on the cache's thread"),
            *evict,
        );
    }
    grid
}

fn declared(results: &Results) -> Grid {
    let mut grid = Grid::new("declared", &["declared", "value"]);
    for (name, value) in results.declared.as_object().into_iter().flatten() {
        grid.row([name.clone(), value.to_string()]);
    }
    grid
}

fn spread(spread: Spread) -> String {
    let digits = match spread.median {
        large if large >= 1000.0 => 0,
        small if small < 10.0 => 2,
        _ => 1,
    };
    format!(
        "{:.digits$} ({:.digits$} to {:.digits$})",
        spread.median, spread.least, spread.most
    )
}

/// Measured runs at half load and at saturation, medians of the rounds.
fn measured(results: &Results) -> Grid {
    let columns = [
        "load",
        "waiting",
        "system",
        "writes/s",
        "mean, us",
        "p50, us",
        "p99, us",
        "p99.99, us",
        "bypassed",
        "waited",
        "samples",
    ];
    let mut grid = Grid::new("measured", &columns);
    for waiting in WAITINGS {
        for load in ["half", "full"] {
            for system in SYSTEMS {
                let part = format!("{load} {waiting}");
                let cell = cell(&results.measured.runs, &part, system);
                if cell.0.is_empty() {
                    continue;
                }
                let samples: u64 = cell.0.iter().map(|run| run.writes).sum();
                let share = |count: fn(&Run) -> u64| {
                    let some: u64 = cell.0.iter().map(|run| count(run)).sum();
                    percent(some as f64 / samples.max(1) as f64)
                };
                grid.row([
                    load.to_owned(),
                    waiting.to_owned(),
                    system.to_owned(),
                    spread(cell.spread(|run| run.iops)),
                    spread(cell.spread(|run| run.mean_us)),
                    spread(cell.spread(|run| run.p50_us)),
                    spread(cell.spread(|run| run.p99_us)),
                    spread(cell.spread(|run| run.p9999_us)),
                    share(|run| run.bypassed),
                    share(|run| run.waited),
                    number(samples),
                ]);
            }
        }
    }
    grid
}

/// One run of each system at each depth.
fn depths(results: &Results) -> Grid {
    let columns = ["depth", "system", "mean, us", "p99, us", "p99.99, us"];
    let mut grid = Grid::new("depths", &columns);
    for depth in DEPTHS {
        for system in SYSTEMS {
            let cell = cell(&results.measured.runs, &format!("depth {depth}"), system);
            if let Some(run) = cell.0.first() {
                grid.row([
                    depth.to_string(),
                    system.to_owned(),
                    format!("{:.1}", run.mean_us),
                    format!("{:.1}", run.p99_us),
                    format!("{:.0}", run.p9999_us),
                ]);
            }
        }
    }
    grid
}

/// One run of each system with a flush after each of several amounts.
fn flushes(results: &Results) -> Grid {
    let columns = [
        "flush after, KiB",
        "system",
        "writes/s",
        "mean of a write, us",
        "mean of a flush, ms",
    ];
    let mut grid = Grid::new("flushes", &columns);
    for kib in FLUSHES_KIB {
        for system in SYSTEMS {
            let cell = cell(&results.measured.runs, &format!("flush {kib}"), system);
            if let Some(run) = cell.0.first() {
                grid.row([
                    kib.to_string(),
                    system.to_owned(),
                    format!("{:.0}", run.iops),
                    format!("{:.1}", run.mean_us),
                    format!("{:.2}", run.flush_mean_ms),
                ]);
            }
        }
    }
    grid
}

/// Parts of the cache's work by their names in the program, and their columns.
const PARTS: [(&str, &str); 7] = [
    ("metadata", "metadata"),
    ("slot", "slot"),
    ("queue", "enqueue, hand over"),
    ("ended", "evictions ended"),
    ("wait", "eviction and write"),
    ("through", "bypass or read miss"),
    ("flush", "flush"),
];

/// Nanoseconds of each part of a request, and in brackets its number a request.
fn parts(results: &Results) -> Grid {
    let mut columns = vec!["request", "system", "mean"];
    columns.extend(PARTS.iter().map(|(_, title)| *title));
    columns.push("other");
    let mut grid = Grid::new("parts", &columns);
    for (part, request) in [("parts", "write"), ("reads", "read")] {
        for system in SYSTEMS {
            let cell = cell(&results.parts, part, system);
            let Some(run) = cell.0.first() else { continue };
            let mean = run.mean_us * 1e3;
            let mut row = vec![request.to_owned(), system.to_owned(), format!("{mean:.0}")];
            let mut other = mean;
            for (name, _) in PARTS {
                let (count, ns) = match (system, name) {
                    ("pmem" | "btt", "through") => (1.0, mean - results.service.client_ns),
                    _ => run.part(name),
                };
                row.push(match count > 0.0 {
                    true => format!("{ns:.0} ({count:.4})"),
                    false => "-".into(),
                });
                if name != "flush" {
                    other -= ns;
                }
            }
            row.push(format!("{:.0}", other.max(0.0)));
            grid.row(row);
        }
    }
    grid
}

/// The model of two cores beside the measured runs.
fn two_cores(results: &Results) -> Grid {
    let columns = [
        "system",
        "writes/s, measured",
        "writes/s, modelled",
        "writes/s by measured",
        "mean us, measured",
        "mean us, modelled",
        "mean by measured",
        "woken, measured",
        "woken, modelled",
    ];
    let mut grid = Grid::new("two-cores", &columns);
    for system in SYSTEMS {
        let full = cell(&results.measured.runs, "full spin", system).median(|run| run.iops);
        let halves = cell(&results.measured.runs, "half spin", system);
        let half = halves.median(|run| run.mean_us);
        let share = |woken: u64, writes: u64| percent(woken as f64 / writes.max(1) as f64);
        let model = |part| {
            let model = modelled(&results.models, part, system);
            model.cloned().unwrap_or_default()
        };
        let (full_model, half_run) = (model("two full").iops, model("two half"));
        let half_model = half_run.mean_us;
        let sum = |count: fn(&Run) -> u64| halves.0.iter().map(|run| count(run)).sum();
        grid.row([
            system.to_owned(),
            format!("{full:.0}"),
            format!("{full_model:.0}"),
            format!("{:.2}", full_model / full),
            format!("{half:.2}"),
            format!("{half_model:.2}"),
            format!("{:.2}", half_model / half),
            share(sum(|run| run.woken), sum(|run| run.writes)),
            share(half_run.woken, half_run.writes),
        ]);
    }
    grid
}

/// Microseconds a write, modelled with 36 cores, and the same over Caiti's.
fn many_cores(results: &Results) -> Grid {
    let columns = [
        "system",
        "as in the paper, us",
        "by Caiti's",
        "the paper",
        "by threads, us",
        "by threads, by Caiti's",
        "in process, us",
        "in process, by Caiti's",
    ];
    let mut grid = Grid::new("many-cores", &columns);
    for system in SYSTEMS {
        let each = |part| microseconds(modelled(&results.models, part, system));
        let ahead = |part| format!("{:.2}", ahead(&results.models, part, system));
        let papers = PAPER.iter().find(|(name, _)| *name == system);
        grid.row([
            system.to_owned(),
            each("paper"),
            ahead("paper"),
            papers.map_or_else(|| "-".into(), |(_, ratio)| figure(*ratio)),
            each("pool"),
            ahead("pool"),
            each("in process"),
            ahead("in process"),
        ]);
    }
    grid
}

/// Microseconds of the sending threads for a write: the reciprocal of throughput.
fn microseconds(model: Option<&Model>) -> String {
    model.map_or_else(|| "-".into(), |model| format!("{:.2}", 1e6 / model.iops))
}

fn modelled_depths(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "modelled-depths",
        &["depth", "system", "mean, us", "p99.99, us"],
    );
    for depth in DEPTHS {
        for system in SYSTEMS {
            let part = format!("depth {depth}");
            if let Some(model) = modelled(&results.models, &part, system) {
                grid.row([
                    depth.to_string(),
                    system.to_owned(),
                    format!("{:.0}", model.mean_us),
                    format!("{:.0}", model.p9999_us),
                ]);
            }
        }
    }
    grid
}

/// Microseconds a write of each system, a column for each value of a sweep.
fn modelled_sweep(results: &Results, name: &str, part: &str, values: &[u64], unit: &str) -> Grid {
    let titles: Vec<String> = values
        .iter()
        .map(|value| format!("{value}{unit}"))
        .collect();
    let mut columns = vec!["system"];
    columns.extend(titles.iter().map(String::as_str));
    let mut grid = Grid::new(name, &columns);
    for system in SYSTEMS {
        let cells = values.iter().map(|value| {
            let part = format!("{part} {value}");
            microseconds(modelled(&results.models, &part, system))
        });
        let row: Vec<String> = std::iter::once(system.to_owned()).chain(cells).collect();
        grid.row(row);
    }
    grid
}
