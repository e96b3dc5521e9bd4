//! Receiver of a connection: simple replies, and chunks of structured ones.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Op, Result};
use forebay_wire::nbd::context::BlockStatus;
use forebay_wire::nbd::errno::ESHUTDOWN;
use forebay_wire::nbd::error_kind;
use forebay_wire::nbd::transmission::{
    CHUNK_BYTES, CHUNK_MAGIC, Chunk, SIMPLE_REPLY_BYTES, SimpleReply, chunk,
};

use super::line::Line;
use super::link::Link;
use super::{Shared, status};
use crate::receiver::Receiver;

/// Bit of the chunk types that are errors.
const ERROR_BIT: u16 = 1 << 15;
/// Bytes of an error chunk before its message.
const ERROR_BYTES: u32 = 6;
/// Maximum length of an error chunk, bytes: a message and some more.
const MAX_ERROR_BYTES: u32 = 16 << 10;

/// Receives until the connection ends.
pub(super) async fn receive(shared: Rc<Shared>, link: Rc<Link>, mut receiver: Receiver<Line>) {
    let error = loop {
        if let Err(error) = receive_reply(&shared, &link, &mut receiver).await {
            break error;
        }
    };
    link.receiving.set(false);
    link.break_off(error);
}

async fn receive_reply(
    shared: &Rc<Shared>,
    link: &Link,
    receiver: &mut Receiver<Line>,
) -> Result<()> {
    let head: [u8; SIMPLE_REPLY_BYTES] = receiver.take().await?;
    if !link.structured || !head.starts_with(&CHUNK_MAGIC.to_be_bytes()) {
        return receive_simple_reply(shared, link, receiver, SimpleReply::decode(&head)?).await;
    }
    let mut whole = [0; CHUNK_BYTES];
    whole[..SIMPLE_REPLY_BYTES].copy_from_slice(&head);
    let rest: [u8; CHUNK_BYTES - SIMPLE_REPLY_BYTES] = receiver.take().await?;
    whole[SIMPLE_REPLY_BYTES..].copy_from_slice(&rest);
    receive_chunk(shared, link, receiver, Chunk::decode(&whole)?).await
}

async fn receive_simple_reply(
    shared: &Rc<Shared>,
    link: &Link,
    receiver: &mut Receiver<Line>,
    reply: SimpleReply,
) -> Result<()> {
    let cid = cid_of(shared, link, reply.cookie)?;
    // The request stays in its slot until its data has arrived, so that it is sent again if the
    // data does not.
    let into = {
        let mut slots = shared.session.slots.borrow_mut();
        let pending = slots.get(cid).expect("it was looked up");
        match (pending.request.op, reply.error) {
            (Op::Read, 0) if link.structured => {
                return Err(broken("it sends data in a simple reply"));
            }
            (Op::Read, 0) => {
                pending.moved = u32::try_from(pending.request.len).expect("at most a payload");
                pending.buf().cloned()
            }
            _ => None,
        }
    };
    if let Some(into) = into {
        receiver.data(&into).await?;
    }
    answered(shared, cid, reply.error)
}

async fn receive_chunk(
    shared: &Rc<Shared>,
    link: &Link,
    receiver: &mut Receiver<Line>,
    header: Chunk,
) -> Result<()> {
    let cid = cid_of(shared, link, header.cookie)?;
    let done = header.flags & chunk::FLAG_DONE != 0;
    match (header.kind, header.length) {
        (chunk::NONE, 0) if done => {}
        (chunk::OFFSET_DATA, 9..) => {
            let at = u64::from_be_bytes(receiver.take().await?);
            let into = reserve_part(shared, cid, at, header.length - 8)?;
            receiver.data(&into).await?;
        }
        (chunk::OFFSET_HOLE, 12) => {
            let at = u64::from_be_bytes(receiver.take().await?);
            let len = u32::from_be_bytes(receiver.take().await?);
            reserve_part(shared, cid, at, len)?.fill(0);
        }
        (chunk::BLOCK_STATUS, 12..) => {
            let found = status::receive(receiver, header.length).await?;
            let found = found.filter(|it| Some(it.context) == link.allocation);
            let found = found.ok_or_else(|| broken("it sends an invalid block status"))?;
            store_extents(shared, cid, &found)?;
        }
        (kind, ERROR_BYTES..=MAX_ERROR_BYTES) if kind & ERROR_BIT != 0 => {
            let number = u32::from_be_bytes(receiver.take().await?);
            let rest = Buf::scratch((header.length - 4) as usize);
            receiver.data(&rest).await?;
            if number == 0 {
                return Err(broken("it sends an error without a number"));
            }
            let mut slots = shared.session.slots.borrow_mut();
            let pending = slots.get(cid).expect("it was looked up");
            if pending.errno == 0 {
                pending.errno = number;
            }
        }
        _ => return Err(broken("it sends an invalid chunk")),
    }
    match done {
        true => answered(shared, cid, 0),
        false => Ok(()),
    }
}

/// Returns the identifier of a request that waits for an answer on this connection.
fn cid_of(shared: &Shared, link: &Link, cookie: u64) -> Result<u16> {
    let mut slots = shared.session.slots.borrow_mut();
    let cid = u16::try_from(cookie).ok().filter(|cid| link.has(*cid));
    cid.filter(|cid| slots.get(*cid).is_some())
        .ok_or_else(|| broken("it answers no pending request"))
}

/// Returns the part of a read's buffer for `len` bytes of the device from byte `at`. Counts them as
/// received.
///
/// # Errors
/// `Disconnected` if the read does not cover them, or has too many bytes then.
fn reserve_part(shared: &Shared, cid: u16, at: u64, len: u32) -> Result<Buf> {
    let mut slots = shared.session.slots.borrow_mut();
    let pending = slots.get(cid).filter(|it| it.request.op == Op::Read);
    let part = pending.and_then(|pending| {
        let from = at.checked_sub(pending.request.offset)?;
        let end = from.checked_add(len.into())?;
        // The chunks of an answer do not overlap.
        let moved = pending.moved.checked_add(len)?;
        let fits = end <= pending.request.len && u64::from(moved) <= pending.request.len;
        (fits && len > 0).then(|| pending.moved = moved)?;
        let place = |bytes: u64| usize::try_from(bytes).expect("as long as a buffer");
        Some(pending.buf()?.slice(place(from)..place(end)))
    });
    part.ok_or_else(|| broken("it sends data that was not requested"))
}

/// Stores the answer to a query for extents in the query's request.
fn store_extents(shared: &Shared, cid: u16, found: &BlockStatus) -> Result<()> {
    let mut slots = shared.session.slots.borrow_mut();
    let pending = slots.get(cid).expect("it was looked up");
    let range = pending.request.offset..pending.request.offset + pending.request.len;
    let place = pending.extents.as_ref();
    let place = place.filter(|place| place.borrow().is_none());
    let place = place.ok_or_else(|| broken("it sends a block status that was not requested"))?;
    place.replace(Some(status::extents(found, &range)));
    Ok(())
}

/// Completes a request. `errno` is the number of a simple reply.
fn answered(shared: &Rc<Shared>, cid: u16, errno: u32) -> Result<()> {
    let (pending, errno) = {
        let mut slots = shared.session.slots.borrow_mut();
        let pending = slots.get(cid).expect("it was looked up");
        let errno = match errno {
            0 => pending.errno,
            errno => errno,
        };
        if errno == ESHUTDOWN {
            // The request is sent again to the server's successor.
            return Err(Error::new(ErrorKind::Disconnected, "the server shuts down"));
        }
        let is_whole = match &pending.extents {
            Some(found) => found.borrow().is_some(),
            None if pending.request.op != Op::Read => true,
            None => u64::from(pending.moved) == pending.request.len,
        };
        if errno == 0 && !is_whole {
            return Err(broken("a read succeeds before its data was sent"));
        }
        (slots.take(cid).expect("it was there"), errno)
    };
    let outcome = match errno {
        0 => Ok(()),
        number => {
            let what = format!(
                "{}: {}: the server answers error {number}",
                shared.session.name,
                pending.in_words()
            );
            Err(Error::new(error_kind(number), what))
        }
    };
    shared.session.ended(pending, outcome);
    shared.pump();
    Ok(())
}

/// Error for a server that breaks the protocol.
fn broken(what: &str) -> Error {
    let what = format!("the server breaks the protocol: {what}");
    Error::new(ErrorKind::Disconnected, what)
}
