//! Opens metadata on byte-addressable media by path, when no configuration states the contents.

use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::rc::Rc;

use forebay_block::{BlockDevice, Buf, Result};
use forebay_device::file::FileDeviceOptions;
use forebay_device::pmem::PmemDevice;
use forebay_io::file::open_to_look;
use forebay_io::pmem::{Pmem as _, PmemMapping};
use forebay_metadata::superblock::{COPY_BYTES, COPY_STRIDE_BYTES, Superblock};

use super::devices::open_path;

/// Opens the device with a cache's metadata at `path`. Opens a log in lines as the byte-addressable
/// medium that it needs, and anything else as [`open_path`].
///
/// # Errors
/// As [`open_path`] and [`PmemDevice::open`].
pub(crate) fn open_metadata(
    path: &Path,
    options: FileDeviceOptions,
) -> Result<Rc<dyn BlockDevice>> {
    match has_lines(path) {
        true if options.read_only => Ok(PmemDevice::open_to_look(path, &options.name)?),
        true => Ok(PmemDevice::open(path, &options.name)?),
        false => open_path(path, options),
    }
}

/// Whether a superblock there says that the log is written in lines.
fn has_lines(path: &Path) -> bool {
    let copies = [0, COPY_STRIDE_BYTES];
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device()) {
        // The device cannot be read, only mapped.
        let Ok(memory) = PmemMapping::open(path, None) else {
            return false;
        };
        let copy = Buf::zeroed(COPY_BYTES);
        return memory.size_bytes() >= 2 * COPY_STRIDE_BYTES
            && copies.into_iter().any(|at| {
                memory.read(at, &copy).is_ok() && Superblock::writes_lines(&copy.to_vec())
            });
    }
    let Ok(file) = open_to_look(path) else {
        return false;
    };
    let mut copy = vec![0; COPY_BYTES];
    copies
        .into_iter()
        .any(|at| file.read_exact_at(&mut copy, at).is_ok() && Superblock::writes_lines(&copy))
}
