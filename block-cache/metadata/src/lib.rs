//! The crash-consistent map: the block in each slot of the cache device, and the blocks that may be
//! dirty. It has no policy and no clock. docs/internals/format describes every byte and argues the
//! order of every step.
//!
//! - [`superblock`]: geometry and the table of volumes, in two copies of which the newer wins.
//! - [`record`]: the 64-byte record, the only element of the log.
//! - [`log`]: the ring of records: batches, positions, the tail.
//! - [`order`]: the places in the source where an order protects data.
//! - [`replay`]: from a ring back to the map.
//! - [`journal`]: records in memory that outlives the process, for writes that were acknowledged
//!   and not yet flushed.
//! - [`Media`]: the devices of a cache, which distinguish a copy from the original.
//! - [`tree`]: the adaptive bit-tree: ranges of a volume that may be dirty, at adaptive
//!   granularity.

pub mod checksums;
mod codec;
pub mod journal;
pub mod log;
mod media;
pub mod order;
pub mod record;
pub mod replay;
pub mod superblock;
pub mod tree;

pub use codec::Seed;
pub use media::Media;
