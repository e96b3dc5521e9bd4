//! The other end of a connection: whether the client of a request still waits for its answer.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use forebay_block::{Error, ErrorKind, Result};

/// The client's end of a connection.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// Returns the other end of `connection`. Takes one descriptor.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(super) fn of(connection: &impl AsFd) -> std::io::Result<Self> {
        connection.as_fd().try_clone_to_owned().map(Self)
    }

    /// Returns whether the client has closed the connection. One that only ended its requests
    /// still waits.
    fn has_left(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one descriptor to poll, which lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 }
    }

    /// Refuses a `command` whose client has left, since that client has reported a failure. Call it
    /// directly before the command changes anything.
    ///
    /// # Errors
    /// `Disconnected` if the client has left.
    pub(crate) fn check_waits(&self, command: &str) -> Result<()> {
        if !self.has_left() {
            return Ok(());
        }
        tracing::warn!("{command:?} is not carried out: its client has left");
        let what = "the client has left\nhelp: repeat the command";
        Err(Error::new(ErrorKind::Disconnected, what))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_a_client_that_closed_its_connection_has_left() {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        let peer = Peer::of(&server).expect("a descriptor is left");
        assert!(peer.check_waits("flush").is_ok());
        client.shutdown(Shutdown::Write).expect("open");
        assert!(peer.check_waits("flush").is_ok(), "it still waits");
        drop(client);
        let refused = peer.check_waits("flush").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Disconnected);
    }
}
