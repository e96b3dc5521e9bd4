//! Block I/O traces: what clients asked of volumes, when. Reading, writing, describing and making
//! them; the simulator, which drives the engine's own decisions; and the replayer.

pub mod mrc;
mod request;
pub mod sim;

pub use request::{Op, Request};
