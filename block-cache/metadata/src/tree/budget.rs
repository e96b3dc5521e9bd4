//! Budget of persists that the ratio leaves for rounds without waiting requests.

/// Part of the allowed persists that is given out, so that the ratio stays below its bound.
const GIVEN: f64 = 0.9;
/// Persists that a new tree may take before the ratio counts: in its first periods, one less in
/// each, or not at all.
const AT_FIRST: f64 = 16.0;
/// Persists that are saved up at most.
const SAVED: f64 = 2.0;

/// Persists that may be spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    ratio: f64,
    credit: f64,
    /// Number taken since the last update of the totals.
    taken: u64,
    writes: u64,
    persists: u64,
}

impl Budget {
    pub(super) const fn new(ratio: f64) -> Self {
        Self {
            ratio,
            credit: AT_FIRST,
            taken: 0,
            writes: 0,
            persists: 0,
        }
    }

    /// The totals are these now.
    pub(super) fn update(&mut self, writes: u64, persists: u64) {
        let (written, persisted) = (writes - self.writes, persists - self.persists);
        (self.writes, self.persists) = (writes, persists);
        self.taken = 0;
        let most = (self.credit - 1.0).max(SAVED);
        self.credit += GIVEN * self.ratio * written as f64 - persisted as f64;
        self.credit = self.credit.min(most);
    }

    /// This many persists may be taken besides.
    pub(super) const fn grant(&mut self, persists: u64) {
        self.credit += persists as f64;
    }

    pub(super) const fn take(&mut self, persists: u64) {
        self.taken += persists;
    }

    /// Whole persists that are left.
    pub(super) fn spare(&self) -> u32 {
        (self.credit - self.taken as f64).max(0.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_persists_stay_below_the_ratio() {
        let mut budget = Budget::new(0.01);
        assert_eq!(budget.spare(), 16);
        let (mut persists, mut spent_late) = (0, 0);
        for writes in (0..100_000).step_by(7) {
            budget.update(writes, persists);
            let spare = budget.spare();
            budget.take(u64::from(spare));
            assert_eq!(budget.spare(), 0);
            persists += u64::from(spare);
            if writes > 10_000 {
                spent_late += spare;
            }
        }
        assert!((750..=900).contains(&spent_late), "{spent_late}");
        // A pause saves up little.
        budget.update(10_000_000, persists);
        assert_eq!(budget.spare(), 2);
        // Persists that clients had to wait for are paid back first.
        budget.update(10_000_000, persists + 10);
        assert_eq!(budget.spare(), 0);
    }
}
