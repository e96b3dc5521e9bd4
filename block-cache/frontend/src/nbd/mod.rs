//! NBD server: fixed newstyle, structured replies, TLS, several connections to one volume.
//!
//! One reactor accepts connections. The sockets and requests of a connection are tasks of its
//! reactor, which [`Spread`] selects. A volume on the same reactor is called
//! directly, a volume on another one by message.
//!
//! One connection has a reader and a task for each request. The reader parses all requests of one
//! receive. One send carries all replies that are ready. A connection holds at most 64 MiB of
//! requests; at that limit the server stops reading from it.
//!
//! A violation of the protocol is answered with the error of the protocol, or ends the connection.
//! The reason is logged, at most one line in ten seconds, with a count of the rest.

mod connection;
mod context;
mod export;
mod handshake;
mod headers;
mod reply;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Deadline, Listener, Stream};
use forebay_io::rt;

use crate::net::{self, Protocol, Receiver, Spread};
pub use export::Exports;
use forebay_tls::{Channel, Secure};
pub use forebay_tls::{Demand, Tls};
use handshake::{Outcome, Security, Session};

/// Maximum memory of a connection, bytes: its requests, an eighth more for their tasks, and the
/// receive buffer.
pub const CONNECTION_BYTES: u64 = connection::BUDGET_BYTES / 8 * 9 + (1 << 20);

/// Time limit for choosing an export.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};

/// Time limit for sending the end of a TLS session.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Accepts connections on this reactor and serves `exports`, for as long as the listener lives.
///
/// Requests on a volume that is shutting down fail with `NBD_ESHUTDOWN`. So a server needs no
/// shutdown of its own: drain the volumes, then end the reactor.
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
    net::serve(listener, Nbd { exports }, spread).await
}

/// Protocol of one listener's connections.
struct Nbd {
    exports: Arc<Exports>,
}

impl Protocol for Nbd {
    const NAME: &'static str = "NBD";

    async fn converse(&self, stream: Rc<Stream>, peer: &str) -> Result<()> {
        let deadline = Deadline::set(&stream, HANDSHAKE_TIMEOUT);
        let opened = self.open(&stream).await;
        if deadline.passed() {
            let slow = format!(
                "no export was chosen within {} s",
                HANDSHAKE_TIMEOUT.as_secs_f32()
            );
            return Err(Error::new(ErrorKind::TimedOut, slow));
        }
        deadline.cancel();
        match opened? {
            None => Ok(()),
            Some((Way::Plain(receiver), session)) => {
                transmit(stream, receiver, session, peer).await
            }
            Some((Way::Secure(secure, receiver), session)) => {
                transmit(Rc::clone(&secure), receiver, session, peer).await?;
                farewell(&stream, &secure).await;
                Ok(())
            }
        }
    }
}

/// Channel that a client has chosen.
enum Way {
    Plain(Receiver),
    Secure(Rc<Secure>, Receiver<Secure>),
}

impl Nbd {
    /// Negotiates with a client until it has chosen an export. Returns `None` if it disconnected.
    async fn open(&self, stream: &Rc<Stream>) -> Result<Option<(Way, Session)>> {
        let exports = &*self.exports;
        let security = Security::at_first(exports);
        let mut receiver = Receiver::new(Rc::clone(stream));
        let Some(flags) = handshake::greet(stream, &mut receiver, security).await? else {
            return Ok(None);
        };
        let plain = handshake::negotiate(&**stream, &mut receiver, exports, flags, security);
        match (plain.await?, exports.tls()) {
            (Outcome::Chosen(session), _) => Ok(Some((Way::Plain(receiver), session))),
            (Outcome::StartTls, Some(tls)) => {
                // Everything that was agreed on before TLS is discarded, since it was not
                // protected.
                drop(receiver);
                let secure = Secure::accept(Rc::clone(stream), tls).await?;
                let secure = Rc::new(secure);
                let mut receiver = Receiver::new(Rc::clone(&secure));
                let security = Security::Active;
                let safe = handshake::negotiate(&*secure, &mut receiver, exports, flags, security);
                match safe.await? {
                    Outcome::Chosen(session) => Ok(Some((Way::Secure(secure, receiver), session))),
                    Outcome::Left | Outcome::StartTls => {
                        farewell(stream, &secure).await;
                        Ok(None)
                    }
                }
            }
            (Outcome::Left | Outcome::StartTls, _) => Ok(None),
        }
    }
}

/// Ends TLS with a client that disconnects, and which may be gone already.
async fn farewell(stream: &Rc<Stream>, secure: &Secure) {
    let end = Deadline::set(stream, FAREWELL_TIMEOUT);
    let _ = secure.close().await;
    end.cancel();
}

/// Serves a client that has chosen an export, until it disconnects.
async fn transmit<C: Channel>(
    channel: Rc<C>,
    receiver: Receiver<C>,
    session: Session,
    peer: &str,
) -> Result<()> {
    let volume = session.export.volume;
    tracing::debug!(peer, volume = volume.name(), "an NBD client is connected");
    let ended = connection::transmit(channel, receiver, volume.open(), session.extensions).await;
    tracing::debug!(
        peer,
        volume = volume.name(),
        "an NBD client is disconnected"
    );
    ended
}

#[cfg(test)]
mod tests;
