//! The NBD server: fixed newstyle, structured replies, several connections to one volume.
//!
//! It is a reactor citizen: one reactor accepts, and the sockets and requests of a connection are
//! tasks of the reactor that it is given to ([`Spread`]). A volume of the same reactor is called
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
mod log;
mod receive;
mod reply;
mod spread;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Incoming, Listener, Stream};
use forebay_io::rt;

pub use export::Exports;
use log::{LogLimit, Verdict};
use receive::Receiver;
use spread::Place;
pub use spread::Spread;

/// Time that a client has to choose an export.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};
/// Connections at a time of one listener.
const MAX_CONNECTIONS: usize = 1024;

/// What the connections of one listener share.
struct Server {
    exports: Arc<Exports>,
    connections: AtomicUsize,
    log: LogLimit,
}

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
    let server = Arc::new(Server {
        exports,
        connections: AtomicUsize::new(0),
        log: LogLimit::default(),
    });
    loop {
        let (incoming, peer) = listener.accept_for_any().await?;
        let Some(seat) = Seat::take(&server, spread.place()) else {
            let full = format!("{MAX_CONNECTIONS} clients are connected, the most there may be");
            server.report(&peer, &Error::new(ErrorKind::Busy, full));
            continue;
        };
        let reactor = seat.place.reactor();
        let begin = move || rt::spawn(seat.serve(incoming, peer));
        if reactor.is_current() {
            begin();
        } else {
            reactor.call(begin);
        }
    }
}

/// One connection of a server, on its reactor.
struct Seat {
    server: Arc<Server>,
    place: Place,
}

impl Seat {
    /// None when the server is full.
    fn take(server: &Arc<Server>, place: Place) -> Option<Self> {
        let before = server.connections.fetch_add(1, Ordering::Relaxed);
        let seat = Self {
            server: Arc::clone(server),
            place,
        };
        (before < MAX_CONNECTIONS).then_some(seat)
    }

    async fn serve(self, incoming: Incoming, peer: String) {
        let ended = match incoming.open() {
            Ok(stream) => self.server.converse(stream, &peer).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.server.report(&peer, &error);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.server.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    async fn converse(&self, stream: Stream, peer: &str) -> Result<()> {
        let stream = Rc::new(stream);
        let mut receiver = Receiver::new(Rc::clone(&stream));
        let deadline = Deadline::set(&stream);
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

    fn report(self: &Arc<Self>, peer: &str, error: &Error) {
        let reason = error.report();
        match self.log.admit(Instant::now(), &reason) {
            Verdict::Now => tracing::warn!(peer, reason, "an NBD connection was closed"),
            Verdict::After(time) => {
                let server = Arc::clone(self);
                rt::spawn(async move {
                    rt::sleep(time).await;
                    let (more, last) = server.log.rest(Instant::now());
                    tracing::warn!(more, last, "more NBD connections were closed");
                });
            }
            Verdict::Counted => {}
        }
    }
}

/// Ends a connection that takes too long to choose an export.
struct Deadline(Rc<Cell<Stage>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Handshake,
    Done,
    Expired,
}

impl Deadline {
    fn set(stream: &Rc<Stream>) -> Self {
        let stage = Rc::new(Cell::new(Stage::Handshake));
        let (watched, stream) = (Rc::clone(&stage), Rc::downgrade(stream));
        rt::spawn(async move {
            rt::sleep(HANDSHAKE_TIMEOUT).await;
            if watched.get() == Stage::Handshake
                && let Some(stream) = stream.upgrade()
            {
                watched.set(Stage::Expired);
                stream.shutdown();
            }
        });
        Self(stage)
    }

    fn passed(&self) -> bool {
        self.0.get() == Stage::Expired
    }

    fn cancel(self) {
        self.0.set(Stage::Done);
    }
}

#[cfg(test)]
mod tests;
