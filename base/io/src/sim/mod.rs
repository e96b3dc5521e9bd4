//! The seeded twin of the machine: devices that lose, tear, reorder and rot what they may, and a
//! process that can end at any I/O. One seed replays a run exactly.
//!
//! # Fault contract
//!
//! A [`SimDisk`] keeps what a block device must keep, and nothing more:
//!
//! - **Order.** An operation takes a seeded time, so that operations complete in any order. A write
//!   takes effect between its submission and its completion, at one or two moments, and may be seen
//!   in part (whole logical blocks) before it completes. Overlapping writes in flight at once end in
//!   either order. The data of a write is taken when it is submitted; the buffer of a read holds
//!   garbage until it completes.
//! - **Volatile cache.** An acknowledged write is seen by every later read, and is durable only after
//!   a flush that was submitted after the acknowledgement has completed. FUA makes its own write
//!   durable when it completes, and no other. With `volatile_cache: false` every write is durable
//!   when it completes.
//! - **Power loss** ([`World::crash_power`]) keeps, of the writes that are not durable (acknowledged
//!   or in flight), what [`Keep`] says: none, all, one, all but one, those of one device, or a seeded
//!   subset of their logical blocks in which any order of arrival shows. A logical block is wholly
//!   old or wholly new, and never older than what was durable.
//! - **Process death** ([`World::crash_process`]) loses no acknowledged write, whether flushed or
//!   not. What was in flight reaches the device wholly, in part or not at all, and is settled before
//!   the next process runs. The device's volatile cache lives on: a later power loss still takes
//!   what was never flushed.
//! - **Failures** ([`FaultPlan`]). A failed write leaves each logical block old or new, for good. A
//!   failed read leaves garbage in the buffer. After a failed flush some of what it covered is
//!   durable; the rest is never covered by a later flush: readers see it until power is lost, or (with
//!   `lose_at_failed_flush`) it is gone at once. A rewrite starts afresh.
//! - **Spells** ([`Spell`]). For a while whatever changes the device fails; its flushes, too, or not. Each logical block of a
//!   write that fails then is old or new, as above, and what is new can be read until power is lost, whatever is flushed
//!   meanwhile: it is durable from the failure on, or no flush ever makes it so, with or without a volatile cache. A rewrite
//!   starts afresh. (A write that was in flight when its process died told nobody that it failed, and is as any other.)
//! - **Trouble** ([`Trouble`]). A device that stalls ends nothing for a while, and then all of it, in any order, whatever was
//!   sent to it since. One that vanishes fails whatever it is asked, as above.
//! - **Discard** leaves each logical block old or zero, decided once. It is a write in every other
//!   way, as is write-zeroes.
//! - **Bit rot** ([`SimDisk::rot`]) flips stored bits; the device does not notice.
//!
//! A run ([`World::run`]) stops where its [`Stop`] says: at the n-th write, write-zeroes, discard or
//! flush of any device, before it arrives or after it has taken effect (in both cases before its
//! completion), or before any step of any task. What a task still does between the stop and its next
//! wait goes nowhere; see [`Stopper::is_stopped`].
//!
//! A [`SimPmem`] keeps what [`Pmem`](crate::pmem::Pmem) promises, and nothing more: its contract stands at the
//! top of [`crate::pmem`]. Loads and stores take no time and no task waits for them. One of a world
//! ([`World::add_memory`]) is cut off with it, between any two of its steps: what was stored and not both flushed and
//! fenced is lost with the power, or not, in pieces of 8 bytes. A process that dies within a call leaves what
//! it was storing there in such pieces, too.
//!
//! What is *not* simulated: misdirected and lost writes that are reported as done, and reads that return
//! old data once.
//!
//! `FOREBAY_SIM_TRACE=1` prints every operation to standard error.

mod cut;
mod disk;
mod faults;
mod inline;
mod media;
mod pmem;
mod rng;
mod store;
mod world;

pub use disk::{Counters, DiskConfig, SimDisk};
pub use faults::{FaultPlan, OpClass, Spell, Trouble};
pub use pmem::{PmemCounts, PmemSite, PmemStep, SimPmem, Survival};
pub use rng::Rng;
pub use world::{Keep, Outcome, Stop, Stopper, World};

#[cfg(test)]
mod tests;
