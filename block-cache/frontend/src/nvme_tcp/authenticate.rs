//! Authentication Send and Receive: on a new queue, which accepts no other command before
//! authentication, and on a queue in use for reauthentication.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_wire::nvme::auth::{Exchange, MAX_MESSAGE_BYTES};
use forebay_wire::nvme::{Completion, Data, Status};

use crate::net::Receiver;

use super::End;
use super::auth::{Chap, Outcome};
use super::connection::{Connection, Failure, Outcome as Done};
use super::memory::Memory;
use super::receive::{Capsule, next_capsule};
use super::reply::{Outbox, Reply, Style};

/// Submission queue of a connection that is not in use yet.
pub(super) struct Head {
    pub(super) at: u16,
    pub(super) size: u16,
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
pub(super) async fn prove<T>(
    stream: &Rc<Stream>,
    receiver: &mut Receiver,
    style: Style,
    head: &mut Head,
    chap: &mut Chap,
    enter: impl AsyncFnOnce() -> Result<T>,
) -> Result<Option<T>, End> {
    let outbox = Outbox::new(style);
    let mut parts = Vec::new();
    let mut enter = Some(enter);
    loop {
        let Some(capsule) = next_capsule(receiver, style).await? else {
            return Ok(None);
        };
        head.at = (head.at + 1) % head.size;
        let (status, data, outcome) = new_queue(chap, &capsule).await?;
        // The queue must exist before the host learns that it is authenticated.
        let entered = match (&outcome, enter.take_if(|_| outcome == Outcome::Proved)) {
            (Outcome::Proved, Some(enter)) => Some(enter().await.map_err(End::Refused)?),
            _ => None,
        };
        let completion = Completion {
            result: 0,
            sq_head: if head.no_flow_control { 0 } else { head.at },
            sq_id: 0,
            cid: capsule.command.cid,
            status,
        };
        outbox.push(Reply::Completion(completion, data), 0);
        while outbox.gather(&mut parts).is_some() {
            stream.send(&parts).await?;
            parts.clear();
        }
        match outcome {
            Outcome::Open => {}
            Outcome::Proved => return Ok(entered),
            Outcome::Failed(why) => {
                let what = format!("it has not authenticated itself: {why}");
                return Err(End::Refused(Error::new(ErrorKind::Permission, what)));
            }
        }
    }
}

/// Processes a command on a queue whose host is not authenticated yet.
async fn new_queue(chap: &mut Chap, capsule: &Capsule) -> Result<Step> {
    let refused = |status| Ok((status, None, Outcome::Open));
    let exchange = match exchange(capsule) {
        None => return refused(Status::AUTHENTICATION_REQUIRED),
        Some(Err(status)) => return refused(status),
        Some(Ok(exchange)) => exchange,
    };
    if !exchange.from_host {
        return Ok(match chap.fetch(exchange.length) {
            Ok((message, outcome)) => {
                let buf = Buf::scratch(page_bytes(exchange.length));
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
fn exchange(capsule: &Capsule) -> Option<Result<Exchange, Status>> {
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

/// Returns the number of bytes that a host with `room` gets: the message, padded with zeroes.
fn page_bytes(room: u32) -> usize {
    room.min(MAX_MESSAGE_BYTES) as usize
}

fn fill(buf: &Buf, message: &[u8]) {
    buf.fill(0);
    buf.copy_from(0, message);
}

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
) -> Option<Done> {
    connection.chap.as_ref()?;
    let exchange = exchange(capsule)?;
    Some(match exchange {
        Ok(exchange) => used_queue(connection, memory, capsule, exchange).await,
        Err(status) => Err(status.into()),
    })
}

async fn used_queue(
    connection: &Connection,
    memory: &mut Memory<'_>,
    capsule: &Capsule,
    exchange: Exchange,
) -> Done {
    let buf = match exchange.from_host {
        true => memory.receive(capsule, exchange.length).await?,
        false => {
            let bytes = page_bytes(exchange.length);
            memory.take(u32::try_from(bytes).expect("a page")).await?
        }
    };
    let place = connection.chap.as_ref();
    // The state is taken while another authentication command runs: there is one at a time.
    let chap = place.and_then(|place| place.take());
    let mut chap = chap.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
    let done = match exchange.from_host {
        true => match chap.take(&bytes(&buf)).await {
            Ok(outcome) => Ok((None, outcome)),
            Err(_) => Err(Status::INTERNAL_ERROR),
        },
        false => chap.fetch(exchange.length).map(|(message, outcome)| {
            fill(&buf, &message);
            (Some(buf), outcome)
        }),
    };
    if let Some(place) = place {
        place.set(Some(chap));
    }
    let (data, outcome) = done.map_err(Failure::Status)?;
    if let Outcome::Failed(why) = outcome {
        let why = format!("its host failed to reauthenticate: {why}");
        connection.doomed.replace(Some(why));
    }
    Ok((0, data))
}
