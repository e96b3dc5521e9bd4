//! Admin commands, and the periodic checks of an admin queue.

use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::ErrorKind;
use forebay_io::answer::Answer;
use forebay_io::rt;
use forebay_wire::nvme::admin::opcode;
use forebay_wire::nvme::{Command, Data, Status, fabrics};

use super::connection::{Connection, Failure, Outcome, no_data};
use super::events::MAX_REQUESTS;
use super::memory::Memory;
use super::receive::Capsule;
use super::slots::Verdict;
use super::{feature, identify, link, log, property};

/// Interval between two checks of keep-alive timers and changes.
const TICK: Duration = Duration::from_millis(500);

/// Maximum idle time of a discovery controller without a keep-alive timer (Base 5.18, "Keep Alive";
/// 3.1.2.3, "Discovery Controller").
const DISCOVERY_IDLE_TIME: Duration = Duration::from_secs(120);

/// Executes a command of an admin queue.
pub(super) async fn run(
    connection: &Rc<Connection>,
    memory: &mut Memory<'_>,
    capsule: &Capsule,
) -> Outcome {
    let command = &capsule.command;
    if command.opcode == fabrics::OPCODE {
        return property::run(connection, command);
    }
    if !connection.controller().is_ready() {
        return Err(Status::COMMAND_SEQUENCE_ERROR.into());
    }
    match command.opcode {
        opcode::IDENTIFY => {
            let page = identify::page(connection, command)?;
            let length = u32::try_from(page.len()).expect("4 KiB");
            answer(memory, command, &page, length).await
        }
        opcode::GET_LOG_PAGE => {
            let (page, length) = log::page(connection, command)?;
            answer(memory, command, &page, length).await
        }
        opcode::KEEP_ALIVE => no_data(command).map(|()| (0, None)).map_err(Failure::from),
        opcode::ASYNC_EVENT_REQUEST => {
            no_data(command)?;
            if connection.slots().idle() >= MAX_REQUESTS {
                return Err(Status::EVENT_LIMIT_EXCEEDED.into());
            }
            match connection.slots().event(memory.slot()).await {
                Verdict::Event(code) => Ok((code, None)),
                Verdict::Aborted => Err(Status::ABORT_REQUESTED.into()),
                _ => Err(Failure::Unanswered),
            }
        }
        opcode::ABORT => abort(connection, command).await,
        opcode::GET_FEATURES => {
            no_data(command)?;
            feature::get(connection, command)
        }
        opcode::SET_FEATURES => {
            no_data(command)?;
            feature::set(connection, command)
        }
        _ => Err(Status::INVALID_OPCODE.into()),
    }
}

/// Answers with a page, padded with zeroes to `length` bytes, as far as the host has room for it.
async fn answer(memory: &mut Memory<'_>, command: &Command, page: &[u8], length: u32) -> Outcome {
    let Data::Transport { length: room } = command.data()? else {
        return Err(Status::SGL_TYPE_INVALID.into());
    };
    let length = length.min(room);
    if length == 0 {
        return Err(Status::DATA_SGL_LENGTH_INVALID.into());
    }
    let buf = memory.take(length).await?;
    buf.fill(0);
    buf.copy_from(0, &page[..page.len().min(length as usize)]);
    Ok((0, Some(buf)))
}

/// Aborts a command that waits for memory or data. Bit 0 of the result is set if the command was
/// *not* aborted.
async fn abort(connection: &Connection, command: &Command) -> Outcome {
    no_data(command)?;
    let word = command.words[0];
    let queue = u16::try_from(word & 0xffff).expect("16 bits");
    let cid = u16::try_from(word >> 16).expect("16 bits");
    let Some((reactor, number)) = connection.controller().connection(queue) else {
        return Err(Status::INVALID_FIELD.into());
    };
    let answer = Answer::default();
    let given = answer.clone();
    reactor.call(move || {
        let found = link::find(number);
        given.give(found.is_some_and(|link| link.slots.abort(cid)));
    });
    let aborted = answer.get().await;
    Ok((u64::from(!aborted), None))
}

/// Ends the association when its keep-alive timer expires, and notifies the host of changes.
pub(super) async fn watch(connection: Weak<Connection>) {
    let (mut commands, mut last_command) = (0, rt::now());
    loop {
        rt::sleep(TICK).await;
        let Some(connection) = connection.upgrade().filter(|it| !it.is_closing()) else {
            return;
        };
        let controller = connection.controller();
        let now = controller.commands();
        if now != commands {
            (commands, last_command) = (now, rt::now());
        }
        let limit = match (controller.keep_alive_ms(), controller.namespaces()) {
            (0, None) => DISCOVERY_IDLE_TIME,
            (time, _) => Duration::from_millis(time.into()),
        };
        if !limit.is_zero() && rt::now() - last_command > limit {
            let silent = format!("no command or keep-alive for {} s", limit.as_secs_f32());
            controller.end(ErrorKind::TimedOut, &silent);
            return;
        }
        let events = &connection.events;
        events.look(controller, &connection.exports, connection.slots());
    }
}
