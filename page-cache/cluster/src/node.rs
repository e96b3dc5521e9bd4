//! Process of a node: joining, rejoining a restarted directory, and leaving.

mod options;
mod stop;
mod threads;
mod write_back;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_pagecache::client::{Client, Link};
use forebay_pagecache::message::{NodeId, ToDirectory, ToNode};
use forebay_pagecache::node::{self, Counts};
use forebay_pagecache::protocol::{Packet, encode, encode_empty};
use forebay_pagecache::store::Store;

use crate::claim::Claim;
use crate::link::{DirectoryLink, Incoming, Outgoing};
use crate::pool::Pool;
use crate::tree::Tree;
pub use options::{Options, Replicas, WriteBack};
use stop::Stop;
use threads::{join_all, start};
pub use write_back::THROTTLE_MAX;
use write_back::write_back_expired;

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Longest wait for pages to leave a node that leaves.
const FAREWELL: Duration = Duration::from_secs(10);

/// Longest wait for a directory's first message.
const GREETING: Duration = Duration::from_secs(5);

/// Number of copies of a page from another node's memory after which a replica is requested. A
/// replica costs one more copy, and a message each way.
const REPLICATE_AFTER: u32 = 4;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// A node of the cluster, in this process. When it and all its files are dropped, it leaves: its
/// pages are written to the store, and none is lost.
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<Inner>,
    frames: u32,
}

/// State that a node and its files share.
#[derive(Debug)]
pub(crate) struct Inner<S: Store = Tree> {
    client: Arc<Client<S, DirectoryLink>>,
    stop: Arc<Stop>,
    /// Threads that read and write the source and the frames.
    io_threads: Vec<JoinHandle<()>>,
    /// All other threads.
    threads: Vec<JoinHandle<()>>,
    pool: Pool,
    session: u64,
    /// Whether all pages in its memory had left it when the node ended.
    has_left: Arc<AtomicBool>,
    /// Time of the write-back of a closed file.
    pub(crate) write_back: WriteBack,
    /// Claim on the source, until all work of the node there has ended.
    _claim: Option<Claim>,
}

impl Node {
    /// Joins the cluster of a pool.
    ///
    /// # Errors
    /// - `NotFound` if there is no directory.
    /// - `Permission` if the directory refuses this node, with the reason.
    /// - `NoSpace` if the pool has no room for its memory.
    /// - `TimedOut`, or errors of the system.
    pub fn join(options: Options) -> Result<Self> {
        let (inner, frames) = join(options, Tree::new)?;
        Ok(Self { inner, frames })
    }

    /// Returns the number of offered frames that the directory accepted, within its budget.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the state that its files share with it.
    pub(crate) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    /// Leaves before the end of the process. Unlike a drop of the node, it waits for other threads
    /// that use its files. No files may be opened meanwhile. Returns false if the node has not left
    /// in time: then it ends with pages in its memory, and the log has the reason.
    #[must_use]
    pub fn leave(self) -> bool {
        let begin = Instant::now();
        while Arc::strong_count(&self.inner) > 1 {
            if begin.elapsed() > FAREWELL {
                tracing::warn!(
                    "page cache: a node ends with the pages in its memory: its files were in use \
                     for {FAREWELL:?} after the request to leave"
                );
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_left = self.inner.has_left();
        drop(self);
        has_left.load(Ordering::Acquire)
    }

    /// Returns the node's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.client.counts()
    }

    /// Returns the error that all operations return, if the node is broken.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        self.inner.client.broken()
    }
}

/// Joins with the store that `store` creates for the source.
pub(crate) fn join<S: Store + Send + Sync + 'static>(
    options: Options,
    store: impl FnOnce(&Path, &Pool) -> Result<S>,
) -> Result<(Arc<Inner<S>>, u32)> {
    let pool = Pool::new(&options.pool)?;
    let id = options.id;
    let begin = Instant::now();
    let mut said = false;
    let (incoming, outgoing, session) = loop {
        match connect(&pool, id, 0) {
            Ok(connection) => break connection,
            Err(error) if begin.elapsed() > options.patience => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        "page cache, {id}: waiting {:?} for a directory: {}",
                        options.patience,
                        error.report()
                    );
                }
                std::thread::sleep(RETRY);
            }
        }
    };
    // Read after the directory's message, since the directory has written them.
    let settled = settled(&pool)?;
    let coherence = options.coherence.of_segment()?;
    let frames = pool.join_frames(settled.pages)?;
    let segment = Arc::new(frames.with_coherence(coherence));
    let source = Path::new(&settled.source);
    let claim = match std::fs::canonicalize(source) {
        // It is a device that this process opens by another path, and only reads.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        path => {
            let path = path.context(|| format!("source {}", source.display()))?;
            Some(Claim::take(&path, &pool)?)
        }
    };
    let store = store(source, &pool)?;
    let link = DirectoryLink::default();
    link.open(outgoing);
    let config = node::Config {
        node: id,
        consistency: options.consistency,
        frames: options.pages,
        unpublished_pages: options.unpublished_pages,
        read_ahead_pages: options.read_ahead_pages,
        replicate_after: match options.replicas {
            Replicas::None => 0,
            Replicas::Idle => REPLICATE_AFTER,
        },
    };
    let client = Client::new(config, segment, store, link)?;
    let client = client
        .with_emulated(options.emulated)
        .with_limit(options.limit);
    let client = Arc::new(client);
    let stop = Arc::new(Stop::default());
    let patience = options.patience;
    let listener = Listener {
        client: Arc::clone(&client),
        stop: Arc::clone(&stop),
        pool,
        id,
        session,
        patience,
    };
    let (beating, until) = (Arc::clone(&client), Arc::clone(&stop));
    let began = Instant::now();
    let mut threads = vec![
        start("pagecache-in", move || listener.run(incoming))?,
        start("pagecache-alive", move || {
            say_alive(&beating, id, began, &until)
        })?,
    ];
    let (writing, until) = (Arc::clone(&client), Arc::clone(&stop));
    let (expiry, dirty_pages) = (options.expiry, options.dirty_pages);
    client.limit_dirty(dirty_pages, THROTTLE_MAX);
    let write_back = move || write_back_expired(&writing, began, expiry, dirty_pages, &until);
    threads.push(start("pagecache-clean", write_back)?);
    let flushing = Arc::clone(&client);
    threads.push(start("pagecache-flush", move || flushing.run_flushes())?);
    let filling = Arc::clone(&client);
    let mut io_threads = vec![start("pagecache-fill", move || filling.run_fills())?];
    for _ in 0..options.io_threads.max(1) {
        let client = Arc::clone(&client);
        io_threads.push(start("pagecache-io", move || client.run_io())?);
    }
    let inner = Arc::new(Inner {
        client,
        stop,
        io_threads,
        threads,
        pool: Pool::new(&options.pool)?,
        session,
        has_left: Arc::default(),
        write_back: options.write_back,
        _claim: claim,
    });
    let frames = inner.client.wait_joined(patience)?;
    // It cannot change from now on. Before, another directory may have started that knew no node.
    if self::settled(&inner.pool)? != settled {
        let context = format!(
            "{id}: the directory was restarted with another source, capacity or mapped directories \
             during the join: join again"
        );
        return Err(Error::new(ErrorKind::Busy, context));
    }
    if frames == 0 && options.pages > 0 {
        let context = format!(
            "{id}: the capacity of the pool {} is taken\n\
             help: run the directory with more, or the other nodes with less memory",
            options.pool.display()
        );
        return Err(Error::new(ErrorKind::NoSpace, context));
    }
    if frames < options.pages {
        tracing::warn!(
            "page cache, {id}: the pool has room for {frames} pages of {} that are offered",
            options.pages
        );
    }
    Ok((inner, frames))
}

impl<S: Store> Inner<S> {
    pub(crate) const fn client(&self) -> &Arc<Client<S, DirectoryLink>> {
        &self.client
    }

    /// Returns whether all pages in its memory had left it, once the node has ended.
    pub(crate) fn has_left(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_left)
    }
}

impl Inner {
    /// Notes that a file opened in the tree was closed.
    pub(crate) fn closed(&self, inode: u64) {
        let store = self.client.store();
        store.close(inode, || self.resident());
    }

    /// Notes that a name of a file was removed.
    pub(crate) fn lost_name(&self, inode: u64) {
        let store = self.client.store();
        store.lost_name(inode, || self.resident());
    }

    /// Returns the inodes of which frames may hold pages.
    fn resident(&self) -> BTreeSet<u64> {
        let segment = self.client.segment();
        // A fill that has read the store has named its page before.
        fence(Ordering::SeqCst);
        let pages = (0..segment.frames()).filter_map(|frame| segment.page_in(frame));
        pages.map(|page| page.inode).collect()
    }
}

impl<S: Store> Drop for Inner<S> {
    fn drop(&mut self) {
        // It never joined, or is not a member any more: no other node waits for any part of it.
        let refused = |error: &Error| error.kind() == ErrorKind::Permission;
        let refused = self.client.broken().as_ref().is_some_and(refused);
        let left = match self.client.broken() {
            Some(error) => Err(error),
            None => self.client.leave(FAREWELL),
        };
        // The directory gives the frames that this node uses to others when the connection ends, or
        // the leave is recorded. So all I/O ends before.
        self.client.end_io();
        join_all(&mut self.io_threads);
        // The directory may be killed before it sees the end of the connection. The next one would
        // count this node as alive and have its process ended. So the leave is recorded first.
        let said = left.is_ok().then(|| self.pool.say_left(self.session));
        self.stop.set();
        self.client.link().close();
        self.client.end_flushes();
        // A write-back may be waiting for the directory.
        let context = "page cache: this node has left";
        self.client
            .disconnect(Error::new(ErrorKind::ShuttingDown, context));
        join_all(&mut self.threads);
        self.has_left
            .store(refused || left.is_ok(), Ordering::Release);
        if refused {
            return;
        }
        if let Err(error) = left {
            tracing::warn!(
                "page cache: a node ends with the pages in its memory: {}",
                error.report()
            );
        }
        // If not everything was written, the leave is recorded only now that all work has ended.
        let said = said.unwrap_or_else(|| self.pool.say_left(self.session));
        if let Err(error) = said {
            tracing::error!("page cache: {}", error.report());
        }
    }
}

/// Settings that directory processes do not change while they know of nodes.
#[derive(PartialEq, Eq)]
struct Settled {
    source: String,
    pages: u32,
    mapped: Vec<u8>,
}

fn settled(pool: &Pool) -> Result<Settled> {
    let nodes = pool.load()?;
    let nodes = nodes.ok_or_else(|| Error::from(ErrorKind::NotFound))?;
    Ok(Settled {
        source: nodes.source,
        pages: nodes.pages,
        mapped: pool.load_mapped()?,
    })
}

/// Heartbeats have a thread of their own, so that a slow store does not count as a death.
fn say_alive<S: Store>(client: &Client<S, DirectoryLink>, id: NodeId, began: Instant, stop: &Stop) {
    let mut packet = Vec::new();
    encode_empty::<ToDirectory>(id, &mut packet);
    loop {
        // The listener handles a lost link.
        if !client.say_alive(began.elapsed()).unwrap_or(true) {
            let _ = client.link().send(&packet);
            client.link().flush();
        }
        if stop.sleep(HEARTBEAT) {
            return;
        }
    }
}

/// Connects and identifies the node. Returns the directory's number of this connection.
fn connect(pool: &Pool, id: NodeId, session: u64) -> Result<(Incoming, Outgoing, u64)> {
    let socket = pool.socket();
    let stream = UnixStream::connect(&socket).map_err(|error| {
        let context = format!(
            "no directory answers on {}\nhelp: start one with `forebay pagecache directory`",
            socket.display()
        );
        Error::with_source(ErrorKind::NotFound, context, error)
    })?;
    stream.set_read_timeout(Some(GREETING))?;
    let mut incoming = Incoming::new(stream.try_clone()?);
    let mut first = None;
    let received = incoming.packets::<ToNode>(|bytes| {
        let packet = Packet::<ToNode>::decode(bytes).ok().flatten();
        first = packet.and_then(|packet| packet.messages().next());
    });
    let received = received.context(|| {
        let socket = socket.display();
        format!("page cache: no greeting of the directory on {socket} in {GREETING:?}")
    })?;
    let Some(Ok(ToNode::Hello { nonce })) = first.filter(|_| received) else {
        let context = "page cache: the peer is not a directory of this version";
        return Err(Error::new(ErrorKind::Disconnected, context));
    };
    let mut hello = Vec::new();
    encode(id, &[ToDirectory::Hello { nonce, session }], &mut hello);
    (&stream).write_all(&hello)?;
    stream.set_read_timeout(None)?;
    Ok((incoming, Outgoing::new(stream)?, nonce))
}

/// Receives from the directory, and connects to the next one when it is gone.
struct Listener<S> {
    client: Arc<Client<S, DirectoryLink>>,
    stop: Arc<Stop>,
    pool: Pool,
    id: NodeId,
    session: u64,
    patience: Duration,
}

impl<S: Store> Listener<S> {
    fn run(self, mut incoming: Incoming) {
        let mut has_rejoined = false;
        loop {
            match self.receive(&mut incoming) {
                Ok(()) => {}
                Err(mut error) => {
                    if has_rejoined {
                        let pool = self.pool.path().display();
                        error = error.context(format!("rejoining the directory of {pool}"));
                    }
                    tracing::error!("page cache: {}", error.report());
                    self.client.link().close();
                    self.client.disconnect(error);
                    return;
                }
            }
            self.client.link().close();
            match self.rejoin() {
                Ok(Some(next)) => (incoming, has_rejoined) = (next, true),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("page cache: {}", error.report());
                    self.client.disconnect(error);
                    return;
                }
            }
        }
    }

    /// Receives until the connection ends.
    fn receive(&self, incoming: &mut Incoming) -> Result<()> {
        loop {
            let mut taken = Ok(0);
            let more = incoming.packets::<ToNode>(|bytes| taken = self.client.receive(bytes));
            taken?;
            match more {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error),
                // A broken connection counts as its end.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Waits for the next directory and reports the node's state to it. Returns `None` if this node
    /// leaves.
    fn rejoin(&self) -> Result<Option<Incoming>> {
        let (begin, mut said) = (Instant::now(), false);
        while !self.stop.is_set() {
            match connect(&self.pool, self.id, self.session) {
                Ok((incoming, outgoing, _)) => {
                    self.client.rejoin(|link| link.open(outgoing))?;
                    return Ok(Some(incoming));
                }
                Err(_) if !said => {
                    said = true;
                    tracing::warn!(
                        "page cache, {}: the directory of the pool {} has ended: mapped pages stay \
                         usable, other requests wait {:?}\n    \
                         help: start it with the same capacity and source",
                        self.id,
                        self.pool.path().display(),
                        self.patience
                    );
                }
                Err(error) if begin.elapsed() > self.patience => {
                    let context = format!("the directory is gone for {:?}", self.patience);
                    return Err(Error::with_source(ErrorKind::Disconnected, context, error));
                }
                Err(_) => {
                    self.stop.sleep(RETRY);
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
