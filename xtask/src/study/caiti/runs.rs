//! Runs of the program, measured and modelled, and figures of several.

use std::path::Path;
use std::process::Command;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bench::{Outcome, json_of, run_for_output};

/// One measured run, as the program prints it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Run {
    /// Part of the study that the run is for.
    #[serde(default)]
    pub(super) part: String,
    pub(super) system: String,
    pub(super) load: String,
    pub(super) emulated: String,
    pub(super) waiting: String,
    pub(super) real_time: bool,
    pub(super) writes: u64,
    pub(super) iops: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p9999_us: f64,
    pub(super) max_us: f64,
    pub(super) flushes: u64,
    pub(super) flush_mean_ms: f64,
    pub(super) steal_s: f64,
    pub(super) written: u64,
    pub(super) bypassed: u64,
    pub(super) waited: u64,
    pub(super) evicted: u64,
    /// Evictions for which a thread had to be woken.
    #[serde(default)]
    pub(super) woken: u64,
    pub(super) read_hits: u64,
    pub(super) slot_bytes: u64,
    pub(super) engine_ns: f64,
    pub(super) device_ns: f64,
    /// Of each part of the cache its name, how often, and nanoseconds.
    #[serde(default)]
    pub(super) parts: Vec<(String, u64, u64)>,
    pub(super) timeline: Option<Vec<[u64; 3]>>,
}

/// One modelled run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Model {
    #[serde(default)]
    pub(super) part: String,
    pub(super) system: String,
    pub(super) load: String,
    pub(super) cores: u64,
    pub(super) jobs: u64,
    pub(super) cache_mib: u64,
    pub(super) evict: String,
    pub(super) writes: u64,
    pub(super) iops: f64,
    pub(super) mean_us: f64,
    pub(super) p99_us: f64,
    pub(super) p9999_us: f64,
    #[serde(default)]
    pub(super) woken: u64,
}

impl Run {
    /// How often a part of the cache's work was done, and nanoseconds of it, a request.
    pub(super) fn part(&self, name: &str) -> (f64, f64) {
        let found = self.parts.iter().find(|(other, ..)| other == name);
        let requests = self.writes.max(1) as f64;
        found.map_or((0.0, 0.0), |(_, count, ns)| {
            (*count as f64 / requests, *ns as f64 / requests)
        })
    }
}

/// A figure of several runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else {
            return Self {
                median: f64::NAN,
                least: f64::NAN,
                most: f64::NAN,
            };
        };
        Self {
            median: f64::midpoint(values[last / 2], values[last.div_ceil(2)]),
            least: values[0],
            most: values[last],
        }
    }
}

/// The runs of one system for one purpose.
pub(super) struct Cell<'a>(pub(super) Vec<&'a Run>);

impl Cell<'_> {
    pub(super) fn spread(&self, value: fn(&Run) -> f64) -> Spread {
        Spread::of(self.0.iter().map(|run| value(run)).collect())
    }

    pub(super) fn median(&self, value: fn(&Run) -> f64) -> f64 {
        self.spread(value).median
    }
}

/// All runs of a system for a purpose.
pub(super) fn cell<'a>(runs: &'a [Run], part: &str, system: &str) -> Cell<'a> {
    let chosen = runs.iter();
    Cell(
        chosen
            .filter(|run| run.part == part && run.system == system)
            .collect(),
    )
}

/// The modelled run of a system for a purpose.
pub(super) fn modelled<'a>(models: &'a [Model], part: &str, system: &str) -> Option<&'a Model> {
    let mut chosen = models.iter();
    chosen.find(|model| model.part == part && model.system == system)
}

/// Runs the program with these words; what it prints.
pub(super) fn run<T: DeserializeOwned>(program: &Path, words: &[String]) -> Outcome<T> {
    let mut command = Command::new(program);
    command.args(words);
    let printed = json_of(&run_for_output(command)?)?;
    serde_json::from_value(printed).map_err(|error| format!("{words:?}: {error}"))
}
