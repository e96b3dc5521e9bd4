//! Arrival and response times of requests, in a grid of counts.

use std::collections::BTreeMap;
use std::time::Duration;

/// Columns of the whole run.
pub(crate) const COLUMNS: u64 = 240;
/// Rows of a decade of response times.
pub(crate) const ROWS: f64 = 8.0;

/// The grid: by column and row, how many requests. Row zero is 100 ns.
#[derive(Debug, Default)]
pub(crate) struct Timeline(BTreeMap<(u64, u64), u64>);

impl Timeline {
    /// Notes a request that came at `at` in a run of `whole`, and took `time_ns`.
    pub(crate) fn note(&mut self, at: Duration, whole: Duration, time_ns: u64) {
        let column = (at.as_secs_f64() / whole.as_secs_f64() * COLUMNS as f64) as u64;
        let row = ((time_ns.max(100) as f64 / 100.0).log10() * ROWS) as u64;
        *self.0.entry((column.min(COLUMNS - 1), row)).or_default() += 1;
    }

    /// `[column, row, requests]` of each cell that has some.
    pub(crate) fn cells(&self) -> Vec<[u64; 3]> {
        let cells = self.0.iter();
        cells
            .map(|(&(column, row), &count)| [column, row, count])
            .collect()
    }
}
