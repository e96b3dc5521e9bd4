//! Counters of each trace, and the claims about them.

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

/// Power is lost under the engine, and it recovers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Crash {
    /// The mark from which on it writes back beside the clients.
    pub(super) dirty_percent: u64,
    pub(super) tracking: String,
    /// Where in the trace, percent.
    pub(super) at: u64,
    pub(super) cached_blocks: u64,
    pub(super) dirty_blocks: u64,
    pub(super) dirty_bytes: u64,
    /// That the next process takes for dirty: by their records, or not.
    pub(super) found_dirty_blocks: u64,
    /// Of these, those that no record calls so.
    pub(super) presumed_blocks: u64,
    pub(super) compared_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) client_writes: u64,
    /// Writes of the tree, or marks.
    pub(super) persists: u64,
}

impl Crash {
    /// Of the bytes that were dirty; none where nothing was.
    pub(super) fn written_over_dirty(&self) -> Option<f64> {
        (self.dirty_bytes > 0).then(|| self.written_bytes as f64 / self.dirty_bytes as f64)
    }

    pub(super) fn compared_over_dirty(&self) -> Option<f64> {
        (self.dirty_bytes > 0).then(|| self.compared_bytes as f64 / self.dirty_bytes as f64)
    }

    pub(super) fn ratio(&self) -> f64 {
        self.persists as f64 / (self.client_writes as f64).max(1.0)
    }
}

/// A trace that was simulated.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Trace {
    pub(super) title: &'static str,
    /// It tells no operations: all were taken for writes.
    pub(super) as_writes: bool,
    pub(super) result: Simulation,
    /// Of the engine.
    pub(super) crashes: Vec<Crash>,
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

/// Those of a cache with a bit-tree, at this mark or all.
pub(super) fn with_tree(crashes: &[Crash], percent: Option<u64>) -> impl Iterator<Item = &Crash> {
    crashes.iter().filter(move |crash| {
        crash.tracking == "abt" && percent.is_none_or(|percent| crash.dirty_percent == percent)
    })
}

/// Returns the claims about write-back of the engine, and about its writes for that in service.
fn engine_claims(traces: &[&Trace]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for percent in DIRTY_PERCENTS.map(Some).into_iter().chain([None]) {
        let crashes = traces
            .iter()
            .flat_map(|trace| with_tree(&trace.crashes, percent));
        let values = crashes.filter_map(Crash::written_over_dirty);
        if let Some((median, _)) = median_and_most(values.collect()) {
            let of = percent.map_or("all".to_owned(), |percent| {
                format!("mark at {percent}% dirty")
            });
            claims.push(Claim {
                name: format!("engine/{of}/written back, median"),
                paper_or_peer: None,
                ours: median,
                unit: "of the dirty bytes".into(),
                kind: Kind::Counted,
                bar: format!("at most {MOST}"),
                holds: median <= MOST,
            });
        }
    }
    for trace in traces {
        for crash in with_tree(&trace.crashes, None).filter(|crash| crash.at == 100) {
            claims.push(Claim {
                name: format!(
                    "engine/{}/mark at {}% dirty/metadata writes at 0.01",
                    trace.title, crash.dirty_percent
                ),
                paper_or_peer: None,
                ours: crash.ratio(),
                unit: "of client writes".into(),
                kind: Kind::Counted,
                bar: "at most 0.01".into(),
                holds: crash.ratio() <= 0.01,
            });
        }
    }
    claims
}

pub(super) fn claims(traces: &[Trace]) -> Vec<Claim> {
    let counting: Vec<&Trace> = traces.iter().filter(|trace| trace.counts()).collect();
    let mut claims = engine_claims(&counting);
    let mut all = Vec::new();
    let mut add = |name: String, values: Vec<f64>| {
        if let Some((median, _)) = median_and_most(values) {
            claims.push(Claim {
                name,
                paper_or_peer: None,
                ours: median,
                unit: "of the dirty blocks".into(),
                kind: Kind::Counted,
                bar: format!("at most {MOST}, were it written back"),
                holds: median <= MOST,
            });
        }
    };
    for percent in DIRTY_PERCENTS {
        let values = all_over_dirty(&counting, percent, "ours", Some(2.0));
        all.extend_from_slice(&values);
        add(format!("{percent}% dirty/may be dirty, median"), values);
    }
    add("all/may be dirty, median".into(), all);
    for percent in DIRTY_PERCENTS {
        let values = all_over_dirty(&counting, percent, "places", Some(2.0));
        add(
            format!("{percent}% dirty/over places/may be dirty, median"),
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
        let first = written_back[0];
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
            crashes: DIRTY_PERCENTS.map(|percent| crash(percent, first)).into(),
        }
    }

    /// A tenth of a hundred is dirty.
    fn crash(dirty_percent: u64, written_bytes: u64) -> Crash {
        Crash {
            dirty_percent,
            tracking: "abt".into(),
            at: 100,
            dirty_bytes: 10,
            written_bytes,
            client_writes: 100,
            persists: written_bytes - 19,
            ..Crash::default()
        }
    }

    #[test]
    fn claims_hold_or_fail_as_counted() {
        let holding = claims(&[trace(vec![20, 3], 100, 10_000)]);
        assert_eq!(holding.len(), 14);
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
