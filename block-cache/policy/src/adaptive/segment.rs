//! Segments of the order of replacement.

/// Where a block stands in the order of replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Where blocks enter.
    Probation,
    /// Where a policy puts blocks that are to outlive those.
    Protected,
}
