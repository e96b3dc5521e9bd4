//! Files of slots: their names, contents and records.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Buf, DeviceInfo, Error, ErrorKind, Identity, Result};
use forebay_io::Stop;
use forebay_io::shm::{check_shared, look_shared, open_shared_until};
use forebay_io::system::{boot_id, wall_clock};
use forebay_transit::{AT_CUT, generations_left, memory_bytes, was_used};

use super::DIRECTORY;
use super::cut::look_for_cut;
use crate::state::StateDirectory;

/// Least size of slots in use, bytes.
const SMALLEST_BYTES: u64 = 8192;

pub(super) fn place(info: &DeviceInfo) -> PathBuf {
    let file = |name: &str| Path::new(DIRECTORY).join(format!("forebay-{name}.transit"));
    let Identity {
        medium,
        alias,
        start,
        ..
    } = info.identity;
    let former = file(&format!("{alias:016x}"));
    match start {
        _ if medium == 0 => file(&info.name.replace('/', "-")),
        // A file of an earlier version, which numbered partitions and loop devices differently.
        _ if alias != 0 && former.exists() => former,
        // Parts of one medium have slots of their own.
        Some(start @ 1..) => file(&format!("{medium:016x}-{start:x}")),
        _ => file(&format!("{medium:016x}")),
    }
}

/// Returns the generation that slots need to be valid, and the generation of a new opening. The
/// latter is a time, so that two independent state directories never use one twice.
pub(super) fn generations(
    state: &Path,
    file: &Path,
    memory: Option<&Buf>,
    boot_id: &[u8; 16],
) -> Result<(u64, u64)> {
    let counts = StateDirectory::slots_generation_in(state, &note_of(file), boot_id)?;
    let left = memory.and_then(|memory| generations_left(memory, boot_id));
    let left = left.unwrap_or_default();
    let last = left.into_iter().fold(counts, u64::max);
    let now = u64::try_from(wall_clock().as_nanos()).unwrap_or(0);
    Ok((counts, now.max(last + 1)))
}

/// Returns the names of the records of cache `name` over a medium. One is the cache's own, which
/// remains if the medium is replaced. The other is that of its slots, which remains if the
/// configuration changes.
pub(super) fn notes(name: &str, file: &Path) -> [String; 2] {
    [name.to_owned(), note_of(file)]
}

pub(super) fn note_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Whether a daemon of this boot used this cache, or another over its medium, and did not close it.
pub(super) fn was_noted(state: &Path, name: &str, file: &Path, boot_id: &[u8; 16]) -> Result<bool> {
    for note in notes(name, file) {
        if StateDirectory::transit_boot_in(state, &note)?.as_ref() == Some(boot_id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether there are slots that a daemon of this boot has used.
pub(super) fn is_used(file: &Path, boot_id: &[u8; 16]) -> Result<bool> {
    Ok(look(file)?.is_some_and(|memory| was_used(&memory, boot_id)))
}

/// Returns a copy of the slots in a file; `None` if there can be none. A directory at the path
/// prevents only the start of a transit cache.
pub(super) fn look(file: &Path) -> Result<Option<Buf>> {
    if file.is_dir() {
        return Ok(None);
    }
    let memory = look_shared(file)?.filter(|memory| memory.len() as u64 >= SMALLEST_BYTES);
    if let Some(memory) = &memory
        && let Some(from) = look_for_cut(file, &boot_id()?)?.and_then(|cut| cut.from)
    {
        memory.copy_from(AT_CUT, &from.to_le_bytes());
    }
    Ok(memory)
}

/// Returns the error for a file of slots that cannot be used.
pub(super) fn unusable(error: Error, file: &Path, name: &str) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => error.context(format!(
            "the slots of {name:?} do not fit\n\
             help: use a smaller `capacity`, or a larger {DIRECTORY}"
        )),
        _ => error.context(format!("its slots in {}", file.display())),
    }
}

/// Returns the size of the file of slots over a medium, bytes. Also returns the part of that size
/// that [`DIRECTORY`] has not allocated yet.
pub(in crate::stack) fn wanted_bytes(info: &DeviceInfo, capacity_bytes: u64) -> (u64, u64) {
    let slots = usize::try_from(capacity_bytes / u64::from(info.logical_block_bytes));
    let len = memory_bytes(slots.unwrap_or(usize::MAX), info.logical_block_bytes) as u64;
    let Ok(found) = std::fs::metadata(place(info)) else {
        return (len, len);
    };
    let len = fixed_bytes(&found).unwrap_or(len);
    (len, len.saturating_sub(found.blocks() * 512))
}

/// Returns the fixed size of a file of slots; `None` if it holds nothing. A start that was killed
/// during allocation left no size.
fn fixed_bytes(found: &Metadata) -> Option<u64> {
    (found.len() >= SMALLEST_BYTES && found.blocks() > 0).then_some(found.len())
}

/// Maps the file of the slots. A used file keeps its size: it may hold the only copy of
/// acknowledged writes.
///
/// Also returns whether the file existed.
pub(super) fn map(file: &Path, mut len: usize, name: &str, stop: &Stop) -> Result<(Buf, bool)> {
    let in_place = |error| unusable(error, file, name);
    check_shared(file).map_err(in_place)?;
    let found = std::fs::metadata(file).ok();
    if let Some(present) = found.as_ref().and_then(fixed_bytes)
        && present != len as u64
    {
        tracing::warn!(
            "the slots of transit cache {name:?} in {} have {present} bytes and keep that \
             size\n    \
             help: stop the daemon and start it again: a clean shutdown removes them, and a start \
             makes them with the `capacity` of the configuration",
            file.display(),
        );
        len = usize::try_from(present).unwrap_or(len);
    }
    open_shared_until(file, len, stop).map_err(in_place)
}
