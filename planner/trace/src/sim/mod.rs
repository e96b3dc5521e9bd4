//! The simulator: a trace through caches that hold no data, on the engine's own decisions.

mod changes;
mod cost;
mod evict;
mod maps;
mod model;
mod serve;
mod volumes;

pub use changes::{Change, Changed};
pub use cost::{Costs, DeviceCosts, WayCosts};
pub use model::{CacheModel, Fill, Simulated, WriteBack};
pub use volumes::{Counts, IoVolumes, Requests, Volume};

#[cfg(test)]
mod tests;
