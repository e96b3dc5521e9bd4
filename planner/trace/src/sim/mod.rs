//! The simulator: runs a trace through caches without data, with the engine's own decisions.

mod adacache;
mod changes;
mod cost;
mod evict;
mod fetch;
mod maps;
mod model;
mod observer;
mod replacer;
mod serve;
mod volumes;

pub use adacache::{AdaCache, LruGroups};
pub use changes::{Change, Changed};
pub use cost::{Costs, DeviceCosts, WayCosts};
pub use model::{CacheModel, Fill, Simulated, WriteBack};
pub use replacer::{Replace, Replacer};
pub use volumes::{Counts, IoVolumes, Requests, Volume};

#[cfg(test)]
mod tests;
