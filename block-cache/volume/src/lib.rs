//! A volume: what a client sees of a stack of devices.
//!
//! A [`Volume`] lives on the reactor of its device (its *engine reactor*) and adds what every
//! protocol needs: bounds and alignment, read-only, FUA where the device has none, counters, and an
//! orderly end ([`Volume::drain`]). Front-ends hold a [`VolumeHandle`], which may go anywhere:
//!
//! - on the engine reactor, [`VolumeHandle::open`] gives a device that calls straight through;
//! - on another reactor, it gives one that sends requests to the engine reactor as messages, many
//!   for one wake-up, and brings the outcomes back likewise;
//! - a foreign thread (FUSE) uses [`VolumeHandle::call_blocking`].
//!
//! **Flush.** A flush covers every write that was acknowledged before it arrived, through any handle
//! on any reactor. Whoever was told of a write's end was told after its completion on the engine
//! reactor; the flush is submitted there later than that, and the device covers what it has
//! completed.
//!
//! **Limits.** A volume may have a limit of operations and of bytes a second ([`Limits`]), over all handles together, so
//! for all front-ends alike. What is above them waits in one line, which nothing overtakes, a flush neither; the time
//! counts as the request's latency.
//!
//! **Time.** A request may be given a time ([`Volume::time_out`]). Past it the client has an error, the device still has the
//! request, and what it changes is in quarantine until it ends.
//!
//! **Buffers.** A request that crosses reactors travels with its buffer. The device on the engine
//! reactor holds it until the completion, whatever becomes of the asking reactor.

mod blocking;
mod deadline;
mod forward;
mod handle;
mod histogram;
mod limit;
mod local;
mod mailbox;
pub mod record;
mod stats;

pub use handle::VolumeHandle;
pub use histogram::{BUCKETS, HistogramSnapshot, bucket_upper_ns};
pub use limit::Limits;
pub use local::Volume;
pub use stats::{OpStats, VolumeStats};

#[cfg(test)]
mod tests;
