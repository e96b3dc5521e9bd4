//! A DRAM cache that writes pass on their way to a device: *I/O transit caching* (Caiti, Xu et al.,
//! JSA 2024).
//!
//! A write is acknowledged when its blocks are in slots of DRAM. Evictors write them to the device
//! behind it. The cache is a volatile write cache like a disk's: FLUSH drains earlier acknowledged
//! writes, FUA waits for media, and power loss takes the rest. Reads are served from slots that
//! have the block, and never fill slots. A slot is as large as a block of the device, and is
//! written to it in one request. So blocks are as atomic as on the device. The caller provides the
//! memory of the slots. In a shared-memory file it outlives the process, and the next process
//! continues from there.
//!
//! - [`Transit`]: the cache, a block device over a block device.
//! - [`Policy`]: the use of the slots. Policies for comparison with Caiti are in `studies/caiti`.
//! - [`TransitOptions::hold_evictions`]: lets a start that may still refuse the device leave it
//!   unchanged.
//! - [`Workers`]: threads that evict to a device whose work is done by the processor.
//!
//! # One reactor, and threads only for stores
//!
//! All cores share the paper's cache: clients and a pool of background threads synchronize at every
//! slot, by locks and compare-and-swap. Here a device belongs to a reactor. The reactor makes all
//! decisions (sets, write-back queue, free slots, waiting requests), on slots that no other thread
//! sees. So there are no locks and no atomics. The state machine runs unchanged in the simulator,
//! which tries crashes and every order of completions.
//!
//! The paper gains from cores because *stores to slow memory* are not made by the thread that
//! serves clients. Threads do only that here: evictions are requests to a second device, the
//! `evictor`. If the device under the cache answers later (a file, a network), the evictor is the
//! device itself, and waiting costs nothing. If its work is done by the processor (a block
//! translation table), the evictor is [`Workers`] over it. Threads share only a queue of jobs and a
//! list of results.
//!
//! The reactor itself does the work that bypasses the slots (reads that miss, bypassed writes,
//! FUA). In the paper the client's own thread does it. The cores are busy then, and another
//! handover would not free any.

mod core;
mod device;
mod evictions;
mod evictor;
mod fault;
mod hold;
mod lines;
mod links;
mod memory;
mod owner;
mod parts;
pub mod policy;
mod poll_policy;
mod pool;
mod range_locks;
mod requests;
mod slots;
mod stats;
mod sync;
mod workers;

pub use device::{Recovery, Transit, TransitOptions, look};
pub use memory::{
    AT_CUT, HEADER_BYTES, cut_at, generations_left, is_earlier, memory_bytes, size_left,
    slots_left, was_used,
};
pub use owner::SlotsLeft;
pub use policy::Policy;
pub use stats::TransitStats;
pub use workers::{Run, Workers};

// The study's sources: a crate that uses this one has other types than its unit tests.
#[cfg(test)]
#[expect(unreachable_pub, reason = "they are public in their own crate")]
#[path = "../../../studies/caiti/src/comparators/mod.rs"]
mod comparators;
#[cfg(test)]
mod tests;
