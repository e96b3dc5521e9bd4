//! Truncated files of slots.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_block::{Context as _, Result};
use forebay_io::shm::{hold_shared, holes};
use forebay_transit::{AT_CUT, HEADER_BYTES, cut_at, memory_bytes, size_left};

use super::DIRECTORY;

/// Length of the first page of a file of slots, bytes.
const PAGE_BYTES: u64 = 4096;

/// A truncated file of slots.
pub(super) struct Cut {
    /// First missing byte, if it is before the one that the file records.
    pub(super) from: Option<u64>,
    /// Present length of the file, bytes.
    there: u64,
    /// Former length of the file, bytes.
    whole: u64,
}

/// Checks whether a file of slots was truncated: it is shorter than before, or has holes instead of
/// memory. The caller holds the lock of the file.
pub(super) fn look_for_cut(path: &Path, boot_id: &[u8; 16]) -> Result<Option<Cut>> {
    match File::open(path) {
        Ok(file) => look_in(&file, path, boot_id),
        Err(_) => Ok(None),
    }
}

fn look_in(file: &File, path: &Path, boot_id: &[u8; 16]) -> Result<Option<Cut>> {
    let mut page = [0; PAGE_BYTES as usize];
    if file.read_exact_at(&mut page, 0).is_err() {
        return Ok(None);
    }
    let Some((slots, block_bytes)) = size_left(&page, boot_id) else {
        return Ok(None);
    };
    let (whole, there) = (
        memory_bytes(slots, block_bytes) as u64,
        file.metadata()
            .context(|| path.display().to_string())?
            .len(),
    );
    // Headers are read before holes are looked for: a slot that becomes used in between has its
    // page by then. Missing headers are not read, whatever the damaged page of a short file says.
    let headers = usize::try_from(there.saturating_sub(PAGE_BYTES)).unwrap_or(usize::MAX);
    let mut headers = vec![0; headers.min(slots * HEADER_BYTES)];
    let mut read = 0;
    while let Ok(more @ 1..) = file.read_at(&mut headers[read..], PAGE_BYTES + read as u64) {
        read += more;
    }
    let mut gone = holes(path)?;
    gone.extend((there < whole).then_some(there..whole));
    if gone.is_empty() {
        return Ok(None);
    }
    let noted = u64::from_le_bytes(page[AT_CUT..AT_CUT + 8].try_into().expect("8 bytes"));
    Ok(Some(Cut {
        from: cut_at(&page, &headers, &gone).filter(|cut| noted == 0 || *cut < noted),
        there,
        whole,
    }))
}

/// Records in a truncated file of slots where it was truncated. Must precede mapping, which may
/// fill the missing part with zeroes. `lengthen` restores the length.
///
/// # Errors
/// `Busy` if another process holds the file, which then stays unchanged; otherwise the error of the
/// operating system.
pub(super) fn note_cut(path: &Path, boot_id: &[u8; 16], lengthen: bool) -> Result<()> {
    let Some(file) = hold_shared(path)? else {
        return Ok(());
    };
    let Some(cut) = look_in(&file, path, boot_id)? else {
        return Ok(());
    };
    if let Some(from) = cut.from {
        let written = file.write_all_at(&from.to_le_bytes(), AT_CUT as u64);
        written.context(|| path.display().to_string())?;
    }
    if lengthen && cut.there < cut.whole {
        file.set_len(cut.whole).context(|| {
            format!(
                "cannot restore the length of {}, which was truncated\n\
                 help: make room in {DIRECTORY}",
                path.display()
            )
        })?;
    }
    Ok(())
}
