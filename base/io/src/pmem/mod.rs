//! Byte-addressable media: memory whose stores can be made to outlive power loss.
//!
//! # Fault contract
//!
//! [`Pmem`] promises the following, and nothing more:
//!
//! - **Visibility.** Every later load, of any thread, sees a store at once.
//! - **Durability.** A store survives power loss once its line (64 bytes, [`LINE_BYTES`]) was
//!   flushed after it and the *same thread* has then fenced. [`Pmem::stream`] bypasses the
//!   processor's caches: it needs the fence and no flush.
//! - **Until then, anything.** A cache may write any line back at any moment. So stores without
//!   flush and fence may survive, too. Each aligned 8-byte piece is old or new on its own, whatever
//!   the order of the stores. Within one such piece the order is preserved, so that an old value
//!   never hides a newer one that survived.
//! - **Publication.** Hence nothing may need more than 8 bytes to change at once. Make the rest
//!   durable, then publish it with one aligned [`Pmem::store_u64`] or [`Pmem::store_u32`].
//! - **Process death** loses no store. A copy of many bytes may be incomplete. Flushed or streamed
//!   data is durable by then: the kernel, which ends a thread, fences on the way (an interrupt
//!   drains the processor's buffers).
//! - **Media errors.** [`Pmem::read`] may fail. Loads of single words cannot report errors: on real
//!   media a load from an uncorrectable line raises SIGBUS, which ends the process.
//!
//! [`PmemMapping`] implements it with the processor's instructions.
//! [`SimPmem`](crate::sim::SimPmem) simulates it and loses everything that it may.

mod instructions;
mod lines;
mod mapping;

use forebay_block::{Buf, Result};

pub use instructions::Writeback;
pub use lines::drop_lines;
pub use mapping::{Backing, PmemMapping, is_dax};

/// The unit in which caches write back, bytes.
pub const LINE_BYTES: u64 = 64;

/// Byte-addressable memory, as the module's text describes it. Offsets are in bytes from its start.
///
/// The calls panic on misuse (outside the memory, or not aligned as they require). The layers above
/// it compute every offset from a checked layout. Contents are little-endian words, whatever the
/// processor.
pub trait Pmem: Send + Sync {
    /// Size in bytes; a multiple of 4,096.
    fn size_bytes(&self) -> u64;

    /// Copies `target.len()` bytes out. The caller excludes concurrent writes of them.
    ///
    /// # Errors
    /// `Io` if the medium cannot return the stored data.
    fn read(&self, offset: u64, target: &Buf) -> Result<()>;

    /// Loads an aligned word of 4 bytes at once.
    fn load_u32(&self, offset: u64) -> u32;

    /// Loads an aligned word of 8 bytes at once.
    fn load_u64(&self, offset: u64) -> u64;

    /// Stores an aligned word of 4 bytes at once.
    fn store_u32(&self, offset: u64, value: u32);

    /// Stores an aligned word of 8 bytes at once.
    fn store_u64(&self, offset: u64, value: u64);

    /// Copies whole lines in, round the processor's caches. They are durable after this thread's
    /// next fence.
    fn stream(&self, offset: u64, source: &Buf);

    /// Begins to write the lines back that hold this range. They are durable after this thread's
    /// next fence.
    #[track_caller]
    fn flush(&self, offset: u64, len: u64);

    /// Waits until what this thread flushed and streamed before is durable.
    #[track_caller]
    fn fence(&self);
}
