//! Measurements on this machine: two nodes of the library, in rounds.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::bench::{Outcome, run_for_output};
use crate::claims::{Claim, Kind, figure};
use crate::pages::Grid;
use crate::study::table::number;

/// One figure of one round.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Figure {
    what: String,
    latency_ns: f64,
    operations_per_s: Option<f64>,
    packets: u64,
}

/// One round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Round {
    figures: Vec<Figure>,
    /// Whether remote hits made no system call.
    silent: bool,
}

/// The steps of a miss.
const STEPS: [&str; 3] = ["look up and lock", "fill", "unlock and go on"];

/// Runs them.
pub(super) fn run(program: &Path, rounds: usize) -> Outcome<Vec<Round>> {
    let round = |nth: usize| {
        eprintln!("measured, round {} of {rounds}", nth + 1);
        let mut command = Command::new(program);
        command.arg("measure");
        let printed = run_for_output(command)?;
        serde_json::from_str(&printed).map_err(|error| format!("{printed}: {error}"))
    };
    (0..rounds).map(round).collect()
}

/// Of all rounds: the median, the least and the most.
fn spread(rounds: &[Round], what: &str, value: impl Fn(&Figure) -> f64) -> [f64; 3] {
    let figures = rounds.iter().flat_map(|round| &round.figures);
    let mut values: Vec<f64> = figures
        .filter(|figure| figure.what == what)
        .map(value)
        .collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => [f64::NAN; 3],
        [least, .., most] => [values[values.len() / 2], least, most],
        [only] => [only; 3],
    }
}

fn latency(rounds: &[Round], what: &str) -> [f64; 3] {
    spread(rounds, what, |figure| figure.latency_ns)
}

/// Returns the claims about the rounds.
pub(super) fn claims(rounds: &[Round]) -> Vec<Claim> {
    let local = latency(rounds, "local hit")[0] / latency(rounds, "hit of a node alone")[0];
    let figures = rounds.iter().flat_map(|round| &round.figures);
    let packets: u64 = figures
        .filter(|figure| figure.what.ends_with("mapped") || figure.what.contains("hit"))
        .map(|figure| figure.packets)
        .sum();
    let loud = rounds.iter().filter(|round| !round.silent).count() as f64;
    let claim = |name: &str, ours: f64, unit: &str, kind, bar: &str, holds| Claim {
        name: name.into(),
        paper_or_peer: None,
        ours,
        unit: unit.into(),
        kind,
        bar: bar.into(),
        holds,
    };
    vec![
        claim(
            "time of a local hit over that of a private cache",
            local,
            "times",
            Kind::Measured,
            "at most 1.1",
            local <= 1.1,
        ),
        claim(
            "packets that nodes sent for hits in mapped pages, theirs and others'",
            packets as f64,
            "packets",
            Kind::Counted,
            "0",
            packets == 0 && !rounds.is_empty(),
        ),
        claim(
            "rounds in which a remote hit made a system call, of a million hits and as many views",
            loud,
            "rounds",
            Kind::Counted,
            "0",
            loud == 0.0 && !rounds.is_empty(),
        ),
    ]
}

/// Grids of the page: operations, hits and invalidations, and the steps of a miss.
pub(super) fn grids(rounds: &[Round]) -> [Grid; 3] {
    let of = |what: &str, value: &dyn Fn(&Figure) -> f64| {
        let [median, least, most] = spread(rounds, what, value);
        format!("{} ({} to {})", figure(median), figure(least), figure(most))
    };
    let micros = |figure: &Figure| figure.latency_ns / 1000.0;
    let thousands = |figure: &Figure| figure.operations_per_s.unwrap_or(f64::NAN) / 1000.0;
    let columns = [
        "operation",
        "latency, us",
        "operations/s, thousands",
        "packets",
    ];
    let mut operations = Grid::new("operations", &columns);
    let mut hits = Grid::new("hits", &["operation", "latency, us", "packets"]);
    let first = rounds.iter().take(1).flat_map(|round| &round.figures);
    for one in first {
        let (what, packets) = (&one.what, number(one.packets));
        let latency = of(what, &micros);
        match one.operations_per_s {
            Some(_) => operations.row([what.clone(), latency, of(what, &thousands), packets]),
            None if STEPS.iter().any(|step| what.ends_with(step)) => {}
            None => hits.row([what.clone(), latency, packets]),
        }
    }
    let columns = [
        "operation",
        "look up and lock, us",
        "fill, us",
        "unlock and go on, us",
    ];
    let mut steps = Grid::new("steps", &columns);
    for operation in ["read", "write", "view"] {
        let mut row = vec![operation.to_owned()];
        row.extend(STEPS.map(|step| of(&format!("{operation}, {step}"), &micros)));
        steps.row(row);
    }
    [operations, hits, steps]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(local: f64, packets: u64, silent: bool) -> Round {
        let figure = |what: &str, latency_ns, packets| Figure {
            what: what.into(),
            latency_ns,
            operations_per_s: None,
            packets,
        };
        Round {
            figures: vec![
                figure("hit of a node alone", 100.0, 0),
                figure("local hit", local, packets),
                figure("invalidation of 1", 9.0, 4),
            ],
            silent,
        }
    }

    #[test]
    fn a_hit_that_asks_or_takes_long_fails() {
        let good = [
            round(100.0, 0, true),
            round(105.0, 0, true),
            round(300.0, 0, true),
        ];
        assert!(claims(&good).iter().all(|claim| claim.holds));
        let bad = [round(120.0, 1, false)];
        assert!(claims(&bad).iter().all(|claim| !claim.holds));
        assert!(claims(&[]).iter().all(|claim| !claim.holds));
        let [_, hits, _] = grids(&good);
        assert_eq!(
            hits.rows[1],
            ["local hit", "0.105 (0.100 to 0.300)", "0"].map(String::from)
        );
    }
}
