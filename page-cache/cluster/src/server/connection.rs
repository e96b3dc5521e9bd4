//! Thread of one connection: identification, then packets, until it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, SyncSender, sync_channel};
use std::time::Duration;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::process::Process;
use forebay_io::system;
use forebay_pagecache::message::{NodeId, PageId, Place, Refusal, ToDirectory, ToNode};
use forebay_pagecache::protocol::{Packet, encode};

use super::flush::{Flushed, Synced};
use super::losses;
use super::running::Running;
use crate::command::{FlushReport, Request};
use crate::link::{Incoming, Outgoing};
use crate::status::Status;

/// Maximum number of connections, including unidentified ones.
const CONNECTIONS_MAX: usize = 128;

/// Maximum length of a command's request, bytes.
const REQUEST_BYTES_MAX: u64 = 256;

/// Time limit for a peer to identify itself, and for a command to send its request and to read the
/// answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Input of the directory, other than packets.
#[derive(Debug)]
pub(super) enum Input {
    Newcomer(Newcomer),
    Gone {
        node: NodeId,
        connection: u64,
        /// Error of the connection, if it did not just end.
        why: Option<Error>,
    },
    Status(SyncSender<Status>),
    Flush {
        /// Time limit.
        patience: Duration,
        answer: SyncSender<Flushed>,
    },
    /// A page that outlived its node is in the store; `dirty` says whether it was not before.
    Rescued {
        page: PageId,
        place: Place,
        dirty: bool,
    },
    /// The store has refused these pages for longer than the limit.
    GivenUp(Vec<Place>),
    /// A sync of files with such pages has ended.
    Synced(Synced),
    /// The directory cannot continue.
    Failed(Error),
}

/// The directory, for the threads of the connections.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    sender: SyncSender<Input>,
    running: Arc<Running>,
}

impl Inputs {
    pub(super) const fn new(sender: SyncSender<Input>, running: Arc<Running>) -> Self {
        Self { sender, running }
    }

    /// Queues an input.
    fn send(&self, input: Input) -> std::result::Result<(), SendError<Input>> {
        self.sender.send(input)
    }

    /// Processes packets of an admitted node on this thread.
    fn packets(&self, node: NodeId, connection: u64, bytes: &[u8]) {
        let taken = self
            .running
            .with(|server| server.packets(node, connection, bytes));
        if let Err(error) = taken {
            // Not under the lock: the queue may be full.
            let _ = self.send(Input::Failed(error));
        }
    }
}

/// A peer that has connected and identified itself.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) node: NodeId,
    pub(super) connection: u64,
    /// Nonce of its join: now, or with an earlier directory.
    pub(super) session: u64,
    /// Whether it claims to have joined before.
    pub(super) rejoins: bool,
    pub(super) process: Process,
    pub(super) outgoing: Outgoing,
    /// Its thread continues when it gets this message.
    pub(super) admitted: SyncSender<()>,
}

/// Accepts connections while the process lives.
pub(super) fn accept(
    listener: &UnixListener,
    inputs: &Inputs,
    serve: fn(UnixStream, u64, &Inputs),
) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut connection = 0;
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors: another connection may close.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        connection += 1;
        if count.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (inputs, open) = (inputs.clone(), Arc::clone(&count));
        let body = move || {
            serve(stream, connection, &inputs);
            open.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("pagecache-in".into());
        if thread.spawn(body).is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Answers one request of a command.
pub(super) fn serve_command(mut stream: UnixStream, _: u64, inputs: &Inputs) {
    let request = match read_request(&stream) {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!("page cache: a request was refused: {}", error.report());
            return;
        }
    };
    let text = match request {
        Request::Status => {
            let (answer, answers) = sync_channel(1);
            let asked = inputs.send(Input::Status(answer)).ok();
            asked
                .and_then(|()| answers.recv().ok())
                .map(|status| status.to_json())
        }
        Request::Flush { timeout_ms } => {
            let patience = Duration::from_millis(timeout_ms);
            let (answer, answers) = sync_channel(1);
            let asked = inputs.send(Input::Flush { patience, answer }).ok();
            asked
                .and_then(|()| answers.recv().ok())
                .map(|flushed| report(&flushed).to_json())
        }
    };
    if let Some(text) = text
        && stream.set_write_timeout(Some(PEER_TIMEOUT)).is_ok()
    {
        // The client may be gone.
        let _ = stream.write_all(&text);
    }
}

fn read_request(stream: &UnixStream) -> Result<Request> {
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    let mut line = String::new();
    let mut bytes = BufReader::new(stream).take(REQUEST_BYTES_MAX);
    bytes.read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|error| {
        let context = "it is not a request of this version";
        Error::with_source(ErrorKind::InvalidInput, context, error)
    })
}

/// Returns the outcome with names. It may take long, so the directory is not locked for it.
fn report(flushed: &Flushed) -> FlushReport {
    let Flushed { source, pool, .. } = flushed;
    let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.number()).collect();
    FlushReport {
        bytes: flushed.bytes,
        failed: losses::names_of(&flushed.failed, Path::new(source), pool),
        unsaved: losses::names_of(&flushed.unsaved, Path::new(source), pool),
        unnamed: flushed.unnamed,
        silent: numbers(&flushed.silent),
        ended: numbers(&flushed.ended),
        awaited: numbers(&flushed.awaited),
    }
}

/// Serves a node's connection until it ends.
pub(super) fn serve(stream: UnixStream, connection: u64, inputs: &Inputs) {
    let mut incoming = Incoming::new(stream);
    let greeted = match greet(&mut incoming, connection, inputs) {
        Ok(greeted) => greeted,
        Err(error) => {
            tracing::warn!("page cache: a connection was refused: {}", error.report());
            return;
        }
    };
    let Some((node, bytes)) = greeted else {
        return;
    };
    let give = |bytes: &[u8]| inputs.packets(node, connection, bytes);
    if !bytes.is_empty() {
        give(&bytes);
    }
    let why = loop {
        match incoming.packets::<ToDirectory>(give) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(error) => break Some(error),
        }
    };
    let _ = inputs.send(Input::Gone {
        node,
        connection,
        why,
    });
}

/// Identifies the peer and waits until it is admitted. Returns the bytes that it has sent since, or
/// `None` if it is refused.
fn greet(
    incoming: &mut Incoming,
    connection: u64,
    inputs: &Inputs,
) -> Result<Option<(NodeId, Vec<u8>)>> {
    let stream = incoming.stream();
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    let outgoing = Outgoing::new(stream.try_clone()?)?;
    let greeted = greet_with(incoming, connection, inputs, outgoing.clone());
    if !matches!(greeted, Ok(Some(_))) {
        outgoing.linger();
    }
    incoming.stream().set_read_timeout(None)?;
    greeted
}

fn greet_with(
    incoming: &mut Incoming,
    connection: u64,
    inputs: &Inputs,
    outgoing: Outgoing,
) -> Result<Option<(NodeId, Vec<u8>)>> {
    let say = |node: NodeId, message: ToNode| {
        let mut bytes = Vec::new();
        encode(node, &[message], &mut bytes);
        outgoing.send(&bytes)
    };
    let mut nonce = [0; 8];
    system::random(&mut nonce);
    // Never 0, which means "none".
    let nonce = u64::from_le_bytes(nonce) | 1;
    let process = Process::of_peer(incoming.stream());
    // The node number has no meaning here: the peer will name its own.
    say(NodeId::new(0).expect("a number"), ToNode::Hello { nonce })?;
    let mut bytes = Vec::new();
    let received = incoming.packets::<ToDirectory>(|packets| bytes.extend_from_slice(packets));
    if !received.context(|| format!("it did not identify itself in {PEER_TIMEOUT:?}"))? {
        return Ok(None);
    }
    let packet = Packet::<ToDirectory>::decode(&bytes)?;
    let first = packet.and_then(|packet| Some((packet, packet.messages().next()?.ok()?)));
    let Some((
        packet,
        ToDirectory::Hello {
            nonce: said,
            session,
        },
    )) = first
    else {
        let context = "it did not identify itself";
        return Err(Error::new(ErrorKind::InvalidInput, context));
    };
    let node = packet.node;
    if said != nonce {
        let context = format!("{node} did not get its answer");
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    let process = match process {
        Ok(process) => process,
        Err(error) => {
            say(
                node,
                ToNode::Refused {
                    why: Refusal::Unseen,
                },
            )?;
            return Err(error.context(format!("{node}")));
        }
    };
    let rest = bytes.split_off(packet.size_bytes);
    let (admitted, admission) = sync_channel(1);
    let newcomer = Newcomer {
        node,
        connection,
        session: if session == 0 { nonce } else { session },
        rejoins: session != 0,
        process,
        outgoing,
        admitted,
    };
    // The other end is dropped if the peer is refused.
    let asked = inputs.send(Input::Newcomer(newcomer));
    let may = asked.is_ok() && admission.recv().is_ok();
    Ok(may.then_some((node, rest)))
}
