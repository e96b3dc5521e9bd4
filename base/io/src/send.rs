//! Sends on a blocking socket that do not wait.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Sends as many of the bytes as the peer has room for. Returns their number. Unlike a stream in
/// non-blocking mode, it changes nothing for the receiver of the same socket.
///
/// # Errors
/// `WouldBlock` without room, or errors of send(2).
pub fn send_now(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open, and the kernel reads the memory of `bytes` alone.
    let sent = unsafe {
        libc::send(
            stream.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_send_takes_the_bytes_that_fit_and_never_waits() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        assert_eq!(send_now(&ours, b"abc").expect("there is room"), 3);
        let mut received = [0; 3];
        theirs.read_exact(&mut received).expect("it was sent");
        assert_eq!(&received, b"abc");
        let piece = vec![0; 1 << 20];
        let full = (0..100).find_map(|_| send_now(&ours, &piece).err());
        let full = full.expect("a socket has an end");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(theirs);
        let gone = send_now(&ours, b"abc").expect_err("the peer has gone");
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }
}
