//! NVMe/TCP target: discovery, subsystems whose namespaces are volumes, any number of hosts and
//! paths.
//!
//! One reactor accepts connections. The sockets and commands of a connection are tasks of its
//! reactor, which [`Spread`] selects. So the queues of one controller are on several reactors.
//!
//! One connection has a reader and a task for each command. A command waits for memory, and needs
//! 64 bytes until then. The reader continues meanwhile, because data for other commands follows on
//! the connection, and their memory becomes free only with that data. Written data is received into
//! the buffer that the device gets. A connection holds at most 32 MiB, and at most 1 MiB in the
//! capsules of its queue.
//!
//! **A host that reconnects** gets a new controller only when all commands of its older
//! associations have ended or were discarded. Otherwise an old write in flight could overwrite a
//! newer one. **A host that is gone** loses its association when its keep-alive timer expires. Its
//! commands on the device run to their end. If a volume shuts down, its commands are not answered
//! and the association ends: the host tries again.
//!
//! A violation of the protocol is answered with the status or the termination of the protocol. The
//! reason is logged, at most one line in ten seconds, with a count of the rest.

mod admin;
mod auth;
mod authenticate;
mod command;
mod connection;
mod controller;
mod events;
mod export;
mod feature;
mod handshake;
mod identify;
mod link;
mod log;
mod memory;
mod namespaces;
mod property;
mod reader;
mod receive;
mod reply;
mod session;
mod slots;
mod subsystem;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::{Deadline, Listener, Stream};
use forebay_io::rt;
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, Fault, Kind, Terminate};

use crate::net::{self, Protocol, Receiver, Spread};
pub use export::Exports;
pub use forebay_wire::nvme::fabrics::check_nqn;
pub use subsystem::Subsystem;

/// Maximum memory of a connection, bytes: its commands and the data in capsules.
pub const CONNECTION_BYTES: u64 = connection::BUDGET_BYTES + (1 << 20);

/// Time limit for creating a queue. It exceeds the time that a new association waits for older
/// ones.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(30)
};
/// Time for a host to read the reason before its connection is closed.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Recommended entries of an admin queue in discovery.
const ADMIN_QUEUE_SIZE: u16 = 32;
/// Maximum entries of a queue.
const MAX_QUEUE_SIZE: u16 = 128;
/// Maximum number of I/O queues of a controller.
const MAX_IO_QUEUES: u16 = 64;

/// Maximum transfer of a command as a power of two of pages: 1 MiB.
const MAX_TRANSFER_SHIFT: u8 = 8;
/// Maximum transfer of a command, bytes.
const MAX_TRANSFER_BYTES: u32 = forebay_wire::nvme::PAGE_BYTES << MAX_TRANSFER_SHIFT;
/// Maximum data in one PDU from a host, bytes.
const MAX_H2C_DATA_BYTES: u32 = 256 << 10;
/// Maximum data in the capsule of an I/O command, bytes.
const IN_CAPSULE_BYTES: u32 = 8 << 10;

/// Accepts connections on this reactor and serves `exports`, for as long as the listener lives.
///
/// # Errors
/// Fails if the listener cannot accept connections any more.
pub async fn serve(listener: Listener, exports: Arc<Exports>) -> Result<()> {
    let here = Arc::new(Spread::new([rt::remote()]));
    serve_on(listener, exports, here).await
}

/// Like [`serve`], with the connections spread over several reactors. Servers may share a spread.
///
/// # Errors
/// Fails if the listener cannot accept connections any more.
pub async fn serve_on(
    listener: Listener,
    exports: Arc<Exports>,
    spread: Arc<Spread>,
) -> Result<()> {
    net::serve(listener, NvmeTcp { exports }, spread).await
}

/// Protocol of one listener's connections.
struct NvmeTcp {
    exports: Arc<Exports>,
}

impl Protocol for NvmeTcp {
    const NAME: &'static str = "NVMe/TCP";

    async fn converse(&self, stream: Rc<Stream>, peer: &str) -> Result<()> {
        let mut receiver = Receiver::new(Rc::clone(&stream));
        let deadline = Deadline::set(&stream, HANDSHAKE_TIMEOUT);
        let session = handshake::negotiate(&stream, &mut receiver, &self.exports).await;
        if deadline.passed() {
            let slow = format!(
                "no queue was made within {} s",
                HANDSHAKE_TIMEOUT.as_secs_f32()
            );
            return Err(Error::new(ErrorKind::TimedOut, slow));
        }
        deadline.cancel();
        let ended = match session {
            Ok(None) => return Ok(()),
            Ok(Some(session)) => {
                let (queue, host) = (session.queue, session.membership.controller().host());
                tracing::debug!(peer, queue, host, "an NVMe/TCP host is connected");
                let exports = Arc::clone(&self.exports);
                reader::serve(&stream, &mut receiver, session, exports).await
            }
            Err(end) => Err(end),
        };
        match ended {
            Ok(()) => Ok(()),
            Err(End::Broken(error)) => Err(error),
            Err(End::Refused(error)) => {
                farewell(&stream, None).await;
                Err(error)
            }
            Err(End::Fault(fault, header)) => {
                farewell(&stream, Some((fault, header))).await;
                Err(Error::new(ErrorKind::InvalidInput, fault.to_string()))
            }
        }
    }
}

/// Reason for the end of a connection that its host has not ended.
enum End {
    /// The connection broke.
    Broken(Error),
    /// The Connect was refused or the authentication failed, and the host was notified.
    Refused(Error),
    /// The host violated the protocol, with the PDU of this header.
    Fault(Fault, [u8; COMMON_BYTES]),
}

impl End {
    /// Adds the header of the PDU.
    fn in_pdu(self, header: [u8; COMMON_BYTES]) -> Self {
        match self {
            Self::Fault(fault, _) => Self::Fault(fault, header),
            other => other,
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault, [0; COMMON_BYTES])
    }
}

fn cut_off() -> Error {
    Error::new(
        ErrorKind::Disconnected,
        "the host disconnected within a PDU",
    )
}

/// Sends the fault, if there is one, and gives the host time to read it. A socket that is closed
/// with unread data would drop the last data sent.
async fn farewell(stream: &Rc<Stream>, fault: Option<(Fault, [u8; COMMON_BYTES])>) {
    let deadline = Deadline::set(stream, FAREWELL_TIMEOUT);
    if let Some((fault, header)) = fault {
        let length = u32::try_from(header.len()).expect("eight");
        let common = Common::new(Kind::C2hTermReq, 0, length, Default::default(), 0);
        let words = [
            &common.encode()[..],
            &Terminate::of(fault).encode(),
            &header,
        ]
        .concat();
        if stream.send(&[Buf::copied(&words)]).await.is_err() {
            return;
        }
    }
    let rest = Buf::scratch(4096);
    while stream.recv(rest.clone()).await.is_ok_and(|len| len > 0) {}
    deadline.cancel();
}

#[cfg(test)]
mod tests;
