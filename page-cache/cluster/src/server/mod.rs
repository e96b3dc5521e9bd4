//! The directory process: a thread for each connection, which decides on the messages of its node,
//! and one for all other inputs.
//!
//! A node is declared dead only after its process has ended: its stores and writes have ended then.
//! The directory has the kernel end a node that is silent for longer than its lease, or does not
//! acknowledge an invalidation. The same holds for a node that closes its connection without a
//! request to leave, or sends a message that no correct node sends.

mod checks;
mod clock;
mod connection;
mod flush;
mod input_loop;
mod losses;
mod peers;
mod report;
mod rescue;
mod running;
#[cfg(test)]
mod tests;
mod undo;

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::process::Process;
use forebay_io::system;
use forebay_pagecache::directory::{self, Directory, Outbox, Placement, Share};
use forebay_pagecache::message::{NodeId, PageId, ToDirectory, ToNode};
use forebay_pagecache::protocol::{Packet, encode};
use forebay_pagecache::segment::Segment;

use crate::PAGE_BYTES;
use crate::claim::{Claim, record};
use crate::pool::{Known, Nodes, Pool};
use crate::{mapped, second_names};
use checks::{check_apart, check_same, check_source};
use clock::Clock;
use connection::{Input, Inputs, Newcomer};
use flush::Flushes;
use peers::Peer;
use rescue::Rescue;
use running::Running;
use undo::Undo;

/// Maximum number of inputs that wait for the directory; further senders wait.
const INPUTS_MAX: usize = 1024;

/// Configuration of a directory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Source: a directory tree, a block device, or an image of one.
    pub source: PathBuf,
    /// The pool, on tmpfs.
    pub pool: PathBuf,
    /// Capacity of the cluster in pages of [`PAGE_BYTES`], allocated at the start.
    pub pages: u32,
    /// Maximum silence of a node.
    pub lease: Duration,
    /// Time limit for a node to acknowledge an invalidation: longer than any view lives.
    pub acknowledge: Duration,
    /// Whether pages outlive the node in whose memory they are. `None` chooses
    /// [`Placement::Pool`] for a tree, and [`Placement::Node`] for a block device, which supports
    /// no other.
    pub placement: Option<Placement>,
    /// Time for which the store may refuse a page that outlived its node, before the page counts as
    /// lost.
    pub rescue: Duration,
    /// Directories of the source, by relative path, whose files may be mapped shared: they are not
    /// cached in the pool. The list cannot change while nodes run.
    pub mapped: Vec<PathBuf>,
}

impl Options {
    /// Returns options with the usual time limits.
    #[must_use]
    pub fn new(source: &Path, pool: &Path, pages: u32) -> Self {
        Self {
            source: source.to_owned(),
            pool: pool.to_owned(),
            pages,
            lease: Duration::from_secs(5),
            acknowledge: Duration::from_secs(60),
            placement: None,
            rescue: Duration::from_secs(60),
            mapped: Vec::new(),
        }
    }
}

/// The directory, ready to run.
#[derive(Debug)]
pub struct Server {
    options: Options,
    pool: Pool,
    segment: Arc<Segment>,
    directory: Directory,
    /// Inputs other than packets, until the run.
    inputs: Option<Receiver<Input>>,
    running: Arc<Running>,
    peers: BTreeMap<NodeId, Peer>,
    clock: Clock,
    /// Newcomers that wait until their number is forgotten.
    parked: Vec<Newcomer>,
    /// The pool's list of nodes.
    nodes: Nodes,
    messages_in: u64,
    messages_out: u64,
    lost_pages: u64,
    fenced: u64,
    rescue: Rescue,
    flushes: Flushes,
    /// Claim on the source, while this process may write to it.
    _claim: Claim,
}

impl Server {
    /// Opens the pool, takes over the state of an earlier directory, and listens.
    ///
    /// # Errors
    /// - `Busy` if another directory runs on the pool, or if its nodes still run with another
    ///   capacity or source.
    /// - `Busy` if another pool has the source, a part of it or a directory that contains it, or
    ///   holds unwritten data of it.
    /// - `InvalidInput` if the source is no directory, regular file or block device, or if it
    ///   contains the pool. Also for mapped directories of a block device.
    /// - `Unsupported` for [`Placement::Pool`] with a block device.
    /// - `NoSpace`, or errors of the system.
    pub fn open(mut options: Options) -> Result<Self> {
        let pool = Pool::new(&options.pool)?;
        let source = std::fs::canonicalize(&options.source)
            .context(|| format!("source {}", options.source.display()))?;
        let device = check_source(&source, &options)?;
        let placement = *options.placement.get_or_insert(match device {
            true => Placement::Node,
            false => Placement::Pool,
        });
        check_apart(&source, pool.path())?;
        // The steps below create files and directories, and may be refused.
        let mut undo = Undo::default();
        undo.add(pool.make()?);
        undo.add_missing(pool.files_of_directory());
        // Claimed first, so that nothing of another pool is taken for this one's.
        let claim = Claim::take(&source, &pool)?;
        // Checked before the frames are opened: mapped memory must not change its size.
        let (before, _) = check_same(&pool, &options, &source)?;
        let outlives = placement == Placement::Pool;
        let record = match device {
            true => None,
            false => record::check(&source, &pool, &boot()?, &before, outlives)?,
        };
        let record = record.map(|(record, made)| {
            undo.add(made);
            let path = record.path();
            undo.add_missing([path.to_owned(), path.with_extension("new")]);
            record
        });
        mapped::check(&source, &options.mapped)?;
        let segment = Arc::new(pool.open_frames(options.pages)?);
        undo.hold(&segment);
        let (before, same) = check_same(&pool, &options, &source)?;
        if let Some(record) = record {
            // No other directory runs on this pool.
            record.save()?;
        }
        if !same {
            // The file may have the right length although its words belong to forgotten nodes, or
            // contain page data.
            segment.wipe();
        }
        // Unwritten pages that outlived their nodes must find their files.
        let has_nodes = before.known.iter().any(|known| known.share.alive);
        let has_pages = outlives && segment.any_unsaved().is_some();
        let is_unused = !has_nodes && !has_pages;
        mapped::settle(&pool, &source, &options.mapped, is_unused)?;
        let second_names = match device {
            true => Ok(Vec::new()),
            false => second_names::make(&source, is_unused),
        };
        match second_names {
            Ok(made) => made.into_iter().for_each(|made| undo.add(made)),
            Err(error) => tracing::warn!(
                "source {}: it can be read and written but not mounted, since nothing can be made \
                 in it: {error}",
                source.display()
            ),
        }
        let nodes = Nodes {
            epoch: before.epoch + 1,
            boot: boot()?,
            pages: options.pages,
            source: source.display().to_string(),
            known: before.known,
        };
        let config = config(options.pages, placement);
        let shares: Vec<Share> = nodes.known.iter().map(|known| known.share).collect();
        let directory = Directory::recover(config, nodes.epoch, &shares)?;
        pool.save(&nodes)?;
        let clock = Clock::new();
        let mut peers = BTreeMap::new();
        for known in &nodes.known {
            if known.share.alive {
                // They have one lease to rejoin.
                let end_at = clock.now() + options.lease;
                peers.insert(known.share.node, Peer::awaited(known, end_at)?);
            } else {
                segment.end_stores(known.share.node);
                pool.forget_left(known.session);
            }
        }
        let (sender, receiver) = sync_channel(INPUTS_MAX);
        let running = Arc::new(Running::default());
        let inputs = Inputs::new(sender.clone(), Arc::clone(&running));
        listen(&pool.socket(), inputs.clone(), connection::serve)?;
        listen(&pool.status_socket(), inputs, connection::serve_command)?;
        let mut server = Self {
            options,
            pool,
            segment,
            directory,
            inputs: Some(receiver),
            running,
            peers,
            clock,
            parked: Vec::new(),
            nodes,
            messages_in: 0,
            messages_out: 0,
            lost_pages: 0,
            fenced: 0,
            rescue: Rescue::new(sender),
            flushes: Flushes::default(),
            _claim: claim,
        };
        server.deliver(Outbox::default())?;
        undo.keep();
        Ok(server)
    }

    /// Returns the nodes of an earlier directory that this one waits for.
    #[must_use]
    pub fn awaited(&self) -> u32 {
        self.directory.awaited().map_or(0, u32::count_ones)
    }

    fn take(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Newcomer(newcomer) => self.admit(newcomer),
            Input::Gone {
                node,
                connection,
                why,
            } => {
                self.gone(node, connection, why.as_ref());
                return self.tick();
            }
            Input::Rescued { page, place, dirty } => return self.rescued(page, place, dirty),
            Input::GivenUp(places) => return self.given_up(&places),
            Input::Synced(synced) => self.synced(&synced),
            Input::Status(answer) => {
                // The client may be gone.
                let _ = answer.send(self.status());
            }
            Input::Flush { patience, answer } => self.begin_flush(patience, answer),
            Input::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn packets(&mut self, node: NodeId, connection: u64, bytes: &[u8]) -> Result<()> {
        let current = |peer: &Peer| peer.connection == Some(connection);
        if !self.peers.get(&node).is_some_and(current) {
            return Ok(());
        }
        let mut out = Outbox::default();
        let taken = self.take_packets(node, bytes, &mut out);
        self.deliver(out)?;
        if let Err(error) = taken {
            self.end(node, &error.report());
        }
        Ok(())
    }

    fn take_packets(&mut self, node: NodeId, mut bytes: &[u8], out: &mut Outbox) -> Result<()> {
        while let Some(packet) = Packet::<ToDirectory>::decode(bytes)? {
            if packet.node != node {
                let context = format!("{node} sent a packet as {}", packet.node);
                return Err(Error::new(ErrorKind::InvalidInput, context));
            }
            for message in packet.messages() {
                let message = message?;
                self.messages_in += 1;
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.receive(&message, self.clock.now());
                }
                self.flushes.receive(node, &message);
                self.directory.receive(node, message, out)?;
            }
            bytes = &bytes[packet.size_bytes..];
        }
        Ok(())
    }

    /// Applies the output of the directory: first the changes that others could find in the pool,
    /// then the messages.
    fn deliver(&mut self, mut out: Outbox) -> Result<()> {
        if self.directory.awaited() == Some(0) {
            let frames = 0..self.segment.frames();
            let unsaved = frames
                .clone()
                .filter_map(|frame| self.segment.unsaved(frame));
            let given_up = frames.filter_map(|frame| Some((self.segment.given_up(frame)?, frame)));
            let given_up: Vec<_> = given_up.collect();
            self.directory
                .recovered(unsaved.collect(), &given_up, &mut out);
        }
        let lost = out.take_lost(&self.segment);
        for frame in &out.discarded {
            self.segment.discard(*frame);
        }
        self.rescue(std::mem::take(&mut out.rescues))?;
        for share in &out.forgotten {
            for frame in share.first_frame..share.first_frame + share.frames {
                self.segment.forget_given_up(frame);
            }
        }
        self.lost_pages += lost.len() as u64;
        for pages in self.by_file(&lost) {
            tracing::error!(
                "page cache: DATA IS LOST: a dead node had dirty pages in its memory; the next \
                 fsync of their other writers fails: {pages}"
            );
        }
        self.remember()?;
        let mut packets: BTreeMap<NodeId, Vec<ToNode>> = BTreeMap::new();
        for (node, message) in out.messages {
            packets.entry(node).or_default().push(message);
        }
        for (node, messages) in packets {
            self.messages_out += messages.len() as u64;
            self.send(node, &messages);
        }
        for (node, error) in out.refused {
            self.end(node, &error.report());
        }
        Ok(())
    }

    fn send(&mut self, node: NodeId, messages: &[ToNode]) {
        let now = self.clock.now();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        for message in messages {
            peer.says(message, now);
        }
        let mut bytes = Vec::new();
        encode(node, messages, &mut bytes);
        if let Some(outgoing) = &peer.outgoing
            && let Err(error) = outgoing.send(&bytes)
        {
            self.end(node, &error.report());
        }
    }

    /// Formats pages, one line a file.
    fn by_file(&self, pages: &[PageId]) -> Vec<String> {
        if pages.is_empty() {
            return Vec::new();
        }
        losses::by_file(pages, Path::new(&self.nodes.source), &self.pool)
    }

    /// Stores the list of nodes in the pool, if it has changed.
    fn remember(&mut self) -> Result<()> {
        let known: Vec<Known> = self
            .directory
            .shares()
            .map(|share| self.known(share))
            .collect();
        if known != self.nodes.known {
            self.nodes.known = known;
            self.pool.save(&self.nodes)?;
        }
        Ok(())
    }

    fn known(&self, share: Share) -> Known {
        if let Some(peer) = self.peers.get(&share.node) {
            return Known {
                share,
                session: peer.session,
                pid: peer.pid,
                started: peer.started,
            };
        }
        let before = self
            .nodes
            .known
            .iter()
            .find(|known| known.share.node == share.node);
        Known {
            share,
            ..before.copied().unwrap_or(Known {
                share,
                session: 0,
                pid: 0,
                started: 0,
            })
        }
    }
}

/// Returns the process of a listed node, if it still runs.
fn process_of(known: &Known) -> Result<Option<Process>> {
    match Process::open(known.pid) {
        Ok(process) if process.started() == known.started && !process.has_ended() => {
            Ok(Some(process))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn boot() -> Result<String> {
    let id = system::boot_id()?;
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

const fn config(pages: u32, placement: Placement) -> directory::Config {
    let low = if pages / 8 < 8 { pages / 8 } else { 8 };
    let high = if pages / 4 < 32 { pages / 4 } else { 32 };
    directory::Config {
        budget_pages: pages,
        free_low: low,
        free_high: high,
        placement,
    }
}

/// Listens on a socket, in place of that of an earlier directory. `serve` handles each connection
/// in its own thread.
fn listen(
    path: &Path,
    inputs: Inputs,
    serve: fn(std::os::unix::net::UnixStream, u64, &Inputs),
) -> Result<()> {
    let bind = || {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        UnixListener::bind(path)
    };
    let listener = bind().context(|| format!("listening on {}", path.display()))?;
    let accept = move || connection::accept(&listener, &inputs, serve);
    std::thread::Builder::new()
        .name("pagecache-accept".into())
        .spawn(accept)?;
    Ok(())
}

/// Returns the size of this number of pages, bytes.
fn bytes_of(pages: u32) -> u64 {
    u64::from(pages) * PAGE_BYTES as u64
}
