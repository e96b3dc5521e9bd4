//! Who is connected: admission, leases, and ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_block::{Error, Result};
use forebay_io::process::Process;
use forebay_pagecache::directory::Outbox;
use forebay_pagecache::message::{NodeId, Place, Refusal, ToDirectory, ToNode};

use super::connection::Newcomer;
use super::{Server, process_of};
use crate::link::Outgoing;
use crate::pool::Known;

/// From the end of a connection to the end of its process, which the kernel is about to say.
const GRACE: Duration = Duration::from_millis(500);

/// A node that is there, or whose process is about to end.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its connection, and the way back.
    pub(super) connection: Option<u64>,
    pub(super) outgoing: Option<Outgoing>,
    pub(super) session: u64,
    pub(super) pid: u32,
    pub(super) started: u64,
    /// `None` if it has ended for sure.
    process: Option<Process>,
    /// When it was heard last.
    pub(super) heard: Instant,
    /// What it has counted.
    pub(super) counts: [u64; 4],
    /// Pages that it was asked to let go, and when.
    asked: BTreeMap<(u32, u64), Instant>,
    /// It has asked to leave: what it has when its connection ends it does not touch any more.
    leaving: bool,
    /// It is ended if it has not ended by itself until then.
    pub(super) end_at: Option<Instant>,
    killed: bool,
}

impl Peer {
    /// A node that an earlier directory knew.
    pub(super) fn awaited(known: &Known, patience: Duration) -> Result<Self> {
        Ok(Self {
            connection: None,
            outgoing: None,
            session: known.session,
            pid: known.pid,
            started: known.started,
            process: process_of(known)?,
            heard: Instant::now(),
            counts: [0; 4],
            asked: BTreeMap::new(),
            leaving: false,
            end_at: Some(Instant::now() + patience),
            killed: false,
        })
    }

    fn new(newcomer: Newcomer) -> Self {
        Self {
            connection: Some(newcomer.connection),
            session: newcomer.session,
            pid: newcomer.process.pid(),
            started: newcomer.process.started(),
            outgoing: Some(newcomer.outgoing),
            process: Some(newcomer.process),
            heard: Instant::now(),
            counts: [0; 4],
            asked: BTreeMap::new(),
            leaving: false,
            end_at: None,
            killed: false,
        }
    }

    /// What it says that concerns its connection.
    pub(super) fn hears(&mut self, message: &ToDirectory) {
        match message {
            ToDirectory::Alive {
                hits_local,
                hits_remote,
                misses,
                read_ahead,
            } => self.counts = [*hits_local, *hits_remote, *misses, *read_ahead],
            ToDirectory::Leave {} => self.leaving = true,
            ToDirectory::Invalidated { place } => {
                self.asked.remove(&key(place));
            }
            _ => {}
        }
    }

    /// What it is told that it has to answer.
    pub(super) fn says(&mut self, message: &ToNode) {
        if let ToNode::Invalidate { place, .. } = message {
            self.asked.insert(key(place), Instant::now());
        }
    }

    /// Whether nothing of it goes on.
    fn has_ended(&self) -> bool {
        // A node in this very process cannot be ended; it ends its connection after all that it does.
        let own = self.pid == std::process::id();
        let over = self.outgoing.is_none() && self.end_at.is_some();
        match &self.process {
            None => true,
            Some(_) if own || self.leaving => over,
            Some(process) => process.has_ended(),
        }
    }

    /// Why it has to be ended, if it has.
    fn overdue(&self, lease: Duration, acknowledge: Duration) -> Option<&'static str> {
        let oldest = self.asked.values().min();
        if self.end_at.is_some() {
            None
        } else if self.heard.elapsed() > lease {
            Some("it has not been heard for as long as its lease")
        } else if oldest.is_some_and(|asked| asked.elapsed() > acknowledge) {
            Some("it has not let a page go that it was asked for")
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
            // It cannot be declared dead: what it may still do would be seen.
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
    /// Lets a newcomer in, refuses it, or has it wait until its number is free.
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
                *peer = Peer::new(newcomer);
                // Its thread waits for just this.
                let _ = admitted.send(());
            }
            // What it has is of a time that nobody knows of any more.
            _ if newcomer.comes_back => refuse(&newcomer, Refusal::Unknown),
            Some(_) => self.parked.push(newcomer),
            None if self.directory.share(node).is_some() => self.parked.push(newcomer),
            None => {
                let admitted = newcomer.admitted.clone();
                self.peers.insert(node, Peer::new(newcomer));
                let _ = admitted.send(());
            }
        }
    }

    /// A connection has ended.
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
                peer.end_at = Some(Instant::now() + GRACE);
            }
        }
    }

    /// Has a node's process ended; once it has, the node is declared dead.
    pub(super) fn end(&mut self, node: NodeId, why: &str) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        tracing::warn!("page cache: {node} (process {}) is ended: {why}", peer.pid);
        self.fenced += 1;
        peer.close();
        // It does not touch anything more because it is ended, not because it promised.
        peer.leaving = false;
        peer.end_at = Some(Instant::now());
        peer.kill();
    }

    /// Looks for who is dead or is to be ended.
    pub(super) fn tick(&mut self) -> Result<()> {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            let Some(peer) = self.peers.get_mut(&node) else {
                continue;
            };
            let gone = peer.outgoing.is_none() && self.pool.has_left(peer.session);
            if gone || peer.has_ended() {
                self.declare(node)?;
            } else if let Some(why) = peer.overdue(self.options.lease, self.options.acknowledge) {
                self.end(node, why);
            } else if !peer.killed && peer.end_at.is_some_and(|at| at <= Instant::now()) {
                self.end(node, "it has no connection, and did not ask to leave");
            }
        }
        for newcomer in std::mem::take(&mut self.parked) {
            self.admit(newcomer);
        }
        Ok(())
    }

    /// A node is dead, and all that it did is over.
    fn declare(&mut self, node: NodeId) -> Result<()> {
        let session = self.peers.remove(&node).map(|mut peer| {
            peer.close();
            peer.session
        });
        self.segment.end_stores(node);
        let mut out = Outbox::default();
        self.directory.died(node, &mut out);
        self.deliver(out)?;
        // Now that the pool says so itself: a directory that is killed before that leaves the word to the next one.
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
        if newcomer.comes_back {
            "come back"
        } else {
            "join"
        },
        why.of(newcomer.node)
    );
    let mut bytes = Vec::new();
    let message = ToNode::Refused { why };
    forebay_pagecache::protocol::encode(newcomer.node, &[message], &mut bytes);
    // It may have gone by itself.
    let _ = newcomer.outgoing.push(&bytes);
    newcomer.outgoing.linger();
}
