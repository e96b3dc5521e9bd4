//! Slots over devices that overlap another: a whole medium and its parts, or overlapping parts.
//!
//! Each device has a file of slots of its own, named after the medium and the start. A write-back
//! of slots over one device would overwrite newer writes to another device with the same bytes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Buf, Context as _, DeviceInfo, Error, ErrorKind, Identity, Result};
use forebay_io::shm::check_shared;
use forebay_io::system::boot_id;
use forebay_transit::{SlotsLeft, slots_left};

use super::DIRECTORY;
use super::files::{look, note_of, place};
use super::refusals::{blocks_are_left, refuse_if_earlier, removed};
use crate::state::StateDirectory;

/// Returns the files in `directory` that begin with `forebay-` and end with `.transit`, in order.
fn named(directory: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = found.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("forebay-") && name.ends_with(".transit")
    });
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort_unstable();
    paths
}

/// Returns the contents of the first page of a file of slots, without a lock.
fn first_page(file: &Path, boot_id: &[u8; 16]) -> Option<SlotsLeft> {
    check_shared(file).ok()?;
    let mut page = [0; 4096];
    (File::open(file).ok()?.read_exact_at(&mut page, 0)).ok()?;
    slots_left(&Buf::copied(&page), boot_id)
}

/// Returns the files of slots of this boot over other devices that overlap this one.
fn overlapping(info: &DeviceInfo) -> Result<Vec<PathBuf>> {
    let (own, boot_id) = (place(info), boot_id()?);
    let others = named(Path::new(DIRECTORY)).into_iter().filter(|file| {
        let overlaps = |left: SlotsLeft| left.overlaps(info.identity, info.size_bytes);
        *file != own && first_page(file, &boot_id).is_some_and(overlaps)
    });
    Ok(others.collect())
}

/// Returns a file of slots over another device that overlaps this one, with the number of blocks in
/// them. Returns `None` if there is none.
///
/// # Errors
/// `Busy` if a daemon uses them; otherwise the error of the operating system.
pub(super) fn left(info: &DeviceInfo) -> Result<Option<(PathBuf, u64)>> {
    let boot_id = boot_id()?;
    for file in overlapping(info)? {
        let held = || format!("{}: slots over a device that overlaps it", file.display());
        let memory = look(&file).context(held)?;
        let left = memory.and_then(|memory| slots_left(&memory, &boot_id));
        match left {
            Some(left) if left.blocks > 0 => return Ok(Some((file, left.blocks))),
            _ => (),
        }
    }
    Ok(None)
}

/// Refuses a device while slots over an overlapping device hold data. With a state directory, slots
/// of an earlier time are distinguished: they must not be written back.
///
/// # Errors
/// As [`left`]; `Busy` if there are some, and `InvalidInput` if they are of an earlier time.
pub(super) fn refuse_if_left(state: Option<&Path>, info: &DeviceInfo) -> Result<()> {
    let Some((file, blocks)) = left(info)? else {
        return Ok(());
    };
    if let Some(state) = state
        && let Some(memory) = look(&file)?
    {
        refuse_if_earlier(state, &file, &memory)?;
    }
    Err(blocks_are_left(&file, blocks))
}

/// Returns the device that a record of slots names: its identity, as far as the name shows it, and
/// its size in bytes.
fn noted_device(state: &Path, note: &str, boot_id: &[u8; 16]) -> Result<Option<(Identity, u64)>> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let name = note.strip_prefix("forebay-").unwrap_or_default();
    let (medium, start) = match name.split_once('-') {
        Some((medium, start)) => (number(medium), number(start)),
        None => (number(name), Some(0)),
    };
    let (Some(medium), Some(start)) = (medium, start) else {
        return Ok(None);
    };
    let size_bytes = StateDirectory::slots_size_in(state, note, boot_id)?;
    // Earlier versions recorded no size. A device recorded as whole may be a part at any offset.
    let (start, size_bytes) = match size_bytes {
        0 => (Some(start).filter(|start| *start > 0), u64::MAX),
        known => (Some(start), known),
    };
    let identity = Identity {
        start,
        ..Identity::of(medium)
    };
    Ok(Some((identity, size_bytes)))
}

/// Returns the missing files of slots over overlapping devices that a daemon of this boot used and
/// did not close.
///
/// # Errors
/// The error of the operating system.
pub(super) fn gone(state: &Path, info: &DeviceInfo) -> Result<Vec<PathBuf>> {
    let (own, boot_id) = (note_of(&place(info)), boot_id()?);
    let mut gone = Vec::new();
    for note in named(state).iter().map(|path| note_of(path)) {
        if note == own || StateDirectory::transit_boot_in(state, &note)? != Some(boot_id) {
            continue;
        }
        let Some((device, size_bytes)) = noted_device(state, &note, &boot_id)? else {
            continue;
        };
        let file = Path::new(DIRECTORY).join(format!("{note}.transit"));
        if device.overlaps(size_bytes, info.identity, info.size_bytes)
            && first_page(&file, &boot_id).is_none()
        {
            gone.push(file);
        }
    }
    Ok(gone)
}

/// Refuses a device while slots over an overlapping device are missing.
///
/// # Errors
/// `Lost`, and as [`gone`].
pub(super) fn refuse_if_gone(state: &Path, info: &DeviceInfo) -> Result<()> {
    match gone(state, info)?.first() {
        Some(file) => Err(Error::new(ErrorKind::Lost, removed(state, file))),
        None => Ok(()),
    }
}
