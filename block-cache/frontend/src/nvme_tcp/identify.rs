//! Identify: properties of a controller and its namespaces.

use forebay_wire::nvme::admin::{cns, event};
use forebay_wire::nvme::fabrics::DISCOVERY_NQN;
use forebay_wire::nvme::identify::{
    self, Controller, ControllerKind, Namespace, PAGE_BYTES, Page, descriptors, namespace_list,
};
use forebay_wire::nvme::{ALL_NAMESPACES, Command, Status};

use super::connection::Connection;
use super::controller::ERROR_ENTRIES;
use super::events::MAX_REQUESTS;
use super::feature::{KEEP_ALIVE_100MS, has_cache};
use super::namespaces::{self, MAX_NAMESPACES};
use super::{IN_CAPSULE_BYTES, MAX_QUEUE_SIZE, MAX_TRANSFER_SHIFT};

/// Model number.
const MODEL: &str = "Forebay";
/// Firmware revision.
pub(super) const REVISION: &str = env!("CARGO_PKG_VERSION");

/// Returns the page that a command requests.
pub(super) fn page(connection: &Connection, command: &Command) -> Result<Page, Status> {
    let structure = command.words[0].to_le_bytes()[0];
    if structure == cns::CONTROLLER {
        return Ok(controller(connection));
    }
    let namespaces = connection
        .controller()
        .namespaces()
        .ok_or(Status::INVALID_FIELD)?;
    let found = || namespaces.get(command.nsid);
    match structure {
        // Common properties of namespaces: the possible formats.
        cns::NAMESPACE if command.nsid == ALL_NAMESPACES => Ok([0; PAGE_BYTES]),
        // A page of zeroes means an inactive namespace.
        cns::NAMESPACE if is_possible(command.nsid) => {
            Ok(found().map_or([0; PAGE_BYTES], |it| namespace(&it)))
        }
        cns::ACTIVE_NAMESPACES if command.nsid < ALL_NAMESPACES - 1 => {
            let list = namespaces.list();
            Ok(namespace_list(list.iter().map(|it| it.nsid), command.nsid))
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let it = found().ok_or(Status::INVALID_NAMESPACE)?;
            Ok(descriptors(&it.uuid))
        }
        // The controller's page has all limits; the NVM command set (number 0) adds none.
        cns::CONTROLLER_OF_COMMAND_SET if command.words[1] >> 24 == 0 => Ok([0; PAGE_BYTES]),
        cns::NAMESPACE | cns::ACTIVE_NAMESPACES => Err(Status::INVALID_NAMESPACE),
        _ => Err(Status::INVALID_FIELD),
    }
}

const fn is_possible(nsid: u32) -> bool {
    nsid > 0 && nsid <= MAX_NAMESPACES
}

fn controller(connection: &Connection) -> Page {
    let controller = connection.controller();
    let namespaces = controller.namespaces();
    let kind = match namespaces {
        Some(_) => ControllerKind::Io,
        None => ControllerKind::Discovery,
    };
    let events = match kind {
        ControllerKind::Io => event::NAMESPACE_CHANGED_BIT,
        ControllerKind::Discovery => event::DISCOVERY_CHANGED_BIT,
    };
    let list = namespaces.map(|it| it.list()).unwrap_or_default();
    let atomic = list.iter().map(|it| geometry(it).atomic_blocks).min();
    Controller {
        kind,
        serial: namespaces.map_or("discovery", |it| it.serial()).to_owned(),
        model: MODEL.to_owned(),
        revision: REVISION.to_owned(),
        id: controller.id(),
        subsystem: namespaces.map_or(DISCOVERY_NQN, |it| it.nqn()).to_owned(),
        max_transfer_shift: MAX_TRANSFER_SHIFT,
        events,
        event_requests: u8::try_from(MAX_REQUESTS).expect("a few"),
        error_entries: u8::try_from(ERROR_ENTRIES).expect("a few"),
        keep_alive_100ms: KEEP_ALIVE_100MS,
        queue_size: MAX_QUEUE_SIZE,
        namespaces: MAX_NAMESPACES,
        volatile_cache: has_cache(connection),
        atomic_blocks: atomic.unwrap_or(1),
        in_capsule_bytes: IN_CAPSULE_BYTES,
    }
    .encode()
}

fn geometry(it: &namespaces::Namespace) -> Namespace {
    let info = it.volume.info();
    let block_bytes = info.logical_block_bytes;
    let blocks = |bytes: u32| {
        u16::try_from(bytes / block_bytes)
            .unwrap_or(u16::MAX)
            .max(1)
    };
    identify::Namespace {
        blocks: info.size_bytes / u64::from(block_bytes),
        block_shift: u8::try_from(block_bytes.trailing_zeros()).expect("below 32"),
        preferred_blocks: blocks(info.physical_block_bytes),
        atomic_blocks: blocks(info.atomic_write_bytes),
        read_only: it.volume.read_only(),
    }
}

fn namespace(it: &namespaces::Namespace) -> Page {
    let mut page = geometry(it).encode();
    identify::former(&mut page, &it.former_uuid);
    page
}
