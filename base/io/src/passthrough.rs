//! Commands that io_uring passes to the driver of a character device, in place of the driver's own
//! system calls. Tasks of a reactor use [`CommandDevice`], and a thread that may block uses
//! [`Controller`].

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Context, Error, ErrorKind, Result};
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use crate::engine::SocketStep;
use crate::reactor::{Hold, Socket, current};

/// A character device whose driver takes commands from the tasks of one reactor.
pub struct CommandDevice {
    descriptor: Rc<Socket>,
}

impl std::fmt::Debug for CommandDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fd = self.descriptor.fd();
        f.debug_tuple("CommandDevice").field(&fd).finish()
    }
}

impl CommandDevice {
    /// Returns whether the calling thread's reactor can give commands.
    ///
    /// # Errors
    /// `Unsupported` on a reactor without io_uring, `InvalidInput` on a thread that runs no
    /// reactor.
    pub fn check_reactor() -> Result<()> {
        if current()?.engine_name() != "io_uring" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "its driver needs io_uring, which this process does not use\n\
                 help: allow io_uring, and set `io` in [server] to \"auto\" or \"uring\"",
            ));
        }
        Ok(())
    }

    /// Takes over the open device for the calling thread's reactor.
    ///
    /// # Errors
    /// As [`CommandDevice::check_reactor`].
    pub fn adopt(fd: OwnedFd) -> Result<Self> {
        Self::check_reactor()?;
        Ok(Self {
            descriptor: Socket::adopt(&current()?, fd),
        })
    }

    /// Gives the driver a command, and resolves to its result: a count, or an error number,
    /// negated. A driver may keep a command for any time. The argument points to no memory, so the
    /// future may be dropped at any time.
    pub fn command(&self, number: u32, argument: [u8; 16]) -> impl Future<Output = i32> + use<> {
        let fd = self.descriptor.fd();
        let step = SocketStep::Command {
            fd,
            number,
            argument,
        };
        self.descriptor.start(&step, Hold::Nothing)
    }

    /// Reads as many bytes as `buf` has at `offset`. For drivers that answer at once: the reactor
    /// waits.
    ///
    /// # Errors
    /// The driver's error, or `Io` if there are fewer.
    pub fn read_at(&self, offset: u64, buf: &Buf) -> Result<()> {
        self.copy(offset, buf, |fd, at, left, offset| {
            // SAFETY: the descriptor is open, and the call writes at most `left` bytes at `at`,
            // which are the buffer's.
            unsafe { libc::pread(fd, at.cast(), left, offset) }
        })
    }

    /// Writes all of `buf` at `offset`, like [`CommandDevice::read_at`].
    ///
    /// # Errors
    /// The driver's error, or `Io` if it takes fewer bytes.
    pub fn write_at(&self, offset: u64, buf: &Buf) -> Result<()> {
        self.copy(offset, buf, |fd, at, left, offset| {
            // SAFETY: the descriptor is open, and the call reads `left` bytes at `at`, which are
            // the buffer's.
            unsafe { libc::pwrite(fd, at.cast(), left, offset) }
        })
    }

    fn copy(
        &self,
        offset: u64,
        buf: &Buf,
        call: impl Fn(libc::c_int, *mut u8, usize, libc::off_t) -> libc::ssize_t,
    ) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let place = libc::off_t::try_from(offset + done as u64).map_err(io::Error::other)?;
            // SAFETY: `done` is below the buffer's length.
            let at = unsafe { buf.as_ptr().add(done) };
            let moved = call(self.descriptor.fd(), at, buf.len() - done, place);
            match usize::try_from(moved) {
                Ok(0) => return Err(Error::new(ErrorKind::Io, "the driver has less data")),
                Ok(moved) => done += moved,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Maps `len` bytes at `offset` of the device, to be read, rounded up to whole pages.
    ///
    /// # Errors
    /// The driver's error.
    pub fn map(&self, offset: u64, len: usize) -> Result<View> {
        // SAFETY: a plain system call.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let len = len.next_multiple_of(usize::try_from(page).map_err(io::Error::other)?);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (prot, fd) = (libc::PROT_READ, self.descriptor.fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context(|| "mapping the device");
        }
        Ok(View { address, len })
    }
}

/// Memory that a driver writes and this process reads.
#[derive(Debug)]
pub struct View {
    address: *mut libc::c_void,
    len: usize,
}

impl View {
    /// The `N` bytes at `offset`, as they are now.
    ///
    /// # Panics
    /// Past the end.
    #[must_use]
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(
            offset <= self.len && N <= self.len - offset,
            "reading a mapping past its end"
        );
        // SAFETY: in bounds, checked above, and mapped for as long as this value lives; bytes need
        // no alignment. The driver may write meanwhile, hence the volatile read.
        unsafe {
            self.address
                .cast::<u8>()
                .add(offset)
                .cast::<[u8; N]>()
                .read_volatile()
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `CommandDevice::map` made, and it is no longer used.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

type WideRing = IoUring<Entry128, cqueue::Entry>;

/// A character device whose driver takes commands from a thread that may block.
pub struct Controller {
    file: File,
    ring: Option<WideRing>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Controller").field(&self.file).finish()
    }
}

impl Controller {
    /// Opens the device at `path`.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, ring: None })
    }

    /// Gives the driver a command and waits for its result, at most for `patience`: a count, or a
    /// negated error number. The driver may read and write `data`. `argument` gets the address of
    /// `data` and returns the command's first bytes; zeroes follow. Returns the data too.
    ///
    /// # Errors
    /// `TimedOut`: the command may still be carried out, and the driver owns the data for ever.
    /// `Unsupported` if io_uring is forbidden.
    pub fn command(
        &mut self,
        number: u32,
        data: Vec<u8>,
        patience: Duration,
        argument: impl FnOnce(u64) -> [u8; 32],
    ) -> Result<(i32, Vec<u8>)> {
        let mut ring = match self.ring.take() {
            Some(ring) => ring,
            None => wide_ring()?,
        };
        let mut data = std::mem::ManuallyDrop::new(data);
        let mut bytes = [0; 80];
        bytes[..32].copy_from_slice(&argument(data.as_mut_ptr() as u64));
        let command = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), number);
        // SAFETY: the driver's memory is `data`, which is not freed before the command has ended.
        unsafe { ring.submission().push(&command.cmd(bytes).build()) }
            .map_err(|_| Error::new(ErrorKind::Busy, "io_uring takes no more commands"))?;
        let begin = Instant::now();
        loop {
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                // Closing the ring has the kernel give the command up, in its own time.
                let what = format!("the driver did not answer within {patience:?}");
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
            let left = Timespec::from(left);
            let args = SubmitArgs::new().timespec(&left);
            match ring.submitter().submit_with_args(1, &args) {
                Ok(_) => (),
                Err(error) if passes(&error) => (),
                Err(error) => return Err(error).context(|| "io_uring_enter"),
            }
            let ended = ring.completion().next();
            if let Some(ended) = ended {
                self.ring = Some(ring);
                return Ok((ended.result(), std::mem::ManuallyDrop::into_inner(data)));
            }
        }
    }
}

fn passes(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::ETIME, libc::EAGAIN, libc::EBUSY];
    error
        .raw_os_error()
        .is_some_and(|errno| passing.contains(&errno))
}

fn wide_ring() -> Result<WideRing> {
    let ring = IoUring::<Entry128, cqueue::Entry>::builder()
        .dontfork()
        .build(2);
    ring.map_err(|error| {
        let what = "io_uring_setup\n\
                    help: the kernel may be old, or a container or the sysctl \
                    kernel.io_uring_disabled may forbid it";
        Error::with_source(ErrorKind::Unsupported, what, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::engines;
    use crate::{Engine, Reactor};

    /// `/dev/null` takes any command, and `/dev/zero` none (Linux 6.1).
    fn open(path: &str) -> OwnedFd {
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.expect("it is there").into()
    }

    #[test]
    fn a_command_gets_to_the_driver_and_its_result_back() {
        for engine in engines() {
            let reactor = Reactor::new(engine).expect("a reactor");
            reactor.run(async move {
                let adopted = CommandDevice::adopt(open("/dev/null"));
                if engine == Engine::Threads {
                    let refused = adopted.expect_err("there is no other way");
                    assert_eq!(refused.kind(), ErrorKind::Unsupported);
                    return;
                }
                let null = adopted.expect("an open device");
                assert_eq!(null.command(7, [1; 16]).await, 0);
                let zero = CommandDevice::adopt(open("/dev/zero")).expect("an open device");
                assert_eq!(zero.command(7, [1; 16]).await, -libc::EOPNOTSUPP);
            });
        }
    }

    #[test]
    fn data_is_read_and_written_whole() {
        if !engines().contains(&Engine::Uring) {
            return;
        }
        let reactor = Reactor::new(Engine::Uring).expect("a reactor");
        reactor.run(async {
            let zero = CommandDevice::adopt(open("/dev/zero")).expect("an open device");
            let buf = Buf::scratch(10_000);
            buf.fill(1);
            zero.read_at(0, &buf).expect("zeroes");
            assert!(buf.is_zero());
            zero.write_at(0, &buf).expect("they are taken");
            let null = CommandDevice::adopt(open("/dev/null")).expect("an open device");
            let less = null.read_at(0, &buf).expect_err("there is nothing");
            assert_eq!(less.kind(), ErrorKind::Io);
        });
    }

    #[test]
    fn a_mapping_shows_the_content_of_the_file() {
        if !engines().contains(&Engine::Uring) {
            return;
        }
        let scratch = crate::testing::Scratch::new();
        let path = scratch.path("view");
        std::fs::write(&path, [3; 8192]).expect("a file");
        let reactor = Reactor::new(Engine::Uring).expect("a reactor");
        reactor.run(async move {
            let device = CommandDevice::adopt(open(path.to_str().expect("plain"))).expect("open");
            let view = device.map(4096, 4096).expect("mapped");
            assert_eq!(view.read::<24>(4072), [3; 24]);
            std::fs::write(&path, [4; 8192]).expect("written");
            assert_eq!(view.read::<2>(0), [4; 2]);
        });
    }

    #[test]
    fn a_thread_gives_commands_too() {
        if !engines().contains(&Engine::Uring) {
            return;
        }
        let patience = Duration::from_secs(10);
        let mut null = Controller::open(Path::new("/dev/null")).expect("it is there");
        for _ in 0..3 {
            let mut given = 0;
            let done = null.command(1, vec![5; 64], patience, |address| {
                given = address;
                [0; 32]
            });
            assert_eq!(done.expect("an answer"), (0, vec![5; 64]));
            assert_ne!(given, 0);
        }
        let mut zero = Controller::open(Path::new("/dev/zero")).expect("it is there");
        let refused = zero.command(1, Vec::new(), patience, |_| [0; 32]);
        assert_eq!(refused.expect("an answer").0, -libc::EOPNOTSUPP);
        let none = Controller::open(Path::new("/dev/no-such-device"));
        assert_eq!(none.expect_err("none").kind(), ErrorKind::NotFound);
        let at_once = zero.command(1, Vec::new(), Duration::ZERO, |_| [0; 32]);
        assert_eq!(at_once.expect_err("no time").kind(), ErrorKind::TimedOut);
    }
}
