//! Connection setup: an admin queue, controller initialization, Identify, and an I/O queue.

use std::time::Duration;

use forebay_block::{Basis, Error, ErrorKind, Identity, Result};
use forebay_io::rt;
use forebay_wire::nvme::admin::{cns, opcode};
use forebay_wire::nvme::fabrics::{
    ANY_CONTROLLER, Connect, ConnectData, Property, cc, connection, csts, property,
};
use forebay_wire::nvme::identified::{
    ControllerFacts, NamespaceFacts, first_namespace, former_uuid, uuid,
};
use forebay_wire::nvme::io::RANGE_BYTES;
use forebay_wire::nvme::{Command, PAGE_BYTES, Status};

use super::Uri;
use super::authenticate::authenticate_queue;
use super::queue::{CommandData, Queue, broken, refused};
use crate::uri_parts::hash;

/// Entries of the admin queue, which carries one command at a time.
const ADMIN_ENTRIES: u16 = 32;
/// Interval between two polls of a controller that is becoming ready.
const READY_POLL: Duration = Duration::from_millis(10);
/// Supported block sizes, as powers of two in bytes.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;
/// Maximum length of a read or write, bytes.
const MOST_BYTES: u32 = 1 << 20;
/// Maximum preferred write unit that is passed on as physical block size, bytes.
const MOST_PREFERRED_BYTES: u32 = 64 << 10;

/// Properties of the target and the namespace. All of them must be the same after a reconnection,
/// except the size, which may have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) nsid: u32,
    pub(super) size_bytes: u64,
    pub(super) block_shift: u8,
    pub(super) preferred_bytes: u32,
    /// Maximum transfer, bytes.
    pub(super) max_bytes: u32,
    /// Maximum data in a command's capsule, bytes.
    pub(super) in_capsule_bytes: u32,
    pub(super) volatile_cache: bool,
    pub(super) deallocates: bool,
    pub(super) write_zeroes: bool,
    pub(super) read_only: bool,
    /// Derived from the best identifier of the namespace, or from its address if it has none.
    pub(super) identity: Identity,
    /// Hash of all identifiers.
    pub(super) names: u64,
    /// Maximum number of commands in flight.
    pub(super) depth: u16,
    /// Time without a command after which the target ends the association.
    pub(super) keep_alive: Duration,
}

impl Offer {
    /// Returns whether requests that were made for `self` are valid for `now`.
    pub(super) fn is_still(&self, now: &Self) -> bool {
        now.size_bytes >= self.size_bytes
            && self.is_same_namespace(now)
            && *self
                == Self {
                    size_bytes: self.size_bytes,
                    identity: self.identity,
                    names: self.names,
                    ..*now
                }
    }

    /// Returns whether `now` has the identifiers of `self`. A Forebay target that was upgraded
    /// since has other identifiers, and also reports its old ones.
    pub(super) fn is_same_namespace(&self, now: &Self) -> bool {
        let upgraded = self.identity.alias == 0
            && now.identity.alias != 0
            && now.identity.alias == self.identity.medium;
        self.nsid == now.nsid && (self.names == now.names || upgraded)
    }
}

/// Admin queue and I/O queue of a target.
pub(super) struct Association {
    pub(super) admin: Queue,
    pub(super) io: Queue,
    pub(super) offer: Offer,
}

/// Connects both queues, with this keep-alive timeout.
pub(super) async fn associate(uri: &Uri, keep_alive: Duration) -> Result<Association> {
    match connect(uri, keep_alive, true).await {
        // The target may not support queues without flow control.
        Err(Attempt::NoFlowControl) => connect(uri, keep_alive, false).await,
        other => other,
    }
    .map_err(|attempt| match attempt {
        Attempt::NoFlowControl => broken("it refuses the flow control that it requires"),
        Attempt::Failed(error) => error,
    })
}

enum Attempt {
    /// The target requires flow control.
    NoFlowControl,
    Failed(Error),
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

async fn connect(
    uri: &Uri,
    keep_alive: Duration,
    no_flow_control: bool,
) -> Result<Association, Attempt> {
    let mut fields = Connect {
        format: 0,
        queue: 0,
        queue_size: ADMIN_ENTRIES - 1,
        no_flow_control,
        keep_alive_ms: u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX),
    };
    let mut admin = Queue::open(uri).await?;
    let controller = make(&mut admin, uri, fields, ANY_CONTROLLER).await?;
    let capabilities = admin.must(
        "CAP",
        Property::get(property::CAP, true),
        CommandData::Nothing,
    );
    let capabilities = capabilities.await?.result;
    start(&mut admin, capabilities).await?;
    let mut offer = identify(&mut admin, uri, capabilities).await?;
    // The target rounds the timeout up to its granularity.
    offer.keep_alive += keep_alive;
    // A queue has one more entry than commands in flight; the capability counts from zero.
    let entries = (capabilities & 0xffff) as u16;
    offer.depth = uri.queue_depth.min(entries);
    if offer.depth == 0 {
        return Err(broken("its queues have no entries for commands").into());
    }
    (fields.queue, fields.queue_size, fields.keep_alive_ms) = (1, offer.depth, 0);
    let mut io = Queue::open(uri).await?;
    make(&mut io, uri, fields, controller).await?;
    Ok(Association { admin, io, offer })
}

/// Makes a connection a queue of a controller. Returns the controller's identifier.
async fn make(
    queue: &mut Queue,
    uri: &Uri,
    fields: Connect,
    controller: u16,
) -> Result<u16, Attempt> {
    let data = ConnectData {
        host_id: uri.host_id(),
        controller,
        subsystem: uri.nqn.clone(),
        host: uri.host.clone(),
    };
    let answer = queue
        .call(fields.command(), CommandData::InCapsule(&data.encode()))
        .await?;
    let status = answer.status;
    if status == Status::SUCCESS {
        let (made, authenticate) = connection(answer.result);
        let secrets = uri.secrets.as_ref();
        if authenticate {
            authenticate_queue(queue, uri).await?;
        } else if secrets.is_some_and(|secrets| secrets.controller.is_some()) {
            let what = "the target requires no authentication, so that it cannot authenticate \
                        itself\n\
                        help: export the volume with `secrets`, or leave out the target's own \
                        secret here";
            return Err(Error::new(ErrorKind::Permission, what).into());
        }
        return Ok(made);
    }
    // The error refers to the names at the start of the data, or to the one bit of the command that
    // may be wrong.
    const NAMES: std::ops::Range<u64> = 0x1_0100..0x1_0400;
    let mut help = "";
    let what = match () {
        () if status.is(Status::CONNECT_INVALID_HOST) => {
            help = "\nhelp: add the host at the target, or name another one by ?host=NQN";
            format!("the target does not allow host {}", uri.host)
        }
        () if status.is(Status::CONNECT_INVALID_PARAMETERS) => {
            if fields.no_flow_control && !NAMES.contains(&answer.result) {
                return Err(Attempt::NoFlowControl);
            }
            format!("the target has no subsystem {}", uri.nqn)
        }
        () => "Connect".to_owned(),
    };
    let kind = match status.is(Status::CONNECT_INVALID_PARAMETERS) {
        true => ErrorKind::NotFound,
        false => status.kind(),
    };
    Err(Error::new(kind, format!("{what} ({status}){help}")).into())
}

/// Enables the controller, and waits until it is ready.
async fn start(admin: &mut Queue, capabilities: u64) -> Result<()> {
    let enable = Property::set(property::CC, cc::ENTRY_SIZES | cc::EN);
    admin.must("CC", enable, CommandData::Nothing).await?;
    // "CAP.TO", in half seconds.
    let limit = rt::now() + Duration::from_millis(500) * u32::from(capabilities.to_le_bytes()[3]);
    loop {
        let look = admin.must(
            "CSTS",
            Property::get(property::CSTS, false),
            CommandData::Nothing,
        );
        let status = look.await?.result as u32;
        if status & csts::CFS != 0 {
            return Err(Error::new(ErrorKind::Io, "the controller has failed"));
        }
        if status & csts::RDY != 0 {
            return Ok(());
        }
        if rt::now() > limit {
            let what = "the controller is not ready within the time that it announces";
            return Err(Error::new(ErrorKind::TimedOut, what));
        }
        rt::sleep(READY_POLL).await;
    }
}

fn look_at(structure: u8, nsid: u32) -> Command {
    Command::new(opcode::IDENTIFY, nsid, [structure.into(), 0, 0, 0, 0, 0])
}

/// Identifies the controller and the namespace.
async fn identify(admin: &mut Queue, uri: &Uri, capabilities: u64) -> Result<Offer> {
    let page = admin.page("Identify, controller", look_at(cns::CONTROLLER, 0));
    let page = page.await?;
    let controller = ControllerFacts::decode(&page);
    // "SN"
    let serial = page[4..24].to_vec();
    let nsid = match uri.nsid {
        Some(nsid) => nsid,
        None => {
            let list = look_at(cns::ACTIVE_NAMESPACES, 0);
            let page = admin.page("Identify, namespaces", list).await?;
            first_namespace(&page).ok_or_else(|| {
                let what = format!("subsystem {} has no namespace", uri.nqn);
                Error::new(ErrorKind::NotFound, what)
            })?
        }
    };
    let page = admin.page("Identify, namespace", look_at(cns::NAMESPACE, nsid));
    let page = page.await?;
    let space = NamespaceFacts::decode(&page);
    let former = former_uuid(&page);
    if space.blocks == 0 {
        let what = format!("subsystem {} has no namespace {nsid}", uri.nqn);
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    let size_bytes = (space.blocks).checked_shl(space.block_shift.into());
    let size_bytes =
        size_bytes.filter(|size| size >> space.block_shift == space.blocks && *size < 1 << 63);
    let (Some(size_bytes), true, 0) = (
        size_bytes,
        BLOCK_SHIFTS.contains(&space.block_shift),
        space.metadata_bytes,
    ) else {
        let what = format!(
            "namespace {nsid} has {} blocks of 2^{} bytes with {} bytes of metadata each\n\
             help: format it with blocks of 512 bytes to 64 KiB without metadata",
            space.blocks, space.block_shift, space.metadata_bytes
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    };
    // Some targets have no descriptors. Then the other identifiers must do.
    let descriptors = look_at(cns::NAMESPACE_DESCRIPTORS, nsid);
    let uuid = match admin.page("Identify, descriptors", descriptors).await {
        Ok(page) => uuid(&page),
        Err(error) if error.kind() == ErrorKind::Disconnected => return Err(error),
        Err(_) => None,
    };
    let names = [&uuid.unwrap_or_default()[..], &space.nguid, &space.eui64];
    let name = names.into_iter().find(|name| name.iter().any(|&b| b != 0));
    let identity = match name {
        Some(name) => Identity {
            alias: former.map_or(0, |name| hash(name.iter().copied())),
            ..Identity::of(hash(name.iter().copied()))
        },
        None => {
            let place = [&serial, uri.nqn.as_bytes(), &nsid.to_be_bytes()[..]].concat();
            Identity {
                basis: Basis::Place,
                ..Identity::of(hash(place.into_iter()).max(1))
            }
        }
    };
    let block_bytes = 1 << space.block_shift;
    // "CAP.MPSMIN" counts from 4 KiB.
    let page_shift = u32::from(controller.max_transfer_shift) + (capabilities >> 48 & 0xf) as u32;
    let max_bytes = match controller.max_transfer_shift {
        0 => MOST_BYTES,
        _ => PAGE_BYTES
            .checked_shl(page_shift)
            .filter(|bytes| bytes >> page_shift == PAGE_BYTES)
            .map_or(MOST_BYTES, |bytes| bytes.min(MOST_BYTES)),
    };
    let preferred = space.preferred_blocks.saturating_mul(block_bytes);
    Ok(Offer {
        nsid,
        size_bytes,
        block_shift: space.block_shift,
        preferred_bytes: match preferred.is_power_of_two() && preferred <= MOST_PREFERRED_BYTES {
            true => preferred,
            false => block_bytes,
        },
        max_bytes: max_bytes.max(block_bytes),
        in_capsule_bytes: match controller.in_capsule_offset {
            0 => controller.in_capsule_bytes,
            _ => return Err(broken("data in its capsules has an offset")),
        },
        volatile_cache: controller.volatile_cache,
        // The range of a discard travels in the capsule.
        deallocates: controller.dataset_management
            && controller.in_capsule_bytes >= RANGE_BYTES as u32,
        write_zeroes: controller.write_zeroes,
        read_only: space.read_only,
        identity,
        names: hash(names.concat().into_iter()),
        depth: 0,
        keep_alive: Duration::from_millis(100) * u32::from(controller.keep_alive_100ms),
    })
}

/// Sends a keep-alive.
pub(super) async fn keep_alive(admin: &mut Queue) -> Result<()> {
    let command = Command::new(opcode::KEEP_ALIVE, 0, [0; 6]);
    let answer = admin.call(command, CommandData::Nothing).await?;
    match answer.status {
        Status::SUCCESS => Ok(()),
        status => Err(refused("Keep Alive", status)),
    }
}
