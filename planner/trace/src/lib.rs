//! Block I/O traces: requests of clients to volumes, with times. The crate reads, writes, describes
//! and generates traces. It also has the simulator, which uses the engine's own decisions, and the
//! replayer.

mod bytes;
mod format;
pub mod generate;
pub mod mrc;
pub mod native;
pub mod policies;
pub mod read;
pub mod replay;
mod request;
pub mod sim;
pub mod stats;
mod volumes;
pub mod write;

pub use format::Format;
pub use read::{OpenOptions, Trace};
pub use request::{Op, Request};
pub use volumes::{MAX_NAME_BYTES, MAX_VOLUMES, Volumes};
