//! The NBD server: fixed newstyle, structured replies, several connections to one volume.
//!
//! It is a reactor citizen: sockets and requests are tasks of the reactor that [`serve`] runs on. A
//! volume of the same reactor is called directly, one of another by message.
//!
//! One connection is a reader and a task for each request. The reader takes as many requests as one
//! receive brings; replies that are ready at the same time leave in one send. Nothing that a client
//! sends makes a connection hold more than 64 MiB of requests; at that limit the server stops reading
//! from it. Whatever breaks the protocol is answered with the error that the protocol has for it, or
//! ends the connection; the reason is logged once.

mod connection;
mod export;
mod handshake;
mod receive;
mod reply;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Listener, Stream};
use forebay_io::rt;

pub use export::Exports;
use receive::Receiver;

/// Time that a client has to choose an export.
const HANDSHAKE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};
/// Connections at a time of one listener.
const MAX_CONNECTIONS: usize = 1024;
/// Broken connections that are logged in one window of time; the rest is counted.
const LOGGED: u32 = 20;
const LOG_WINDOW: Duration = Duration::from_secs(10);

/// What the connections of one listener share.
struct Server {
    exports: Arc<Exports>,
    connections: Cell<usize>,
    log: LogLimit,
}

/// Accepts connections and serves `exports` to them, for as long as the listener lives.
///
/// Requests on a volume that is shutting down are answered with `NBD_ESHUTDOWN`, so a server needs
/// no ending of its own: drain the volumes, then end the reactor.
///
/// # Errors
/// When the listener can take no more connections.
pub async fn serve(listener: Listener, exports: Arc<Exports>) -> Result<()> {
    let server = Rc::new(Server {
        exports,
        connections: Cell::new(0),
        log: LogLimit::new(),
    });
    loop {
        let (stream, peer) = listener.accept().await?;
        if server.connections.get() >= MAX_CONNECTIONS {
            let full = format!("{MAX_CONNECTIONS} clients are connected, the most there may be");
            server.report(&peer, &Error::new(ErrorKind::Busy, full));
            continue;
        }
        server.connections.set(server.connections.get() + 1);
        let server = Rc::clone(&server);
        rt::spawn(async move {
            if let Err(error) = server.converse(stream, &peer).await {
                server.report(&peer, &error);
            }
            server.connections.set(server.connections.get() - 1);
        });
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

    fn report(&self, peer: &str, error: &Error) {
        let Some(unlogged) = self.log.admit() else {
            return;
        };
        let reason = error.report();
        if unlogged > 0 {
            tracing::warn!(peer, reason, unlogged, "an NBD connection was closed");
        } else {
            tracing::warn!(peer, reason, "an NBD connection was closed");
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

/// Lets through a number of log lines in a window of time.
struct LogLimit {
    window: Cell<Duration>,
    logged: Cell<u32>,
    unlogged: Cell<u64>,
}

impl LogLimit {
    const fn new() -> Self {
        Self {
            window: Cell::new(Duration::ZERO),
            logged: Cell::new(0),
            unlogged: Cell::new(0),
        }
    }

    /// Whether to log now; and how many were left out since the last that was logged.
    fn admit(&self) -> Option<u64> {
        let now = rt::now();
        if now.saturating_sub(self.window.get()) >= LOG_WINDOW {
            self.window.set(now);
            self.logged.set(0);
        }
        if self.logged.get() >= LOGGED {
            self.unlogged.set(self.unlogged.get() + 1);
            return None;
        }
        self.logged.set(self.logged.get() + 1);
        Some(self.unlogged.take())
    }
}

#[cfg(test)]
mod tests;
