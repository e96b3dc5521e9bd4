//! Thoroughness of a crash test.

/// Number of crashes that a sweep tries at each crash point.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// With more unflushed writes than this, this many are drawn to be kept alone or lost alone.
    pub singles: usize,
    /// Seeded subsets that are kept.
    pub subsets: u64,
    /// Seeded outcomes of process death.
    pub deaths: u64,
    /// Every how many I/Os the run is cut off; one for all.
    pub stride: u64,
    /// Whether each recovery is cut off at each of its I/Os in turn.
    pub recoveries: bool,
}
