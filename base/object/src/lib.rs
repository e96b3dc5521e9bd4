//! Volumes in object storage: a log of immutable objects, with a map of its blocks.
//!
//! `docs/internals/object-volumes.md` has every byte of the objects, and argues why one writer at a
//! time changes a volume.
//!
//! - [`store`]: the operations that a volume needs of an object store.
//! - [`stores`]: a directory, and the stores of cloud providers.
//! - [`ObjectVolume`]: a volume as a block device.
//! - [`testing`]: a store in memory.

mod background;
mod batch;
mod chain;
mod checkpointer;
mod chunks;
mod claim;
mod closing;
mod collector;
mod core;
mod fault;
mod format;
mod limits;
mod link;
mod map;
mod objects;
mod open;
mod options;
mod reader;
mod replay;
#[cfg(test)]
mod simulation;
mod snapshots;
pub mod store;
pub mod stores;
pub mod testing;
#[cfg(test)]
mod tests;
mod usage;
mod verification;
mod volume;
mod writer;

pub use claim::Claimant;
pub use format::{Id, new_id};
pub use options::{Access, Options, Times};
pub use snapshots::{Snapshot, delete_snapshot, list_snapshots};
pub use usage::Usage;
pub use verification::Verification;
pub use volume::ObjectVolume;
