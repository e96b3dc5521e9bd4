//! Authentication Send and Receive: on a new queue, which accepts no other command before
//! authentication, and on a queue in use for reauthentication.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_wire::nvme::auth::{Exchange, MAX_MESSAGE_BYTES};
use forebay_wire::nvme::{Completion, Data, Status};

use crate::net::Receiver;

use super::End;
use super::auth::{Chap, Outcome};
use super::connection::{Connection, Outcome as CommandOutcome};
use super::memory::Memory;
use super::receive::{Capsule, next_capsule};
use super::reply::{Outbox, Reply, Style};

/// Submission queue of a host that is not authenticated yet.
pub(super) struct NewQueue {
    /// Index of the next entry that the target takes.
    pub(super) head: u16,
    /// Number of entries.
    pub(super) size: u16,
    /// Whether completions leave the head out.
    pub(super) no_flow_control: bool,
}

/// Result of an authentication command: its status, the data that it fetches, and the state of the
/// authentication.
type Step = (Status, Option<Buf>, Outcome);

/// Authenticates the host of a new queue, then returns the result of `enter`. Returns `None` if the
/// host disconnected. Messages must be in capsules, like the data of Connect.
///
/// # Errors
/// Fails if the authentication or `enter` fails.
pub(super) async fn authenticate<T>(
    stream: &Rc<Stream>,
    receiver: &mut Receiver,
    style: Style,
    queue: &mut NewQueue,
    chap: &mut Chap,
    enter: impl AsyncFnOnce() -> Result<T>,
) -> Result<Option<T>, End> {
    loop {
        let Some(capsule) = next_capsule(receiver, style).await? else {
            return Ok(None);
        };
        queue.head = (queue.head + 1) % queue.size;
        let (status, data, outcome) = process_on_new_queue(chap, &capsule).await?;
        let completion = Completion {
            result: 0,
            sq_head: if queue.no_flow_control { 0 } else { queue.head },
            sq_id: 0,
            cid: capsule.command.cid,
            status,
        };
        let reply = Reply::Completion(completion, data);
        match outcome {
            Outcome::Open => send_reply(stream, style, reply).await?,
            Outcome::Proved => {
                // The queue must exist before the host learns that it is authenticated.
                let entered = enter().await.map_err(End::Refused)?;
                send_reply(stream, style, reply).await?;
                return Ok(Some(entered));
            }
            Outcome::Failed(reason) => {
                send_reply(stream, style, reply).await?;
                let message = format!("it has not authenticated itself: {reason}");
                return Err(End::Refused(Error::new(ErrorKind::Permission, message)));
            }
        }
    }
}

/// Sends a reply on a queue that has no other one in progress.
async fn send_reply(stream: &Stream, style: Style, reply: Reply) -> Result<()> {
    let outbox = Outbox::new(style);
    outbox.push(reply, 0);
    let mut parts = Vec::new();
    while outbox.gather(&mut parts).is_some() {
        stream.send(&parts).await?;
        parts.clear();
    }
    Ok(())
}

/// Processes a command on a queue whose host is not authenticated yet.
async fn process_on_new_queue(chap: &mut Chap, capsule: &Capsule) -> Result<Step> {
    let refused = |status| Ok((status, None, Outcome::Open));
    let exchange = match decode_exchange(capsule) {
        None => return refused(Status::AUTHENTICATION_REQUIRED),
        Some(Err(status)) => return refused(status),
        Some(Ok(exchange)) => exchange,
    };
    if !exchange.from_host {
        return Ok(match chap.fetch(exchange.length) {
            Ok((message, outcome)) => {
                let buf = Buf::scratch(message_bytes(exchange.length));
                fill(&buf, &message);
                (Status::SUCCESS, Some(buf), outcome)
            }
            Err(status) => (status, None, Outcome::Open),
        });
    }
    match (capsule.command.data(), &capsule.data) {
        (Ok(Data::InCapsule { offset: 0, .. }), Some(_)) if !capsule.sound => {
            refused(Status::TRANSIENT_TRANSPORT_ERROR)
        }
        (Ok(Data::InCapsule { offset: 0, length }), Some(buf)) if buf.len() == length as usize => {
            let outcome = chap.take(&bytes(buf)).await?;
            Ok((Status::SUCCESS, None, outcome))
        }
        (Err(status), _) => refused(status),
        (Ok(Data::Transport { .. }), _) => refused(Status::SGL_TYPE_INVALID),
        _ => refused(Status::DATA_SGL_LENGTH_INVALID),
    }
}

/// Decodes the fields of an authentication command. Returns `None` for other commands.
fn decode_exchange(capsule: &Capsule) -> Option<Result<Exchange, Status>> {
    let exchange = Exchange::of(&capsule.command)?;
    let longest = match exchange.from_host {
        true => MAX_MESSAGE_BYTES,
        false => u32::MAX,
    };
    if !exchange.known || !(1..=longest).contains(&exchange.length) {
        return Some(Err(Status::INVALID_FIELD));
    }
    Some(match capsule.command.data() {
        Ok(data) if data.length() != exchange.length => Err(Status::DATA_SGL_LENGTH_INVALID),
        Ok(Data::InCapsule { .. }) if !exchange.from_host => Err(Status::SGL_TYPE_INVALID),
        Ok(_) => Ok(exchange),
        Err(status) => Err(status),
    })
}

/// Returns the length of a message to a host that has room for `room` bytes, with its padding.
fn message_bytes(room: u32) -> usize {
    room.min(MAX_MESSAGE_BYTES) as usize
}

/// Copies a message into a buffer, and pads it with zeroes.
fn fill(buf: &Buf, message: &[u8]) {
    buf.fill(0);
    buf.copy_from(0, message);
}

/// Returns a copy of the content of a buffer.
fn bytes(buf: &Buf) -> Vec<u8> {
    let mut bytes = vec![0; buf.len()];
    buf.copy_to(0, &mut bytes);
    bytes
}

/// Processes an authentication command on a queue in use. Returns `None` for other commands, and if
/// the host has no secret. A failed authentication ends the association after the answer.
pub(super) async fn reauthenticate(
    connection: &Connection,
    memory: &mut Memory<'_>,
    capsule: &Capsule,
) -> Option<CommandOutcome> {
    let chap = connection.chap.as_ref()?;
    let exchange = decode_exchange(capsule)?;
    Some(match exchange {
        Ok(exchange) => process_on_used_queue(connection, chap, memory, capsule, exchange).await,
        Err(status) => Err(status.into()),
    })
}

/// Processes an authentication command of a queue in use, with the authentication in `state`.
async fn process_on_used_queue(
    connection: &Connection,
    state: &Cell<Option<Chap>>,
    memory: &mut Memory<'_>,
    capsule: &Capsule,
    exchange: Exchange,
) -> CommandOutcome {
    let buf = if exchange.from_host {
        memory.receive(capsule, exchange.length).await?
    } else {
        let len = message_bytes(exchange.length);
        memory.take(u32::try_from(len).expect("a page")).await?
    };
    // The state is absent while another authentication command runs: there is one at a time.
    let mut chap = state.take().ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
    let result = if exchange.from_host {
        match chap.take(&bytes(&buf)).await {
            Ok(outcome) => Ok((None, outcome)),
            Err(_) => Err(Status::INTERNAL_ERROR),
        }
    } else {
        chap.fetch(exchange.length).map(|(message, outcome)| {
            fill(&buf, &message);
            (Some(buf), outcome)
        })
    };
    state.set(Some(chap));
    let (data, outcome) = result?;
    if let Outcome::Failed(reason) = outcome {
        let reason = format!("its host failed to reauthenticate: {reason}");
        connection.doomed.replace(Some(reason));
    }
    Ok((0, data))
}
