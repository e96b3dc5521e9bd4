//! Aligned I/O memory that belongs to its request until the completion arrives.
//!
//! A [`Buf`] is a counted view of one allocation, like a DMA buffer. A device, the kernel and a
//! layer may use the buffer of a request in turn. The kernel writes into it without the compiler's
//! knowledge, so no Rust reference to its bytes is kept across a call. Data is copied in and out,
//! or accessed through a pointer under `unsafe`. Dropping one view never frees memory that another
//! view (an operation in flight) still uses.

use std::alloc::Layout;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of every buffer, bytes: enough for `O_DIRECT` on any device with blocks up to 4 KiB.
pub const BUF_ALIGN: usize = 4096;

/// Memory of a [`Buf`] outside the heap, for example a shared mapping.
///
/// # Safety
/// The range of `as_ptr` and `len` must stay valid, readable and writable, and must not move, until
/// the value is dropped.
pub unsafe trait Mapping: Send + Sync {
    /// Start of the range.
    fn as_ptr(&self) -> *mut u8;
    /// Length of the range, bytes.
    fn len(&self) -> usize;
    /// Returns whether the range is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

enum Mem {
    Heap { ptr: NonNull<u8>, capacity: usize },
    Mapped { _owner: Box<dyn Mapping> },
}

// SAFETY: the memory is plain bytes. The request decides about accesses (see the module
// documentation), and every access uses raw pointers.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}

/// Smallest and largest power of two of the free lists.
const POOL_MIN_SHIFT: u32 = 12;
const POOL_MAX_SHIFT: u32 = 22;
const POOL_CLASSES: usize = (POOL_MAX_SHIFT - POOL_MIN_SHIFT + 1) as usize;
/// Bytes that one size class of one thread retains for reuse.
const POOL_CLASS_BYTES: usize = 1 << 20;
/// Bytes that all threads together retain beyond that: as much as a front-end admits at a time.
const POOL_SHARED_BYTES: usize = 32 << 20;

/// Most memory for reuse that a thread keeps, and that all threads keep together, bytes.
pub const POOL_BYTES: (usize, usize) = (POOL_CLASSES * POOL_CLASS_BYTES, POOL_SHARED_BYTES);

thread_local! {
    static FREE: RefCell<Free> =
        const { RefCell::new(Free([const { Vec::new() }; POOL_CLASSES])) };
}

/// Memory that one thread retains for reuse, and owns.
struct Free([Vec<NonNull<u8>>; POOL_CLASSES]);

impl Drop for Free {
    /// The thread has ended.
    fn drop(&mut self) {
        for (class, list) in self.0.iter_mut().enumerate() {
            for ptr in list.drain(..) {
                // SAFETY: `ptr` came from `alloc` with the layout of its class, and no other code
                // has it.
                unsafe { std::alloc::dealloc(ptr.as_ptr(), layout(class_bytes(class))) }
            }
        }
    }
}

/// Memory that one thread frees and another allocates: a front-end with threads of its own fills
/// buffers that the engine frees. The shared list keeps one thread from hoarding and the other from
/// using the system's allocator.
static SHARED: Mutex<Shared> = Mutex::new(Shared {
    bytes: 0,
    free: [const { Vec::new() }; POOL_CLASSES],
});

struct Shared {
    bytes: usize,
    free: [Vec<NonNull<u8>>; POOL_CLASSES],
}

// SAFETY: the lists own their memory; no other code has these pointers.
unsafe impl Send for Shared {}

impl Shared {
    fn keep(class: usize, ptr: NonNull<u8>) -> bool {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = shared.bytes + class_bytes(class);
        let keep = bytes <= POOL_SHARED_BYTES;
        if keep {
            shared.bytes = bytes;
            shared.free[class].push(ptr);
        }
        keep
    }

    fn take(class: usize) -> Option<NonNull<u8>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let ptr = shared.free[class].pop()?;
        shared.bytes -= class_bytes(class);
        Some(ptr)
    }
}

const fn class_bytes(class: usize) -> usize {
    1 << (class + POOL_MIN_SHIFT as usize)
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BUF_ALIGN).expect("buffer size fits the address space")
}

fn class_of(capacity: usize) -> Option<usize> {
    let shift = capacity.trailing_zeros();
    (capacity.is_power_of_two() && shift <= POOL_MAX_SHIFT)
        .then(|| (shift - POOL_MIN_SHIFT) as usize)
}

impl Drop for Mem {
    fn drop(&mut self) {
        let Mem::Heap { ptr, capacity } = *self else {
            return;
        };
        if let Some(class) = class_of(capacity) {
            let retained = FREE
                .try_with(|free| {
                    let Ok(mut free) = free.try_borrow_mut() else {
                        return false;
                    };
                    let list = &mut free.0[class];
                    let keep = list.len() * capacity < POOL_CLASS_BYTES;
                    if keep {
                        list.push(ptr);
                    }
                    keep
                })
                .unwrap_or(false);
            if retained || Shared::keep(class, ptr) {
                return;
            }
        }
        // SAFETY: `ptr` came from `alloc` with this very layout, and no other code has it.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout(capacity)) }
    }
}

/// A counted view of aligned I/O memory.
#[derive(Clone)]
pub struct Buf {
    mem: Arc<Mem>,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: `ptr` points into `mem`, which is Send and Sync for the reasons given there.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Buf {
    /// Allocates `len` bytes with arbitrary content (of this process).
    ///
    /// # Panics
    /// If the allocator is out of memory, or `len` is zero.
    #[must_use]
    pub fn scratch(len: usize) -> Self {
        assert!(len > 0, "a buffer has at least one byte");
        let capacity = len.next_power_of_two().max(BUF_ALIGN);
        let capacity = if class_of(capacity).is_some() {
            capacity
        } else {
            len.next_multiple_of(BUF_ALIGN)
        };
        let ptr = class_of(capacity)
            .and_then(|class| {
                let own = FREE.try_with(|free| free.borrow_mut().0[class].pop());
                own.ok().flatten().or_else(|| Shared::take(class))
            })
            .unwrap_or_else(|| {
                let layout = layout(capacity);
                // SAFETY: the layout's size is not zero. Zeroed, so that no byte is ever
                // uninitialised for Rust; later users of the same memory see old I/O.
                let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
                NonNull::new(ptr).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
            });
        Self {
            mem: Arc::new(Mem::Heap { ptr, capacity }),
            ptr,
            len,
        }
    }

    /// Allocates `len` zero bytes.
    ///
    /// # Panics
    /// As for [`Buf::scratch`].
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let buf = Self::scratch(len);
        buf.fill(0);
        buf
    }

    /// Allocates a copy of `bytes`.
    ///
    /// # Panics
    /// As for [`Buf::scratch`].
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let buf = Self::scratch(bytes.len());
        buf.copy_from(0, bytes);
        buf
    }

    /// Creates a view of memory with another owner, for example a shared mapping.
    ///
    /// # Panics
    /// If the mapping is empty.
    #[must_use]
    pub fn mapped(mapping: Box<dyn Mapping>) -> Self {
        let len = mapping.len();
        let ptr = NonNull::new(mapping.as_ptr()).expect("a mapping has an address");
        assert!(len > 0, "a buffer has at least one byte");
        Self {
            mem: Arc::new(Mem::Mapped { _owner: mapping }),
            ptr,
            len,
        }
    }

    /// Returns the length, bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the start of the memory, for a system call or a device. It is valid while any view
    /// lives.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns a view of a part. It keeps the whole allocation alive.
    ///
    /// # Panics
    /// If the range reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of a buffer of {} bytes",
            self.len
        );
        Self {
            mem: Arc::clone(&self.mem),
            // SAFETY: start is within the allocation, checked above.
            ptr: unsafe { self.ptr.add(range.start) },
            len: range.end - range.start,
        }
    }

    /// Copies `source` in at `offset`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy_from(&self, offset: usize, source: &[u8]) {
        assert!(
            offset <= self.len && source.len() <= self.len - offset,
            "copy into a buffer past its end"
        );
        // SAFETY: in bounds, checked above; `source` is a live reference, so it cannot overlap
        // memory that only raw pointers reach.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), self.as_ptr().add(offset), source.len());
        }
    }

    /// Copies bytes out from `offset`, as many as `target` holds.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        assert!(
            offset <= self.len && target.len() <= self.len - offset,
            "copy out of a buffer past its end"
        );
        // SAFETY: in bounds, checked above; `target` is an exclusive reference.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// Copies all of `source`, which must be as long as this view.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from_buf(&self, source: &Buf) {
        assert_eq!(self.len, source.len, "copy between buffers of one length");
        // SAFETY: both ranges are live and of this length; `copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr(), self.as_ptr(), self.len) }
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the range is live.
        unsafe { std::ptr::write_bytes(self.as_ptr(), byte, self.len) }
    }

    /// Returns a copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        // SAFETY: the range is live, the new memory has the same capacity, and all of it is written
        // before its length is set.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr(), out.as_mut_ptr(), self.len);
            out.set_len(self.len);
        }
        out
    }

    /// Returns the bytes in place.
    ///
    /// # Safety
    /// Nothing (no operation in flight, no other thread, no other view) may write to this memory
    /// while the reference lives.
    #[must_use]
    pub const unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the range is live and initialised; the caller ensures that no other thread
        // writes.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Returns whether the bytes are equal to those of `other`.
    #[must_use]
    pub fn equals(&self, other: &Buf) -> bool {
        if self.len != other.len {
            return false;
        }
        let (mut one, mut two) = ([0u8; 512], [0u8; 512]);
        (0..self.len).step_by(512).all(|offset| {
            let len = (self.len - offset).min(512);
            self.copy_to(offset, &mut one[..len]);
            other.copy_to(offset, &mut two[..len]);
            one[..len] == two[..len]
        })
    }

    /// Returns whether every byte is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        let mut chunk = [0u8; 512];
        let mut offset = 0;
        while offset < self.len {
            let part = &mut chunk[..(self.len - offset).min(512)];
            self.copy_to(offset, part);
            if part.iter().any(|&byte| byte != 0) {
                return false;
            }
            offset += part.len();
        }
        true
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_keeps_the_memory_alive() {
        let whole = Buf::zeroed(8192);
        let part = whole.slice(4096..8192);
        whole.copy_from(4096, b"kept");
        drop(whole);
        let mut out = [0; 4];
        part.copy_to(0, &mut out);
        assert_eq!(&out, b"kept");
    }

    #[test]
    fn buffers_are_aligned_and_reused() {
        let first = Buf::scratch(5000);
        let address = first.as_ptr() as usize;
        assert_eq!(address % BUF_ALIGN, 0);
        drop(first);
        assert_eq!(Buf::scratch(8192).as_ptr() as usize, address);
    }

    #[test]
    fn equal_bytes_are_distinguished_from_others() {
        let one = Buf::zeroed(1300);
        one.copy_from(1299, b"x");
        let two = Buf::copied(&one.to_vec());
        assert!(one.equals(&two) && !one.equals(&two.slice(0..1299)));
        two.copy_from(1299, b"y");
        assert!(!one.equals(&two) && one.slice(0..1299).equals(&two.slice(0..1299)));
    }

    #[test]
    fn a_thread_that_ends_keeps_nothing() {
        let resident_bytes = || {
            let words = std::fs::read_to_string("/proc/self/statm").expect("Linux");
            let pages = words.split_whitespace().nth(1).expect("resident pages");
            pages.parse::<usize>().expect("a number") * 4096
        };
        let keeps_a_buffer = || {
            let thread = std::thread::spawn(|| drop(Buf::zeroed(POOL_CLASS_BYTES)));
            thread.join().expect("it ends");
        };
        keeps_a_buffer();
        let before = resident_bytes();
        for _ in 0..128 {
            keeps_a_buffer();
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 64 << 20, "128 threads left {grown} bytes");
    }

    #[test]
    #[should_panic(expected = "past its end")]
    fn copies_are_bounded() {
        Buf::zeroed(16).copy_from(10, &[0; 7]);
    }
}
