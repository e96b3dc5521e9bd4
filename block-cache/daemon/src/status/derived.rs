//! Values that follow from those of the status.

use super::{CacheStatus, OperationStatus, VolumeStatus};

impl VolumeStatus {
    /// Returns the share of reads that the cache served, percent; `None` before the first.
    #[must_use]
    pub fn read_hit_percent(&self) -> Option<f64> {
        percent(self.read_hits, self.read_hits + self.read_misses)
    }

    /// Returns the counters of one kind of request; zeroes if there are none.
    #[must_use]
    pub fn operation(&self, kind: &str) -> OperationStatus {
        let found = self
            .operations
            .iter()
            .find(|operation| operation.kind == kind);
        found.cloned().unwrap_or_default()
    }
}

impl CacheStatus {
    /// Returns the number of failures of the cache's own work.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.write_back_errors + self.read_errors
    }

    /// Returns the mean time of a durable write of metadata, microseconds; zero before the first.
    #[must_use]
    pub fn commit_us(&self) -> u64 {
        self.commit_time_us.checked_div(self.commits).unwrap_or(0)
    }
}

/// Returns `part` of `whole` in percent; `None` if `whole` is zero.
#[must_use]
pub fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}
