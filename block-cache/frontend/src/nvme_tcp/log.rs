//! Log pages (Base 5.16).

use forebay_volume::VolumeStats;
use forebay_wire::nvme::admin::{LogRequest, lid};
use forebay_wire::nvme::log::{
    ERROR_ENTRY_BYTES, Smart, ana, ana_bytes, changed_namespaces, firmware,
};
use forebay_wire::nvme::{ALL_NAMESPACES, Command, Status};

use super::connection::Connection;
use super::controller::ERROR_ENTRIES;
use super::identify::REVISION;
use super::namespaces::MAX_NAMESPACES;

/// Returns the part of a page that a command requests, as far as the page reaches, and the
/// requested length, bytes.
pub(super) fn page(connection: &Connection, command: &Command) -> Result<(Vec<u8>, u32), Status> {
    let request = LogRequest::of(command);
    if request.length > u64::from(super::MAX_TRANSFER_BYTES) || !request.offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD);
    }
    let whole = match connection.controller().namespaces() {
        Some(_) => io_page(connection, command, &request)?,
        None => discovery_page(connection, &request)?,
    };
    let offset = usize::try_from(request.offset).map_err(|_| Status::INVALID_FIELD)?;
    let part = whole.get(offset..).ok_or(Status::INVALID_FIELD)?;
    let length = u32::try_from(request.length).expect("at most the largest transfer");
    Ok((part[..part.len().min(length as usize)].to_vec(), length))
}

fn discovery_page(connection: &Connection, request: &LogRequest) -> Result<Vec<u8>, Status> {
    if request.lid != lid::DISCOVERY {
        return Err(Status::INVALID_LOG_PAGE);
    }
    let address = connection.local_address().ok_or(Status::INTERNAL_ERROR)?;
    let exports = &connection.exports;
    if !request.retain {
        connection.events.seen();
    }
    Ok(exports.discovery_log(connection.controller().host(), address))
}

fn io_page(
    connection: &Connection,
    command: &Command,
    request: &LogRequest,
) -> Result<Vec<u8>, Status> {
    let controller = connection.controller();
    Ok(match request.lid {
        lid::ERROR => {
            let (_, entries) = controller.errors();
            let encoded = entries.iter().flat_map(|entry| entry.encode());
            filled(encoded.collect(), ERROR_ENTRIES * ERROR_ENTRY_BYTES)
        }
        lid::SMART => smart(connection, command.nsid)?.encode().to_vec(),
        lid::FIRMWARE => firmware(REVISION).to_vec(),
        lid::CHANGED_NAMESPACES => {
            let changed = connection.events.changed(!request.retain);
            changed_namespaces(&changed).to_vec()
        }
        lid::ANA => {
            let namespaces = controller.namespaces().ok_or(Status::INVALID_LOG_PAGE)?;
            let ids: Vec<u32> = namespaces.list().iter().map(|it| it.nsid).collect();
            // "RGO": groups without their namespaces.
            let page = ana(namespaces.generation(), &ids, request.specific & 1 != 0);
            // Hosts read the page in pieces, up to its length with the maximum number of
            // namespaces.
            let most = page.len().max(ana_bytes(MAX_NAMESPACES as usize));
            filled(page, most)
        }
        _ => return Err(Status::INVALID_LOG_PAGE),
    })
}

/// Pads a page with zeroes to its full length.
fn filled(mut page: Vec<u8>, length: usize) -> Vec<u8> {
    page.resize(length, 0);
    page
}

/// Returns the health of a namespace, or of all together.
fn smart(connection: &Connection, nsid: u32) -> Result<Smart, Status> {
    let controller = connection.controller();
    let namespaces = controller.namespaces().ok_or(Status::INVALID_LOG_PAGE)?;
    let list = match nsid {
        0 | ALL_NAMESPACES => namespaces.list(),
        nsid => vec![namespaces.get(nsid).ok_or(Status::INVALID_NAMESPACE)?],
    };
    let (errors, _) = controller.errors();
    let mut smart = Smart {
        hours: namespaces.uptime().as_secs() / 3600,
        errors,
        ..Smart::default()
    };
    for namespace in list {
        let VolumeStats { read, write, .. } = namespace.volume.stats();
        smart.read_bytes += read.bytes;
        smart.written_bytes += write.bytes;
        smart.reads += read.ops;
        smart.writes += write.ops;
        smart.media_errors += read.errors + write.errors;
        smart.read_only |= namespace.volume.read_only();
    }
    Ok(smart)
}
