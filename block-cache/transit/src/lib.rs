//! A DRAM cache through which writes pass on their way to a device: *I/O transit caching* (Caiti, Xu et al.,
//! JSA 2024).
//!
//! A write is acknowledged when its blocks are in slots of DRAM; evictors write them to the device behind it.
//! The cache is a volatile write cache like a disk's: FLUSH drains what was acknowledged before it, FUA waits
//! for media, and power loss takes the rest. Reads are served from slots that have the block, and are never
//! kept. A slot is as large as a block of the device, and is written to it in one request, so that blocks are
//! as atomic as they are there. The slots lie in memory that is given: in a shared-memory file it outlives
//! the process, and the next one goes on where this one ended.
//!
//! - [`Transit`]: the cache, a block device over a block device.
//! - [`Policy`]: the use of the slots. Those that Caiti is compared with are in `studies/caiti`.
//! - [`TransitOptions::hold_evictions`]: a start that may yet refuse the device leaves it as it is.
//! - [`Workers`]: threads that evict to a device whose work is the processor's.
//!
//! # One reactor, and threads only for stores
//!
//! The paper's cache is shared by all cores: clients and a pool of background threads meet at every slot, by
//! locks and compare-and-swap. Here a device belongs to a reactor, and all decisions (sets, write-back queue,
//! free slots, who waits for whom) are made on it, on slots that nobody else can see: no locks, no
//! atomics, and a state machine that runs in the simulator as it is, where crashes and every order of
//! completions are tried. What the paper gets from cores is that *stores to slow memory* are not made by
//! whoever serves clients. That, and nothing else, is what threads do here: evictions are requests to a second
//! device, the `evictor`. Where the device under the cache answers later (a file, a network), that is the
//! device itself, and waiting costs nothing; where its work is the processor's (a block translation table), it
//! is [`Workers`] over it. What is shared between threads is a queue of jobs and a list of results.
//!
//! What goes round the slots (reads that miss, bypassed writes, FUA) is done on the reactor, as in the paper
//! it is done by the client's own thread: the cores are busy then, and another handover would not free any.

mod bars;
mod core;
mod device;
mod evictor;
mod fault;
mod hold;
mod lines;
mod links;
mod lookout;
mod memory;
mod owner;
mod parts;
pub mod policy;
mod pool;
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
