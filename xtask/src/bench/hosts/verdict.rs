//! Claims from the hosts' figures.

use super::drive::Busy;
use super::limit::limited;
use super::row::{Held, Phase, Row};
use super::{DEPTH, HOSTS, REQUEST_BYTES};
use crate::bench::median;
use crate::claims::{Claim, Kind};

/// Allowed distance of a host from the median of all, percent.
const FAIR_PERCENT: f64 = 10.0;
/// Part of an equal share of all answers that a greedy host must leave to each of the others.
const SHARE_BAR: f64 = 0.9;
/// Memory of an idle host with its two connections, as docs/reference/limits.md states.
const IDLE_BYTES: f64 = 512.0 * 1024.0;
/// Memory of the commands of a connection with the data in their capsules, from the same page.
const COMMANDS_BYTES: f64 = 33.0 * 1048576.0;
/// Memory that is retained for reuse, for all hosts together, from the same page.
const REUSE_BYTES: f64 = 64.0 * 1048576.0;
/// Part of that memory that greedy hosts must reach. Otherwise the bound was not tested.
const TRIED_BYTES: f64 = 24.0 * 1048576.0;
/// Use of one processor by other programs that makes a run disturbed, percent.
const DISTURBED_PERCENT: f64 = 5.0;

/// The IOPS of the hosts of a phase.
#[derive(Debug)]
pub(super) struct Spread {
    pub(super) total: f64,
    /// The least IOPS of hosts that are not greedy.
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
    pub(super) greedy: Option<f64>,
}

pub(super) fn spread(rows: &[Row], wanted: Phase) -> Spread {
    let (mut hosts, mut greedy) = (Vec::new(), None);
    for row in rows {
        match *row {
            Row::Host {
                phase, depth, iops, ..
            } if phase == wanted => match depth {
                DEPTH => hosts.push(iops),
                _ => greedy = Some(iops),
            },
            _ => {}
        }
    }
    Spread {
        total: hosts.iter().sum::<f64>() + greedy.unwrap_or(0.0),
        least: hosts.iter().copied().fold(f64::INFINITY, f64::min),
        median: median(hosts.iter().copied()),
        most: hosts.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        greedy,
    }
}

/// Returns the resident memory, or NaN without a sample.
pub(super) fn resident_bytes(rows: &[Row], wanted: Held) -> f64 {
    let found = rows.iter().find_map(|row| match row {
        Row::Memory {
            held,
            resident_bytes,
        } if *held == wanted => Some(*resident_bytes as f64),
        _ => None,
    });
    found.unwrap_or(f64::NAN)
}

/// Returns the use of processors. `None` without a sample.
pub(super) fn busy(rows: &[Row], wanted: Phase) -> Option<Busy> {
    rows.iter().find_map(|row| match row {
        Row::Processors { phase, busy } if *phase == wanted => Some(*busy),
        _ => None,
    })
}

/// Returns the largest use by other programs, if it is too large.
pub(super) fn disturbed(rows: &[Row]) -> Option<f64> {
    let phases = Phase::FAIR.into_iter().chain([Phase::Limits]);
    let others = phases.filter_map(|phase| Some(busy(rows, phase)?.others_percent));
    let most = others.fold(0.0, f64::max);
    (most > DISTURBED_PERCENT).then_some(most)
}

pub(super) fn claims(rows: &[Row]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for phase in Phase::FAIR {
        let spread = spread(rows, phase);
        claims.push(fair(phase, &spread));
        // Large requests are shown, without a limit on the share of their count.
        if phase.is_greedy() && phase.greedy_bytes() == REQUEST_BYTES {
            claims.push(left_by_greedy(phase, &spread));
        }
    }
    claims.extend([limited(rows, false), limited(rows, true)]);
    claims.extend(memory(rows));
    claims
}

/// Hosts that request as much get as much.
fn fair(phase: Phase, spread: &Spread) -> Claim {
    let far = (spread.most - spread.median).max(spread.median - spread.least);
    let percent = far / spread.median * 100.0;
    let ratios = [spread.least, spread.most].map(|iops| iops / spread.median);
    Claim {
        name: format!("fair/{}/farthest_from_median", slug(phase)),
        paper_or_peer: None,
        ours: percent,
        unit: format!("% ({:.3}..{:.3})", ratios[0], ratios[1]),
        kind: Kind::Measured,
        bar: format!("at most {FAIR_PERCENT}"),
        holds: percent <= FAIR_PERCENT,
    }
}

/// A greedy host leaves the others their requests, up to their equal share.
fn left_by_greedy(phase: Phase, spread: &Spread) -> Claim {
    let share = spread.median / (spread.total / HOSTS as f64);
    let greedy = spread.greedy.unwrap_or(f64::NAN) / spread.median;
    Claim {
        name: format!("fair/{}/share_of_others", slug(phase)),
        paper_or_peer: Some(1.0),
        ours: share,
        unit: format!("x equal (greedy {greedy:.1} x theirs)"),
        kind: Kind::Measured,
        bar: format!("at least {SHARE_BAR}"),
        holds: share >= SHARE_BAR,
    }
}

fn slug(phase: Phase) -> &'static str {
    match phase {
        Phase::EqualRead => "equal_read",
        Phase::EqualWrite => "equal_write",
        Phase::GreedyRead => "greedy_read",
        Phase::GreedyWrite => "greedy_write",
        Phase::GreedyLargeRead => "greedy_128k_read",
        Phase::Limits => "limits",
    }
}

fn memory(rows: &[Row]) -> [Claim; 3] {
    let more = |held: Held| resident_bytes(rows, held) - resident_bytes(rows, held.beside());
    let (connected, stalled) = (more(Held::Connected), more(Held::Stalled));
    let hosts = HOSTS as f64;
    let bound = hosts * (IDLE_BYTES + COMMANDS_BYTES) + REUSE_BYTES;
    let claim = |name: &str, bytes: f64, (word, bar): (&str, f64), holds: bool| Claim {
        name: format!("memory/{name}"),
        paper_or_peer: None,
        ours: bytes / 1048576.0,
        unit: "MiB".into(),
        kind: Kind::Measured,
        bar: format!("at {word} {:.1}", bar / 1048576.0),
        holds,
    };
    let a_host = connected / hosts;
    let tried = stalled / hosts;
    [
        claim(
            "idle_host",
            a_host,
            ("most", IDLE_BYTES),
            a_host <= IDLE_BYTES,
        ),
        claim(
            "stalled/of_64_hosts",
            stalled,
            ("most", bound),
            stalled <= bound,
        ),
        // Otherwise it proves nothing.
        claim(
            "stalled/of_a_host",
            tried,
            ("least", TRIED_BYTES),
            tried >= TRIED_BYTES,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{GREEDY_DEPTH, VOLUMES};
    use super::*;

    fn host(phase: Phase, host: usize, depth: u32, iops: f64) -> Row {
        Row::Host {
            phase,
            host,
            volume: host % VOLUMES,
            load: "read",
            depth,
            request_bytes: 4096,
            iops,
            first_iops: iops,
        }
    }

    fn equal() -> Vec<Row> {
        let hosts = 0..HOSTS;
        hosts
            .map(|at| host(Phase::EqualRead, at, DEPTH, 1000.0))
            .collect()
    }

    #[test]
    fn one_host_that_gets_less_or_more_is_unfair() {
        let mut rows = equal();
        let judge = |rows: &[Row]| fair(Phase::EqualRead, &spread(rows, Phase::EqualRead));
        assert!(judge(&rows).holds);
        for (iops, holds) in [
            (905.0, true),
            (895.0, false),
            (1095.0, true),
            (1105.0, false),
        ] {
            rows[63] = host(Phase::EqualRead, 63, DEPTH, iops);
            assert_eq!(judge(&rows).holds, holds, "{iops}");
        }
        assert!(!judge(&[]).holds, "nothing is not fair");
    }

    #[test]
    fn a_greedy_host_may_have_unused_shares_and_no_others() {
        let judge = |greedy: f64, others: f64| {
            let mut rows = vec![host(Phase::GreedyRead, 0, GREEDY_DEPTH, greedy)];
            rows.extend((1..HOSTS).map(|at| host(Phase::GreedyRead, at, DEPTH, others)));
            let spread = spread(&rows, Phase::GreedyRead);
            assert_eq!(spread.greedy, Some(greedy));
            left_by_greedy(Phase::GreedyRead, &spread)
        };
        assert!(judge(1000.0, 1000.0).holds);
        assert!(judge(7000.0, 1000.0).holds);
        let unfair = judge(32_000.0, 1000.0);
        assert!(!unfair.holds, "{unfair:?}");
    }

    #[test]
    fn memory_has_to_be_taken_and_to_be_bounded() {
        let judge = |idle_mib: u64, stalled_mib: u64| {
            let of = |held, mib: u64| Row::Memory {
                held,
                resident_bytes: (1000 + mib) << 20,
            };
            let rows = [
                of(Held::Nobody, 0),
                of(Held::Connected, idle_mib),
                of(Held::Filled, 100),
                of(Held::Stalled, 100 + stalled_mib),
            ];
            memory(&rows).map(|claim| claim.holds)
        };
        assert_eq!(judge(10, 64 * 32), [true; 3]);
        assert_eq!(judge(33, 64 * 32), [false, true, true]);
        assert_eq!(judge(10, 64 * 35), [true, false, true]);
        assert_eq!(judge(10, 64 * 8), [true, true, false]);
        assert!(!memory(&[])[1].holds, "nothing is not bounded");
    }
}
