//! Grids of the page docs/results/dpc.md; `pages/dpc.tmpl` has its prose.

use serde_json::Value;

use super::cells::{
    Cells, FEW, FREE, LINK, NODE_COUNTS, NODES, OPENING, OPENS, PAPER, REMOTE, REPLICAS,
    ROUND_TRIP, Row, SHARED, SIZES, STRONG_ONE, SYSTEMS, Sweep, WORKLOADS, WRITES, beside_virtiofs,
    geometric, mean, speedup,
};
use super::measured::{self, Round};
use crate::claims::{Claim, figure};
use crate::pages::{Data, Grid, Header, claims_grid, values_grid};
use crate::study::table::{number, percent, size};

/// Titles of the columns of times of the better grain of tokens over ours.
const TOKENS: &str = "beside tokens";
const REPLICAS_TOKENS: &str = "replicas beside tokens";

/// Grids of the study; `costs` are the declared costs that the program prints.
pub(super) fn grids(
    header: &Header,
    costs: &Value,
    claims: &[Claim],
    cells: &Cells,
    rounds: &[Round],
) -> Data {
    let mut grids = vec![
        values(header, cells),
        claims_grid("claims", claims, figure),
        declared(costs),
    ];
    grids.extend(modelled(cells));
    grids.extend(measured::grids(rounds));
    Data(grids)
}

/// Grids of figures that are counted or modelled, the same on any machine.
fn modelled(cells: &Cells) -> Vec<Grid> {
    let part = |value: f64| percent(value / 1000.0);
    vec![
        times(cells),
        counts(cells),
        nodes(cells),
        mix(cells, &SIZES, "set by node", |size| format!("{size}")),
        mix(cells, &SHARED, "shared", part),
        mix(cells, &WRITES, "writes", part),
        swept_costs(cells),
        opens(cells),
        losses(cells),
    ]
}

fn values(header: &Header, cells: &Cells) -> Grid {
    let mut grid = values_grid(header);
    let bounds = PAPER.map(|workload| bound(cells, workload, NODES));
    for (name, value) in [
        ("bound_mean", times_of(geometric(bounds))),
        (
            "free_mean",
            times_of(with_swept(cells, STRONG_ONE, &FREE, 1.0)),
        ),
        (
            "crossing",
            times_of(crossover(&size_gains(cells, STRONG_ONE))),
        ),
        (
            "replicas_crossing",
            times_of(crossover(&size_gains(cells, REPLICAS))),
        ),
        (
            "opens_mean",
            times_of(mean(STRONG_ONE, |workload, system| {
                asked(cells, workload, system)
            })),
        ),
    ] {
        grid.row([name.into(), value]);
    }
    grid
}

/// Time of the better grain of tokens, over that of one node with all the memory.
fn bound(cells: &Cells, workload: &str, nodes: u64) -> Option<f64> {
    speedup("one-node", |system| cells.at(workload, system, nodes))
}

/// The mean with one cost of the system `ours` changed; tokens do not know it.
fn with_swept(cells: &Cells, ours: &str, sweep: &Sweep, value: f64) -> Option<f64> {
    mean(ours, |workload, system| match system == ours {
        true => cells.swept(workload, system, sweep.name, value),
        false => cells.at(workload, system, NODES),
    })
}

fn declared(costs: &Value) -> Grid {
    let mut grid = Grid::new("declared", &["cost", "value"]);
    for (name, value) in costs.as_object().into_iter().flatten() {
        grid.row([name.clone(), number(value.as_u64().unwrap_or(0))]);
    }
    grid
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

/// Grid with a column for each of `systems` between two others.
fn by_system(name: &str, first: &str, systems: &[&str], last: &[&str]) -> Grid {
    Grid::new(name, &[&[first], systems, last].concat())
}

pub(super) fn times(cells: &Cells) -> Grid {
    let last = [TOKENS, REPLICAS_TOKENS, "beside virtiofs"];
    let mut grid = by_system("times", "workload", &SYSTEMS, &last);
    for workload in WORKLOADS {
        let cell = |system: &str| cells.at(workload, system, NODES);
        let mut row = vec![workload.to_owned()];
        row.extend(SYSTEMS.map(|system| microseconds(cell(system))));
        row.extend([STRONG_ONE, REPLICAS].map(|ours| times_of(speedup(ours, cell))));
        row.push(times_of(beside_virtiofs(cells, workload)));
        grid.row(row);
    }
    let mut row = vec!["geometric mean of the paper's".to_owned()];
    row.extend(SYSTEMS.map(|_| String::new()));
    row.extend([STRONG_ONE, REPLICAS].map(|ours| {
        times_of(mean(ours, |workload, system| {
            cells.at(workload, system, NODES)
        }))
    }));
    let virtiofs = PAPER.map(|workload| beside_virtiofs(cells, workload));
    row.push(times_of(geometric(virtiofs)));
    grid.row(row);
    grid
}

pub(super) fn counts(cells: &Cells) -> Grid {
    let columns = [
        "workload",
        "system",
        "local",
        "remote",
        "first",
        "store read",
        "store written",
        "messages",
        "packets",
        "invalidated",
        "copies",
        "most copies",
        "stale reads",
    ];
    let mut grid = Grid::new("counts", &columns);
    let each = WORKLOADS
        .iter()
        .flat_map(|workload| SYSTEMS.map(|system| (*workload, system)));
    for (workload, system) in each {
        let Some(row) = cells.at(workload, system, NODES) else {
            continue;
        };
        let part = |count: u64| percent(count as f64 / row.pages.max(1) as f64);
        grid.row([
            workload.to_owned(),
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
    grid
}

fn nodes(cells: &Cells) -> Grid {
    let titles = NODE_COUNTS.map(|nodes| format!("{nodes} nodes"));
    let mut columns = vec!["workload"];
    columns.extend(titles.iter().map(String::as_str));
    let mut grid = Grid::new("nodes", &columns);
    for workload in WORKLOADS {
        let mut row = vec![workload.to_owned()];
        row.extend(NODE_COUNTS.map(|nodes| {
            let gains = [STRONG_ONE, REPLICAS]
                .map(|ours| times_of(speedup(ours, |system| cells.at(workload, system, nodes))));
            let bound = bound(cells, workload, nodes);
            format!("{} ({})", gains.join(" / "), times_of(bound))
        }));
        grid.row(row);
    }
    let mut row = vec!["geometric mean of the paper's".to_owned()];
    row.extend(NODE_COUNTS.map(|nodes| {
        let means = [STRONG_ONE, REPLICAS].map(|ours| {
            times_of(mean(ours, |workload, system| {
                cells.at(workload, system, nodes)
            }))
        });
        means.join(" / ")
    }));
    grid.row(row);
    grid
}

/// Sweep of the mix: the time of each system, and that of tokens over ours.
fn mix(cells: &Cells, sweep: &Sweep, title: &str, unit: fn(f64) -> String) -> Grid {
    let mut grid = by_system(sweep.name, title, &SYSTEMS, &[TOKENS, REPLICAS_TOKENS]);
    for value in sweep.values {
        let cell = |system: &str| cells.swept("mix", system, sweep.name, *value);
        let mut row = vec![unit(*value)];
        row.extend(SYSTEMS.map(|system| microseconds(cell(system))));
        row.extend([STRONG_ONE, REPLICAS].map(|ours| times_of(speedup(ours, cell))));
        grid.row(row);
    }
    grid
}

/// Sizes of the shared set, and the time of tokens over ours.
fn size_gains(cells: &Cells, ours: &str) -> Vec<(f64, f64)> {
    let gain = |size: f64| speedup(ours, |system| cells.swept("mix", system, SIZES.name, size));
    let sizes = SIZES.values.iter();
    sizes
        .filter_map(|size| Some((*size, gain(*size)?)))
        .collect()
}

/// Last place where the line through the points rises above one.
fn crossover(points: &[(f64, f64)]) -> Option<f64> {
    points.windows(2).rev().find_map(|pair| {
        let [(a, before), (b, after)] = *pair else {
            return None;
        };
        (before < 1.0 && after >= 1.0).then(|| a + (b - a) * (1.0 - before) / (after - before))
    })
}

fn swept_costs(cells: &Cells) -> Grid {
    let mut grid = Grid::new("costs", &["cost", "value", "mean", "with replicas"]);
    for sweep in [REMOTE, LINK, FREE] {
        for value in sweep.values {
            let gains = [STRONG_ONE, REPLICAS]
                .map(|ours| times_of(with_swept(cells, ours, &sweep, *value)));
            let [gain, replicas] = gains;
            grid.row([sweep.name.to_owned(), number(*value as u64), gain, replicas]);
        }
    }
    for value in ROUND_TRIP.values {
        let [gain, replicas] = [STRONG_ONE, REPLICAS].map(|ours| {
            times_of(mean(ours, |workload, system| {
                cells.swept(workload, system, ROUND_TRIP.name, *value)
            }))
        });
        let name = ROUND_TRIP.name.to_owned();
        grid.row([name, number(*value as u64), gain, replicas]);
    }
    let [gain, replicas] = [STRONG_ONE, REPLICAS].map(|ours| {
        times_of(mean(ours, |workload, system| {
            cells.at(workload, system, NODES)
        }))
    });
    grid.row(["as declared".to_owned(), String::new(), gain, replicas]);
    grid
}

/// Cell of a workload if names and sizes of files are a server's; a workload without opens has
/// the cell with the declared costs.
fn asked<'a>(cells: &'a Cells, workload: &str, system: &str) -> Option<&'a Row> {
    let asked = cells.swept(workload, system, OPENS.name, 1.0);
    asked.or_else(|| cells.at(workload, system, NODES))
}

fn opens(cells: &Cells) -> Grid {
    let mut grid = by_system("opens", "workload", &FEW, &[TOKENS]);
    for workload in OPENING {
        let cell = |system: &str| asked(cells, workload, system);
        let mut row = vec![workload.to_owned()];
        row.extend(FEW.map(|system| microseconds(cell(system))));
        row.push(times_of(speedup(STRONG_ONE, cell)));
        grid.row(row);
    }
    grid
}

/// Each cell in which the better grain of tokens takes less time than `dpc-strong` or
/// `dpc-replicas`.
fn losses(cells: &Cells) -> Grid {
    let columns = ["workload", "nodes", "changed", TOKENS, REPLICAS_TOKENS];
    let mut grid = Grid::new("losses", &columns);
    for row in cells.0.iter().filter(|row| row.job.system == STRONG_ONE) {
        let job = &row.job;
        if [REMOTE.name, LINK.name, FREE.name].contains(&&*job.sweep) {
            continue;
        }
        let gains = [STRONG_ONE, REPLICAS].map(|ours| {
            speedup(ours, |system| match &*job.sweep {
                "" => cells.at(&job.workload, system, job.nodes),
                sweep => cells.swept(&job.workload, system, sweep, job.value),
            })
        });
        if gains.iter().flatten().any(|gain| *gain < 1.0) {
            let changed = match &*job.sweep {
                "" => "nothing".to_owned(),
                sweep => format!("{sweep} = {}", job.value),
            };
            let nodes = job.nodes.to_string();
            let [gain, replicas] = gains.map(times_of);
            grid.row([job.workload.clone(), nodes, changed, gain, replicas]);
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_is_between_the_points_on_both_sides_of_one() {
        let points = [(1.0, 0.5), (2.0, 0.8), (4.0, 1.2), (6.0, 3.0)];
        assert_eq!(crossover(&points), Some(3.0));
        assert_eq!(crossover(&points[..2]), None);
        assert_eq!(crossover(&points[2..]), None);
    }
}
