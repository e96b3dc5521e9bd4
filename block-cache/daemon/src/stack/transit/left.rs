//! Slots of an earlier process, and missing slots.

use std::path::{Path, PathBuf};

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};
use forebay_io::system::boot_id;
use forebay_object::{Id, new_id};
use forebay_terminal::size::human_bytes;
use forebay_transit::slots_left;

use super::files::{generations, is_used, look, note_of, place};
use super::refusals::{GIVE_UP, amount, blocks_are_left, refuse_if_earlier, removed};
use super::{Start, others};
use crate::config::{self, Config, DeviceKind};
use crate::state::StateDirectory;
use crate::state::decide::Claim;

/// Reports the loss of missing slots that the user accepts. `state` is the state directory.
pub(super) fn tell_of_loss(state: &Path, file: &Path) {
    tracing::error!(
        "LOST, as --accept-journal-loss says: the writes in {} ({}), unless another daemon wrote \
         them back\n    \
         help: check what the clients stored last",
        file.display(),
        amount(state, file)
    );
}

/// Refuses a medium if its slots, or those of an overlapping device, are missing. This concerns
/// slots that a daemon of this boot used and did not close, over a device without a configured
/// transit cache.
///
/// # Errors
/// `Lost` if they are missing. Otherwise the error of the operating system.
pub(crate) fn refuse_if_gone(state: &Path, info: &DeviceInfo) -> Result<()> {
    let (file, boot_id) = (place(info), boot_id()?);
    let noted = StateDirectory::transit_boot_in(state, &note_of(&file))? == Some(boot_id);
    match noted && !is_used(&file, &boot_id)? {
        true => Err(Error::new(ErrorKind::Lost, removed(state, &file))),
        false => others::refuse_if_gone(state, info),
    }
}

/// As [`refuse_if_gone`], unless the data in the slots is abandoned.
pub(in crate::stack) fn give_up_or_refuse(start: &Start<'_>, info: &DeviceInfo) -> Result<()> {
    match refuse_if_gone(start.state.path(), info) {
        Err(error) if error.kind() == ErrorKind::Lost && start.accept_loss => {
            let (file, boot_id) = (place(info), boot_id()?);
            let noted = StateDirectory::transit_boot_in(start.state.path(), &note_of(&file))?;
            if noted == Some(boot_id) && !is_used(&file, &boot_id)? {
                give_up(start, &file)?;
            }
            give_up_others(start, info)
        }
        refused => refused,
    }
}

/// Abandons the data of missing slots.
fn give_up(start: &Start<'_>, file: &Path) -> Result<()> {
    tell_of_loss(start.state.path(), file);
    let boot_id = boot_id()?;
    // Restored later, they would be older than writes from now on.
    let (_, next) = generations(start.state.path(), file, None, &boot_id)?;
    (start.state).note_slots_generation(&note_of(file), &boot_id, next)?;
    start.state.note_transit(&note_of(file), None)
}

fn give_up_others(start: &Start<'_>, info: &DeviceInfo) -> Result<()> {
    for file in others::gone(start.state.path(), info)? {
        give_up(start, &file)?;
    }
    Ok(())
}

/// Refuses a device if slots over an overlapping device would be written to it later. Abandons
/// missing slots if the user accepts that.
///
/// # Errors
/// `Busy` if such slots exist. `InvalidInput` if they are of an earlier time. `Lost` if they are
/// missing. Otherwise the error of the operating system.
pub(super) fn refuse_others(start: &Start<'_>, info: &DeviceInfo) -> Result<()> {
    others::refuse_if_left(Some(start.state.path()), info)?;
    match start.accept_loss {
        true => give_up_others(start, info),
        false => others::refuse_if_gone(start.state.path(), info),
    }
}

/// Returns the file and number of blocks of slots with data that a medium lacks; `None` if the
/// medium has everything. Includes slots over an overlapping device.
///
/// # Errors
/// `Busy` if a daemon uses them; otherwise the error of the operating system.
pub(crate) fn left(info: &DeviceInfo) -> Result<Option<(PathBuf, u64)>> {
    let file = place(info);
    let found = match look(&file)? {
        Some(memory) => slots_left(&memory, &boot_id()?),
        None => None,
    };
    match found {
        Some(left) if left.blocks == 0 => others::left(info),
        // The device was recreated, with the number of the former one.
        Some(left) if left.is_replaced_by(info.identity, info.size_bytes) => {
            tracing::warn!(
                "{} acknowledged blocks are in {}, of a device that had the number of {} \
                 before\n    \
                 help: if that device is gone for good, {GIVE_UP}",
                left.blocks,
                file.display(),
                info.name
            );
            others::left(info)
        }
        Some(left) => Ok(Some((file, left.blocks))),
        None => others::left(info),
    }
}

/// Describes `bytes` of a transit cache that are older than data of its device, with the remedy to
/// give them up.
pub(super) fn older_in_words(name: &str, bytes: u64, file: &Path) -> String {
    format!(
        "{} in transit cache {name:?} are older than data of another daemon\n\
         help: to give them up, remove {} and start with --accept-journal-loss",
        human_bytes(bytes),
        file.display()
    )
}

/// Refuses a volume if its transit cache holds data that is older than that of another daemon.
/// `info` is its device in object storage, and `last` the last writer there.
///
/// # Errors
/// `Busy` for such data; errors of the operating system.
pub(crate) fn refuse_if_older(
    config: &Config,
    volume: &config::Volume,
    info: &DeviceInfo,
    last: Option<Id>,
) -> Result<()> {
    let mut stack = config.stack(&volume.backing).into_iter();
    let transit = stack.find(|entry| matches!(entry.kind, DeviceKind::Transit { .. }));
    let (Some(transit), Some(last)) = (transit, last) else {
        return Ok(());
    };
    let Some((file, blocks)) = left(info)? else {
        return Ok(());
    };
    let (state, sized) = (&config.server.state, (info.identity, info.size_bytes));
    let others = StateDirectory::others_in(state, &volume.name, sized)?;
    let own = StateDirectory::load_in(state, &volume.name)?;
    let claim = Claim::new(Some(last), new_id(), &others);
    if !claim.is_after_other_on(sized, own, &others) {
        return Ok(());
    }
    let bytes = blocks * u64::from(info.logical_block_bytes);
    let what = older_in_words(&transit.name, bytes, &file);
    Err(Error::new(ErrorKind::Busy, what))
}

/// As [`refuse_if_left`], with the record of a state directory: slots of an earlier time must not
/// be sent to the device.
///
/// # Errors
/// As [`refuse_if_left`], and `InvalidInput` for those.
pub(crate) fn refuse_if_left_in(state: &Path, info: &DeviceInfo) -> Result<()> {
    let file = place(info);
    if let Some(memory) = look(&file)? {
        refuse_if_earlier(state, &file, &memory)?;
    }
    others::refuse_if_left(Some(state), info)?;
    refuse_if_left(info)
}

/// Refuses a medium if slots hold newer data for it. A later write-back of these slots would
/// overwrite newer writes.
///
/// # Errors
/// `Busy` if there are such slots, and as [`left`].
pub(crate) fn refuse_if_left(info: &DeviceInfo) -> Result<()> {
    let Some((file, blocks)) = left(info)? else {
        return Ok(());
    };
    Err(blocks_are_left(&file, blocks))
}
