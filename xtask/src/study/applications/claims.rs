//! Claims of the paper about applications, beside the results of this study. The bars were set
//! before the first run.

use super::results::{Results, Run};
use super::{STAGING, SYSTEMS};
use crate::claims::{Claim, Kind};

/// Reads are to stay where they are, within the noise of the machine.
const COMPARABLE: f64 = 1.1;

/// Which figure, and whether less of it is better.
type Figure = fn(&Run) -> f64;

struct PaperClaim {
    cell: &'static str,
    what: &'static str,
    figure: Figure,
    /// Beside this system, or the best of the staging policies.
    beside: Option<&'static str>,
    paper: Option<f64>,
    most: f64,
}

/// Times of caiti beside another's; throughput is turned into time.
const SAID: [PaperClaim; 16] = [
    // Section 5.3.1, values of 2 KB.
    time("fillrandom 4096 B", Some("btt"), Some(0.594), 1.0),
    time("fillrandom 4096 B", None, Some(0.822), 1.0),
    time("overwrite 4096 B", Some("btt"), Some(0.618), 1.0),
    time(
        "fillrandom 4096 B",
        Some("caiti-without-eviction"),
        None,
        1.0,
    ),
    time("fillrandom 4096 B", Some("caiti-without-bypass"), None, 1.0),
    time("readrandom 4096 B", Some("btt"), None, COMPARABLE),
    time("readhot 4096 B", Some("btt"), None, COMPARABLE),
    // Figure 9c: 40.0% (PMBD-70) to 66.3% (LRU) more loaded in the same time.
    time("rocksdb load", None, Some(0.714), 1.0),
    time("rocksdb A zipfian", Some("btt"), None, 1.0),
    time("rocksdb F zipfian", Some("btt"), None, 1.0),
    // Not in the paper.
    time("sqlite load", Some("btt"), None, 1.0),
    // Figure 10a.
    time("fileserver", Some("btt"), Some(0.561), 1.0),
    time("fileserver", None, Some(0.568), 1.0),
    time("varmail", Some("btt"), Some(0.776), 1.0),
    time("webproxy", Some("btt"), Some(0.857), COMPARABLE),
    time("webserver", Some("btt"), None, COMPARABLE),
];

const fn time(
    cell: &'static str,
    beside: Option<&'static str>,
    paper: Option<f64>,
    most: f64,
) -> PaperClaim {
    PaperClaim {
        cell,
        what: "mean response",
        figure: Run::mean_us,
        beside,
        paper,
        most,
    }
}

/// All claims of a run; cells that it left out have none.
pub(super) fn claims(results: &Results) -> Vec<Claim> {
    let mut claims: Vec<Claim> = SAID
        .iter()
        .filter_map(|said| claim(results, said))
        .collect();
    let kills = results.kills.as_ref();
    let Some(kills) = kills.filter(|kills| !kills.skipped || !kills.rows.is_empty()) else {
        return claims;
    };
    let sum = |key: &str| {
        let each = kills.rows.iter().map(|row| row[key].as_u64().unwrap_or(0));
        each.sum::<u64>()
    };
    let wanted = kills.each * SYSTEMS.len() as u64;
    let counted = |name: &str, ours: f64, unit: &str, bar: String, holds: bool| Claim {
        name: name.into(),
        paper_or_peer: None,
        ours,
        unit: unit.into(),
        kind: Kind::Counted,
        bar,
        holds,
    };
    let both = kills.rows.iter().all(|row| row["stores"] == 2);
    let wrong = sum("wrong");
    claims.push(counted(
        "kill -9/acknowledged changes that are wrong",
        wrong as f64,
        "changes",
        format!("exactly 0 in {wanted} kills, both databases"),
        wrong == 0 && kills.rows.len() as u64 == wanted && both,
    ));
    claims.push(counted(
        "kill -9/e2fsck clean, and planted faults found",
        f64::from(u8::from(kills.ended_well)),
        "yes",
        "exactly 1".into(),
        kills.ended_well,
    ));
    claims
}

fn claim(results: &Results, said: &PaperClaim) -> Option<Claim> {
    let median = |system: &str| results.median(system, said.cell, said.figure);
    let (other, name) = match said.beside {
        Some(system) => (median(system), system),
        None => {
            let each = STAGING.map(median).into_iter();
            (
                each.fold(f64::INFINITY, f64::min),
                "the best staging policy",
            )
        }
    };
    let ours = median("caiti") / other;
    ours.is_finite().then(|| Claim {
        name: format!("{}/{} beside {name}", said.cell, said.what),
        paper_or_peer: said.paper,
        ours,
        unit: "times".into(),
        kind: Kind::Emulated,
        bar: format!("at most {}", said.most),
        holds: ours <= said.most,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::{Kills, Pass, Side};
    use super::*;

    fn pass(system: &str, mean_us: f64) -> Pass {
        let run = |cell: &str| Run {
            cell: cell.into(),
            operations: 10,
            seconds: 1.0,
            writes: Side {
                count: 10,
                mean_us,
                percentiles_us: Vec::new(),
            },
            ..Run::default()
        };
        Pass {
            system: system.into(),
            round: 0,
            commit: String::new(),
            took_s: 1.0,
            niced_s: 0.0,
            steal_s: 0.0,
            cells: vec![run("fillrandom 4096 B"), run("fileserver")],
        }
    }

    #[test]
    fn claims_compare_means_and_fail_on_wrong_or_missing_results() {
        let slower = |system: &&str| pass(system, if *system == "lru" { 1.5 } else { 2.0 });
        let mut results = Results {
            passes: SYSTEMS.iter().map(slower).collect(),
            kills: None,
        };
        results.passes[5] = pass("caiti", 1.8);
        let claims_now = claims(&results);
        assert_eq!(claims_now.len(), 6, "cells that were not run have none");
        assert!((claims_now[0].ours - 0.9).abs() < 1e-9 && claims_now[0].holds);
        // Beside lru, which is faster.
        assert!((claims_now[1].ours - 1.2).abs() < 1e-9 && !claims_now[1].holds);
        let row = |wrong: u64| json!({"system": "btt", "stores": 2, "wrong": wrong});
        let mut kills = Kills {
            each: 1,
            skipped: false,
            ended_well: true,
            rows: vec![row(0); 8],
        };
        results.kills = Some(kills.clone());
        assert!(claims(&results)[6..].iter().all(|claim| claim.holds));
        kills.rows[3] = row(1);
        results.kills = Some(kills.clone());
        assert!(!claims(&results)[6].holds);
        kills.rows.truncate(3);
        results.kills = Some(kills);
        assert!(!claims(&results)[6].holds, "kills are missing");
    }
}
