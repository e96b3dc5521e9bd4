//! Rates of volumes with limits, and their required values.

use std::fmt;

use super::VOLUMES;
use super::drive::FIRST_S;
use super::row::{Phase, Row};
use crate::claims::{Claim, Kind};

/// Allowed distance of a volume from its limit, percent.
const LIMIT_PERCENT: f64 = 5.0;

/// Limits of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    iops: Option<u32>,
    megabytes_per_s: Option<u32>,
    burst_ms: u32,
}

impl Limit {
    /// Returns the limits of a volume: of every kind, and different for each.
    pub(super) fn of(volume: usize) -> Self {
        let step = u32::try_from(volume).expect("few");
        let (some, less) = (500 + 50 * step, 10 + 2 * step);
        let (iops, megabytes_per_s) = match volume % 4 {
            0 => (Some(some), None),
            1 => (None, Some(less)),
            // With both, either one may be the effective limit.
            2 => (Some(some), Some(1000)),
            _ => (Some(1_000_000), Some(less)),
        };
        Self {
            iops,
            megabytes_per_s,
            burst_ms: [100, 250, 500, 1000][volume / 4 % 4],
        }
    }

    pub(super) fn configuration(self) -> String {
        let mut text = format!("burst = \"{}ms\"\n", self.burst_ms);
        if let Some(iops) = self.iops {
            text += &format!("iops_limit = {iops}\n");
        }
        if let Some(rate) = self.megabytes_per_s {
            text += &format!("bandwidth_limit = \"{rate}MB/s\"\n");
        }
        text
    }

    /// Returns the used share of the limit: 1 where it is used up, also in the first seconds of a
    /// volume that was idle.
    fn used(self, rate: Rate, first: bool) -> f64 {
        let burst = match first {
            true => 1.0 + f64::from(self.burst_ms) / 1e3 / FIRST_S,
            false => 1.0,
        };
        let iops = self.iops.map(|limit| rate.iops / f64::from(limit));
        let bytes = self
            .megabytes_per_s
            .map(|limit| rate.bytes_per_s / 1e6 / f64::from(limit));
        iops.unwrap_or(0.0).max(bytes.unwrap_or(0.0)) / burst
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(iops) = self.iops {
            write!(f, "{iops} IOPS, ")?;
        }
        if let Some(rate) = self.megabytes_per_s {
            write!(f, "{rate} MB/s, ")?;
        }
        write!(f, "burst {} ms", self.burst_ms)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    pub(super) iops: f64,
    pub(super) bytes_per_s: f64,
}

/// Returns the rates of the hosts of a volume with limits together, later and in the first second.
pub(super) fn rates(rows: &[Row], wanted: usize) -> [Rate; 2] {
    let mut rates = [Rate::default(); 2];
    for row in rows {
        if let Row::Host {
            phase: Phase::Limits,
            volume,
            request_bytes,
            iops,
            first_iops,
            ..
        } = *row
            && volume == wanted
        {
            for (rate, iops) in rates.iter_mut().zip([iops, first_iops]) {
                rate.iops += iops;
                rate.bytes_per_s += iops * f64::from(request_bytes);
            }
        }
    }
    rates
}

/// Returns the claim of the volume that is farthest from its limit or, in the first seconds, from
/// limit and burst.
pub(super) fn limited(rows: &[Row], first: bool) -> Claim {
    let far = (0..VOLUMES).map(|volume| {
        let rate = rates(rows, volume)[usize::from(first)];
        let used = Limit::of(volume).used(rate, first);
        ((used - 1.0).abs() * 100.0, volume, used)
    });
    let (percent, volume, used) = far
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .expect("there are volumes");
    let what = if first { "burst" } else { "rate" };
    Claim {
        name: format!("limits/{what}/farthest_from_limit"),
        paper_or_peer: None,
        ours: percent,
        unit: format!("% (v{volume}: {used:.3} of it)"),
        kind: Kind::Measured,
        bar: format!("at most {LIMIT_PERCENT}"),
        holds: percent <= LIMIT_PERCENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns rows as if each volume used a part of its limit.
    fn used_up(part: impl Fn(usize) -> f64) -> Vec<Row> {
        let volumes = 0..VOLUMES;
        let rows = volumes.map(|volume| {
            let limit = Limit::of(volume);
            let iops = limit.iops.map_or(f64::INFINITY, f64::from);
            let rate = limit.megabytes_per_s.map_or(f64::INFINITY, f64::from) * 1e6;
            let iops = iops.min(rate / 4096.0) * part(volume);
            let first_iops = iops * (1.0 + f64::from(limit.burst_ms) / 1e3);
            Row::Host {
                phase: Phase::Limits,
                host: volume,
                volume,
                load: "read",
                depth: 4,
                request_bytes: 4096,
                iops,
                first_iops,
            }
        });
        rows.collect()
    }

    #[test]
    fn one_volume_that_is_off_its_limit_is_seen() {
        let kinds: Vec<_> = (0..4).map(Limit::of).collect();
        assert!(kinds[0].iops.is_some() && kinds[0].megabytes_per_s.is_none());
        assert!(kinds[1].iops.is_none() && kinds[1].megabytes_per_s.is_some());
        for volume in 0..VOLUMES {
            for (off, holds) in [(1.0, true), (0.94, false), (1.06, false), (1.04, true)] {
                let rows = used_up(|at| if at == volume { off } else { 1.0 });
                for first in [false, true] {
                    let claim = limited(&rows, first);
                    assert_eq!(claim.holds, holds, "v{volume} at {off}: {claim:?}");
                }
            }
        }
        assert!(!limited(&[], false).holds, "nothing is not the limit");
    }
}
