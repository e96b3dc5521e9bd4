//! Interface for programs: read, write, map, flush and close on a [`Node`], from any thread.
//!
//! Page contents are not sent: a read copies out of the page's frame, a write stores into it, and a
//! view is the frame itself. Only a change of the right to use a frame goes to the directory,
//! through a [`Link`].

mod acquire;
mod alone;
mod effects;
mod emulated;
mod fills;
mod flush_all;
mod io;
mod locked;
mod membership;
mod reading;
mod seen_losses;
mod throttle;
mod unsynced;
mod view;
mod write;
mod write_back;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};

use crate::message::{Access, LockRange, PageId, ToDirectory};
use crate::node::{Acquired, Config, Counts, Effect, Node, Ticket};
use crate::segment::Segment;
use crate::store::Store;
use alone::Turns;
pub use emulated::Emulated;
use fills::Filler;
pub use flush_all::{FlushedAll, NAMED_MAX};
use io::Jobs;
pub use locked::Held;
use locked::{Deferred, Locked, Signal, Waiter};
pub use reading::{Begun, Waiting};
pub use seen_losses::SeenLosses;
use throttle::DirtyLimits;
pub use throttle::Throttle;
use unsynced::Unsynced;
pub use view::View;
use write_back::Found;

/// Pause of a program between two attempts, after it has tried for longer than any store takes.
const GIVE_WAY: Duration = Duration::from_micros(100);

/// Connection to the directory.
pub trait Link {
    /// Sends a packet after all earlier ones. It queues and does not wait for the other side: the
    /// directory may be waiting for this node.
    ///
    /// # Errors
    /// If the connection is gone.
    fn send(&self, packet: &[u8]) -> Result<()>;

    /// Passes queued packets to the system, if [`Link::send`] does not. It does not wait for the
    /// other side. It is called soon after each packet, when the node is not locked.
    fn flush(&self) {}
}

/// A node with its memory, its store and its connection to the directory. Threads of the caller
/// run [`Client::receive`] and [`Client::run_io`], and one may run [`Client::run_fills`].
#[derive(Debug)]
pub struct Client<S, L> {
    state: Mutex<State>,
    /// Notified of progress. Operations on pages have their own [`Waiter`].
    changed: Signal,
    /// Notified of requested I/O.
    requested: Signal,
    /// Notified of requested flushes of all files.
    flush_requested: Signal,
    /// Notified of more dirty pages than the background limit.
    dirtied: Signal,
    /// The thread of [`Client::run_fills`], if there is one.
    filler: OnceLock<Filler>,
    segment: Arc<Segment>,
    store: S,
    link: L,
    turns: Turns,
    emulated: Option<Emulated>,
    /// Longest wait of an operation for a page, or for the end of a flush or close.
    limit: Option<Duration>,
}

#[derive(Debug)]
struct State {
    node: Node,
    next_ticket: Ticket,
    /// Results of operations that are waited for: retry (`None`), or the end and whether it
    /// succeeded.
    outcomes: BTreeMap<Ticket, Option<bool>>,
    /// Operations that wait, but for syncs.
    waiters: BTreeMap<Ticket, Waiter>,
    deferred: Deferred,
    effects: Vec<Effect>,
    messages: Vec<ToDirectory>,
    packet: Vec<u8>,
    jobs: Jobs,
    /// Files with writes in the store that may not be durable.
    unsynced: Unsynced,
    dirty_limits: DirtyLimits,
    found: Found,
    /// Whether threads that flush or write back end.
    flushes_are_over: bool,
    /// Error that all operations return, once the client is broken.
    broken: Option<Error>,
}

impl<S: Store, L: Link> Client<S, L> {
    /// Creates a node that joins the cluster.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn new(config: Config, segment: Arc<Segment>, store: S, link: L) -> Result<Self> {
        let mut effects = Vec::new();
        let node = Node::new(config, &mut effects);
        let state = State {
            node,
            next_ticket: 0,
            outcomes: BTreeMap::new(),
            waiters: BTreeMap::new(),
            deferred: Deferred::default(),
            effects,
            messages: Vec::new(),
            packet: Vec::new(),
            jobs: Jobs::default(),
            unsynced: Unsynced::default(),
            dirty_limits: DirtyLimits::NONE,
            found: Found::default(),
            flushes_are_over: false,
            broken: None,
        };
        let client = Self {
            state: Mutex::new(state),
            changed: Signal::default(),
            requested: Signal::default(),
            flush_requested: Signal::default(),
            dirtied: Signal::default(),
            filler: OnceLock::new(),
            segment,
            store,
            link,
            turns: Turns::default(),
            emulated: None,
            limit: None,
        };
        client.act(&mut client.lock_state())?;
        Ok(client)
    }

    /// Makes other nodes' memory as slow as `emulated` for copies by [`Client::read`] and
    /// [`Client::write`]. Views stay as fast as this machine.
    #[must_use]
    pub fn with_emulated(self, emulated: Option<Emulated>) -> Self {
        Self { emulated, ..self }
    }

    /// Lets an operation fail as `TimedOut` that waits for longer than `limit` for the store or the
    /// directory. A flush fails if no page of it is stored for so long. Locks have no limit.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        let limit = Some(limit);
        Self { limit, ..self }
    }

    /// Reads a whole page.
    ///
    /// # Errors
    /// Errors of the store, `TimedOut` after the limit, or `Disconnected`.
    ///
    /// # Panics
    /// If `out` does not have the length of a page.
    pub fn read(&self, page: PageId, out: &mut [u8]) -> Result<()> {
        assert_eq!(
            out.len(),
            self.segment.page_size_bytes(),
            "a page is read whole"
        );
        loop {
            let mut state = self.lock_state();
            match self.acquire_copy(&mut state, page)? {
                (Acquired::Mapped(place), _) => {
                    let slow = self.slow(&state, place);
                    drop(state);
                    match self.segment.read(place, out) {
                        Ok(_) => {
                            slow.inspect(|emulated| emulated.spend(out.len()));
                            return Ok(());
                        }
                        Err(found) => Self::give_way(found),
                    }
                }
                (Acquired::Unpublished, _) => {
                    let bytes = state
                        .node
                        .unpublished(page)
                        .expect("the node has just said so");
                    out.copy_from_slice(bytes);
                    return Ok(());
                }
                (Acquired::Wait, ticket) => self.wait(state, page, ticket)?,
            }
        }
    }

    /// Looks up pages of a file that are about to be read, with one packet. It does not wait. At
    /// most an eighth of the cluster's frames is requested at once.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn look_up_range(&self, inode: u64, pages: Range<u64>) -> Result<()> {
        let most = u64::from(self.segment.frames() / 8).max(1);
        let end = pages.end.min(pages.start.saturating_add(most));
        let mut state = self.lock_state();
        let State { node, effects, .. } = &mut *state;
        node.look_up_range(inode, pages.start..end, effects);
        self.act(&mut state)
    }

    /// Returns a view of the page's only copy. The page stays there while the view lives, and
    /// stores of other programs are visible.
    ///
    /// # Errors
    /// Errors of the store, `TimedOut` after the limit, or `Disconnected`. `Busy` if this node has
    /// the page unpublished.
    pub fn map(&self, page: PageId) -> Result<View<'_, S, L>> {
        loop {
            let mut state = self.lock_state();
            match self.acquire(&mut state, page, Access::Read)? {
                (Acquired::Mapped(place), _) => {
                    state.node.pin(page);
                    let client = self;
                    return Ok(View {
                        client,
                        page,
                        place,
                    });
                }
                (Acquired::Unpublished, _) => {
                    let context = format!(
                        "a view of {}: it is not published: close or flush its file first",
                        self.named(page)
                    );
                    return Err(Error::new(ErrorKind::Busy, context));
                }
                (Acquired::Wait, ticket) => self.wait(state, page, ticket)?,
            }
        }
    }

    /// Makes this node's writes to the file durable in the store.
    ///
    /// # Errors
    /// - `Lost` if the store refused a write, or a node died that held one. Each loss is reported
    ///   once.
    /// - `TimedOut` if no page of it was stored for longer than the limit. The data stays in memory
    ///   and is written back later. A loss stays for the next flush.
    /// - `Disconnected`.
    pub fn fsync(&self, inode: u64) -> Result<()> {
        self.lock_state().unsynced.insert(inode);
        self.sync(inode, "fsync", Node::fsync)?;
        self.sync_store(inode)
    }

    /// Returns the connection to the directory.
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// Returns the memory of all nodes.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Publishes this node's writes to the file: other nodes see them when this returns. Does
    /// nothing if all are visible, as with [`Consistency::Strong`](crate::node::Consistency).
    ///
    /// # Errors
    /// `TimedOut` after the limit, or `Disconnected`.
    pub fn publish(&self, inode: u64) -> Result<()> {
        let is_needed = self.lock_state().node.has_unpublished(inode);
        match is_needed {
            true => self.sync(inode, "publication", Node::publish),
            false => Ok(()),
        }
    }

    /// Publishes all nodes' writes to the file that were complete before this call: no node has
    /// them alone when this returns. It costs no message while all nodes write with
    /// [`Consistency::Strong`](crate::node::Consistency).
    ///
    /// # Errors
    /// As for [`Client::publish`].
    pub fn publish_everywhere(&self, inode: u64) -> Result<()> {
        self.publish(inode)?;
        let id = self.lock_state().node.id();
        match self.segment.others_are_relaxed(id) {
            true => self.sync(inode, "publication", Node::publish_all),
            false => Ok(()),
        }
    }

    /// Publishes this node's writes to the file, and ends its read-ahead.
    ///
    /// # Errors
    /// `TimedOut` after the limit, or `Disconnected`.
    pub fn close(&self, inode: u64) -> Result<()> {
        self.sync(inode, "close", Node::close)
    }

    /// Runs `body` while a range of pages is locked.
    ///
    /// # Errors
    /// `Disconnected`, or errors of `body`.
    pub fn locked<T>(&self, range: LockRange, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = self.lock_state();
        let ticket = state.ticket();
        let State { node, effects, .. } = &mut *state;
        node.lock(range, ticket, effects);
        self.act(&mut state)?;
        self.outcome(state, ticket, None)?;
        let result = body();
        let mut state = self.lock_state();
        let State { node, effects, .. } = &mut *state;
        node.unlock(ticket, effects);
        self.act(&mut state)?;
        result
    }

    /// Returns the node's counters.
    pub fn counts(&self) -> Counts {
        self.lock_state().node.counts()
    }

    fn sync(
        &self,
        inode: u64,
        what: &str,
        begin: impl FnOnce(&mut Node, u64, Ticket, &mut Vec<Effect>),
    ) -> Result<()> {
        let mut state = self.lock_state();
        let ticket = state.ticket();
        let State { node, effects, .. } = &mut *state;
        begin(node, inode, ticket, effects);
        self.act(&mut state)?;
        match self.synced(state, ticket) {
            Ok(Some(false)) => Err(self.lost(inode, what)),
            Ok(Some(true) | None) => Ok(()),
            Err(error) => Err(named(error, || {
                format!("{what} of {}", self.store.name(inode))
            })),
        }
    }

    /// Waits until an operation on a page may continue.
    fn wait<'a>(&'a self, state: Locked<'a, S, L>, page: PageId, ticket: Ticket) -> Result<()> {
        self.ended(self.outcome(state, ticket, self.limit), page)
    }

    /// Returns the result of an operation on a page from its outcome: whether it may continue.
    fn ended(&self, outcome: Result<Option<bool>>, page: PageId) -> Result<()> {
        match outcome {
            Ok(Some(false)) => {
                let context = format!("{}: the store could not read it", self.named(page));
                Err(Error::new(ErrorKind::Io, context))
            }
            Ok(Some(true) | None) => Ok(()),
            Err(error) => Err(named(error, || self.named(page))),
        }
    }

    fn named(&self, page: PageId) -> String {
        format!("page {} of {}", page.index, self.store.name(page.inode))
    }

    /// Waits for the outcome of an operation.
    fn outcome<'a>(
        &'a self,
        mut state: Locked<'a, S, L>,
        ticket: Ticket,
        patience: Option<Duration>,
    ) -> Result<Option<bool>> {
        let begin = Instant::now();
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return Ok(outcome);
            }
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let left = patience.map(|patience| patience.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                state.waiters.remove(&ticket);
                state.node.cancel(ticket);
                return Err(not_in_time());
            }
            let waiter = Waiter::Thread(std::thread::current());
            state.waiters.insert(ticket, waiter);
            drop(state);
            match left {
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
            state = self.lock_state();
        }
    }

    /// Waits for the outcome of a flush, write-back or close. One of many pages may take long, as
    /// long as the store accepts some of them.
    fn synced<'a>(&'a self, mut state: Locked<'a, S, L>, ticket: Ticket) -> Result<Option<bool>> {
        let mut begin = Instant::now();
        let mut awaited_pages = state.node.awaited_pages(ticket);
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return Ok(outcome);
            }
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let still_awaited = state.node.awaited_pages(ticket);
            if std::mem::replace(&mut awaited_pages, still_awaited) != still_awaited {
                begin = Instant::now();
            }
            let left = self
                .limit
                .map(|limit| limit.saturating_sub(begin.elapsed()));
            state = match left {
                None => state.wait(&self.changed),
                Some(Duration::ZERO) => {
                    state.node.cancel(ticket);
                    return Err(not_in_time());
                }
                Some(left) => state.wait_timeout(&self.changed, left),
            };
        }
    }

    fn lock_state(&self) -> Locked<'_, S, L> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked::new(self, state)
    }
}

impl State {
    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }
}

/// Adds a name to an error if it is `TimedOut`.
fn named(error: Error, name: impl FnOnce() -> String) -> Error {
    match error.kind() {
        ErrorKind::TimedOut => error.context(name()),
        _ => error,
    }
}

fn not_in_time() -> Error {
    let context = "page cache: the source or the directory has not answered in time";
    Error::new(ErrorKind::TimedOut, context)
}
