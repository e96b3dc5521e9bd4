//! Files of slots that were cut.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_block::{Context as _, Result};
use forebay_io::shm::{hold_shared, holes};
use forebay_transit::{AT_CUT, HEADER_BYTES, cut_at, memory_bytes, size_left};

use super::DIRECTORY;

/// Length of the page that a file of slots begins with, bytes.
const PAGE_BYTES: u64 = 4096;

/// A file of slots that was cut.
pub(super) struct Cut {
    /// First byte that is gone, if it lies before the one that the file names, and the file names
    /// another.
    pub(super) from: Option<u64>,
    /// Length that the file has, bytes.
    there: u64,
    /// Length that it had, bytes.
    whole: u64,
}

/// Looks whether a file of slots was cut: it is shorter than it was, or has holes where there was
/// memory. The caller holds the file.
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
    // Headers come before holes: a slot that comes into use between the two has its page by then.
    // Headers that are not there are not read, whatever the damaged page of a short file says.
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

/// Notes in a file of slots where it was cut, if it was: before it is mapped, which may fill what
/// was cut off with zeroes. With `lengthen`, it gets its length back.
///
/// # Errors
/// `Busy` where another process holds the file, which is left as it is then; what the system says.
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
                "cannot give {}, which was cut, its length back: make room in {DIRECTORY}",
                path.display()
            )
        })?;
    }
    Ok(())
}
