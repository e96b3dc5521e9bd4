//! What comes from the target on an I/O queue.

use std::rc::Rc;

use forebay_block::{Error, Op, Result};
use forebay_wire::nvme::{Completion, Status};
use forebay_wire::nvme_tcp::{DataHeader, Kind, flag};

use super::Shared;
use super::queue::{broken, data_header, next, refused, rest, take_data, told};
use super::send::Link;
use crate::receiver::Receiver;

/// How often a command is sent again whose data the target says was damaged on the way.
const MOST_DAMAGED: u8 = 5;

/// Receives until the connection ends.
pub(super) async fn receive(shared: Rc<Shared>, link: Rc<Link>, mut receiver: Receiver) {
    let error = loop {
        if let Err(error) = pdu(&shared, &link, &mut receiver).await {
            break error;
        }
    };
    link.receiving.set(false);
    link.break_off(error);
}

async fn pdu(shared: &Rc<Shared>, link: &Rc<Link>, receiver: &mut Receiver) -> Result<()> {
    let (header, layout) = next(receiver, link.style.digests).await?;
    match layout.kind {
        Kind::CapsuleResp => {
            let completion = Completion::decode(rest(receiver, &header, layout).await?);
            answered(shared, completion.cid, completion.status)
        }
        Kind::C2hData => {
            let data = data_header(receiver, &header, layout).await?;
            let into = {
                let mut slots = shared.slots.borrow_mut();
                let asked = slots.get(data.cid);
                let asked = asked.filter(|asked| asked.request.op == Op::Read);
                // In order, and no more than there is room for.
                let wanted = asked.and_then(|asked| {
                    let end = data.offset.checked_add(data.length)?;
                    let fits = asked.moved == data.offset && u64::from(end) <= asked.request.len;
                    fits.then(|| asked.moved = end)?;
                    Some(asked.buf()?.slice(data.offset as usize..end as usize))
                });
                wanted.ok_or_else(|| broken("it sends data that was not asked for"))?
            };
            take_data(receiver, &into, layout).await?;
            match header[1] & (flag::SUCCESS | flag::LAST) {
                flag::SUCCESS => Err(broken("a command succeeds before its data has come")),
                0 | flag::LAST => Ok(()),
                _ => answered(shared, data.cid, Status::SUCCESS),
            }
        }
        Kind::R2t => {
            let wanted = data_header(receiver, &header, layout).await?;
            asked_for(shared, wanted)?;
            link.send_data(shared, wanted);
            Ok(())
        }
        Kind::C2hTermReq => Err(told(receiver, &header, layout).await),
        _ => Err(broken("it sends what no target sends")),
    }
}

/// Notes that the target asks for data; all of it comes in order.
fn asked_for(shared: &Shared, wanted: DataHeader) -> Result<()> {
    let mut slots = shared.slots.borrow_mut();
    let asked = slots.get(wanted.cid);
    let asked = asked.filter(|asked| matches!(asked.request.op, Op::Write { .. }));
    let moved = asked.and_then(|asked| {
        let end = wanted.offset.checked_add(wanted.length)?;
        let fits = asked.moved == wanted.offset && u64::from(end) <= asked.request.len;
        (fits && wanted.length > 0).then(|| asked.moved = end)
    });
    moved.ok_or_else(|| broken("it asks for data that it has, or that there is not"))
}

/// A command has ended.
fn answered(shared: &Rc<Shared>, cid: u16, status: Status) -> Result<()> {
    let asked = {
        let mut slots = shared.slots.borrow_mut();
        let asked = slots.get(cid);
        let asked =
            asked.ok_or_else(|| broken("it answers a command that was not asked, or is over"))?;
        let moves = matches!(asked.request.op, Op::Read | Op::Write { .. });
        if status == Status::SUCCESS && moves && u64::from(asked.moved) != asked.request.len {
            return Err(broken("a command succeeds before its data has gone"));
        }
        let mut asked = slots.take(cid).expect("it was there");
        if status.is(Status::TRANSIENT_TRANSPORT_ERROR) && asked.damaged < MOST_DAMAGED {
            asked.damaged += 1;
            slots.wait(asked);
            None
        } else {
            Some(asked)
        }
    };
    let Some(asked) = asked else {
        shared.pump();
        return Ok(());
    };
    let outcome = match status {
        Status::SUCCESS => Ok(()),
        status => {
            let op = match asked.request.op {
                Op::Read => "a read",
                Op::Write { .. } => "a write",
                Op::Flush => "a flush",
                Op::Discard => "a discard",
                Op::WriteZeroes { .. } => "a write of zeroes",
            };
            let what = format!(
                "{}: {op} of {} bytes at byte {}",
                shared.name, asked.request.len, asked.request.offset
            );
            Err::<(), Error>(refused(&what, status))
        }
    };
    shared.ended(asked, outcome);
    shared.pump();
    Ok(())
}
