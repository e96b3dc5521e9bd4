//! What was counted of each trace, and whether it is what we ask for.

use serde::{Deserialize, Serialize};

use crate::claims::{Claim, Kind};

/// Dirty blocks are held at these shares of the cached ones, percent.
pub(super) const DIRTY_PERCENTS: [u64; 3] = [5, 20, 50];
/// Blocks written back may be so many times the dirty ones, in the median.
pub(super) const MOST: f64 = 2.0;
/// Traces with fewer writes after the warm-up prove nothing: at a ratio of 0.01 a hundred persists.
const LEAST_WRITES: u64 = 10_000;

/// One way to know what was dirty, beside one run of a cache.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// The target ratio is 10 to the power of minus this.
    pub(super) nines: Option<f64>,
    #[serde(default)]
    pub(super) memory_bytes: u64,
    pub(super) warm_up_persists: u64,
    /// After the warm-up.
    pub(super) persists: u64,
    /// Client writes that waited for one, after the warm-up.
    pub(super) waited: u64,
    /// Blocks, by crash.
    pub(super) written_back: Vec<u64>,
}

/// One run: dirty blocks held at a share of the cached ones.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Run {
    pub(super) dirty_percent: u64,
    pub(super) warm_up_writes: u64,
    /// After the warm-up.
    pub(super) writes: u64,
    /// Blocks, by crash.
    pub(super) cached: Vec<u64>,
    pub(super) dirty: Vec<u64>,
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Simulation {
    pub(super) requests: u64,
    pub(super) writes: u64,
    pub(super) write_bytes: u64,
    pub(super) seconds: f64,
    pub(super) volumes: u64,
    pub(super) volume_bytes: u64,
    pub(super) working_set_bytes: u64,
    pub(super) runs: Vec<Run>,
}

/// A trace that was simulated.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Trace {
    pub(super) title: &'static str,
    /// It tells no operations: all were taken for writes.
    pub(super) as_writes: bool,
    pub(super) result: Simulation,
}

impl Trace {
    pub(super) fn counts(&self) -> bool {
        let mut runs = self.result.runs.iter();
        runs.all(|run| run.writes >= LEAST_WRITES)
    }

    pub(super) fn run(&self, dirty_percent: u64) -> Option<&Run> {
        let mut runs = self.result.runs.iter();
        runs.find(|run| run.dirty_percent == dirty_percent)
    }
}

impl Run {
    pub(super) fn row(&self, name: &str, nines: Option<f64>) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.name == name && row.nines == nines)
    }

    /// Blocks written back over those that were dirty, by crash; none where nothing was.
    pub(super) fn over_dirty(&self, row: &Row) -> Vec<f64> {
        over(&row.written_back, &self.dirty)
    }

    /// Blocks written back over those that were cached, by crash.
    pub(super) fn over_cached(&self, row: &Row) -> Vec<f64> {
        over(&row.written_back, &self.cached)
    }

    /// Writes of metadata over client writes, after the warm-up.
    pub(super) fn ratio(&self, row: &Row) -> f64 {
        row.persists as f64 / (self.writes as f64).max(1.0)
    }
}

fn over(part: &[u64], whole: &[u64]) -> Vec<f64> {
    let pairs = part.iter().zip(whole).filter(|(_, whole)| **whole > 0);
    pairs
        .map(|(part, whole)| *part as f64 / *whole as f64)
        .collect()
}

/// The value in the middle, and the largest.
pub(super) fn median_and_most(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => return None,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    Some((median, values[values.len() - 1]))
}

/// Over the crashes of several traces.
pub(super) fn all_over_dirty(
    traces: &[&Trace],
    percent: u64,
    name: &str,
    nines: Option<f64>,
) -> Vec<f64> {
    let runs = traces.iter().filter_map(|trace| trace.run(percent));
    runs.filter_map(|run| Some(run.over_dirty(run.row(name, nines)?)))
        .flatten()
        .collect()
}

pub(super) fn claims(traces: &[Trace]) -> Vec<Claim> {
    let counting: Vec<&Trace> = traces.iter().filter(|trace| trace.counts()).collect();
    let mut claims = Vec::new();
    let mut all = Vec::new();
    let mut add = |name: String, values: Vec<f64>| {
        if let Some((median, _)) = median_and_most(values) {
            claims.push(Claim {
                name,
                paper_or_peer: None,
                ours: median,
                unit: "of the dirty blocks".into(),
                kind: Kind::Counted,
                bar: format!("at most {MOST}"),
                holds: median <= MOST,
            });
        }
    };
    for percent in DIRTY_PERCENTS {
        let values = all_over_dirty(&counting, percent, "ours", Some(2.0));
        all.extend_from_slice(&values);
        add(format!("{percent}% dirty/written back, median"), values);
    }
    add("all/written back, median".into(), all);
    for percent in DIRTY_PERCENTS {
        let values = all_over_dirty(&counting, percent, "places", Some(2.0));
        add(
            format!("{percent}% dirty/over places/written back, median"),
            values,
        );
    }
    for trace in &counting {
        for run in &trace.result.runs {
            let ours = |row: &&Row| matches!(row.name.as_str(), "ours" | "places");
            for row in run.rows.iter().filter(ours) {
                let nines = row.nines.unwrap_or_default();
                let bar = 10_f64.powf(-nines);
                let ratio = run.ratio(row);
                claims.push(Claim {
                    name: format!(
                        "{}/{}% dirty/{}metadata writes at {bar}",
                        trace.title,
                        run.dirty_percent,
                        if row.name == "places" {
                            "over places/"
                        } else {
                            ""
                        }
                    ),
                    paper_or_peer: None,
                    ours: ratio,
                    unit: "of client writes".into(),
                    kind: Kind::Counted,
                    bar: format!("at most {bar}"),
                    holds: ratio <= bar,
                });
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(written_back: Vec<u64>, persists: u64, writes: u64) -> Trace {
        let row = Row {
            name: "ours".into(),
            nines: Some(2.0),
            persists,
            written_back,
            ..Row::default()
        };
        let run = |dirty_percent| Run {
            dirty_percent,
            writes,
            cached: vec![100, 100],
            dirty: vec![10, 0],
            rows: vec![row.clone()],
            ..Run::default()
        };
        Trace {
            title: "t",
            as_writes: false,
            result: Simulation {
                runs: DIRTY_PERCENTS.map(run).into(),
                ..Simulation::default()
            },
        }
    }

    #[test]
    fn claims_hold_or_fail_as_counted() {
        let holding = claims(&[trace(vec![20, 3], 100, 10_000)]);
        assert_eq!(holding.len(), 7);
        assert!(holding.iter().all(|claim| claim.holds), "{holding:?}");
        let failing = claims(&[trace(vec![21, 3], 101, 10_000)]);
        assert!(failing.iter().all(|claim| !claim.holds), "{failing:?}");
        assert!(claims(&[trace(vec![20, 3], 100, 9_999)]).is_empty());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median_and_most(vec![4.0, 1.0, 2.0, 9.0]), Some((3.0, 9.0)));
        assert_eq!(median_and_most(vec![4.0]), Some((4.0, 4.0)));
        assert_eq!(median_and_most(vec![]), None);
    }
}
