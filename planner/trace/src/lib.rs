//! Block I/O traces: what clients asked of volumes, when. Reading, writing, describing and making
//! them; the simulator, which drives the engine's own decisions; and the replayer.

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
