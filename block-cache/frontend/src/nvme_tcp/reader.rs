//! Reader of a queue, which starts a task for each command.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{Error, ErrorKind};
use forebay_io::net::{Deadline, Stream};
use forebay_io::rt;
use forebay_wire::nvme::Status;
use forebay_wire::nvme::log::ErrorEntry;
use forebay_wire::nvme_tcp::{
    ADMIN_IN_CAPSULE_BYTES, COMMON_BYTES, Common, Digests, Fatal, Fault, Kind, Layout, flag,
};

use crate::net::Receiver;

use super::connection::{Connection, Failure};
use super::export::Exports;
use super::link::Link;
use super::memory::Memory;
use super::receive::{Capsule, take_capsule, take_data, take_data_header, take_termination};
use super::session::Session;
use super::slots::NoSlot;
use super::{
    End, FAREWELL_TIMEOUT, IN_CAPSULE_BYTES, MAX_H2C_DATA_BYTES, admin, authenticate, command,
};

/// Number of commands that a connection starts in one turn of its reactor. So the first of many
/// commands is answered before the last is parsed. A host with many commands gets no more turns
/// than one with few.
const BURST: u32 = 8;

/// Serves commands until the host disconnects, then waits for those in flight.
pub(super) async fn serve(
    stream: &Rc<Stream>,
    receiver: &mut Receiver,
    session: Session,
    exports: Arc<Exports>,
) -> Result<(), End> {
    let style = session.style;
    let (number, size) = (session.connection, session.queue_size);
    let link = Link::new(number, stream, receiver.progress(), size);
    let connection = Connection::new(session, link, exports);
    if connection.queue == 0 {
        rt::spawn(admin::watch(Rc::downgrade(&connection)));
    }
    let mut ended = read(&connection, receiver, style.digests).await;
    // If the association has ended, the admin connection logs the reason.
    if connection.link().is_shut()
        && connection.queue == 0
        && let Some(reason) = connection.controller().ended()
    {
        ended = Err(End::Broken(reason));
    }
    connection.close(ended.is_ok());
    match ended {
        // The host gets the reason, but a host that does not read must not hold resources here.
        Err(End::Fault(..)) => drop(Deadline::set(stream, FAREWELL_TIMEOUT)),
        _ => stream.shutdown(),
    }
    connection.drain().await;
    connection.link().remove();
    ended
}

async fn read(
    connection: &Rc<Connection>,
    receiver: &mut Receiver,
    digests: Digests,
) -> Result<(), End> {
    let mut started = 0u32;
    loop {
        connection.wait_for_sent_replies().await;
        let Some(header) = receiver.take::<COMMON_BYTES>().await? else {
            break;
        };
        let layout = Common::decode(header).check(digests, 0);
        let layout = layout.map_err(|fault| End::Fault(fault, header))?;
        if connection.link().is_shut() {
            break;
        }
        let last = header[1] & flag::LAST != 0;
        let done = match layout.kind {
            Kind::CapsuleCmd => {
                let most_bytes = match connection.queue {
                    0 => ADMIN_IN_CAPSULE_BYTES,
                    _ => IN_CAPSULE_BYTES,
                };
                let capsule = take_capsule(receiver, &header, layout, most_bytes).await;
                capsule.and_then(|capsule| begin(connection, capsule))
            }
            Kind::H2cData => receive_data(connection, receiver, &header, layout, last).await,
            Kind::H2cTermReq => {
                let said = take_termination(receiver, &header, layout).await?;
                let what = format!(
                    "the host has ended it for fatal error {} ({})",
                    said.fatal, said.information
                );
                let error = Error::new(ErrorKind::Disconnected, what);
                return Err(End::Broken(error));
            }
            Kind::IcReq => Err(Fault::plain(Fatal::SequenceError).into()),
            // A PDU that only controllers send.
            _ => Err(Fault::field(0).into()),
        };
        done.map_err(|end| end.in_pdu(header))?;
        started = started.wrapping_add(1);
        if started.is_multiple_of(BURST) {
            rt::next_turn().await;
        }
    }
    Ok(())
}

/// Receives data for a command in flight.
async fn receive_data(
    connection: &Connection,
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
    last: bool,
) -> Result<(), End> {
    let header = take_data_header(receiver, common, layout).await?;
    if header.length > MAX_H2C_DATA_BYTES {
        return Err(Fault::plain(Fatal::LimitExceeded).into());
    }
    let into = connection.slots().place(&header, last)?;
    let sound = take_data(receiver, &into, layout).await?;
    connection.slots().arrived(&header, sound);
    Ok(())
}

/// Starts a command.
fn begin(connection: &Rc<Connection>, capsule: Capsule) -> Result<(), End> {
    let cid = capsule.command.cid;
    connection.note_received();
    let (slot, refused) = match connection.slots().take(cid) {
        Ok(slot) => (Some(slot), None),
        Err(NoSlot::Conflict) => (None, Some(Status::COMMAND_ID_CONFLICT)),
        // A queue has at most as many commands in flight as entries.
        Err(NoSlot::Full) => return Err(Fault::plain(Fatal::SequenceError).into()),
    };
    connection.note_started();
    let connection = Rc::clone(connection);
    rt::spawn(async move {
        match (slot, refused) {
            (Some(slot), _) => run(&connection, slot, capsule).await,
            (None, status) => {
                let status = status.unwrap_or(Status::INTERNAL_ERROR);
                connection.complete(cid, Err(status.into()), 0).await;
            }
        }
    });
    Ok(())
}

async fn run(connection: &Rc<Connection>, slot: u16, capsule: Capsule) {
    let command = capsule.command;
    let mut memory = Memory::of(connection, slot);
    let outcome = match authenticate::reauthenticate(connection, &mut memory, &capsule).await {
        Some(outcome) => outcome,
        None if connection.queue == 0 => admin::run(connection, &mut memory, &capsule).await,
        None => command::run(connection, &mut memory, &capsule).await,
    };
    let cost = memory.cost();
    drop(capsule);
    if let Err(Failure::Status(status)) = outcome {
        connection.controller().note_error(ErrorEntry {
            number: 0,
            queue: connection.queue,
            cid: command.cid,
            status,
            first_block: command.first_block(),
            nsid: command.nsid,
        });
    }
    connection.slots().give_back(slot);
    connection.complete(command.cid, outcome, cost).await;
    if let Some(why) = connection.doomed.take() {
        connection.controller().end(ErrorKind::Permission, &why);
    }
}
