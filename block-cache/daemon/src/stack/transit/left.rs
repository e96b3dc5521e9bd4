//! Slots that an earlier process left, or that are gone.

use std::path::{Path, PathBuf};

use forebay_block::{Buf, DeviceInfo, Error, ErrorKind, Result};
use forebay_io::system::boot_id;
use forebay_transit::{generations_left, is_earlier, slots_left};

use super::{Around, DIRECTORY, generations, is_used, look, note_of, others, place};
use crate::state::StateDirectory;

/// How the contents of slots are given up. A start that only misses the file would take it for lost
/// by accident.
const GIVE_UP: &str = "remove the file, and start the daemon once with --accept-journal-loss: what \
    it holds IS LOST THEN";

/// What to do about slots of an earlier time.
fn earlier(file: &Path) -> String {
    format!(
        "{}: it was put back after newer writes. Put the newest one back, if it is not that; if \
         there is none, \
         remove it, and start again: that start says whether acknowledged writes are lost with the \
         newest one",
        file.display()
    )
}

/// Why the slots in a file cannot be opened, and the remedy. `existed`: they were there before.
pub(super) fn unopened(error: Error, file: &Path, existed: bool) -> Error {
    match error.kind() {
        ErrorKind::Lost => error.context(removed(file)),
        ErrorKind::Corrupt => error.context(format!(
            "{}: put a sound copy of it back, or start with --accept-journal-loss, which gives up \
             what is damaged \
             and sends the rest on, and check what the clients stored last",
            file.display()
        )),
        ErrorKind::InvalidInput if existed => error.context(earlier(file)),
        _ => error.context(file.display().to_string()),
    }
}

/// Refuses slots, of which `memory` is a copy, of an earlier time than the state directory
/// remembers.
///
/// # Errors
/// `InvalidInput` for such slots; an error of the system.
pub(super) fn refuse_if_earlier(state: &Path, file: &Path, memory: &Buf) -> Result<()> {
    let boot_id = boot_id()?;
    let counts = StateDirectory::slots_generation_in(state, &note_of(file), &boot_id)?;
    match generations_left(memory, &boot_id).is_some_and(|left| is_earlier(left, counts)) {
        true => {
            let what = "what its slots hold is older than what the device was sent since";
            Err(Error::new(ErrorKind::InvalidInput, what).context(earlier(file)))
        }
        false => Ok(()),
    }
}

pub(super) fn tell_of_loss(file: &Path) {
    tracing::error!(
        "LOST, as --accept-journal-loss says: what was in {}, if no other daemon has sent it on: \
         check what the clients \
         stored last",
        file.display()
    );
}

/// Refuses a medium without the slots that a daemon of this boot had over it, or over a device that
/// overlaps it, and did not close, now that the configuration has none there.
///
/// # Errors
/// `Lost` if they are not there; what the system says.
pub(crate) fn refuse_if_gone(state: &Path, info: &DeviceInfo) -> Result<()> {
    let (file, boot_id) = (place(info), boot_id()?);
    let noted = StateDirectory::transit_boot_in(state, &note_of(&file))? == Some(boot_id);
    match noted && !is_used(&file, &boot_id)? {
        true => Err(Error::new(ErrorKind::Lost, removed(&file))),
        false => others::refuse_if_gone(state, info),
    }
}

/// As [`refuse_if_gone`], unless what they had is given up.
pub(in crate::stack) fn give_up_or_refuse(around: &Around<'_>, info: &DeviceInfo) -> Result<()> {
    match refuse_if_gone(around.state.path(), info) {
        Err(error) if error.kind() == ErrorKind::Lost && around.accept_loss => {
            let (file, boot_id) = (place(info), boot_id()?);
            let noted = StateDirectory::transit_boot_in(around.state.path(), &note_of(&file))?;
            if noted == Some(boot_id) && !is_used(&file, &boot_id)? {
                give_up(around, &file)?;
            }
            give_up_others(around, info)
        }
        refused => refused,
    }
}

/// Gives up what slots had that are gone.
fn give_up(around: &Around<'_>, file: &Path) -> Result<()> {
    tell_of_loss(file);
    let boot_id = boot_id()?;
    // Were they put back later, they would be older than what is written from now on.
    let (_, next) = generations(around.state.path(), file, None, &boot_id)?;
    (around.state).note_slots_generation(&note_of(file), &boot_id, next)?;
    around.state.note_transit(&note_of(file), None)
}

fn give_up_others(around: &Around<'_>, info: &DeviceInfo) -> Result<()> {
    for file in others::gone(around.state.path(), info)? {
        give_up(around, &file)?;
    }
    Ok(())
}

/// Refuses a device on which slots over another device that overlaps it would land later. Gives up
/// what is gone of those, if that is accepted.
///
/// # Errors
/// `Busy` if some are left, `InvalidInput` if they are of an earlier time, `Lost` if they are gone;
/// what the system says.
pub(super) fn refuse_others(around: &Around<'_>, info: &DeviceInfo) -> Result<()> {
    others::refuse_if_left(Some(around.state.path()), info)?;
    match around.accept_loss {
        true => give_up_others(around, info),
        false => others::refuse_if_gone(around.state.path(), info),
    }
}

pub(super) fn removed(file: &Path) -> String {
    format!(
        "{} was removed, or overwritten where it says whose it is, since a daemon was killed that \
         may have had acknowledged \
         writes in it. They are lost, unless another daemon, with another state directory, sent \
         them on and was stopped \
         (then nothing is). Where the medium was copied or replaced since, that is another one: \
         what was not sent on lies in \
         {DIRECTORY} under the number of the old one. Put it back (the medium, then), or start \
         with --accept-journal-loss and, if there was no such daemon, check what \
         the clients stored last",
        file.display()
    )
}

/// What slots hold of a medium that it does not have: their file, and how many blocks; none if it
/// has everything. Slots over a device that overlaps it count.
///
/// # Errors
/// `Busy` where a daemon has them, or what the system says.
pub(crate) fn left(info: &DeviceInfo) -> Result<Option<(PathBuf, u64)>> {
    let file = place(info);
    let found = match look(&file)? {
        Some(memory) => slots_left(&memory, &boot_id()?),
        None => None,
    };
    match found {
        Some(left) if left.blocks == 0 => others::left(info),
        // Made anew, with the number that the other had.
        Some(left) if left.is_replaced_by(info.identity, info.size_bytes) => {
            tracing::warn!(
                "{} acknowledged blocks are in {}, of a device that had the number of {} before \
                 that was made: if it \
                 is gone for good, {GIVE_UP}",
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

/// As [`refuse_if_left`], with what a state directory remembers: slots of an earlier time are not
/// to be sent on.
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

/// Refuses a medium of which slots hold more than it has: who wrote there would be overtaken when
/// they are sent on.
///
/// # Errors
/// `Busy` if some do, and as [`left`].
pub(crate) fn refuse_if_left(info: &DeviceInfo) -> Result<()> {
    let Some((file, blocks)) = left(info)? else {
        return Ok(());
    };
    Err(blocks_are_left(&file, blocks))
}

/// Says that slots have what a device does not.
pub(super) fn blocks_are_left(file: &Path, blocks: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "{blocks} acknowledged blocks of it are in {} still\n    \
             help: start the daemon once with the transit cache that it had, and stop it, so that \
             they reach the device; \
             or give them up: {GIVE_UP}",
            file.display()
        ),
    )
}
