//! A volume: the client's view of a stack of devices.
//!
//! The stack may have a cache. The engine's own state of a volume is the module `volume` of the
//! crate `forebay-cache`.
//!
//! A [`Volume`] lives on the reactor of its device (its *engine reactor*). It adds the common parts
//! of all protocols: bounds and alignment, read-only mode, FUA for devices without it, counters,
//! and an orderly end ([`Volume::drain`]). Front-ends have a [`VolumeHandle`], which may be on any
//! thread:
//!
//! - on the engine reactor, [`VolumeHandle::open`] returns a device that calls the volume directly
//! - on another reactor, the device sends requests to the engine reactor as messages, many for one
//!   wake-up, and receives the outcomes likewise
//! - a foreign thread (FUSE) uses [`VolumeHandle::call_blocking`]
//!
//! **Flush.** A flush covers every write that was acknowledged before it arrived, through any
//! handle on any reactor. A client learns of a write's end only after its completion on the engine
//! reactor. The flush is submitted there after that, and the device covers all completed writes.
//!
//! **Limits.** A volume may have a limit of operations and of bytes a second ([`Limits`]), over all
//! handles together. Requests above the limit wait in one queue, in order; a flush does not
//! overtake either. The wait is part of the request's latency.
//!
//! **Time.** Requests may have a time limit ([`Volume::time_out`]). After it the client gets an
//! error, and the device still has the request. The range that it changes is in quarantine until it
//! ends.
//!
//! **Allocation.** A query for extents is no request: it has no counters, and no limits. It is
//! answered with data, which is always right, where the device fails or takes longer than the time
//! of a request.
//!
//! **Buffers.** A request that crosses reactors carries its buffer. The device on the engine
//! reactor holds it until the completion, even if the requesting reactor ends.

mod answer;
mod blocking;
mod deadline;
mod forward;
mod handle;
mod histogram;
mod limit;
mod local;
mod mailbox;
pub mod record;
mod shared;
mod stats;

pub use handle::VolumeHandle;
pub use histogram::{BUCKETS, HistogramSnapshot, bucket_upper_ns};
pub use limit::Limits;
pub use local::Volume;
pub use stats::{OpStats, VolumeStats};

#[cfg(test)]
mod tests;
