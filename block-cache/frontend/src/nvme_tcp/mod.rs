//! The NVMe/TCP target: discovery, subsystems whose namespaces are volumes, any number of hosts and paths.
//!
//! It is a reactor citizen: one reactor accepts, and the sockets and commands of a connection are tasks of the
//! reactor that it is given to ([`Spread`]), so that the queues of one controller lie on several.
//!
//! One connection is a reader and a task for each command. A command takes memory when there is some for it:
//! until then it is 64 bytes, and the reader goes on, for the data that memory waits for comes behind it.
//! Written data is received into the buffer that the device gets. Nothing that a host sends makes a connection
//! hold more than 32 MiB beside what is in the capsules of its queue (at most 1 MiB).
//!
//! **A host that comes back** gets a new controller only when what it asked for on its older associations has ended
//! or was discarded: an old write on its way could otherwise land on a newer one. **A host that is gone** loses
//! its association when its keep-alive timer runs out; commands that are on the device run to their end. On a
//! volume that is shutting down commands are not answered and the association ends: the host tries again.
//!
//! Whatever breaks the protocol is answered with the status or the termination that the protocol has for it; the
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
mod log;
mod memory;
mod property;
mod receive;
mod reply;
mod slots;
mod subsystem;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::{Listener, Stream};
use forebay_io::rt;
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, Fault, Kind, Terminate};

use crate::net::{self, Deadline, Protocol, Receiver, Spread};
pub use export::Exports;
pub use forebay_wire::nvme::fabrics::check_nqn;
pub use subsystem::Subsystem;

/// Time that a host has to make a queue: more than a new association waits for older ones.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(30)
};
/// Time that a host has to read why it is cut off.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest transfer of a command as a power of two of pages: 1 MiB.
const MAX_TRANSFER_SHIFT: u8 = 8;
/// Largest transfer of a command, bytes.
const MAX_TRANSFER_BYTES: u32 = forebay_wire::nvme::PAGE_BYTES << MAX_TRANSFER_SHIFT;
/// Most data in one PDU from a host, bytes.
const MAX_H2C_DATA_BYTES: u32 = 256 << 10;
/// Most data in the capsule of an I/O command, bytes.
const IN_CAPSULE_BYTES: u32 = 8 << 10;

/// Accepts connections and serves `exports` to them on this reactor, for as long as the listener lives.
///
/// # Errors
/// When the listener can take no more connections.
pub async fn serve(listener: Listener, exports: Arc<Exports>) -> Result<()> {
    let here = Arc::new(Spread::new([rt::remote()]));
    serve_on(listener, exports, here).await
}

/// Like [`serve`], with the connections spread over several reactors. Servers may share a spread.
///
/// # Errors
/// When the listener can take no more connections.
pub async fn serve_on(
    listener: Listener,
    exports: Arc<Exports>,
    spread: Arc<Spread>,
) -> Result<()> {
    net::serve(listener, NvmeTcp { exports }, spread).await
}

/// The protocol on the connections of one listener.
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
                connection::serve(&stream, &mut receiver, session, exports).await
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

/// Why a connection ends that its host has not ended.
enum End {
    /// It broke.
    Broken(Error),
    /// Its Connect was refused, or it has not authenticated itself, and the host told.
    Refused(Error),
    /// The host broke the protocol, with the PDU that begins like this.
    Fault(Fault, [u8; COMMON_BYTES]),
}

impl End {
    /// The same, for a PDU that begins with `header`.
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
    Error::new(ErrorKind::Disconnected, "the host went away within a PDU")
}

/// Says what is wrong, if something is, and gives the host time to read it: a socket that is closed with unread data
/// takes back what was sent last.
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
