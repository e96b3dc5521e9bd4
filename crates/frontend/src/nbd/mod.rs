//! The NBD server: fixed newstyle, structured replies, several connections to one volume.
//!
//! It is a reactor citizen: one reactor accepts, and the sockets and requests of a connection are
//! tasks of the reactor that it is given to ([`Spread`](crate::Spread)). A volume of the same reactor is called
//! directly, one of another by message.
//!
//! One connection is a reader and a task for each request. The reader takes as many requests as one
//! receive brings; replies that are ready at the same time leave in one send. Nothing that a client
//! sends makes a connection hold more than 64 MiB of requests; at that limit the server stops reading
//! from it. Whatever breaks the protocol is answered with the error that the protocol has for it, or
//! ends the connection; the reason is logged, at most one line in ten seconds, with a count of the rest.

mod connection;
mod export;
mod handshake;
mod reply;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Listener, Stream};
use forebay_io::rt;

use crate::net::{self, Deadline, Protocol, Receiver, Spread};
pub use export::Exports;

/// Time that a client has to choose an export.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};

/// Accepts connections and serves `exports` to them on this reactor, for as long as the listener
/// lives.
///
/// Requests on a volume that is shutting down are answered with `NBD_ESHUTDOWN`, so a server needs
/// no ending of its own: drain the volumes, then end the reactor.
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
    net::serve(listener, Nbd { exports }, spread).await
}

/// The protocol on the connections of one listener.
struct Nbd {
    exports: Arc<Exports>,
}

impl Protocol for Nbd {
    const NAME: &'static str = "NBD";

    async fn converse(&self, stream: Rc<Stream>, peer: &str) -> Result<()> {
        let mut receiver = Receiver::new(Rc::clone(&stream));
        let deadline = Deadline::set(&stream, HANDSHAKE_TIMEOUT);
        let session = handshake::negotiate(&stream, &mut receiver, &self.exports).await;
        if deadline.passed() {
            let slow = format!(
                "no export was chosen within {} s",
                HANDSHAKE_TIMEOUT.as_secs_f32()
            );
            return Err(Error::new(ErrorKind::TimedOut, slow));
        }
        deadline.cancel();
        let Some(session) = session? else {
            return Ok(());
        };
        let volume = session.export.volume;
        tracing::debug!(peer, volume = volume.name(), "an NBD client is connected");
        let ended = connection::transmit(stream, receiver, volume.open(), session.structured).await;
        tracing::debug!(peer, volume = volume.name(), "an NBD client has left");
        ended
    }
}

#[cfg(test)]
mod tests;
