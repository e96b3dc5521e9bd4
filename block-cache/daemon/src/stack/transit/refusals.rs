//! Refusals of slots: errors with their remedies.

use std::path::Path;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::system::boot_id;
use forebay_terminal::size::human_bytes;
use forebay_transit::{generations_left, is_earlier};

use super::DIRECTORY;
use super::files::note_of;
use crate::state::{StateDirectory, with_help};

/// How to abandon the contents of slots. A start that merely misses the file would report an
/// accidental loss.
pub(super) const GIVE_UP: &str = "remove the file, and start the daemon once with \
    --accept-journal-loss: what it holds IS LOST THEN";

/// Returns the remedy for slots of an earlier time.
fn earlier(file: &Path) -> String {
    format!(
        "{} was put back after newer writes\n    \
         help: restore the newest file. If that is lost, remove it, and start once more: the start \
         reports whether acknowledged writes are lost with the newest file",
        file.display()
    )
}

/// Returns the error for slots that cannot be opened, with the remedy. `existed` says whether they
/// existed before. `state` is the state directory.
pub(super) fn unopened(error: Error, state: &Path, file: &Path, existed: bool) -> Error {
    match error.kind() {
        ErrorKind::Lost => Error::new(ErrorKind::Lost, removed(state, file)),
        ErrorKind::Corrupt => with_help(
            &error,
            &file.display().to_string(),
            "or start with --accept-journal-loss to give up damaged slots and write back the \
             others, and check the clients' last data",
        ),
        ErrorKind::InvalidInput if existed => Error::new(ErrorKind::InvalidInput, earlier(file)),
        _ => error.context(file.display().to_string()),
    }
}

/// Refuses slots that are older than the record in the state directory. `memory` is a copy of the
/// slots.
///
/// # Errors
/// `InvalidInput` for such slots; otherwise the error of the operating system.
pub(super) fn refuse_if_earlier(state: &Path, file: &Path, memory: &Buf) -> Result<()> {
    let boot_id = boot_id()?;
    let counts = StateDirectory::slots_generation_in(state, &note_of(file), &boot_id)?;
    match generations_left(memory, &boot_id).is_some_and(|left| is_earlier(left, counts)) {
        true => Err(Error::new(ErrorKind::InvalidInput, earlier(file))),
        false => Ok(()),
    }
}

/// Describes how much was in missing slots. The state directory has their capacity, if the daemon
/// that used them in this boot recorded it.
pub(super) fn amount(state: &Path, file: &Path) -> String {
    let noted = |boot_id| StateDirectory::slots_capacity_in(state, &note_of(file), &boot_id);
    match boot_id().and_then(noted) {
        Ok(bytes @ 1..) => format!("at most {}", human_bytes(bytes)),
        Ok(0) | Err(_) => "how much is not known".to_owned(),
    }
}

/// Returns the error message for missing slots. `state` is the state directory.
pub(super) fn removed(state: &Path, file: &Path) -> String {
    format!(
        "{} was removed, or overwritten: ACKNOWLEDGED WRITES ARE LOST ({})\n    \
         help: put it back: it has writes that a killed daemon acknowledged. They are lost unless \
         another daemon, with another state directory, sent them on and was stopped. If the \
         medium was copied or replaced since, put the former one back: its slots lie in \
         {DIRECTORY} under its number. Or start with --accept-journal-loss, and check what the \
         clients stored last if there was no such daemon",
        file.display(),
        amount(state, file)
    )
}

/// Returns the error for slots with data that the device lacks.
pub(super) fn blocks_are_left(file: &Path, blocks: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "{blocks} acknowledged blocks of it are in {} still\n    \
             help: start the daemon once with the transit cache that it had, and stop it, so that \
             they reach the device; or give them up: {GIVE_UP}",
            file.display()
        ),
    )
}
