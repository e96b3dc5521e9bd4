//! Volumes in object storage: a log of immutable objects, with a map of its blocks.
//!
//! - [`store`]: the operations that a volume needs of an object store.

pub mod store;
