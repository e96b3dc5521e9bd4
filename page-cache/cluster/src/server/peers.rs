//! Connected nodes: admission, leases, and ends.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_block::{Error, Result};
use forebay_io::process::Process;
use forebay_pagecache::directory::Outbox;
use forebay_pagecache::message::{NodeId, Place, Refusal, ToDirectory, ToNode};

use super::connection::Newcomer;
use super::{Options, Server, process_of};
use crate::PAGE_BYTES;
use crate::link::Outgoing;
use crate::pool::Known;
use crate::status::{NodeStatus, WrittenStatus};

/// Time between the end of a connection and that of its process, which the kernel is about to
/// report.
const GRACE: Duration = Duration::from_millis(500);

/// A node that is connected, or whose process is about to end.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its connection and send queue.
    pub(super) connection: Option<u64>,
    pub(super) outgoing: Option<Outgoing>,
    pub(super) session: u64,
    pub(super) pid: u32,
    pub(super) started: u64,
    /// Its process; `None` if it has certainly ended.
    process: Option<Process>,
    /// Time of its last message, as all times here by the [`Clock`](super::clock::Clock).
    last_message: Duration,
    /// The node's report of itself: its counters and its dirty data.
    pub(super) reported: NodeStatus,
    /// Pages that it must unmap, and the time of the request.
    asked: BTreeMap<(u32, u64), Duration>,
    /// Whether it has asked to leave: it does not use its pages after the end of its connection.
    leaving: bool,
    /// Time at which it is ended, unless it ends before.
    pub(super) end_at: Option<Duration>,
    killed: bool,
}

impl Peer {
    /// Creates the peer of a node that an earlier directory knew.
    pub(super) fn awaited(known: &Known, end_at: Duration) -> Result<Self> {
        Ok(Self {
            connection: None,
            outgoing: None,
            session: known.session,
            pid: known.pid,
            started: known.started,
            process: process_of(known)?,
            last_message: Duration::ZERO,
            reported: NodeStatus::default(),
            asked: BTreeMap::new(),
            leaving: false,
            end_at: Some(end_at),
            killed: false,
        })
    }

    fn new(newcomer: Newcomer, now: Duration) -> Self {
        Self {
            connection: Some(newcomer.connection),
            session: newcomer.session,
            pid: newcomer.process.pid(),
            started: newcomer.process.started(),
            outgoing: Some(newcomer.outgoing),
            process: Some(newcomer.process),
            last_message: now,
            reported: NodeStatus::default(),
            asked: BTreeMap::new(),
            leaving: false,
            end_at: None,
            killed: false,
        }
    }

    /// Applies a message from the node to the state of its connection.
    pub(super) fn receive(&mut self, message: &ToDirectory, now: Duration) {
        self.last_message = now;
        match message {
            ToDirectory::Alive {
                hits_local,
                hits_remote,
                misses,
                read_ahead,
            } => {
                self.reported = NodeStatus {
                    hits_local: *hits_local,
                    hits_remote: *hits_remote,
                    misses: *misses,
                    read_ahead: *read_ahead,
                    ..std::mem::take(&mut self.reported)
                };
            }
            ToDirectory::Dirty {
                pages,
                oldest_ms,
                write_back_failures,
                lost_pages,
            } => {
                self.reported.written = WrittenStatus {
                    dirty_bytes: pages.saturating_mul(PAGE_BYTES as u64),
                    oldest_s: oldest_ms / 1000,
                    failures: *write_back_failures,
                    lost_pages: *lost_pages,
                };
            }
            ToDirectory::Leave {} => self.leaving = true,
            ToDirectory::Invalidated { place } => {
                self.asked.remove(&key(place));
            }
            _ => {}
        }
    }

    /// Notes a message to the node that it must answer.
    pub(super) fn says(&mut self, message: &ToNode, now: Duration) {
        if let ToNode::Invalidate { place, .. } = message {
            self.asked.insert(key(place), now);
        }
    }

    /// Returns whether all of its work has ended.
    fn has_ended(&self) -> bool {
        // A node in this very process cannot be ended. It closes its connection after all its work.
        let own = self.pid == std::process::id();
        let over = self.outgoing.is_none() && self.end_at.is_some();
        match &self.process {
            None => true,
            Some(_) if own || self.leaving => over,
            Some(process) => process.has_ended(),
        }
    }

    /// Returns the reason why it must be ended, if there is one.
    fn overdue(&self, options: &Options, now: Duration) -> Option<&'static str> {
        let oldest = self.asked.values().min();
        if self.end_at.is_some() {
            None
        } else if now - self.last_message > options.lease {
            Some("its lease has expired: it has sent no message")
        } else if oldest.is_some_and(|asked| now - *asked > options.acknowledge) {
            Some("it has not unmapped a page in time")
        } else {
            None
        }
    }

    /// Asks the kernel to end it.
    fn kill(&mut self) {
        self.killed = true;
        if self.pid == std::process::id() {
            return;
        }
        if let Some(Err(error)) = self.process.as_ref().map(Process::kill) {
            // It cannot be declared dead: its later stores would be visible.
            tracing::error!(
                "page cache: process {} cannot be ended, and its pages wait for it: {}",
                self.pid,
                error.report()
            );
        }
    }

    fn close(&mut self) {
        if let Some(outgoing) = self.outgoing.take() {
            outgoing.close();
        }
        self.connection = None;
    }
}

const fn key(place: &Place) -> (u32, u64) {
    (place.frame, place.generation)
}

impl Server {
    /// Admits a newcomer, refuses it, or lets it wait until its number is free.
    pub(super) fn admit(&mut self, newcomer: Newcomer) {
        let node = newcomer.node;
        match self.peers.get_mut(&node) {
            Some(peer) if peer.connection.is_some() && peer.end_at.is_none() => {
                let ended = peer.process.as_ref().is_none_or(Process::has_ended);
                if ended {
                    self.parked.push(newcomer);
                } else {
                    refuse(&newcomer, Refusal::NumberInUse);
                }
            }
            Some(peer) if peer.session == newcomer.session => {
                let awaited = self.directory.awaited().unwrap_or(0) & node.bit() != 0;
                if !awaited || peer.connection.is_some() {
                    refuse(&newcomer, Refusal::Unknown);
                    return;
                }
                let admitted = newcomer.admitted.clone();
                *peer = Peer::new(newcomer, self.clock.now());
                // Its thread waits for this message.
                let _ = admitted.send(());
            }
            // Its state is from a time that this directory knows nothing of.
            _ if newcomer.rejoins => refuse(&newcomer, Refusal::Unknown),
            Some(_) => self.parked.push(newcomer),
            None if self.directory.share(node).is_some() => self.parked.push(newcomer),
            None => {
                let admitted = newcomer.admitted.clone();
                self.peers
                    .insert(node, Peer::new(newcomer, self.clock.now()));
                let _ = admitted.send(());
            }
        }
    }

    /// Handles the end of a connection.
    pub(super) fn gone(&mut self, node: NodeId, connection: u64, why: Option<&Error>) {
        let current = |peer: &&mut Peer| peer.connection == Some(connection);
        let Some(peer) = self.peers.get_mut(&node).filter(current) else {
            return;
        };
        match why {
            Some(error) if error.kind() == forebay_block::ErrorKind::InvalidInput => {
                self.end(node, &error.report());
            }
            _ => {
                peer.close();
                peer.end_at = Some(self.clock.now() + GRACE);
            }
        }
    }

    /// Ends a node's process. The node is declared dead after that.
    pub(super) fn end(&mut self, node: NodeId, why: &str) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        tracing::warn!("page cache: {node} (process {}) is ended: {why}", peer.pid);
        self.fenced += 1;
        peer.close();
        // It stops using pages because it is ended, not because of its promise.
        peer.leaving = false;
        peer.end_at = Some(self.clock.now());
        peer.kill();
    }

    /// Checks for dead nodes and for nodes to end.
    pub(super) fn tick(&mut self) -> Result<()> {
        self.clock.advance();
        let now = self.clock.now();
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            let Some(peer) = self.peers.get_mut(&node) else {
                continue;
            };
            let gone = peer.outgoing.is_none() && self.pool.has_left(peer.session);
            if gone || peer.has_ended() {
                self.declare(node)?;
            } else if let Some(why) = peer.overdue(&self.options, now) {
                self.end(node, why);
            } else if !peer.killed && peer.end_at.is_some_and(|at| at <= now) {
                self.end(node, "it has no connection, and did not ask to leave");
            }
        }
        for newcomer in std::mem::take(&mut self.parked) {
            self.admit(newcomer);
        }
        Ok(())
    }

    /// Declares a node dead, after all its work has ended.
    fn declare(&mut self, node: NodeId) -> Result<()> {
        let session = self.peers.remove(&node).map(|mut peer| {
            peer.close();
            peer.session
        });
        self.flushes.node_ended(node);
        self.segment.end_stores(node);
        let mut out = Outbox::default();
        self.directory
            .died(node, &|frame| self.segment.unsaved(frame), &mut out);
        self.deliver(out)?;
        // Removed only now that the pool's list has it: a directory that is killed before that
        // leaves the record for the next one.
        if let Some(session) = session {
            self.pool.forget_left(session);
        }
        Ok(())
    }
}

fn refuse(newcomer: &Newcomer, why: Refusal) {
    tracing::warn!(
        "page cache: process {} may not {}: {}",
        newcomer.process.pid(),
        if newcomer.rejoins { "rejoin" } else { "join" },
        why.of(newcomer.node)
    );
    let mut bytes = Vec::new();
    let message = ToNode::Refused { why };
    forebay_pagecache::protocol::encode(newcomer.node, &[message], &mut bytes);
    // It may have disconnected.
    let _ = newcomer.outgoing.send(&bytes);
    newcomer.outgoing.linger();
}
