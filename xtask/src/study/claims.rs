//! Claims about a trace, and whether they hold.

use super::simulation::{Origin, PERCENT, Row, SIZES, Simulation, Trace};
use crate::claims::{Claim, Kind};

/// Ours may be so much worse than the best fixed size.
pub(super) const MOST: f64 = 1.02;

/// Ours beside the best fixed size and the 32K cache: ratios, below one where ours is better.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict<'a> {
    pub(super) core: f64,
    /// The fixed cache that moves the least.
    pub(super) core_best: &'a str,
    pub(super) latency: f64,
    pub(super) latency_best: &'a str,
    /// Memory for metadata, of the 32K cache's.
    pub(super) memory: f64,
    /// The same, of a 32K cache that learns and has segments as ours does. `forebay format` makes
    /// such a cache.
    pub(super) memory_alike: f64,
}

impl Verdict<'_> {
    pub(super) fn core_holds(&self) -> bool {
        self.core <= MOST
    }

    pub(super) fn latency_holds(&self) -> bool {
        self.latency <= MOST
    }

    pub(super) fn memory_holds(&self) -> bool {
        self.memory < 1.0
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let failed = [
            (self.core_holds(), "backend I/O"),
            (self.latency_holds(), "latency"),
            (self.memory_holds(), "memory"),
        ];
        let failed = failed.iter().filter(|(holds, _)| !holds);
        let failed: Vec<&str> = failed.map(|(_, what)| *what).collect();
        match failed[..] {
            [] => "holds".into(),
            _ => format!("fails: {}", failed.join(", ")),
        }
    }
}

/// Ours against the fixed sizes of these families, at a cache's size.
pub(super) fn verdict<'a>(
    result: &'a Simulation,
    percent: u64,
    families: &[&str],
) -> Option<Verdict<'a>> {
    let fixed: Vec<&Row> = families
        .iter()
        .flat_map(|family| SIZES.iter().map(move |size| format!("{family}/{size}")))
        .filter_map(|name| result.find(&name, percent))
        .collect();
    let ours = result.find("ours", percent)?;
    let core = fixed.iter().min_by_key(|row| row.core_bytes())?;
    let latency = fixed.iter().min_by_key(|row| row.latency_sum_ns)?;
    let small = result.find("sub/32K", percent)?;
    // Where only some rows were run, there is none.
    let alike = result.find("ours/32K", percent).unwrap_or(small);
    Some(Verdict {
        core: ours.core_bytes() as f64 / core.core_bytes() as f64,
        core_best: &core.name,
        latency: ours.latency_sum_ns as f64 / latency.latency_sum_ns as f64,
        latency_best: &latency.name,
        memory: ours.memory_max_bytes as f64 / small.memory_max_bytes as f64,
        memory_alike: ours.memory_max_bytes as f64 / alike.memory_max_bytes as f64,
    })
}

/// The fixed sizes with the paper's fill and with sub-block maps: what ours is held against.
pub(super) const BASELINES: [&str; 2] = ["whole", "sub"];
/// The same, and with our write-backs of runs.
pub(super) const MERGED: [&str; 3] = ["whole", "sub", "runs"];

/// The claims on all traces that count.
pub(super) fn ours(traces: &[Trace]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for trace in traces.iter().filter(|trace| trace.result.counts()) {
        let Some(verdict) = verdict(&trace.result, PERCENT, &BASELINES) else {
            continue;
        };
        let seed = match trace.origin {
            Origin::OtherSeed => " (other seed)",
            _ => "",
        };
        let mut add = |what: &str, ratio: f64, unit: &str, kind: Kind, bar: String, holds: bool| {
            claims.push(Claim {
                name: format!("{}{seed}/{what}", trace.title),
                paper_or_peer: None,
                ours: ratio,
                unit: unit.to_owned(),
                kind,
                bar,
                holds,
            });
        };
        let most = format!("at most {MOST}");
        let best = "of the best fixed size";
        add(
            "backend I/O",
            verdict.core,
            best,
            Kind::Counted,
            most.clone(),
            verdict.core_holds(),
        );
        add(
            "latency",
            verdict.latency,
            best,
            Kind::Modelled,
            most,
            verdict.latency_holds(),
        );
        add(
            "memory",
            verdict.memory,
            "of 32K",
            Kind::Counted,
            "less than 1".into(),
            verdict.memory_holds(),
        );
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, core: u64, latency: u64, memory: u64) -> Row {
        let mut row = Row {
            name: name.into(),
            percent: PERCENT,
            latency_sum_ns: latency,
            memory_max_bytes: memory,
            ..Row::default()
        };
        row.read_from_core.bytes = core;
        row.capacity_bytes = 32 << 10;
        row
    }

    fn result(ours: Row) -> Simulation {
        let rows = vec![
            row("whole/32K", 300, 90, 100),
            row("sub/32K", 200, 100, 100),
            row("sub/64K", 250, 80, 50),
            row("runs/64K", 100, 50, 50),
            ours,
        ];
        Simulation {
            rows,
            ..Simulation::default()
        }
    }

    #[test]
    fn ours_is_held_against_the_best_of_each() {
        let result = result(row("ours", 204, 80, 99));
        let verdict_ = verdict(&result, PERCENT, &BASELINES).expect("all are there");
        assert_eq!(
            (verdict_.core_best, verdict_.latency_best),
            ("sub/32K", "sub/64K")
        );
        assert_eq!(verdict_.words(), "holds");
        assert!((verdict_.memory_alike - 99.0 / 100.0).abs() < 1e-9);
        let merged = verdict(&result, PERCENT, &MERGED).expect("all are there");
        assert_eq!(merged.words(), "fails: backend I/O, latency");
        assert!(verdict(&result, 5, &BASELINES).is_none());
    }

    #[test]
    fn a_failed_verdict_names_its_metrics() {
        let result = result(row("ours", 205, 82, 100));
        let words = verdict(&result, PERCENT, &BASELINES).map(|verdict| verdict.words());
        assert_eq!(
            words.as_deref(),
            Some("fails: backend I/O, latency, memory")
        );
    }
}
