//! A seeded simulation of the machine. Its devices lose, tear, reorder and corrupt all that they
//! may, and its process can end at any I/O. One seed replays a run exactly.
//!
//! # Fault contract
//!
//! A [`SimDisk`] promises as much as a block device must, and nothing more:
//!
//! - **Order.** An operation takes a seeded time, so that operations complete in any order. A write
//!   takes effect between its submission and its completion, at one or two moments. It may be seen
//!   in part (whole logical blocks) before it completes. Overlapping writes in flight end in either
//!   order. The data of a write is taken when it is submitted. The buffer of a read holds garbage
//!   until it completes.
//! - **Volatile cache.** Every later read sees an acknowledged write. The write is durable only
//!   after the completion of a flush that was submitted after the acknowledgement. FUA makes only
//!   its own write durable when it completes. With `volatile_cache: false` every write is durable
//!   when it completes.
//! - **Power loss** ([`World::crash_power`]) preserves some of the writes that are not durable
//!   (acknowledged or in flight), as [`Keep`] says. The choices are none, all, one, all but one, or
//!   those of one device. Another choice is a seeded subset of their logical blocks, which shows
//!   any order of arrival. A logical block is wholly old or wholly new, and never older than its
//!   durable state.
//! - **Process death** ([`World::crash_process`]) loses no acknowledged write, whether flushed or
//!   not. Writes in flight reach the device wholly, in part or not at all, and settle before the
//!   next process runs. The device's volatile cache survives: a later power loss still takes
//!   unflushed writes.
//! - **Failures** ([`FaultPlan`]). A failed write leaves each logical block old or new, for good. A
//!   failed read leaves garbage in the buffer. After a failed flush some of the writes that it
//!   covered are durable. No later flush covers the rest: readers see it until power is lost, or
//!   (with `lose_at_failed_flush`) it is gone at once. A rewrite starts over.
//! - **Spells** ([`Spell`]). For a while every change of the device fails; its flushes, too, or
//!   not. Each logical block of a write that fails then is old or new, as above. A new one can be
//!   read until power is lost, whatever is flushed meanwhile. It is durable from the failure on, or
//!   no flush ever makes it so, with or without a volatile cache. A rewrite starts over. (A write
//!   that was in flight when its process died reported no failure, and is as any other.)
//! - **Trouble** ([`Trouble`]). A stalled device completes nothing for a while, and then
//!   everything, in any order, including later requests. A vanished device fails every request, as
//!   above.
//! - **Discard** leaves each logical block old or zero, decided once. In every other way it is a
//!   write, as is write-zeroes.
//! - **Bit rot** ([`SimDisk::rot`]) flips stored bits; the device does not notice.
//!
//! A run ([`World::run`]) stops where its [`Stop`] says. The place may be the n-th write,
//! write-zeroes, discard or flush of any device. The run then stops before it arrives or after it
//! has taken effect, in both cases before its completion. Or the place is before any step of any
//! task. Actions of a task between the stop and its next wait have no effect; see
//! [`Stopper::is_stopped`].
//!
//! A [`SimPmem`] promises as much as [`Pmem`](crate::pmem::Pmem), and nothing more: its contract
//! stands at the top of [`crate::pmem`]. Loads and stores take no time and no task waits for them.
//! One of a world ([`World::add_memory`]) ends with it, between any two of its steps. Stores that
//! were not both flushed and fenced are lost with the power, or not, in pieces of 8 bytes. A
//! process that dies within a call leaves its unfinished stores there in such pieces, too.
//!
//! This does *not* simulate misdirected writes, lost writes that are reported as done, and reads
//! that return old data once.
//!
//! `FOREBAY_SIM_TRACE=1` prints every operation to standard error.

mod cut;
mod disk;
mod faults;
mod inline;
mod media;
mod pmem;
mod rng;
mod shared;
mod store;
mod world;

pub use cut::Stop;
pub use disk::{Counters, DiskConfig, SimDisk};
pub use faults::{FaultPlan, OpClass, Spell, Trouble};
pub use pmem::{PmemCounts, PmemSite, PmemStep, SimPmem, Survival};
pub use rng::Rng;
pub use world::{Keep, Outcome, Stopper, World};

#[cfg(test)]
mod tests;
