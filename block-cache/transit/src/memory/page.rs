//! The layout of the memory: a page that identifies it, a header for each slot, and the data.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::Buf;

/// First word of the memory: its kind and version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"FBTRNS01");
/// Offset of the magic, bytes, as of all that follow.
pub(super) const AT_MAGIC: usize = 0;
/// Medium of the device.
pub(super) const AT_DEVICE: usize = 8;
/// Boot of the machine.
pub(super) const AT_BOOT: usize = 16;
/// Size of a block, bytes.
pub(super) const AT_BLOCK_BYTES: usize = 32;
/// Number of slots.
pub(super) const AT_SLOTS: usize = 40;
/// Not zero after a failed flush of the device.
pub(super) const AT_POISON: usize = 48;
/// Birth of the device.
pub(super) const AT_BIRTH: usize = 56;
/// Generation of the slots.
pub(super) const AT_GENERATION: usize = 64;
/// Generation that the next opening was about to take; zero if none was.
pub(super) const AT_NEXT: usize = 72;
/// Byte at which the file of the memory was truncated; zero if it was not.
pub const AT_CUT: usize = 80;
/// First byte of the device on its medium, plus one; zero in the memory of an earlier version.
pub(super) const AT_START: usize = 88;
/// Instance of the device.
pub(super) const AT_INSTANCE: usize = 96;
/// Size of the device, bytes.
pub(super) const AT_SIZE: usize = 104;
/// Length of the page, bytes.
pub(super) const PAGE_BYTES: usize = 4096;
/// Length of a slot's header, bytes.
pub const HEADER_BYTES: usize = 16;

/// Bit of a version: a request that would supersede the slot is at the device.
pub(super) const HELD: u64 = 1 << 63;
/// Smallest number that is no version: no process counts that far.
pub(super) const NO_VERSION: u64 = 1 << 56;

#[inline]
fn atomic(buf: &Buf, at: usize) -> &AtomicU64 {
    debug_assert!(at.is_multiple_of(8) && at + 8 <= buf.len());
    // SAFETY: in bounds and aligned (buffers are page-aligned); the memory lives as long as `buf`,
    // and this process reaches these words only through atomics.
    unsafe { AtomicU64::from_ptr(buf.as_ptr().add(at).cast()) }
}

/// Loads a word.
#[inline]
pub(super) fn get(buf: &Buf, at: usize) -> u64 {
    atomic(buf, at).load(Ordering::Acquire)
}

/// Stores a word. Earlier stores are visible before it.
#[inline]
pub(super) fn set(buf: &Buf, at: usize, value: u64) {
    atomic(buf, at).store(value, Ordering::Release);
}

/// Returns the offset of the first slot's data, bytes.
#[inline]
pub(super) const fn data_at(slots: usize) -> usize {
    (PAGE_BYTES + slots * HEADER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Returns the number of slots that fit into `len` bytes.
pub(super) const fn slots_in(len: usize, block_bytes: usize) -> usize {
    let mut slots = len.saturating_sub(PAGE_BYTES) / (block_bytes + HEADER_BYTES);
    while slots > 0 && data_at(slots) + slots * block_bytes > len {
        slots -= 1;
    }
    slots
}

/// Returns the memory that `slots` slots of `block_bytes` need, bytes.
#[must_use]
pub const fn memory_bytes(slots: usize, block_bytes: u32) -> usize {
    data_at(slots) + slots * block_bytes as usize
}
