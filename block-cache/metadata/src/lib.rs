//! The crash-consistent map: which block of which volume lies in which slot of the cache device,
//! and what may be dirty. No policy, no clock; docs/internals/format describes every byte and argues the
//! order of every step.
//!
//! - [`superblock`]: geometry and the table of volumes, in two copies of which the newer wins.
//! - [`record`]: the 64-byte record, the only thing that the log is made of.
//! - [`log`]: the ring of records: batches, positions, the tail.
//! - [`order`]: the places in the source where an order keeps data.
//! - [`replay`]: from a ring back to the map.
//! - [`journal`]: records in memory that outlives the process, for writes that were acknowledged
//!   and not yet flushed.
//! - [`Media`]: the devices that a cache lies on, by which a copy is told from the original.
//! - [`tree`]: the adaptive bit-tree: which ranges of a volume may be dirty, at adaptive granularity.

mod codec;
pub mod journal;
pub mod log;
mod media;
pub mod order;
pub mod record;
pub mod replay;
pub mod sums;
pub mod superblock;
pub mod tree;

pub use codec::Seed;
pub use media::Media;
