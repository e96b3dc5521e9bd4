//! Miss-ratio curves: the miss ratio of an LRU cache, for every cache size at once.
//!
//! [`Exact`] stores every block of the working set. [`Shards`] stores a sample, in memory that does
//! not grow with the trace, and estimates its error. Both accept block numbers, or requests that
//! are cut into blocks.

mod curve;
mod distance;
mod exact;
mod histogram;
mod shards;

#[cfg(test)]
mod tests;

pub use curve::{Curve, Point, sizes};
pub use exact::Exact;
pub use shards::{Sampling, Shards};

use crate::{Op, Request};

/// Place of the volume in the number of a block: above any block of a volume of up to 2^48 blocks.
const VOLUME_SHIFT: u32 = 48;

/// Returns the numbers of the blocks that a read or write touches; none for other requests.
///
/// A number also names the volume. Volumes are separate if there are at most 65,536 of at most 2^48
/// blocks each. Beyond that, blocks of two volumes may coincide, which makes the curve less exact.
pub fn blocks(request: &Request, block_bytes: u32) -> impl Iterator<Item = u64> + use<> {
    let block_bytes = u64::from(block_bytes);
    let volume = u64::from(request.volume) << VOLUME_SHIFT;
    let first = request.offset_bytes / block_bytes;
    let end = match request.op {
        Op::Read | Op::Write => request.end_bytes().div_ceil(block_bytes),
        Op::Flush | Op::Discard => first,
    };
    (first..end).map(move |block| volume ^ block)
}
