//! Accepts connections, and assigns each to a reactor.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::{Incoming, Listener, Stream};
use forebay_io::rt;

use super::log::{LogLimit, Verdict};
use super::spread::{Admitted, Place, Spread};

/// Maximum number of connections of one listener.
pub const MAX_CONNECTIONS: u64 = 1024;

/// Protocol of a listener's connections.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Name in log lines.
    const NAME: &'static str;

    /// Serves one client on its reactor until it disconnects.
    fn converse(&self, stream: Rc<Stream>, peer: &str) -> impl Future<Output = Result<()>>;
}

/// State that the connections of one listener share.
struct Server<P> {
    protocol: P,
    connections: AtomicUsize,
    log: LogLimit,
}

/// Accepts connections for as long as the listener lives, and spreads them over reactors.
pub(crate) async fn serve<P: Protocol>(
    listener: Listener,
    protocol: P,
    spread: Arc<Spread>,
) -> Result<()> {
    let server = Arc::new(Server {
        protocol,
        connections: AtomicUsize::new(0),
        log: LogLimit::default(),
    });
    loop {
        let (incoming, peer) = listener.accept_for_any().await?;
        let seat = match Seat::take(&server, &spread) {
            Ok(seat) => seat,
            Err(full) => {
                // The client sees the end of the connection.
                drop(incoming);
                server.report(&peer, &full);
                continue;
            }
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
struct Seat<P: Protocol> {
    server: Arc<Server<P>>,
    place: Place,
    _admitted: Admitted,
}

impl<P: Protocol> Seat<P> {
    /// # Errors
    /// `Busy` if the server has as many connections as it may have, or as descriptors allow.
    fn take(server: &Arc<Server<P>>, spread: &Arc<Spread>) -> Result<Self> {
        let admitted = spread.admit().map_err(|most| {
            let full = format!(
                "{most} clients are connected, the limit for descriptors and address space (ulimit \
                 -n, ulimit -v, LimitNOFILE=)"
            );
            Error::new(ErrorKind::Busy, full)
        })?;
        let before = server.connections.fetch_add(1, Ordering::Relaxed);
        let seat = Self {
            server: Arc::clone(server),
            place: spread.place(),
            _admitted: admitted,
        };
        if (before as u64) < MAX_CONNECTIONS {
            return Ok(seat);
        }
        let full = format!("{MAX_CONNECTIONS} clients are connected, which is the limit");
        Err(Error::new(ErrorKind::Busy, full))
    }

    async fn serve(self, incoming: Incoming, peer: String) {
        let ended = match incoming.open() {
            Ok(stream) => self.server.protocol.converse(Rc::new(stream), &peer).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.server.report(&peer, &error);
        }
    }
}

impl<P: Protocol> Drop for Seat<P> {
    fn drop(&mut self) {
        self.server.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<P: Protocol> Server<P> {
    fn report(self: &Arc<Self>, peer: &str, error: &Error) {
        let reason = error.report();
        match self.log.admit(Instant::now(), &reason) {
            Verdict::Now => {
                tracing::warn!(peer, reason, "an {} connection was closed", P::NAME);
            }
            Verdict::After(time) => {
                let server = Arc::clone(self);
                rt::spawn(async move {
                    rt::sleep(time).await;
                    let (more, last) = server.log.rest(Instant::now());
                    tracing::warn!(more, last, "more {} connections were closed", P::NAME);
                });
            }
            Verdict::Counted => {}
        }
    }
}
