//! What this machine measures: two nodes of the library, in rounds.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::super::table::{Table, number};
use crate::bench::{Outcome, run_for_output};
use crate::claims::{Claim, Kind, figure};

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

/// What is claimed of them.
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
            "local hit beside a private cache's",
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

const HOW: &str = "\
Two nodes of the library in one process, the directory in a thread of its own, packets on channels, the store in memory; remote memory is this machine's own, so that a remote hit is no slower than a local one. **The machine was busy with other work: latencies that wait for another thread (all but those of mapped pages) are to be taken anew on a quiet one**; the command does it. \
Operations are synchronous, so depth is threads: 4 KiB at one thread, 4 KiB at 32, 128 KiB (32 pages, one after another) at 8. *Nowhere*: the page is filled from the store; written whole, it is not read first. *Cached remotely*: the other node has it, this one uses it first. *Mapped*: used before. A *view* maps a page and loads it from where it is (the paper's mmap); it stores nothing. Median of the rounds, with the least and the most.\n";

/// The section of the page.
pub(super) fn render(rounds: &[Round]) -> String {
    let mut text = format!("\n## Measured\n\n{HOW}\n");
    let Some(first) = rounds.first() else {
        return text;
    };
    let of = |what: &str, value: &dyn Fn(&Figure) -> f64| {
        let [median, least, most] = spread(rounds, what, value);
        format!("{} ({} to {})", figure(median), figure(least), figure(most))
    };
    let micros = |figure: &Figure| figure.latency_ns / 1000.0;
    let mut grid = Table::new(&[
        "operation",
        "latency, us",
        "operations/s, thousands",
        "packets",
    ]);
    let mut hits = Table::new(&["", "us", "packets"]);
    for Figure {
        what,
        operations_per_s,
        packets,
        ..
    } in &first.figures
    {
        match operations_per_s {
            Some(_) => grid.row(&[
                what.clone(),
                of(what, &micros),
                of(what, &|figure| {
                    figure.operations_per_s.unwrap_or(f64::NAN) / 1000.0
                }),
                number(*packets),
            ]),
            None if STEPS.iter().any(|step| what.ends_with(step)) => {}
            None => hits.row(&[what.clone(), of(what, &micros), number(*packets)]),
        }
    }
    text += &grid.0;
    text += "\nHits are the best of forty turns over 1,024 pages, whole pages copied, a view's first word loaded; an invalidation is all that happens when a node leaves that has so many pages and another maps them.\n\n";
    text += &hits.0;
    text += "\nWhere a miss at one thread spends its time, by the clock at each step, mean of 1,024 pages: *look up and lock* until the directory's answer has come, *fill* until the page is in its frame and the word of that leaves, *unlock and go on* until who asked has the page copied, loaded or written. A write of a whole page reads no store.\n\n";
    let mut split = Table::new(&[
        "",
        "look up and lock, us",
        "fill, us",
        "unlock and go on, us",
    ]);
    for operation in ["read", "write", "view"] {
        let mut row = vec![operation.to_owned()];
        row.extend(STEPS.map(|step| of(&format!("{operation}, {step}"), &micros)));
        split.row(&row);
    }
    text + &split.0
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
        let text = render(&good);
        assert!(
            text.contains("| local hit | 0.105 (0.100 to 0.300) | 0 |"),
            "{text}"
        );
    }
}
