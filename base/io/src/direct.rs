//! Reads with `O_DIRECT` of many files at a time, by io_uring. They leave no copy in the kernel's
//! page cache, and occupy no thread while they wait.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Buf, Result};

use crate::engine::{Engine, FileStep, Parker, Ring, Target, Token, Wait};
use crate::file::direct_alignment;

/// `RWF_NOWAIT` of linux/fs.h.
const RWF_NOWAIT: libc::c_int = 8;

/// Opens a second description of an open file for direct reads. Returns `None` if the file system
/// refuses it, or if it needs more than the alignment of `unit_bytes` in memory and in the file.
#[must_use]
pub fn open_direct(file: &File, unit_bytes: u32) -> Option<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_DIRECT);
    let direct = options.open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let direct = direct.ok()?;
    let (memory, offset) = direct_alignment(direct.as_raw_fd())?;
    (memory <= unit_bytes && offset <= unit_bytes).then_some(direct)
}

/// Returns whether io_uring submits direct reads of a file without a thread of the kernel. Such a
/// thread is one of few, so that reads of a file that does not answer would delay all others. Reads
/// up to `unit_bytes` of the file.
#[must_use]
pub fn is_submitted_at_once(direct: &File, unit_bytes: usize) -> bool {
    let buf = Buf::scratch(unit_bytes);
    let part = libc::iovec {
        iov_base: buf.as_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: the descriptor is open, and the kernel writes to the buffer alone.
    let done = unsafe { libc::preadv2(direct.as_raw_fd(), &part, 1, 0, RWF_NOWAIT) };
    done >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

/// Interrupts the wait of a [`DirectReads`], from any thread.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Parker>);

impl Interrupt {
    /// Creates an interrupt for one [`DirectReads`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(Parker::new()?)))
    }

    /// Ends the current wait, or the next one.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }
}

/// Reads in flight. One thread creates, begins and awaits them.
pub struct DirectReads {
    ring: Ring,
    /// Whether the buffers are registered.
    has_fixed: bool,
    slots: Vec<Slot>,
    in_flight: usize,
    results: Vec<(Token, i32)>,
}

struct Slot {
    buf: Buf,
    len: usize,
    /// The file that is being read.
    file: Option<Arc<File>>,
}

impl DirectReads {
    /// Creates a ring for `count` reads at a time of up to `bytes_max` bytes. Returns `None` if the
    /// environment names another engine ([`Engine::Auto`]).
    ///
    /// # Errors
    /// `InvalidInput` if it names none. Others if the kernel has no io_uring or forbids it.
    pub fn new(count: usize, bytes_max: usize, interrupt: &Interrupt) -> Result<Option<Self>> {
        if Engine::Auto.resolve()? == Engine::Threads {
            return Ok(None);
        }
        let slot = |_| Slot {
            buf: Buf::scratch(bytes_max),
            len: 0,
            file: None,
        };
        let slots: Vec<_> = (0..count).map(slot).collect();
        let mut ring = Ring::new(&interrupt.0)?;
        let buffer = |slot: &Slot| libc::iovec {
            iov_base: slot.buf.as_ptr().cast(),
            iov_len: slot.buf.len(),
        };
        let buffers: Vec<_> = slots.iter().map(buffer).collect();
        Ok(Some(Self {
            has_fixed: ring.register_buffers(&buffers),
            ring,
            slots,
            in_flight: 0,
            results: Vec::new(),
        }))
    }

    /// Returns the maximum number of reads at a time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Queues a read of `len` bytes at `offset` of a file that is open for direct reads.
    ///
    /// # Panics
    /// If the slot is in use, or `len` exceeds the maximum.
    pub fn begin(&mut self, slot: usize, file: Arc<File>, offset: u64, len: usize) {
        let used = &mut self.slots[slot];
        assert!(used.file.is_none() && len <= used.buf.len(), "slot {slot}");
        let (fd, ptr) = (file.as_raw_fd(), used.buf.as_ptr());
        (used.file, used.len) = (Some(file), len);
        self.in_flight += 1;
        let len = u32::try_from(len).expect("at most the maximum");
        let token = slot as Token;
        match u16::try_from(slot) {
            Ok(number) if self.has_fixed => {
                let buffer = (number, ptr, len);
                self.ring.push_fixed_read(token, fd, buffer, offset);
            }
            _ => {
                let target = Target { fd, slot: None };
                let read = FileStep::Read {
                    target,
                    ptr,
                    len,
                    offset,
                };
                self.ring.push_file(token, &read);
            }
        }
    }

    /// Submits queued reads. Waits until one has ended, for an interrupt, or for the time `limit`.
    /// Passes the slot of each read that has ended to `ended`, with its buffer and the number of
    /// bytes. These are fewer than requested at the end of the file.
    pub fn turn(
        &mut self,
        limit: Option<Duration>,
        mut ended: impl FnMut(usize, io::Result<(&mut [u8], usize)>),
    ) {
        self.ring.turn(Wait::Until(limit), &mut self.results);
        for (token, result) in self.results.drain(..) {
            let number = usize::try_from(token).expect("the number of a slot");
            let slot = &mut self.slots[number];
            slot.file = None;
            self.in_flight -= 1;
            // SAFETY: the slot's buffer has this length, and its read has ended.
            let bytes = unsafe { std::slice::from_raw_parts_mut(slot.buf.as_ptr(), slot.len) };
            let count = match usize::try_from(result) {
                Ok(count) => Ok((bytes, count)),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            };
            ended(number, count);
        }
    }
}

impl Drop for DirectReads {
    /// Waits for all reads: the kernel writes to their buffers.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            self.turn(None, |_, _| ());
        }
        self.ring.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::testing::Scratch;

    const PAGE: usize = 4096;

    /// Returns reads, or `None` where io_uring is forbidden.
    fn reads(count: usize, interrupt: &Interrupt) -> Option<DirectReads> {
        match DirectReads::new(count, 2 * PAGE, interrupt) {
            Ok(reads) => reads,
            Err(error) => {
                eprintln!("SKIPPED: {}", error.report());
                None
            }
        }
    }

    fn file(scratch: &Scratch, name: &str, len: usize, byte: u8) -> Option<Arc<File>> {
        let mut file = File::create(scratch.path(name)).expect("a new file");
        file.write_all(&vec![byte; len]).expect("it is written");
        let direct = open_direct(&file, PAGE as u32);
        if direct.is_none() {
            eprintln!(
                "SKIPPED: the file system of {:?} refuses O_DIRECT",
                scratch.path(name)
            );
        }
        direct.map(Arc::new)
    }

    #[test]
    fn files_are_read_at_once_and_ends_are_short() {
        let (scratch, interrupt) = (Scratch::new(), Interrupt::new().expect("there is room"));
        let files =
            [("one", 1), ("other", 2)].map(|(name, byte)| file(&scratch, name, PAGE + 100, byte));
        let [Some(one), Some(other)] = files else {
            return;
        };
        let Some(mut reads) = reads(4, &interrupt) else {
            return;
        };
        for is_refused in [false, true] {
            // As after a refusal of the kernel to register buffers.
            reads.has_fixed &= !is_refused;
            read_both(&mut reads, &one, &other);
        }
    }

    fn read_both(reads: &mut DirectReads, one: &Arc<File>, other: &Arc<File>) {
        reads.begin(0, Arc::clone(one), 0, PAGE);
        reads.begin(1, Arc::clone(other), 0, 2 * PAGE);
        reads.begin(2, Arc::clone(one), 8 * PAGE as u64, PAGE);
        // Neither the offset nor the length is a multiple of the file system's unit.
        reads.begin(3, Arc::clone(other), 1, 3);
        let mut counts = [None; 4];
        while counts.iter().any(Option::is_none) {
            reads.turn(None, |slot, read| {
                let count = read.map(|(bytes, count)| {
                    assert!(
                        bytes[..count]
                            .iter()
                            .all(|byte| usize::from(*byte) == slot + 1)
                    );
                    count
                });
                counts[slot] = Some(count.map_err(|error| error.raw_os_error()));
            });
        }
        let [first, end, behind, odd] = counts.map(|count| count.expect("it has ended"));
        assert_eq!((first, end, behind), (Ok(PAGE), Ok(PAGE + 100), Ok(0)));
        // ext4 reads such a range through its cache.
        assert!(odd == Err(Some(libc::EINVAL)) || odd.is_ok(), "{odd:?}");
    }

    #[test]
    fn an_error_is_that_of_its_read() {
        let (scratch, interrupt) = (Scratch::new(), Interrupt::new().expect("there is room"));
        let Some(mut reads) = reads(2, &interrupt) else {
            return;
        };
        let Some(good) = file(&scratch, "good", PAGE, 1) else {
            return;
        };
        let write_only = File::create(scratch.path("write-only")).expect("a new file");
        reads.begin(0, Arc::new(write_only), 0, PAGE);
        reads.begin(1, good, 0, PAGE);
        let mut ended = [None; 2];
        while ended.iter().any(Option::is_none) {
            reads.turn(None, |slot, read| {
                let count = read.map(|(_, count)| count);
                ended[slot] = Some(count.map_err(|error| error.raw_os_error()));
            });
        }
        assert_eq!(ended, [Some(Err(Some(libc::EBADF))), Some(Ok(PAGE))]);
    }

    #[test]
    fn an_interrupt_ends_the_current_wait_or_the_next_one() {
        let interrupt = Interrupt::new().expect("there is room");
        let Some(mut reads) = reads(1, &interrupt) else {
            return;
        };
        interrupt.interrupt();
        reads.turn(None, |_, _| panic!("there is no read"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                interrupt.interrupt();
            });
            reads.turn(None, |_, _| panic!("there is no read"));
        });
        reads.turn(Some(Duration::from_millis(1)), |_, _| {
            panic!("there is no read")
        });
    }
}
