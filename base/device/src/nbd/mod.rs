//! An export of an NBD server as a block device. This is the initiator's side of the protocol in
//! [`forebay_wire::nbd`].
//!
//! It speaks fixed newstyle with `GO`, with TLS if the URI asks for it, and structured replies if
//! the server offers them. One send carries all requests that were queued while the previous send
//! ran. The server may answer in any order. Several connections are used only if the server says
//! that a flush covers them all.
//!
//! **A lost connection is made again**, until the device is dropped. A connection is lost when it
//! breaks, when the server breaks the protocol, or when a request is not answered within its time
//! ([`Times`]). With one of several connections, all are lost. Requests without an answer are sent
//! again. Requests that arrive meanwhile are queued.
//!
//! - **Quarantine**: the protocol cannot end the requests of a lost connection. A server that still
//!   runs may carry out an unanswered change later. So for [`Times::quarantine`] no other change of
//!   the same range is sent. The change itself is sent again at once, since both copies have the
//!   same data.
//! - **Unflushed changes are sent again**, before any other request, because a server may have lost
//!   them. If some cannot be sent again, one flush fails and names the bytes.
//! - **Away**: if the server does not return within [`Times::patience`], all queued and new
//!   requests fail with `Unreachable`. The device keeps trying.
//! - **Repeated losses**: a request that was in flight at five losses in a row fails, since it may
//!   be the reason for them.
//! - **Another export**: an export with another size, other flags or other block sizes is never
//!   written to. One that has grown has its new size from then on. The protocol has no identifier
//!   of an export, so that another one of the same properties is not noticed.
//!
//! **Extents**: the server answers in the context `base:allocation`, if it has that. Otherwise
//! everything is data.
//!
//! The device does not touch the memory of a request after its answer. It gives no answer and sends
//! nothing again before the tasks of the lost connections have ended.

mod handshake;
mod line;
mod link;
mod receive;
mod reconnect;
mod status;
#[cfg(test)]
mod tests;
mod uri;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    Basis, BlockDevice, BlockDeviceExt as _, Completion, Context as _, DeviceInfo, ErrorKind,
    Extents, ExtentsFuture, Identity, Request, Result, completion_pair,
};
use forebay_io::rt;
use forebay_tls::ClientTls;
use forebay_wire::nbd::MAX_PAYLOAD_BYTES;
use forebay_wire::nbd::handshake::export;

use crate::remote::limits::{LONGEST_BYTES, RequestLimits};
use crate::remote::slots::{Pending, Slots};
use crate::remote::{Close, CloseOnDrop, Rules, Session};
use crate::uri_parts::hash;
use handshake::Offer;
use link::Link;
pub use uri::Uri;

/// Maximum number of connections of a device.
pub const MAX_CONNECTIONS: u16 = 16;
/// Maximum number of requests in flight on a connection.
const DEPTH: u16 = 64;
/// Maximum length of a write of zeroes, bytes: a server without a fast way writes them in time.
const ZEROES_BYTES: u64 = 64 << 20;

/// Time limits for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time limit for connecting, and for the answer to a read or a change: 30 s.
    pub answer: Duration,
    /// Time limit for the answer to a flush or to a query for extents: 120 s. A server may have
    /// gigabytes in a cache, or may read its own map.
    pub flush: Duration,
    /// Time after a loss until queued requests fail: 60 s.
    pub patience: Duration,
    /// Pause before each attempt to reconnect: 1 s.
    pub pause: Duration,
    /// Time after a loss within which the server carries out or drops the changes that it did not
    /// answer: 30 s.
    pub quarantine: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            flush: Duration::from_secs(120),
            patience: Duration::from_secs(60),
            pause: Duration::from_secs(1),
            quarantine: Duration::from_secs(30),
        }
    }
}

/// Use of a server.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of connections, 1 to [`MAX_CONNECTIONS`]. A server that does not allow several gets
    /// one.
    pub connections: u16,
    /// Time limits.
    pub times: Times,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 1,
            times: Times::default(),
        }
    }
}

/// A connected export. It belongs to the reactor that it was connected on.
pub struct NbdDevice {
    shared: Rc<CloseOnDrop<Shared>>,
}

/// State that the device shares with its tasks.
struct Shared {
    uri: Uri,
    /// Certificates, if the URI has TLS. They are read once.
    tls: Option<ClientTls>,
    settings: Settings,
    offer: Offer,
    /// Properties of the device. Its size is that of the last connection.
    info: RefCell<DeviceInfo>,
    session: Session,
    /// Current connections; none while the server is away.
    links: RefCell<Vec<Rc<Link>>>,
}

impl NbdDevice {
    /// Connects to the export that `uri` names, once.
    ///
    /// # Errors
    /// - `Disconnected` if the server does not answer.
    /// - `NotFound` if the server has no such export.
    /// - `Permission` if the server denies access or requires TLS, or if a certificate is refused.
    /// - `Unsupported` or `InvalidInput` if the server does not speak the protocol as this device
    ///   does.
    /// - `TimedOut` if the connection takes longer than [`Times::answer`].
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn connect(uri: &Uri) -> Result<Rc<Self>> {
        Self::connect_with(uri, Settings::default()).await
    }

    /// Like [`NbdDevice::connect`], with other settings.
    ///
    /// # Errors
    /// As for [`NbdDevice::connect`].
    ///
    /// # Panics
    /// As for [`NbdDevice::connect`], or if the number of connections is out of range.
    pub async fn connect_with(uri: &Uri, settings: Settings) -> Result<Rc<Self>> {
        assert!(
            (1..=MAX_CONNECTIONS).contains(&settings.connections),
            "a number of connections that was checked"
        );
        let tls = uri.tls.as_ref().map(line::read_certificates).transpose();
        let tls = tls.context(|| format!("TLS to NBD server {uri}"))?;
        let made = reconnect::connect_in_time(uri, tls.as_ref(), settings).await;
        let made = made.map_err(|error| {
            let what = format!("NBD server {uri}\nhelp: start the server, or name another one");
            error.context(what)
        })?;
        let offer = made.offer;
        let block = offer.blocks.minimum_bytes;
        let name = uri.to_string();
        let size_bytes = offer.whole_bytes();
        let info = DeviceInfo {
            logical_block_bytes: block,
            physical_block_bytes: offer.blocks.preferred_bytes.max(block),
            volatile_cache: offer.has(export::SEND_FLUSH),
            fua: offer.has(export::SEND_FUA),
            discard: offer.has(export::SEND_TRIM),
            identity: identity(uri),
            ..DeviceInfo::new(name.clone(), size_bytes)
        };
        let connections = u16::try_from(made.lines.len()).expect("at most 16");
        if connections < settings.connections {
            tracing::warn!(
                "NBD server {name} does not allow several connections at once: one is used"
            );
        }
        if !info.volatile_cache && !offer.has(export::READ_ONLY) {
            tracing::warn!(
                "NBD server {name} offers no flush: a write counts as durable with its answer"
            );
        }
        let times = settings.times;
        let rules = Rules {
            size_bytes,
            volatile_cache: info.volatile_cache,
            depth: DEPTH * connections,
            patience: times.patience,
            pause: times.pause,
            silence: Duration::ZERO,
            quarantine: times.quarantine,
        };
        let shared = Rc::new(Shared {
            uri: uri.clone(),
            tls,
            settings: Settings {
                connections,
                ..settings
            },
            offer,
            info: RefCell::new(info),
            session: Session::new("NBD server", name, rules),
            links: RefCell::default(),
        });
        rt::spawn(reconnect::stay_connected(Rc::clone(&shared), made));
        let device = Rc::new(Self {
            shared: Rc::new(CloseOnDrop(Rc::clone(&shared))),
        });
        // This device has no copies of the changes that an earlier process left unflushed. If the
        // server lost them, a later flush would still succeed, and clients of that process may live
        // on. The flush here covers those changes, or reports that they may be lost.
        if rules.volatile_cache && !device.read_only() {
            shared.session.judge_first_flush(device.flush().await);
        }
        Ok(device)
    }

    /// Returns whether the export is read-only.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.offer.has(export::READ_ONLY)
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn connections(&self) -> u16 {
        self.shared.settings.connections
    }

    /// Returns the number of times that the connections were lost so far.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.session.losses()
    }

    fn limits(&self) -> RequestLimits {
        let offer = &self.shared.offer;
        let block = offer.blocks.minimum_bytes;
        let most = offer.blocks.maximum_bytes.min(MAX_PAYLOAD_BYTES) / block * block;
        RequestLimits {
            read_only: self.read_only(),
            data_bytes: u64::from(most.max(block)),
            zeroes_bytes: match offer.has(export::SEND_WRITE_ZEROES) {
                true => ZEROES_BYTES.min(LONGEST_BYTES),
                false => 0,
            },
        }
    }
}

/// Returns the identity of an export: its URI. No property of the export itself identifies it. The
/// server's address is another number of the same medium.
fn identity(uri: &Uri) -> Identity {
    let number = |server: &str| hash(format!("{server}/{}", uri.export).bytes()).max(1);
    Identity {
        alias: number(&uri.address.to_string()),
        basis: Basis::Address,
        ..Identity::of(number(&uri.server))
    }
}

impl BlockDevice for NbdDevice {
    fn info(&self) -> DeviceInfo {
        self.shared.info.borrow().clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let handle = || Self {
            shared: Rc::clone(&self.shared),
        };
        let info = self.shared.info.borrow();
        let whole = self.limits().admit(&info, request, done, handle);
        drop(info);
        if let Some((request, done)) = whole {
            self.shared.submit(request, done);
        }
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(self.shared.extents(range))
    }
}

impl std::fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdDevice")
            .field("server", &self.shared.session.name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn submit(self: &Rc<Self>, request: Request, done: Completion) {
        let connected = !self.links.borrow().is_empty();
        self.session.submit(request, done, connected);
        self.pump();
    }

    /// Returns the allocation of `range` by the server. Everything is data if the server does not
    /// say, and while it is away. A query is sent like a read: behind changes that are sent again,
    /// and once more after a loss.
    async fn extents(self: &Rc<Self>, range: Range<u64>) -> Result<Extents> {
        let answers = |link: &Rc<Link>| link.allocation.is_some();
        if !self.links.borrow().first().is_some_and(answers) {
            return Ok(Extents::data(range));
        }
        let asked = range.start..range.end.min(range.start + LONGEST_BYTES);
        let found = status::Answer::default();
        let (done, answered) = completion_pair();
        let query = Pending::query(&asked, Rc::clone(&found), done);
        self.session.queue(query, true);
        self.pump();
        answered.await?;
        let found = found.take().expect("a query succeeds with an answer");
        Ok(found.in_blocks(self.offer.blocks.minimum_bytes.into()))
    }

    /// Sends queued requests while slots are free.
    fn pump(self: &Rc<Self>) {
        let links = self.links.borrow();
        if links.is_empty() {
            return;
        }
        let now = rt::now();
        loop {
            let seated = self.session.slots.borrow_mut().assign_slot(now);
            let Some(cid) = seated else { break };
            // The slot decides, so that an answer on another connection is recognised.
            links[Slots::place_number(cid) % links.len()].send(self, cid);
        }
    }

    /// Ends the queued queries for extents, which the server does not answer any more.
    fn refuse_queries(&self) {
        let is_query = |pending: &Pending| pending.extents.is_some();
        let queries = self.session.slots.borrow_mut().take_waiting(is_query);
        for query in queries {
            query.done.complete(Err(ErrorKind::Unsupported.into()));
        }
    }
}

impl Close for Shared {
    fn close(&self) {
        self.session.close();
        if let Some(link) = self.links.borrow().first() {
            link.group.changed.wake_all();
        }
    }
}
