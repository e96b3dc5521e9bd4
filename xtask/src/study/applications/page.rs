//! Grids of the page docs/results/applications.md; `pages/applications.tmpl` has its prose.

use super::cells::{DISTRIBUTIONS, MIXES, VALUES, db_bench_name, ycsb_name};
use super::plot::{PANELS, curve};
use super::results::{Pass, Results, Run, Transit};
use super::stack::{CACHE_BYTES, DIRTY_BYTES, MEDIUM_BYTES};
use super::{STAGING, SYSTEMS};
use crate::claims::{Claim, figure};
use crate::pages::{Data, Grid, Header, claims_grid, values_grid};
use crate::study::table::{number, size};

/// Largest ratio of two figures that are the same on this machine.
const SAME: f64 = 1.05;

/// Grids of the study; `seconds` is the time of a cell.
pub(super) fn grids(header: &Header, results: &Results, claims: &[Claim], seconds: f64) -> Data {
    let behind = behind(results);
    Data(vec![
        values(header, results, seconds, behind.rows.len()),
        claims_grid("claims", claims, figure),
        behind,
        db_bench(results),
        stores(results),
        mixes(results),
        distributions(results),
        transit(results),
        kills(results),
    ])
}

fn values(header: &Header, results: &Results, seconds: f64, behind: usize) -> Grid {
    let sum = |value: fn(&Pass) -> f64| results.passes.iter().map(value).sum::<f64>();
    let cells = results.cells().len();
    let skipped = results.kills.as_ref().is_some_and(|kills| kills.skipped);
    let mut grid = values_grid(header);
    for (name, value) in [
        ("rounds", results.rounds().to_string()),
        ("seconds", seconds.to_string()),
        ("niced_s", format!("{:.0}", sum(|pass| pass.niced_s))),
        ("steal_s", format!("{:.1}", sum(|pass| pass.steal_s))),
        ("cache", size(CACHE_BYTES as f64)),
        ("medium", size(MEDIUM_BYTES as f64)),
        ("dirty", size(DIRTY_BYTES as f64)),
        ("cells", cells.to_string()),
        ("best", cells.saturating_sub(behind).to_string()),
        ("skipped", if skipped { "some" } else { "none" }.to_owned()),
    ] {
        grid.row([name.to_owned(), value]);
    }
    for (bytes, values) in VALUES {
        grid.row([format!("values_{bytes}"), number(values)]);
    }
    grid
}

/// Cells in which Caiti is behind the best of the table and the staging policies.
fn behind(results: &Results) -> Grid {
    let mut grid = Grid::new("behind", &["cell", "best", "caiti by best"]);
    for cell in results.cells() {
        let median = |system: &str| results.median(system, cell, Run::mean_us);
        let others = STAGING.iter().chain(["btt"].iter());
        let best = others.map(|system| (median(system), *system));
        let best = best.min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((best_us, system)) = best else {
            continue;
        };
        let ratio = median("caiti") / best_us;
        if ratio > SAME {
            grid.row([cell.to_owned(), system.to_owned(), format!("{ratio:.2}")]);
        }
    }
    grid
}

/// Median, least and most of the rounds.
fn spread(results: &Results, system: &str, cell: &str, value: fn(&Run) -> f64) -> String {
    let median = results.median(system, cell, value);
    if !median.is_finite() {
        return "-".into();
    }
    let (least, most) = results.range(system, cell, value);
    let digits = if median < 100.0 { 1 } else { 0 };
    format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
}

/// Median of the rounds.
fn plain(results: &Results, system: &str, cell: &str, value: impl Fn(&Run) -> f64) -> String {
    let median = results.median(system, cell, value);
    match median.is_finite() {
        true if median < 100.0 => format!("{median:.1}"),
        true => number(median as u64),
        false => "-".into(),
    }
}

fn db_bench(results: &Results) -> Grid {
    let columns = [
        "benchmark",
        "value",
        "system",
        "mean, us",
        "p99, us",
        "p99.9, us",
    ];
    let mut grid = Grid::new("db-bench", &columns);
    let there = results.cells();
    for benchmark in ["fillrandom", "overwrite", "readrandom", "readhot"] {
        for (bytes, _) in VALUES {
            let cell = db_bench_name(benchmark, bytes);
            if !there.contains(&cell.as_str()) {
                continue;
            }
            for system in SYSTEMS {
                let at = |percent: f64| {
                    plain(results, system, &cell, |run| {
                        let side = match run.reads.count {
                            0 => &run.writes,
                            _ => &run.reads,
                        };
                        side.at(percent)
                    })
                };
                grid.row([
                    benchmark.to_owned(),
                    format!("{bytes} B"),
                    system.to_owned(),
                    spread(results, system, &cell, Run::mean_us),
                    at(99.0),
                    at(99.9),
                ]);
            }
        }
    }
    grid
}

fn stores(results: &Results) -> Grid {
    let columns = [
        "cell",
        "system",
        "operations/s",
        "reads, mean us",
        "reads, p99 us",
        "writes, mean us",
        "writes, p99 us",
    ];
    let mut names = vec![ycsb_name("rocksdb", "load", "")];
    for workload in ["a", "f"] {
        names.extend(DISTRIBUTIONS.map(|shape| ycsb_name("rocksdb", workload, shape)));
    }
    names.push(ycsb_name("sqlite", "load", ""));
    names.push(ycsb_name("sqlite", "a", "zipfian"));
    let there = results.cells();
    names.retain(|name| there.contains(&name.as_str()));
    let mut grid = Grid::new("stores", &columns);
    for cell in names {
        for system in SYSTEMS {
            let plain = |value: fn(&Run) -> f64| plain(results, system, &cell, value);
            grid.row([
                cell.clone(),
                system.to_owned(),
                spread(results, system, &cell, Run::per_second),
                plain(Run::read_mean_us),
                plain(|run| run.reads.at(99.0)),
                plain(Run::write_mean_us),
                plain(|run| run.writes.at(99.0)),
            ]);
        }
    }
    grid
}

fn mixes(results: &Results) -> Grid {
    let columns = [
        "mix",
        "system",
        "operations/s",
        "all, mean us",
        "reads, mean us",
        "reads, p99 us",
        "changes, mean us",
        "changes, p99 us",
    ];
    let mut grid = Grid::new("mixes", &columns);
    for mix in MIXES {
        for system in SYSTEMS {
            let plain = |value: fn(&Run) -> f64| plain(results, system, mix, value);
            grid.row([
                mix.to_owned(),
                system.to_owned(),
                spread(results, system, mix, Run::per_second),
                spread(results, system, mix, Run::mean_us),
                plain(Run::read_mean_us),
                plain(|run| run.reads.at(99.0)),
                plain(Run::write_mean_us),
                plain(|run| run.writes.at(99.0)),
            ]);
        }
    }
    grid
}

/// Percentiles of response times, of the cells that are plotted.
fn distributions(results: &Results) -> Grid {
    let mut grid = Grid::new("distributions", &["requests", "system", "percentile", "us"]);
    for (cell, side, title) in PANELS {
        for system in SYSTEMS {
            for (percent, _) in curve(results, SYSTEMS[0], cell, side) {
                let percentile = match percent < 100.0 {
                    true => format!("p{percent}"),
                    false => "most".to_owned(),
                };
                grid.row([
                    title.to_owned(),
                    system.to_owned(),
                    percentile,
                    plain(results, system, cell, |run| side(run).at(percent)),
                ]);
            }
        }
    }
    grid
}

/// Blocks of 4 KiB in all cells, by what the transit cache did with them.
fn transit(results: &Results) -> Grid {
    let columns = [
        "system",
        "written to slots",
        "bypassed",
        "waited",
        "evicted",
        "read from slots",
        "read from the table",
    ];
    let mut grid = Grid::new("transit", &columns);
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
        let row = std::iter::once(system.to_owned()).chain(counts.into_iter().map(number));
        grid.row(row.collect::<Vec<_>>());
    }
    grid
}

fn kills(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "kills",
        &["system", "kills", "acknowledged changes", "wrong"],
    );
    let Some(kills) = &results.kills else {
        return grid;
    };
    for system in SYSTEMS {
        let rows = || kills.rows.iter().filter(|row| row["system"] == system);
        let sum = |key: &str| rows().map(|row| row[key].as_u64().unwrap_or(0)).sum();
        grid.row([
            system.to_owned(),
            rows().count().to_string(),
            number(sum("acknowledged")),
            number(sum("wrong")),
        ]);
    }
    grid
}
