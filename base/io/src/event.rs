//! Events: descriptors by which another process, such as a virtual machine's monitor, wakes a task
//! here and is woken (eventfd).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::engine::SocketStep;
use crate::net::count;
use crate::reactor::{Hold, Socket, current};

/// An event that tasks of one reactor wait for.
pub struct Event {
    descriptor: Rc<Socket>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Event").field(&self.descriptor.fd()).finish()
    }
}

impl Event {
    /// Takes over an eventfd, or what behaves like one, as an event of the calling thread's
    /// reactor.
    ///
    /// # Errors
    /// `InvalidInput` on a thread that runs no reactor, or the system's error.
    pub fn adopt(fd: OwnedFd) -> Result<Self> {
        never_block(&fd).context(|| "taking over an event")?;
        Ok(Self {
            descriptor: Socket::adopt(&current()?, fd),
        })
    }

    /// Waits until it has been signalled since the last wait.
    ///
    /// # Errors
    /// `Disconnected` if it is none, or the system's error.
    pub async fn wait(&self) -> Result<()> {
        let fd = self.descriptor.fd();
        loop {
            let step = SocketStep::Poll { fd };
            let result = self.descriptor.start(&step, Hold::Nothing).await;
            if result == -libc::EINTR {
                continue;
            }
            count(result).context(|| "waiting for an event")?;
            let mut counter = [0_u8; 8];
            // SAFETY: the descriptor is open, and the call writes at most the eight bytes.
            let read = unsafe { libc::read(fd, counter.as_mut_ptr().cast(), counter.len()) };
            match read {
                8 => return Ok(()),
                ..0 if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => {}
                ..0 => return Err(io::Error::last_os_error()).context(|| "reading an event"),
                _ => {
                    let what = "the descriptor given as an event is not an eventfd";
                    return Err(Error::new(ErrorKind::Disconnected, what));
                }
            }
        }
    }
}

/// Makes a descriptor non-blocking, so that signalling a full pipe does not block.
///
/// # Errors
/// The system's error.
pub fn never_block(fd: &OwnedFd) -> Result<()> {
    // SAFETY: the descriptor is open.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: as above.
    let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if set < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

/// Signals an event to the holder of the other end. A full pipe is signalled already.
pub fn signal(fd: BorrowedFd<'_>) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the descriptor is open, and the call reads the eight bytes.
    let _ = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, FromRawFd as _};
    use std::time::Duration;

    use super::*;
    use crate::Reactor;
    use crate::rt;
    use crate::testing::engines;

    fn eventfd() -> OwnedFd {
        // SAFETY: a plain system call; the descriptor is new and has no other owner.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
    }

    #[test]
    fn a_wait_ends_once_for_each_signal() {
        for engine in engines() {
            let reactor = Reactor::new(engine).expect("a reactor");
            reactor.run(async {
                let other = eventfd();
                let event = Event::adopt(other.try_clone().expect("a copy")).expect("an event");
                signal(other.as_fd());
                event.wait().await.expect("signalled before");
                for _ in 0..3 {
                    let other = other.try_clone().expect("a copy");
                    let begin = rt::now();
                    let thread = std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(20));
                        signal(other.as_fd());
                    });
                    event.wait().await.expect("signalled");
                    assert!(rt::now() - begin >= Duration::from_millis(15));
                    thread.join().expect("it signals");
                }
            });
        }
    }

    #[test]
    fn a_wait_may_be_given_up_and_taken_up() {
        for engine in engines() {
            let reactor = Reactor::new(engine).expect("a reactor");
            reactor.run(async {
                let other = eventfd();
                let event = Event::adopt(other.try_clone().expect("a copy")).expect("an event");
                let mut given_up = Box::pin(event.wait());
                let poll = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(given_up.as_mut().poll(cx).is_pending())
                });
                assert!(poll.await);
                drop(given_up);
                signal(other.as_fd());
                event.wait().await.expect("signalled");
            });
        }
    }

    #[test]
    fn waiting_on_a_file_that_is_no_event_fails() {
        for engine in engines() {
            let reactor = Reactor::new(engine).expect("a reactor");
            reactor.run(async {
                let file = std::fs::File::open("/dev/null").expect("it is there");
                let event = Event::adopt(file.into()).expect("taken");
                assert!(event.wait().await.is_err());
            });
        }
    }
}
