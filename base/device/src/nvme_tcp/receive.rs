//! Receiver of an I/O queue: answers, data of reads and R2Ts.

use std::rc::Rc;

use forebay_block::{Error, Op, Result};
use forebay_wire::nvme::{Completion, Status};
use forebay_wire::nvme_tcp::{DataHeader, Kind, flag};

use super::Shared;
use super::queue::{broken, data_header, next, refused, rest, take_data, termination_error};
use super::send::Link;
use crate::receiver::Receiver;

/// Maximum number of resends of a command whose data the target reports as damaged in transfer.
const MAX_DAMAGED: u8 = 5;

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
                let mut slots = shared.session.slots.borrow_mut();
                let pending = slots.get(data.cid);
                let pending = pending.filter(|pending| pending.request.op == Op::Read);
                // Data arrives in order, and must fit into the buffer.
                let wanted = pending.and_then(|pending| {
                    let end = data.offset.checked_add(data.length)?;
                    let fits =
                        pending.moved == data.offset && u64::from(end) <= pending.request.len;
                    fits.then(|| pending.moved = end)?;
                    Some(pending.buf()?.slice(data.offset as usize..end as usize))
                });
                wanted.ok_or_else(|| broken("it sends data that was not requested"))?
            };
            take_data(receiver, &into, layout).await?;
            match header[1] & (flag::SUCCESS | flag::LAST) {
                flag::SUCCESS => Err(broken("a command succeeds before its data was received")),
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
        Kind::C2hTermReq => Err(termination_error(receiver, &header, layout).await),
        _ => Err(broken("it sends a PDU that only hosts send")),
    }
}

/// Checks an R2T. The target must request data in order.
fn asked_for(shared: &Shared, wanted: DataHeader) -> Result<()> {
    let mut slots = shared.session.slots.borrow_mut();
    let pending = slots.get(wanted.cid);
    let pending = pending.filter(|pending| matches!(pending.request.op, Op::Write { .. }));
    let moved = pending.and_then(|pending| {
        let end = wanted.offset.checked_add(wanted.length)?;
        let fits = pending.moved == wanted.offset && u64::from(end) <= pending.request.len;
        (fits && wanted.length > 0).then(|| pending.moved = end)
    });
    moved.ok_or_else(|| broken("its R2T is out of order or beyond the data"))
}

/// Completes a command.
fn answered(shared: &Rc<Shared>, cid: u16, status: Status) -> Result<()> {
    let pending = {
        let mut slots = shared.session.slots.borrow_mut();
        let pending = slots.get(cid);
        let pending =
            pending.ok_or_else(|| broken("it answers a command that was not sent, or is over"))?;
        let moves = matches!(pending.request.op, Op::Read | Op::Write { .. });
        if status == Status::SUCCESS && moves && u64::from(pending.moved) != pending.request.len {
            return Err(broken("a command succeeds before its data was transferred"));
        }
        let mut pending = slots.take(cid).expect("it was there");
        if status.is(Status::TRANSIENT_TRANSPORT_ERROR) && pending.damaged < MAX_DAMAGED {
            pending.damaged += 1;
            slots.queue(pending);
            None
        } else {
            Some(pending)
        }
    };
    let Some(pending) = pending else {
        shared.pump();
        return Ok(());
    };
    let outcome = match status {
        Status::SUCCESS => Ok(()),
        status => {
            let what = format!("{}: {}", shared.session.name, pending.in_words());
            Err::<(), Error>(refused(&what, status))
        }
    };
    shared.session.ended(pending, outcome);
    shared.pump();
    Ok(())
}
