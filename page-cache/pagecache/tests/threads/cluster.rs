//! A cluster in one process: a thread for the directory and one for each node's connection, packets
//! on channels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_pagecache::client::{Client, Link};
use forebay_pagecache::directory::{self, Directory, Outbox};
use forebay_pagecache::message::{NodeId, PageId, ToDirectory, ToNode};
use forebay_pagecache::node::{self, Consistency};
use forebay_pagecache::protocol::{Packet, encode};
use forebay_pagecache::segment::Segment;
use forebay_pagecache::store::{Interrupt, Reads, Store};

use crate::reads::ShelfReads;

/// Threads of a node for I/O of the store.
const IO_THREADS: usize = 3;
/// Longer than any operation takes.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Pages in memory. Unwritten ones are zeroes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pages: Arc<Mutex<BTreeMap<PageId, Vec<u8>>>>,
    /// The file that does not answer, if there is one.
    pub(crate) stalled: Arc<(Mutex<Option<u64>>, Condvar)>,
    refuses: Arc<AtomicBool>,
    synced: Arc<Mutex<Vec<u64>>>,
    /// Whether the next sync fails.
    fails_once: Arc<AtomicBool>,
    /// Whether syncs wait, and the number of syncs that have begun.
    syncs: Arc<(Mutex<(bool, u64)>, Condvar)>,
    /// Time of a read.
    delay_us: Arc<AtomicU64>,
    /// Pages that cannot be read.
    unreadable: Arc<Mutex<BTreeSet<PageId>>>,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
    /// Whether it has reads that occupy no thread, and their number.
    submits: bool,
    pub(crate) submitted: Arc<AtomicU64>,
}

impl Shelf {
    /// Returns the store's content of a page.
    pub(crate) fn page(&self, page: PageId) -> Vec<u8> {
        let pages = self.pages.lock().expect("no thread panicked");
        pages.get(&page).cloned().unwrap_or_else(|| vec![0; PAGE])
    }

    /// Lets requests to this file wait, and all others continue.
    pub(crate) fn stall(&self, inode: Option<u64>) {
        let (stalled, changed) = &*self.stalled;
        *stalled.lock().expect("no thread panicked") = inode;
        changed.notify_all();
    }

    /// Refuses writes, or takes them.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Fails the next sync: the system reports a lost write once.
    pub(crate) fn fail_once(&self) {
        self.fails_once.store(true, Ordering::Relaxed);
    }

    /// Takes the files that were synced since the last call.
    pub(crate) fn synced(&self) -> Vec<u64> {
        std::mem::take(&mut self.synced.lock().expect("no thread panicked"))
    }

    /// Lets syncs wait, or continue.
    pub(crate) fn stall_syncs(&self, stalls: bool) {
        let (state, changed) = &*self.syncs;
        state.lock().expect("no thread panicked").0 = stalls;
        changed.notify_all();
    }

    /// Returns the number of syncs that have begun.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.0.lock().expect("no thread panicked").1
    }

    /// Lets each read take so long.
    pub(crate) fn slow_down(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_micros()).expect("short");
        self.delay_us.store(delay, Ordering::Relaxed);
    }

    /// Refuses reads of this page.
    pub(crate) fn refuse_read(&self, page: PageId) {
        self.unreadable
            .lock()
            .expect("no thread panicked")
            .insert(page);
    }

    /// Returns the numbers of reads and writes that the store has executed.
    pub(crate) fn requests(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.reads), count(&self.writes))
    }

    fn wait(&self, inode: u64) {
        let (stalled, changed) = &*self.stalled;
        let stalled = stalled.lock().expect("no thread panicked");
        let waited = changed.wait_while(stalled, |stalled| *stalled == Some(inode));
        drop(waited.expect("no thread panicked"));
    }
}

/// Returns a page and those behind it.
fn run(first: PageId) -> impl Iterator<Item = PageId> {
    (first.index..).map(move |index| PageId { index, ..first })
}

impl Store for Shelf {
    fn reads(&self) -> Option<(Box<dyn Reads + '_>, Interrupt)> {
        self.submits.then(|| ShelfReads::create(self))
    }

    fn read_pages(&self, first: PageId, into: &mut [u8]) -> Result<()> {
        self.wait(first.inode);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let delay = Duration::from_micros(self.delay_us.load(Ordering::Relaxed));
        std::thread::sleep(delay);
        for (page, bytes) in run(first).zip(into.chunks_exact_mut(PAGE)) {
            if self
                .unreadable
                .lock()
                .expect("no thread panicked")
                .contains(&page)
            {
                return Err(ErrorKind::Io.into());
            }
            bytes.copy_from_slice(&self.page(page));
        }
        Ok(())
    }

    fn write_pages(&self, first: PageId, from: &[u8]) -> Result<()> {
        self.wait(first.inode);
        if self.refuses.load(Ordering::Relaxed) {
            return Err(ErrorKind::NoSpace.into());
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut pages = self.pages.lock().expect("no thread panicked");
        let written = run(first).zip(from.chunks_exact(PAGE));
        pages.extend(written.map(|(page, bytes)| (page, bytes.to_vec())));
        Ok(())
    }

    fn sync(&self, inode: u64) -> Result<()> {
        let (state, changed) = &*self.syncs;
        let mut state = state.lock().expect("no thread panicked");
        state.1 += 1;
        drop(changed.wait_while(state, |(stalls, _)| *stalls));
        let mut synced = self.synced.lock().expect("no thread panicked");
        synced.push(inode);
        if self.fails_once.swap(false, Ordering::Relaxed) {
            return Err(ErrorKind::Lost.into());
        }
        Ok(())
    }
}

/// Input of the directory: a node's packet, or its death.
enum Up {
    Packet(Vec<u8>),
    Died(NodeId),
}

/// A node's way to the directory.
#[derive(Debug)]
pub(crate) struct Channel {
    up: Sender<Up>,
    sent: Arc<AtomicU64>,
    stamps: Stamps,
    flushes: AtomicU64,
}

impl Channel {
    /// Returns how often the queue was sent.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

/// Times at which packets of nodes were sent and arrived, in this order, if they are recorded.
pub(crate) type Stamps = Arc<Mutex<Option<Vec<Instant>>>>;

fn stamp(stamps: &Stamps) {
    let mut stamps = stamps.lock().expect("no thread panicked");
    if let Some(stamps) = stamps.as_mut() {
        stamps.push(Instant::now());
    }
}

impl std::fmt::Debug for Up {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("something for the directory")
    }
}

impl Link for Channel {
    fn send(&self, packet: &[u8]) -> Result<()> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        stamp(&self.stamps);
        let gone = |_| {
            Error::new(
                ErrorKind::Disconnected,
                "page cache: the directory has gone",
            )
        };
        self.up.send(Up::Packet(packet.to_vec())).map_err(gone)
    }

    fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Interface of programs.
pub(crate) type Node = Arc<Client<Shelf, Channel>>;

/// The cluster.
pub(crate) struct Cluster {
    /// Its nodes.
    pub(crate) nodes: Vec<Node>,
    /// State that they share.
    pub(crate) shelf: Shelf,
    /// Packets that nodes have sent.
    pub(crate) sent: Arc<AtomicU64>,
    /// Times at which they were sent, and at which the directory's packets arrived.
    pub(crate) stamps: Stamps,
    up: Sender<Up>,
    lost: Arc<Mutex<Vec<PageId>>>,
    /// Threads with reads in flight.
    fillers: Vec<JoinHandle<()>>,
}

impl Cluster {
    /// Returns the nodes of a cluster of two.
    ///
    /// # Panics
    /// Panics if it has another number of nodes.
    pub(crate) fn pair(&self) -> [&Node; 2] {
        let [one, other] = &self.nodes[..] else {
            panic!("{} nodes", self.nodes.len());
        };
        [one, other]
    }

    /// `nodes` nodes of `frames` frames each, in `memory` or in plain memory.
    pub(crate) fn new(
        nodes: u8,
        frames: u32,
        consistency: Consistency,
        memory: Option<Buf>,
    ) -> Self {
        Self::with_limit(nodes, frames, (consistency, LIMIT), memory)
    }

    /// The same with strong consistency, and replicas of pages that are copied twice.
    pub(crate) fn with_replicas(nodes: u8, frames: u32) -> Self {
        Self::with_options(nodes, frames, (Consistency::Strong, LIMIT, 2), None)
    }

    /// A cluster of one node whose fills occupy no thread, with a limit to the time that an
    /// operation waits.
    pub(crate) fn submitting(frames: u32, limit: Duration) -> Self {
        let shelf = Shelf {
            submits: true,
            ..Shelf::default()
        };
        let cluster = Self::of_shelf(1, frames, (Consistency::Strong, limit, 0), (None, shelf));
        // Until their thread has started, other threads fill.
        let mut page = PageId {
            inode: 1,
            index: 1 << 20,
        };
        while cluster.shelf.submitted.load(Ordering::Relaxed) == 0 {
            let read = cluster.nodes[0].read(page, &mut [0; PAGE]);
            read.expect("it is read");
            page.index += 2;
        }
        cluster
    }

    /// The same, with a limit to the time that an operation waits.
    pub(crate) fn with_limit(
        nodes: u8,
        frames: u32,
        (consistency, limit): (Consistency, Duration),
        memory: Option<Buf>,
    ) -> Self {
        Self::with_options(nodes, frames, (consistency, limit, 0), memory)
    }

    fn with_options(
        nodes: u8,
        frames: u32,
        options: (Consistency, Duration, u32),
        memory: Option<Buf>,
    ) -> Self {
        Self::of_shelf(nodes, frames, options, (memory, Shelf::default()))
    }

    fn of_shelf(
        nodes: u8,
        frames: u32,
        (consistency, limit, replicate_after): (Consistency, Duration, u32),
        (memory, shelf): (Option<Buf>, Shelf),
    ) -> Self {
        let all = u32::from(nodes) * frames;
        let memory = memory.unwrap_or_else(|| Buf::zeroed(Segment::size_bytes(all, PAGE)));
        let segment = Arc::new(Segment::new(memory, all, PAGE).expect("it fits"));
        let unpublished_pages = 4;
        let config = directory::Config {
            budget_pages: all + u32::from(nodes) * unpublished_pages,
            free_low: 2,
            free_high: frames.min(16),
            placement: directory::Placement::Node,
        };
        let (up, ups) = channel();
        let sent = Arc::new(AtomicU64::new(0));
        let mut cluster = Self {
            nodes: Vec::new(),
            shelf: shelf.clone(),
            sent: Arc::clone(&sent),
            stamps: Stamps::default(),
            up: up.clone(),
            lost: Arc::default(),
            fillers: Vec::new(),
        };
        let mut downs = Vec::new();
        for number in 0..nodes {
            let config = node::Config {
                node: NodeId::new(number).expect("few"),
                consistency,
                frames,
                unpublished_pages,
                read_ahead_pages: 8,
                replicate_after,
            };
            let (up, sent, stamps) = (up.clone(), Arc::clone(&sent), Arc::clone(&cluster.stamps));
            let comes = Arc::clone(&stamps);
            let client = Client::new(
                config,
                Arc::clone(&segment),
                Shelf {
                    // Every second node, so that both kinds meet.
                    submits: shelf.submits || number % 2 == 1,
                    ..shelf.clone()
                },
                Channel {
                    up,
                    sent,
                    stamps,
                    flushes: AtomicU64::new(0),
                },
            );
            let client = client.expect("the channel is open").with_limit(limit);
            let client = Arc::new(client);
            let (down, received) = channel();
            downs.push(down);
            cluster.nodes.push(Arc::clone(&client));
            let filling = Arc::clone(&client);
            let filler = std::thread::spawn(move || filling.run_fills());
            cluster.fillers.push(filler);
            for _ in 0..IO_THREADS {
                let client = Arc::clone(&client);
                std::thread::spawn(move || client.run_io());
            }
            std::thread::spawn(move || listen(&client, &received, &comes));
        }
        let directory = Directory::new(config).expect("a possible configuration");
        let (segment, lost) = (Arc::clone(&segment), Arc::clone(&cluster.lost));
        std::thread::spawn(move || serve(directory, &ups, downs, (&segment, &lost)));
        cluster
    }

    /// A node dies, for all that the others know.
    pub(crate) fn kill(&self, number: u8) {
        let node = NodeId::new(number).expect("few");
        self.up
            .send(Up::Died(node))
            .expect("the directory is there");
    }

    /// Waits for the end of the threads with reads in flight.
    pub(crate) fn join_fillers(self) {
        for filler in self.fillers {
            filler.join().expect("no panic");
        }
    }

    /// Pages that deaths took with them.
    pub(crate) fn lost(&self) -> Vec<PageId> {
        self.lost.lock().expect("no thread panicked").clone()
    }
}

/// Gives a node the packets that arrive for it.
fn listen(client: &Node, received: &Receiver<Vec<u8>>, stamps: &Stamps) {
    while let Ok(packet) = received.recv() {
        stamp(stamps);
        let taken = client.receive(&packet).expect("a correct directory");
        assert_eq!(taken, packet.len(), "packets come whole");
    }
    client.disconnect(Error::new(
        ErrorKind::Disconnected,
        "page cache: this node is dead",
    ));
    client.end_io();
}

/// Runs the directory. A dead node's channel is dropped.
fn serve(
    mut directory: Directory,
    ups: &Receiver<Up>,
    downs: Vec<Sender<Vec<u8>>>,
    (segment, lost): (&Segment, &Mutex<Vec<PageId>>),
) {
    let mut downs: Vec<Option<Sender<Vec<u8>>>> = downs.into_iter().map(Some).collect();
    while let Ok(up) = ups.recv() {
        let mut out = Outbox::default();
        match up {
            Up::Packet(bytes) => {
                let packet = Packet::<ToDirectory>::decode(&bytes)
                    .expect("a packet")
                    .expect("whole");
                if downs[packet.node.index()].is_none() {
                    continue;
                }
                for message in packet.messages() {
                    let message = message.expect("well-formed");
                    directory
                        .receive(packet.node, message, &mut out)
                        .expect("correct");
                }
            }
            Up::Died(node) => {
                directory.died(node, &|frame| segment.unsaved(frame), &mut out);
                downs[node.index()] = None;
            }
        }
        let gone = out.take_lost(segment);
        lost.lock().expect("no thread panicked").extend(gone);
        for (index, down) in downs.iter().enumerate() {
            let to = |(to, message): &(NodeId, ToNode)| (to.index() == index).then_some(*message);
            let messages: Vec<ToNode> = out.messages.iter().filter_map(to).collect();
            if let Some(down) = down
                && !messages.is_empty()
            {
                let mut bytes = Vec::new();
                let node = out.messages.iter().find(|(to, _)| to.index() == index);
                encode(node.expect("it has messages").0, &messages, &mut bytes);
                // A node that is shut down receives nothing.
                let _ = down.send(bytes);
            }
        }
    }
}
