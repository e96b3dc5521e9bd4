//! Thoroughness of a crash test.

/// Number of crashes that a sweep tries at each crash point.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Number of unflushed writes that are tried alone, each as the only survivor and as the only
    /// loss. If there are more, the seed draws them.
    pub singles: usize,
    /// Seeded subsets of survivors.
    pub subsets: u64,
    /// Seeded outcomes of process death.
    pub deaths: u64,
    /// A cut falls at every `stride`-th I/O. One cuts at all.
    pub stride: u64,
    /// Whether each recovery is cut off at each of its I/Os in turn.
    pub recoveries: bool,
}
