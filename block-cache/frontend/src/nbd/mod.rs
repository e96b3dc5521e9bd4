//! The NBD server: fixed newstyle, structured replies, TLS, several connections to one volume.
//!
//! It is a reactor citizen: one reactor accepts, and the sockets and requests of a connection are
//! tasks of the reactor that it is given to (`Spread`). A volume of the same reactor is called
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
mod key;
mod reply;
mod tls;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Listener, Stream};
use forebay_io::rt;

use crate::net::{self, Channel, Deadline, Protocol, Receiver, Secure, Spread};
pub use export::Exports;
use handshake::{Outcome, Security, Session};
pub use tls::{Demand, Tls};

/// Time that a client has to choose an export.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};

/// Time that the end of a TLS session may take to be sent.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

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

/// What a client has chosen to talk through.
enum Way {
    Plain(Receiver),
    Secure(Rc<Secure>, Receiver<Secure>),
}

impl Nbd {
    /// Talks with a client until it has chosen an export. None if it left instead.
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
                // What was agreed on before was not protected, and counts no more.
                drop(receiver);
                let secure = Secure::accept(Rc::clone(stream), tls.config()).await?;
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

/// Ends TLS with a client that leaves, which may have gone already.
async fn farewell(stream: &Rc<Stream>, secure: &Secure) {
    let end = Deadline::set(stream, FAREWELL_TIMEOUT);
    let _ = secure.close().await;
    end.cancel();
}

/// Serves a client that has chosen an export, until it leaves.
async fn transmit<C: Channel>(
    channel: Rc<C>,
    receiver: Receiver<C>,
    session: Session,
    peer: &str,
) -> Result<()> {
    let volume = session.export.volume;
    tracing::debug!(peer, volume = volume.name(), "an NBD client is connected");
    let ended = connection::transmit(channel, receiver, volume.open(), session.structured).await;
    tracing::debug!(peer, volume = volume.name(), "an NBD client has left");
    ended
}

#[cfg(test)]
mod tests;
