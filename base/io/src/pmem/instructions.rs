//! The processor's instructions that write lines back.

use std::fmt;

/// The instruction that writes a line back, the best that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writeback {
    /// `clwb`: writes back, and keeps the line in the cache.
    Clwb,
    /// `clflushopt`: writes back and drops the line; several go together.
    Clflushopt,
    /// `clflush`: writes back and drops the line, one after the other.
    Clflush,
    /// None that this program knows: stores are not made durable.
    None,
}

impl fmt::Display for Writeback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::None => "no write-back instruction",
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid, __cpuid_count, __m128i, _mm_clflush, _mm_loadu_si128, _mm_sfence, _mm_stream_si128,
    };

    use super::Writeback;

    /// Of CPUID leaf 1, register D.
    const CLFSH: u32 = 1 << 19;
    /// Of CPUID leaf 7, register B.
    const CLFLUSHOPT: u32 = 1 << 23;
    const CLWB: u32 = 1 << 24;
    const LINE: usize = super::super::LINE_BYTES as usize;

    impl Writeback {
        /// Asks the processor.
        pub(in crate::pmem) fn detect() -> Self {
            let leaves = __cpuid(0).eax;
            let basic = __cpuid(1);
            // The flush unit, in words of 8 bytes.
            let line = (basic.ebx >> 8 & 0xff) as usize * 8;
            if basic.edx & CLFSH == 0 || line != LINE {
                return Self::None;
            }
            let extended = if leaves >= 7 {
                __cpuid_count(7, 0).ebx
            } else {
                0
            };
            match extended {
                bits if bits & CLWB != 0 => Self::Clwb,
                bits if bits & CLFLUSHOPT != 0 => Self::Clflushopt,
                _ => Self::Clflush,
            }
        }

        /// The best instruction of this processor that drops the line too.
        pub(in crate::pmem) fn detect_dropping() -> Self {
            match Self::detect() {
                Self::Clwb if __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0 => Self::Clflushopt,
                Self::Clwb => Self::Clflush,
                other => other,
            }
        }

        /// Begins to write a line back.
        ///
        /// # Safety
        /// The address is mapped, and the processor has the instruction.
        #[inline]
        pub(in crate::pmem) unsafe fn line(self, address: *const u8) {
            match self {
                // SAFETY: the caller's promise; the instruction changes no memory that Rust sees,
                // and as a use of memory it stays behind the stores before it.
                Self::Clwb => unsafe { asm!("clwb [{}]", in(reg) address, options(nostack)) },
                // SAFETY: as above.
                Self::Clflushopt => unsafe {
                    asm!("clflushopt [{}]", in(reg) address, options(nostack));
                },
                // SAFETY: as above.
                Self::Clflush => unsafe { _mm_clflush(address) },
                Self::None => (),
            }
        }
    }

    /// Orders earlier flushes and streamed stores before later ones.
    #[inline]
    pub(in crate::pmem) fn fence() {
        // SAFETY: every processor of this architecture has it.
        unsafe { _mm_sfence() }
    }

    /// Copies whole lines with non-temporal stores.
    ///
    /// # Safety
    /// Both ranges are mapped; `target` is aligned to a line and `len` a multiple of one; the
    /// source does not overlap the target.
    #[inline]
    pub(in crate::pmem) unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
        const PIECE: usize = size_of::<__m128i>();
        for at in (0..len).step_by(PIECE) {
            // SAFETY: within both ranges; the target is aligned to 16 bytes, since its start is to
            // 64.
            unsafe {
                let piece = _mm_loadu_si128(source.add(at).cast());
                _mm_stream_si128(target.add(at).cast(), piece);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{fence, stream};

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::Writeback;

    impl Writeback {
        pub(in crate::pmem) fn detect() -> Self {
            Self::None
        }

        pub(in crate::pmem) fn detect_dropping() -> Self {
            Self::None
        }

        /// # Safety
        /// None is needed: nothing happens.
        pub(in crate::pmem) unsafe fn line(self, _address: *const u8) {}
    }

    pub(in crate::pmem) fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// # Safety
    /// Both ranges are mapped and do not overlap.
    pub(in crate::pmem) unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{fence, stream};
