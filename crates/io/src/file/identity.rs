//! What tells a medium from others, whatever it is called and whenever it is opened.

use std::fs::{Metadata, canonicalize, read_to_string};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// A number that stays with the medium: of a block device from what the kernel knows of it (a world-wide
/// name, a serial number, the file under a loop device), of a file from its file system and inode. None
/// where nothing is known that would outlive a restart.
pub(crate) fn identity(fd: BorrowedFd<'_>, metadata: &Metadata) -> Option<u64> {
    let text = if metadata.file_type().is_block_device() {
        let device = metadata.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        block_device(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?
    } else {
        regular_file(fd.as_raw_fd(), metadata.ino())?
    };
    Some(hash(&text))
}

fn block_device(folder: &Path) -> Option<String> {
    if let Some(number) = read(&folder.join("partition")) {
        let disk = canonicalize(folder).ok()?;
        return Some(format!(
            "{} partition {number}",
            block_device(disk.parent()?)?
        ));
    }
    if let Some(path) = read(&folder.join("loop/backing_file")) {
        let file = std::fs::File::open(&path).ok()?;
        let inode = file.metadata().ok()?.ino();
        return regular_file(file.as_raw_fd(), inode).map(|file| format!("loop of {file}"));
    }
    const NAMES: [&str; 6] = [
        "wwid",
        "device/wwid",
        "device/serial",
        "serial",
        "dm/uuid",
        "md/uuid",
    ];
    NAMES
        .iter()
        .find_map(|name| Some(format!("{name} {}", read(&folder.join(name))?)))
}

fn regular_file(fd: libc::c_int, inode: u64) -> Option<String> {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open, and the answer is written in place.
    if unsafe { libc::fstatvfs(fd, answer.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: zeroes are a valid value of this plain structure, and the call succeeded.
    let file_system = unsafe { answer.assume_init() }.f_fsid;
    (file_system != 0).then(|| format!("file {inode} of {file_system:x}"))
}

fn read(path: &Path) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// FNV-1a, never zero.
fn hash(text: &str) -> u64 {
    let mixed = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed.max(1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::testing::Scratch;

    fn of(path: &Path) -> Option<u64> {
        let file = File::open(path).expect("there");
        identity(file.as_fd(), &file.metadata().expect("open"))
    }

    #[test]
    fn it_stays_with_the_file_and_not_with_its_name() {
        let scratch = Scratch::new();
        let (one, other, moved) = (
            scratch.path("one"),
            scratch.path("other"),
            scratch.path("moved"),
        );
        std::fs::write(&one, "1").expect("a file");
        std::fs::write(&other, "1").expect("a file");
        let first = of(&one);
        if first.is_none() {
            eprintln!(
                "SKIPPED: the file system of {} has no number",
                one.display()
            );
            return;
        }
        assert_ne!(first, of(&other));
        std::fs::rename(&one, &moved).expect("same file system");
        assert_eq!(first, of(&moved));
    }
}
