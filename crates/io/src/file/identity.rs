//! What tells a medium from others, whatever it is called and whenever it is opened.

use std::fs::{Metadata, canonicalize, read_to_string};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use forebay_block::Identity;

/// Of a block device from what the kernel knows of it (a world-wide name, a serial number, the file under a
/// loop device), of a file from its file system and inode, and when it was made. Unknown where nothing would
/// outlive a restart.
pub(crate) fn identity(fd: BorrowedFd<'_>, metadata: &Metadata) -> Identity {
    let found = if metadata.file_type().is_block_device() {
        let device = metadata.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        block_device(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
    } else {
        regular_file(fd.as_raw_fd(), metadata)
    };
    found.map_or_else(Identity::default, |(text, birth)| Identity {
        medium: hash(&text),
        birth,
    })
}

/// What names it, and its birth.
fn block_device(folder: &Path) -> Option<(String, u64)> {
    if let Some(number) = read(&folder.join("partition")) {
        let disk = canonicalize(folder).ok()?;
        let (name, birth) = block_device(disk.parent()?)?;
        return Some((format!("{name} partition {number}"), birth));
    }
    if let Some(path) = read(&folder.join("loop/backing_file")) {
        let file = std::fs::File::open(&path).ok()?;
        let (name, birth) = regular_file(file.as_raw_fd(), &file.metadata().ok()?)?;
        return Some((format!("loop of {name}"), birth));
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
        .find_map(|name| Some((format!("{name} {}", read(&folder.join(name))?), 0)))
}

fn regular_file(fd: libc::c_int, metadata: &Metadata) -> Option<(String, u64)> {
    let inode = metadata.ino();
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open, and the answer is written in place.
    if unsafe { libc::fstatvfs(fd, answer.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: zeroes are a valid value of this plain structure, and the call succeeded.
    let file_system = unsafe { answer.assume_init() }.f_fsid;
    let born = (metadata.created().ok()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let birth = born.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0));
    (file_system != 0).then(|| (format!("file {inode} of {file_system:x}"), birth))
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

    fn of(path: &Path) -> Identity {
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
        if !first.is_known() {
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

    #[test]
    fn a_file_that_is_made_anew_with_the_number_of_the_old_one_is_another() {
        let scratch = Scratch::new();
        let path = scratch.path("image");
        std::fs::write(&path, "1").expect("a file");
        let first = of(&path);
        if first.birth == 0 {
            eprintln!(
                "SKIPPED: the file system of {} does not say when",
                path.display()
            );
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, "2").expect("the same file");
        assert_eq!(first, of(&path), "written to, and the same");
        std::fs::remove_file(&path).expect("there");
        std::fs::write(&path, "1").expect("a file");
        assert!(first.differs_from(of(&path)));
    }
}
