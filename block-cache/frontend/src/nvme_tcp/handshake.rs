//! Handshake: from the initialization PDUs to the Connect that makes a connection a queue.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_wire::nvme::fabrics::{
    self, ANY_CONTROLLER, BadField, CONNECT_DATA_BYTES, CONTROLLER_FIELD, Connect, ConnectData,
    DISCOVERY_NQN, HOST_FIELD, HOST_ID_FIELD, SUBSYSTEM_FIELD, bad_parameter, fctype,
};
use forebay_wire::nvme::{Completion, Data, Status};
use forebay_wire::nvme_tcp::{COMMON_BYTES, Common, Fatal, Fault, Initialize, Kind};

use crate::net::Receiver;

use super::auth::Chap;
use super::authenticate::{NewQueue, authenticate};
use super::controller::{Controller, Membership, Role};
use super::export::Exports;
use super::link::next_number;
use super::receive::{Capsule, next_capsule};
use super::reply::Style;
use super::session::Session;
use super::subsystem::Subsystem;
use super::{ADMIN_QUEUE_SIZE, End, MAX_H2C_DATA_BYTES, MAX_IO_QUEUES, MAX_QUEUE_SIZE};

/// Offsets of fields of Connect in a refusal (Base 6.3).
mod at {
    pub(super) const FORMAT: u16 = 40;
    pub(super) const QUEUE: u16 = 42;
    pub(super) const QUEUE_SIZE: u16 = 44;
}

/// A refused Connect: its status and result.
struct Refusal(Status, u64);

impl Refusal {
    const fn field(offset: u16) -> Self {
        Self(
            Status::CONNECT_INVALID_PARAMETERS,
            bad_parameter(offset, false),
        )
    }

    const fn data(offset: u16) -> Self {
        Self(
            Status::CONNECT_INVALID_PARAMETERS,
            bad_parameter(offset, true),
        )
    }
}

/// Runs the handshake until the host has a queue. Returns `None` if it disconnected.
pub(super) async fn negotiate(
    stream: &Rc<Stream>,
    receiver: &mut Receiver,
    exports: &Exports,
) -> Result<Option<Session>, End> {
    let Some(mut style) = initialize(stream, receiver).await? else {
        return Ok(None);
    };
    let mut head = 0;
    loop {
        let Some(capsule) = next_capsule(receiver, style).await? else {
            return Ok(None);
        };
        let command = capsule.command;
        head += 1;
        let connection = next_number();
        let outcome = connect(&capsule, connection, exports).await;
        let (status, result) = match &outcome {
            Ok(place) => (Status::SUCCESS, place.result()),
            Err(refusal) => (refusal.0, refusal.1),
        };
        let no_flow_control = Connect::of(&command).no_flow_control && outcome.is_ok();
        let completion = Completion {
            result,
            sq_head: if no_flow_control { u16::MAX } else { head },
            sq_id: 0,
            cid: command.cid,
            status,
        };
        let respond = Common::new(Kind::CapsuleResp, 0, 0, style.digests, 0);
        send(stream, respond, &completion.encode()).await?;
        match outcome {
            Ok(place) => {
                let fields = Connect::of(&command);
                let size = fields.queue_size + 1;
                let mut new_queue = NewQueue {
                    head: head % size,
                    size,
                    no_flow_control,
                };
                let (membership, chap) = match place {
                    Place::Taken(membership) => (membership, None),
                    Place::Promised(promise, mut chap) => {
                        let enter = async || promise.redeem(connection).await;
                        let entered =
                            authenticate(stream, receiver, style, &mut new_queue, &mut chap, enter);
                        let entered = entered.await.map_err(|end| match end {
                            End::Refused(why) => End::Refused(named(&capsule, why)),
                            end => end,
                        })?;
                        let Some(membership) = entered else {
                            return Ok(None);
                        };
                        (membership, Some(*chap))
                    }
                };
                style.short = no_flow_control;
                return Ok(Some(Session {
                    membership,
                    connection,
                    style,
                    queue: fields.queue,
                    queue_size: size,
                    no_flow_control,
                    head: new_queue.head,
                    chap,
                }));
            }
            // A command other than Connect was refused; Connect may follow.
            Err(Refusal(Status::COMMAND_SEQUENCE_ERROR, _)) if head < ADMIN_QUEUE_SIZE => {}
            Err(refusal) => return Err(End::Refused(refused(&capsule, &refusal))),
        }
    }
}

/// Exchanges the initialization PDUs. Returns `None` if the host disconnected.
async fn initialize(stream: &Stream, receiver: &mut Receiver) -> Result<Option<Style>, End> {
    let Some(header) = receiver.take::<COMMON_BYTES>().await? else {
        return Ok(None);
    };
    let layout = Common::decode(header).check(Default::default(), 0)?;
    if layout.kind != Kind::IcReq {
        return Err(Fault::plain(Fatal::SequenceError).into());
    }
    let rest = receiver.take::<{ Initialize::BYTES }>().await?;
    let request = Initialize::decode(rest.ok_or_else(super::cut_off)?)?;
    let answer = Initialize {
        version: 0,
        alignment: 0,
        digests: request.digests,
        limit: MAX_H2C_DATA_BYTES,
    };
    let common = Common::new(Kind::IcResp, 0, 0, Default::default(), 0);
    send(stream, common, &answer.encode()).await?;
    Ok(Some(Style {
        digests: request.digests,
        alignment: request.alignment,
        short: false,
    }))
}

async fn send(stream: &Stream, common: Common, rest: &[u8]) -> Result<()> {
    let mut bytes = [&common.encode()[..], rest].concat();
    if common.flags & forebay_wire::nvme_tcp::flag::HEADER_DIGEST != 0 {
        let sum = forebay_wire::nvme_tcp::digest(&bytes);
        bytes.extend(sum);
    }
    stream.send(&[Buf::copied(&bytes)]).await
}

/// Outcome of a Connect.
enum Place {
    /// A queue.
    Taken(Membership),
    /// A queue that the host gets after its authentication.
    Promised(Promise, Box<Chap>),
}

impl Place {
    /// Returns the result value of the answer.
    fn result(&self) -> u64 {
        match self {
            Self::Taken(membership) => fabrics::connected(membership.controller().id(), false),
            Self::Promised(Promise::Controller { id, .. }, _) => fabrics::connected(*id, true),
            Self::Promised(Promise::Queue { controller, .. }, _) => {
                fabrics::connected(controller.id(), true)
            }
        }
    }
}

/// A queue for a host that is not authenticated yet. Until then it is not part of any association.
/// So a host with a false name neither waits for commands of the real host nor ends its
/// associations.
enum Promise {
    /// Admin queue of a new controller.
    Controller {
        subsystem: Arc<Subsystem>,
        id: u16,
        host: String,
        host_id: [u8; 16],
        keep_alive_ms: u32,
    },
    /// An I/O queue.
    Queue {
        controller: Arc<Controller>,
        number: u16,
    },
}

impl Promise {
    async fn redeem(self, connection: u64) -> Result<Membership> {
        let busy = |what: &str| Error::new(ErrorKind::Busy, what);
        match self {
            Self::Controller {
                subsystem,
                id,
                host,
                host_id,
                keep_alive_ms,
            } => {
                let made = subsystem.associate(id, &host, host_id, keep_alive_ms).await;
                let membership = made.ok().and_then(|made| made.join(0, connection));
                membership.ok_or_else(|| busy(STILL_BUSY))
            }
            Self::Queue { controller, number } => {
                let membership = controller.join(number, connection);
                membership.ok_or_else(|| busy("another connection has created its queue meanwhile"))
            }
        }
    }
}

/// Reason for which a host must wait for its controller.
const STILL_BUSY: &str =
    "commands of its last association are not completed, or there are too many controllers";

/// Creates a queue of a new or existing controller, or promises one.
async fn connect(capsule: &Capsule, connection: u64, exports: &Exports) -> Result<Place, Refusal> {
    let command = &capsule.command;
    if command.opcode != fabrics::OPCODE || command.nsid.to_le_bytes()[0] != fctype::CONNECT {
        return Err(Refusal(Status::COMMAND_SEQUENCE_ERROR, 0));
    }
    let fields = Connect::of(command);
    if fields.format != 0 {
        return Err(Refusal(
            Status::CONNECT_INCOMPATIBLE_FORMAT,
            bad_parameter(at::FORMAT, false),
        ));
    }
    if fields.queue_size == 0 || fields.queue_size >= MAX_QUEUE_SIZE {
        return Err(Refusal::field(at::QUEUE_SIZE));
    }
    if fields.queue > MAX_IO_QUEUES {
        return Err(Refusal::field(at::QUEUE));
    }
    let data = connect_data(capsule)?;
    if fields.queue > 0 {
        let (subsystem, controller) = find(&data, exports)?;
        if !controller.is_ready() {
            return Err(Refusal(Status::COMMAND_SEQUENCE_ERROR, 0));
        }
        let number = fields.queue;
        if let Some(chap) = subsystem.authentication(&data.host) {
            let promise = Promise::Queue { controller, number };
            return Ok(Place::Promised(promise, Box::new(chap)));
        }
        let membership = controller.join(number, connection);
        return membership
            .map(Place::Taken)
            .ok_or(Refusal::field(at::QUEUE));
    }
    if data.controller != ANY_CONTROLLER {
        return Err(Refusal::data(CONTROLLER_FIELD));
    }
    let busy = |status| Refusal(status, 0);
    let controller = if data.subsystem == DISCOVERY_NQN {
        // A discovery controller has one queue, so no other queue needs to find it.
        Controller::new(
            1,
            Role::Discovery,
            &data.host,
            data.host_id,
            fields.keep_alive_ms,
        )
    } else {
        let subsystem = exports.find(&data.subsystem);
        let subsystem = subsystem.ok_or(Refusal::data(SUBSYSTEM_FIELD))?;
        if !subsystem.admits(&data.host) {
            return Err(Refusal(
                Status::CONNECT_INVALID_HOST,
                bad_parameter(HOST_FIELD, true),
            ));
        }
        let (id, keep_alive_ms) = (subsystem.next_controller(), fields.keep_alive_ms);
        if let Some(chap) = subsystem.authentication(&data.host) {
            let promise = Promise::Controller {
                subsystem,
                id,
                host: data.host,
                host_id: data.host_id,
                keep_alive_ms,
            };
            return Ok(Place::Promised(promise, Box::new(chap)));
        }
        let made = subsystem.associate(id, &data.host, data.host_id, keep_alive_ms);
        made.await.map_err(busy)?
    };
    let membership = controller.join(0, connection);
    membership
        .map(Place::Taken)
        .ok_or(busy(Status::CONNECT_BUSY))
}

/// Finds the subsystem and the controller of a host's I/O queue.
fn find(
    data: &ConnectData,
    exports: &Exports,
) -> Result<(Arc<Subsystem>, Arc<Controller>), Refusal> {
    let subsystem = exports.find(&data.subsystem);
    let subsystem = subsystem.ok_or(Refusal::data(SUBSYSTEM_FIELD))?;
    let controller = subsystem.controller(data.controller);
    let controller = controller.ok_or(Refusal::data(CONTROLLER_FIELD))?;
    if controller.host() != data.host {
        return Err(Refusal::data(HOST_FIELD));
    }
    if controller.host_id() != data.host_id {
        return Err(Refusal::data(HOST_ID_FIELD));
    }
    Ok((subsystem, controller))
}

/// Decodes the data of Connect, which is in its capsule.
fn connect_data(capsule: &Capsule) -> Result<ConnectData, Refusal> {
    let plain = |status| Refusal(status, 0);
    let data = capsule.command.data().map_err(plain)?;
    let length = CONNECT_DATA_BYTES as u32;
    match (data, &capsule.data) {
        (
            Data::InCapsule {
                offset: 0,
                length: described,
            },
            Some(buf),
        ) if described == length && buf.len() == CONNECT_DATA_BYTES => {
            if !capsule.sound {
                return Err(plain(Status::TRANSIENT_TRANSPORT_ERROR));
            }
            let mut page = [0; CONNECT_DATA_BYTES];
            buf.copy_to(0, &mut page);
            ConnectData::decode(&page).map_err(|BadField(offset)| Refusal::data(offset))
        }
        _ => Err(plain(Status::DATA_SGL_LENGTH_INVALID)),
    }
}

/// Log line for a refused Connect.
fn refused(capsule: &Capsule, refusal: &Refusal) -> Error {
    let (kind, why) = match refusal.0 {
        Status::CONNECT_INVALID_HOST => (
            ErrorKind::Permission,
            "it is not among the export's `allow_hosts`, or has no line in its `secrets`"
                .to_owned(),
        ),
        Status::CONNECT_BUSY => (ErrorKind::Busy, STILL_BUSY.to_owned()),
        status => (
            ErrorKind::InvalidInput,
            format!(
                "{} (status {:#04x} of type {})",
                field(refusal.1),
                status.code(),
                status.code_type()
            ),
        ),
    };
    named(capsule, Error::new(kind, why))
}

/// Returns what is wrong with the field that a refusal names: its offset, and above it whether it
/// is in the data of Connect.
fn field(parameter: u64) -> String {
    let (at, in_data) = (parameter & 0xffff, parameter >> 16 != 0);
    let is = |field: u16| in_data && at == u64::from(field);
    match () {
        () if is(HOST_FIELD) => {
            "its own name (HOSTNQN) is empty, no NQN, or not that of its controller".into()
        }
        () if is(SUBSYSTEM_FIELD) => "no export has the subsystem's name (SUBNQN)".into(),
        () if is(HOST_ID_FIELD) => "its identifier (HOSTID) is not that of its controller".into(),
        () if is(CONTROLLER_FIELD) => "there is no such controller (CNTLID)".into(),
        () if in_data => format!("the field at byte {at} of its data is invalid"),
        () => format!("the field at byte {at} of its command is invalid"),
    }
}

/// Adds the host's name to the reason of a refused connection.
fn named(capsule: &Capsule, why: Error) -> Error {
    let data = connect_data(capsule).ok();
    let who = data.map_or_else(
        || "a host".to_owned(),
        |data| format!("host {:?} to {:?}", data.host, data.subsystem),
    );
    why.context(format!("a connection of {who} was refused"))
}

#[cfg(test)]
mod tests {
    use forebay_wire::nvme::Command;

    use super::*;

    #[test]
    fn why_a_host_was_refused_is_said_with_its_kind_once() {
        let capsule = Capsule {
            command: Command::decode([0; 64]),
            data: None,
            sound: true,
        };
        let said = refused(&capsule, &Refusal(Status::CONNECT_INVALID_HOST, 0)).report();
        assert!(said.starts_with("a connection of a host was refused: it is not among"));
        assert!(said.ends_with("`secrets` (permission denied)"), "{said}");
    }
}
