//! Measured results, and the file that stores them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Outcome, median};

/// Reads, or what changes something.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Side {
    pub(super) count: u64,
    pub(super) mean_us: f64,
    pub(super) percentiles_us: Vec<(f64, f64)>,
}

impl Side {
    /// At one of the percentiles that are kept; not a number where nothing was measured.
    pub(super) fn at(&self, percent: f64) -> f64 {
        let found = self.percentiles_us.iter().find(|(at, _)| *at == percent);
        match found {
            Some((_, us)) if self.count > 0 => *us,
            _ => f64::NAN,
        }
    }

    fn mean(&self) -> f64 {
        if self.count > 0 {
            self.mean_us
        } else {
            f64::NAN
        }
    }
}

/// One cell on one system in one round.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Run {
    #[serde(default)]
    pub(super) cell: String,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Counters of the transit cache during the run, in blocks; zeros without one.
    #[serde(default)]
    pub(super) transit: Transit,
}

impl Run {
    pub(super) fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Of all that was timed.
    pub(super) fn mean_us(&self) -> f64 {
        let sum = |side: &Side| side.count as f64 * side.mean_us;
        (sum(&self.reads) + sum(&self.writes)) / (self.reads.count + self.writes.count) as f64
    }

    pub(super) fn read_mean_us(&self) -> f64 {
        self.reads.mean()
    }

    pub(super) fn write_mean_us(&self) -> f64 {
        self.writes.mean()
    }
}

/// Counters of a transit cache, blocks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Transit {
    pub(super) written: u64,
    pub(super) bypassed: u64,
    pub(super) waited: u64,
    pub(super) evicted: u64,
    pub(super) read_hits: u64,
    pub(super) read_misses: u64,
}

impl Transit {
    /// Each of them, of two.
    pub(super) fn zip(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            written: with(self.written, other.written),
            bypassed: with(self.bypassed, other.bypassed),
            waited: with(self.waited, other.waited),
            evicted: with(self.evicted, other.evicted),
            read_hits: with(self.read_hits, other.read_hits),
            read_misses: with(self.read_misses, other.read_misses),
        }
    }
}

/// All cells on one system in one round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Pass {
    pub(super) system: String,
    pub(super) round: usize,
    pub(super) commit: String,
    pub(super) took_s: f64,
    /// Processor time that processes of lower priority took meanwhile, which are none of ours.
    pub(super) niced_s: f64,
    /// Processor time that the machine's owner took.
    pub(super) steal_s: f64,
    pub(super) cells: Vec<Run>,
}

/// Results of the kills.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Kills {
    /// Kills of each system.
    pub(super) each: u64,
    pub(super) skipped: bool,
    pub(super) ended_well: bool,
    pub(super) rows: Vec<Value>,
}

/// Everything.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Results {
    pub(super) passes: Vec<Pass>,
    pub(super) kills: Option<Kills>,
}

impl Results {
    /// Those that are in a file already, if it is there.
    pub(super) fn of(path: Option<&Path>) -> Outcome<Self> {
        let Some(path) = path.filter(|path| path.exists()) else {
            return Ok(Self::default());
        };
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }

    /// Writes them to a file, if one is wanted.
    pub(super) fn keep(&self, path: Option<&Path>) -> Outcome<()> {
        let Some(path) = path else {
            return Ok(());
        };
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(super) fn has(&self, system: &str, round: usize) -> bool {
        let same = |pass: &Pass| pass.system == system && pass.round == round;
        self.passes.iter().any(same)
    }

    pub(super) fn rounds(&self) -> usize {
        self.passes
            .iter()
            .map(|pass| pass.round + 1)
            .max()
            .unwrap_or(0)
    }

    /// Commits of the passes, joined by `and`.
    pub(super) fn commits(&self) -> String {
        let passes = self.passes.iter();
        let mut commits: Vec<&str> = passes.map(|pass| pass.commit.as_str()).collect();
        commits.dedup();
        commits.join(" and ")
    }

    /// Names of the cells, in order.
    pub(super) fn cells(&self) -> Vec<&str> {
        let first = self.passes.first();
        let cells = first.into_iter().flat_map(|pass| &pass.cells);
        cells.map(|run| run.cell.as_str()).collect()
    }

    /// The rounds of one cell on one system.
    pub(super) fn runs<'a>(
        &'a self,
        system: &'a str,
        cell: &'a str,
    ) -> impl Iterator<Item = &'a Run> {
        let passes = self.passes.iter().filter(move |pass| pass.system == system);
        passes.filter_map(move |pass| pass.cells.iter().find(|run| run.cell == cell))
    }

    /// Median of the rounds.
    pub(super) fn median(&self, system: &str, cell: &str, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs(system, cell).map(value))
    }

    /// Least and most of the rounds.
    pub(super) fn range(
        &self,
        system: &str,
        cell: &str,
        value: impl Fn(&Run) -> f64,
    ) -> (f64, f64) {
        let all = self.runs(system, cell).map(value);
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), one| {
            (least.min(one), most.max(one))
        })
    }
}

/// Returns a column of the kernel's account of processor time, in seconds since the start. Column 1
/// is niced time, column 7 is stolen time.
fn processor_s(column: usize) -> Outcome<f64> {
    let text =
        std::fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    let field = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(column + 1));
    let ticks: Option<f64> = field.and_then(|field| field.parse().ok());
    // USER_HZ is 100 on every architecture of ours.
    let ticks = ticks.ok_or("/proc/stat: not understood")?;
    Ok(ticks / 100.0)
}

/// Processor time of niced processes since the machine's start.
pub(super) fn niced_s() -> Outcome<f64> {
    processor_s(1)
}

/// Processor time that the machine's owner has taken since its start.
pub(super) fn steal_s() -> Outcome<f64> {
    processor_s(7)
}
