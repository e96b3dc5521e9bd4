//! Files of slots that were cut.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_block::{Context as _, Result};
use forebay_io::shm::holes;
use forebay_transit::{AT_CUT, HEADER_BYTES, cut_at, memory_bytes, size_left};

use super::DIRECTORY;

/// A file of slots that was cut.
pub(super) struct Cut {
    file: File,
    /// First byte that is gone, if it lies before the one that the file names, and the file names another.
    pub(super) from: Option<u64>,
    /// Length that the file has, bytes.
    there: u64,
    /// Length that it had, bytes.
    whole: u64,
}

/// Looks whether a file of slots was cut: it is shorter than it was, or has holes where there was memory.
pub(super) fn look_for_cut(file: &Path, boot_id: &[u8; 16]) -> Result<Option<Cut>> {
    let mut page = [0; 4096];
    let Ok(opened) = File::options().read(true).write(true).open(file) else {
        return Ok(None);
    };
    if opened.read_exact_at(&mut page, 0).is_err() {
        return Ok(None);
    }
    let Some((slots, block_bytes)) = size_left(&page, boot_id) else {
        return Ok(None);
    };
    let context = || file.display().to_string();
    let (whole, there) = (
        memory_bytes(slots, block_bytes) as u64,
        opened.metadata().context(context)?.len(),
    );
    let mut gone = holes(file)?;
    gone.extend((there < whole).then_some(there..whole));
    if gone.is_empty() {
        return Ok(None);
    }
    // Of headers that are not there nothing is read.
    let mut headers = vec![0; slots * HEADER_BYTES];
    let mut read = 0;
    while let Ok(more @ 1..) = opened.read_at(&mut headers[read..], 4096 + read as u64) {
        read += more;
    }
    let noted = u64::from_le_bytes(page[AT_CUT..AT_CUT + 8].try_into().expect("8 bytes"));
    Ok(Some(Cut {
        file: opened,
        from: cut_at(&page, &headers, &gone).filter(|cut| noted == 0 || *cut < noted),
        there,
        whole,
    }))
}

/// Notes in a file of slots where it was cut, if it was: before it is mapped, which may fill what was cut off with
/// zeroes. With `lengthen`, it gets its length back.
pub(super) fn note_cut(file: &Path, boot_id: &[u8; 16], lengthen: bool) -> Result<()> {
    let Some(cut) = look_for_cut(file, boot_id)? else {
        return Ok(());
    };
    if let Some(from) = cut.from {
        let written = cut.file.write_all_at(&from.to_le_bytes(), AT_CUT as u64);
        written.context(|| file.display().to_string())?;
    }
    if lengthen && cut.there < cut.whole {
        cut.file.set_len(cut.whole).context(|| {
            format!(
                "cannot give {}, which was cut, its length back: make room in {DIRECTORY}",
                file.display()
            )
        })?;
    }
    Ok(())
}
