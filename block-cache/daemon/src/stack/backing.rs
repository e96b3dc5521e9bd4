//! Checks of the backing device of a volume: its contents, its identity, and overlaps.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    Basis, BlockDevice, BlockDeviceExt as _, Buf, DeviceInfo, Error, ErrorKind, Persistence, Result,
};
use forebay_btt::layout::{InfoBlock, PAGE_BYTES, Version};
use forebay_io::rt;
use forebay_metadata::superblock::Superblock;

use crate::config::{self, Config, DeviceKind};
use crate::state::hex;

/// Time limit for reading the backing device for a warning. A slower device gets no warning.
const GLANCE: Duration = Duration::from_secs(3);

/// Returns a warning if the backing file or disk of a volume holds a cache or a block translation
/// table. Clients must not overwrite either of them through this volume. Returns `None` if the
/// device holds neither, or cannot be read at once.
pub(super) async fn warning_of(
    config: &Config,
    volume: &config::Volume,
    backing: &Rc<dyn BlockDevice>,
) -> Option<String> {
    let leaf = *config.stack(&volume.backing).last()?;
    if !matches!(leaf.kind, DeviceKind::File { .. }) {
        return None;
    }
    let what = rt::at_most(GLANCE, foreign_contents(backing)).await??;
    Some(format!(
        "{}: volume {:?}: its backing device {:?} holds {what}",
        config.place(volume.line),
        volume.name,
        volume.backing,
    ))
}

/// Describes a cache or a block translation table on a device, with the remedy; `None` without one.
async fn foreign_contents(backing: &Rc<dyn BlockDevice>) -> Option<String> {
    if let Ok(found) = Superblock::read(backing.as_ref()).await {
        let names: Vec<_> = found.volumes.iter().map(|volume| &*volume.name).collect();
        let of = match names.is_empty() {
            true => "of no volume yet".to_owned(),
            false => format!("with data of {}", names.join(", ")),
        };
        return Some(format!(
            "a Forebay cache, {}, {of}: writes to the volume overwrite it\n    \
             help: if that is not the cache of a guest that has this volume as its disk, stop, and \
             give the volume another device: the cache's data may be nowhere else",
            hex(&found.uuid)
        ));
    }
    for version in Version::ALL {
        let page = Buf::scratch(PAGE_BYTES as usize);
        if (backing.read(version.start_bytes(), page.clone()).await).is_err() {
            continue;
        }
        let mut bytes = [0; PAGE_BYTES as usize];
        page.copy_to(0, &mut bytes);
        if InfoBlock::decode(&bytes).is_ok() {
            return Some(
                "a block translation table, and is served as it is: writes to the volume overwrite \
                 the table\n    \
                 help: if the volume was on the table, stop, and write kind = \"pmem\" for the \
                 file and a device of kind \"btt\" over it"
                    .to_owned(),
            );
        }
    }
    None
}

/// Returns a warning if the backing device of a cached volume has no unique name of its own. Memory
/// of this process needs none.
///
/// # Errors
/// `InvalidInput` if the identity of the device is unknown and the mode leaves dirty data in the
/// cache.
pub(crate) fn judge_identity(
    volume: &config::Volume,
    mode: config::Mode,
    info: &DeviceInfo,
) -> Result<Option<String>> {
    let identity = info.identity;
    let device = &volume.backing;
    if info.persistence == Persistence::Process
        || (identity.is_known() && identity.basis == Basis::Name)
    {
        return Ok(None);
    }
    if !identity.is_known() && mode.keeps_dirty_data() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "backing device {device:?} has no identity, and mode {mode} keeps dirty data for \
                 it\n\
                 help: use a device with a serial number or world-wide name, or mode wt, wa, wi or \
                 pt. Or, if the device's path always means this one, write identity = \"path\" for \
                 it"
            ),
        ));
    }
    let by = match identity.basis {
        _ if !identity.is_known() => "nothing but samples of its content",
        Basis::Path => "its path and samples of its content",
        Basis::Address => "its URI and samples of its content",
        Basis::Name | Basis::Place => {
            "its place in this machine, its driver, its size and samples of its content"
        }
    };
    Ok(Some(format!(
        "backing device {device:?} has no serial number or world-wide name: it is known by \
         {by}\n    \
         help: never put another device in its place while the cache holds dirty data"
    )))
}

/// Returns the error for two devices that share bytes.
pub(crate) fn shared_bytes(
    one: &str,
    first: &DeviceInfo,
    two: &str,
    second: &DeviceInfo,
) -> String {
    let are = match first.identity.is_same_as(second.identity) {
        true => "are one and the same",
        false => "overlap: they are parts of one medium",
    };
    format!(
        "devices {one:?} and {two:?} {are}\nhelp: give each a medium, or a part of one, of its own"
    )
}
