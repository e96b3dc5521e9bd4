//! Place of a device: the disk or file at the bottom, and the bytes of it that the device shows.
//!
//! Partitions and loop devices are parts of something else, which may be a part in turn. This
//! module follows them down to a disk or to a regular file.

use std::fs::{Metadata, canonicalize, read_to_string};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Unit in which sysfs counts, whatever the blocks of a disk are, bytes.
const SECTOR_BYTES: u64 = 512;
/// Most devices one above the other that are followed.
const MOST_LAYERS: u32 = 16;

/// A disk, a memory or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Character device of this number: byte-addressable memory.
    Character(u64),
    /// Block device of this number that is no part of another one.
    Disk(u64),
    /// Regular file: device number and inode.
    File(u64, u64),
}

/// Bytes of a medium that a file or device shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Medium at the bottom.
    pub medium: Medium,
    /// First byte.
    pub start_bytes: u64,
    /// Number of bytes; the largest number where that is not known.
    pub size_bytes: u64,
}

impl Place {
    /// Returns where the file or device is to which `metadata` belongs.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self::in_sysfs(&Sysfs::default(), metadata)
    }

    fn in_sysfs(sysfs: &Sysfs, metadata: &Metadata) -> Self {
        let whole = |medium, size_bytes| Self {
            medium,
            start_bytes: 0,
            size_bytes,
        };
        let kind = metadata.file_type();
        if kind.is_char_device() {
            return whole(Medium::Character(metadata.rdev()), u64::MAX);
        }
        if !kind.is_block_device() {
            let medium = Medium::File(metadata.dev(), metadata.ino());
            return whole(medium, metadata.size());
        }
        let folder = sysfs.folder(metadata.rdev());
        let sectors = number(&folder.join("size"));
        let size_bytes = sectors.map_or(u64::MAX, |sectors| sectors.saturating_mul(SECTOR_BYTES));
        let Some(found) = sysfs.descend(&folder) else {
            return whole(Medium::Disk(metadata.rdev()), size_bytes);
        };
        Self {
            medium: match &found.bottom {
                Bottom::File(_, file) => Medium::File(file.dev(), file.ino()),
                Bottom::Disk(folder) => {
                    Medium::Disk(device_number(folder).unwrap_or(metadata.rdev()))
                }
            },
            start_bytes: found.start_bytes,
            size_bytes,
        }
    }

    /// Returns whether both have bytes in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.start_bytes, other.start_bytes);
        let meets = one == two
            || (one < two.saturating_add(other.size_bytes)
                && two < one.saturating_add(self.size_bytes));
        self.is_on_medium_of(other) && meets
    }

    /// Returns whether both are all of the same bytes.
    #[must_use]
    pub const fn is_same_as(&self, other: &Self) -> bool {
        self.is_on_medium_of(other)
            && self.start_bytes == other.start_bytes
            && self.size_bytes == other.size_bytes
    }

    const fn is_on_medium_of(&self, other: &Self) -> bool {
        match (self.medium, other.medium) {
            (Medium::Character(one), Medium::Character(two))
            | (Medium::Disk(one), Medium::Disk(two)) => one == two,
            (Medium::File(one, inode), Medium::File(two, other_inode)) => {
                one == two && inode == other_inode
            }
            _ => false,
        }
    }
}

/// The kernel's view of devices.
#[derive(Debug)]
pub(super) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

/// Lowest layer of a device.
#[derive(Debug)]
pub(super) enum Bottom {
    /// Folder of a disk.
    Disk(PathBuf),
    /// Path and metadata of a regular file.
    File(PathBuf, Metadata),
}

/// Part of a disk or a file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bottom: Bottom,
    pub(super) start_bytes: u64,
}

impl Sysfs {
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// Returns the folder of a block device.
    pub(super) fn folder(&self, device: u64) -> PathBuf {
        let (major, minor) = (libc::major(device), libc::minor(device));
        self.0.join(format!("dev/block/{major}:{minor}"))
    }

    /// Returns a folder's place in the tree of devices, without the root.
    pub(super) fn location(&self, folder: &Path) -> Option<String> {
        let folder = canonicalize(folder).ok()?;
        let root = canonicalize(&self.0).ok()?;
        Some(folder.strip_prefix(root).ok()?.display().to_string())
    }

    /// Follows a block device down. None where the kernel does not tell.
    pub(super) fn descend(&self, folder: &Path) -> Option<Part> {
        let mut folder = canonicalize(folder).ok()?;
        let mut start_bytes: u64 = 0;
        for _ in 0..MOST_LAYERS {
            if folder.join("partition").exists() {
                let sectors = number(&folder.join("start"))?;
                start_bytes = start_bytes.checked_add(sectors.checked_mul(SECTOR_BYTES)?)?;
                folder = folder.parent()?.to_owned();
                continue;
            }
            let Some(path) = text(&folder.join("loop/backing_file")) else {
                return Some(Part {
                    bottom: Bottom::Disk(folder),
                    start_bytes,
                });
            };
            let offset = number(&folder.join("loop/offset"))?;
            start_bytes = start_bytes.checked_add(offset)?;
            let under = std::fs::metadata(&path).ok()?;
            if !under.file_type().is_block_device() {
                return Some(Part {
                    bottom: Bottom::File(path.into(), under),
                    start_bytes,
                });
            }
            folder = canonicalize(self.folder(under.rdev())).ok()?;
        }
        None
    }
}

/// Returns the number of the device whose folder this is.
fn device_number(folder: &Path) -> Option<u64> {
    let text = text(&folder.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the content of a file of sysfs. `None` if it does not exist or is empty.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the number that a file of sysfs says.
pub(super) fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::Scratch;

    /// Makes a folder of sysfs under `root` with these files.
    pub(crate) fn folder(root: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = root.join("devices").join(name);
        for (file, text) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
            std::fs::write(path, format!("{text}\n")).expect("written");
        }
        folder
    }

    #[test]
    fn parts_are_followed_down_to_a_disk_or_a_file() {
        let scratch = Scratch::new();
        let root = scratch.path("sys");
        let image = scratch.path("image");
        std::fs::write(&image, [0; 8192]).expect("a file");
        let disk = folder(&root, "vda", &[("size", "100"), ("dev", "254:0")]);
        let second = folder(&root, "vda/vda2", &[("partition", "2"), ("start", "40")]);
        let image = image.to_str().expect("text");
        let files = [("loop/backing_file", image), ("loop/offset", "4096")];
        folder(&root, "loop0", &files);
        let part = folder(
            &root,
            "loop0/loop0p1",
            &[("partition", "1"), ("start", "2")],
        );
        let sysfs = Sysfs::at(&root);
        let found = sysfs.descend(&second).expect("told");
        assert_eq!(found.start_bytes, 40 * 512);
        let disk = canonicalize(disk).expect("there");
        assert!(matches!(found.bottom, Bottom::Disk(folder) if folder == disk));
        assert_eq!(device_number(&disk), Some(libc::makedev(254, 0)));
        let found = sysfs.descend(&part).expect("told");
        assert_eq!(found.start_bytes, 4096 + 2 * 512);
        assert!(matches!(found.bottom, Bottom::File(path, _) if path == Path::new(image)));
        assert_eq!(sysfs.location(&second).as_deref(), Some("devices/vda/vda2"));
        // Of a loop device whose file was removed nothing is known.
        let gone = format!("{image} (deleted)");
        let files = [("loop/backing_file", &*gone), ("loop/offset", "0")];
        let lost = folder(&root, "loop1", &files);
        assert!(sysfs.descend(&lost).is_none());
    }

    #[test]
    fn places_that_have_bytes_in_common_overlap() {
        let place = |start_bytes, size_bytes| Place {
            medium: Medium::Disk(7),
            start_bytes,
            size_bytes,
        };
        assert!(place(0, 512).overlaps(&place(0, u64::MAX)));
        assert!(
            place(0, 1024).overlaps(&place(512, 512)) && place(512, 512).overlaps(&place(0, 1024))
        );
        assert!(
            !place(0, 512).overlaps(&place(512, 512)) && !place(512, 9).overlaps(&place(0, 512))
        );
        let file = Place {
            medium: Medium::File(1, 7),
            ..place(0, 512)
        };
        assert!(!file.overlaps(&place(0, 512)) && file.overlaps(&file));
    }
}
