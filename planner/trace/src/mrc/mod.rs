//! Miss-ratio curves: what share of references misses in an LRU cache, for every cache size at
//! once.
//!
//! [`Exact`] keeps every block of the working set; [`Shards`] keeps a sample and says how far off
//! it may be, in memory that does not grow with the trace. Both take block numbers one by one, or
//! requests that are cut into blocks.

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

use crate::Request;

/// Numbers of the blocks that a read or a write touches, none for other requests. The volume is in
/// the upper 16 bits, so that volumes are kept apart as long as there are no more than 65,536 of
/// less than 2^48 blocks each.
pub fn blocks(request: &Request, block_bytes: u32) -> impl Iterator<Item = u64> + use<> {
    let block_bytes = u64::from(block_bytes);
    let volume = u64::from(request.volume) << 48;
    let first = request.offset_bytes / block_bytes;
    let end = match request.op {
        crate::Op::Read | crate::Op::Write => request.end_bytes().div_ceil(block_bytes),
        crate::Op::Flush | crate::Op::Discard => first,
    };
    (first..end).map(move |block| volume ^ block)
}
