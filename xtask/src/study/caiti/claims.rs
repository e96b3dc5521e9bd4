//! Claims, and whether they hold.

use super::modelled::ahead;
use super::runs::{cell, modelled};
use super::{Results, STAGING, SYSTEMS};
use crate::claims::{Claim, Kind};

/// Throughput at depth 128 in the paper: ratio to each system.
pub(super) const PAPER: [(&str, f64); 5] = [
    ("btt", 3.6),
    ("pmbd", 3.6),
    ("lru", 3.5),
    ("co-active", 2.9),
    ("pmem", 2.2),
];

pub(super) fn claims(results: &Results, waitings: &[&str]) -> Vec<Claim> {
    let claim = |name: String, paper: Option<f64>, ours: f64, bar: &str, holds: bool| Claim {
        name,
        paper_or_peer: paper,
        ours,
        unit: "times".into(),
        kind: Kind::Emulated,
        bar: bar.into(),
        holds,
    };
    let mut claims = Vec::new();
    for waiting in waitings {
        let half = |system| cell(&results.measured.runs, &format!("half {waiting}"), system);
        let iops = |system| {
            cell(&results.measured.runs, &format!("full {waiting}"), system).median(|run| run.iops)
        };
        let mean = half("caiti").median(|run| run.mean_us) / half("btt").median(|run| run.mean_us);
        claims.push(claim(
            format!("{waiting}/half load/mean beside btt"),
            None,
            mean,
            "at most 0.8",
            mean <= 0.8,
        ));
        let staging = STAGING.map(|policy| half(policy).median(|run| run.p9999_us));
        let tail = half("caiti").median(|run| run.p9999_us)
            / staging.into_iter().fold(f64::INFINITY, f64::min);
        claims.push(claim(
            format!("{waiting}/half load/p99.99 beside the best staging policy"),
            None,
            tail,
            "below 1",
            tail < 1.0,
        ));
        for (other, least) in [("btt", 0.9), ("lru", 1.0), ("pmbd", 1.0)] {
            let ratio = iops("caiti") / iops(other);
            claims.push(claim(
                format!("{waiting}/saturation/writes beside {other}"),
                None,
                ratio,
                &if other == "btt" {
                    format!("at least {least}")
                } else {
                    "above 1".into()
                },
                if other == "btt" {
                    ratio >= least
                } else {
                    ratio > least
                },
            ));
        }
        let samples =
            SYSTEMS.map(|system| half(system).0.iter().map(|run| run.writes).sum::<u64>());
        let samples = samples.into_iter().min().unwrap_or_default() as f64;
        claims.push(Claim {
            unit: "writes".into(),
            kind: Kind::Counted,
            ..claim(
                format!("{waiting}/half load/samples of a system, at least"),
                None,
                samples,
                "at least 1000000",
                samples >= 1e6,
            )
        });
    }
    let slot = SYSTEMS.map(|system| {
        cell(&results.measured.runs, "full spin", system).median(|run| run.slot_bytes as f64)
    });
    let slot = slot.into_iter().fold(0.0, f64::max);
    claims.push(Claim {
        unit: "bytes".into(),
        kind: Kind::Counted,
        ..claim(
            "metadata of a slot, any policy".into(),
            Some(102.0),
            slot,
            "at most 64",
            slot <= 64.0,
        )
    });
    for (part, load) in [("full", "saturation, writes"), ("half", "half load, mean")] {
        let off = |system: &str| {
            let measured = cell(&results.measured.runs, &format!("{part} spin"), system);
            let model = modelled(&results.models, &format!("two {part}"), system);
            let model = model.cloned().unwrap_or_default();
            match part {
                "full" => model.iops / measured.median(|run| run.iops),
                _ => model.mean_us / measured.median(|run| run.mean_us),
            }
        };
        for system in SYSTEMS {
            let ratio = off(system);
            claims.push(Claim {
                kind: Kind::Modelled,
                ..claim(
                    format!("model of two cores/{load}, beside measured/{system}"),
                    None,
                    ratio,
                    "within 20%",
                    (0.8..=1.2).contains(&ratio),
                )
            });
        }
    }
    for (other, paper) in PAPER {
        let ratio = ahead(&results.models, "paper", other);
        claims.push(Claim {
            kind: Kind::Modelled,
            ..claim(
                format!("model of 36 cores/writes beside {other}"),
                Some(paper),
                ratio,
                "within 25% of the paper's",
                (0.75 * paper..=1.25 * paper).contains(&ratio),
            )
        });
    }
    claims
}
