//! Identity of a file or device, whatever it is called and whenever it is opened.

use std::fs::{Metadata, canonicalize, read_link};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use forebay_block::{Basis, Identity};

use super::place::{Bottom, Sysfs, number, text};
use crate::system::boot_id;

/// Returns the identity of an open file or device that was found at `path`.
///
/// A block device is identified by the kernel's names of the disk under it: a world-wide name, a
/// serial number or a UUID. A loop device is identified by the file under it. The first byte of the
/// disk that the device shows is part of the identity. A file is identified by its file system, its
/// inode and its birth time.
///
/// A disk without a name is identified by its place in sysfs and its driver ([`Basis::Place`]). If
/// the user vouches for `path`, it is identified by that ([`Basis::Path`]). A virtual disk has no
/// place, since the kernel numbers those in order of appearance. It is identified by the name that
/// it was given, if any. Otherwise the identity is unknown.
pub(crate) fn identity(
    fd: BorrowedFd<'_>,
    metadata: &Metadata,
    path: &Path,
    by_path: bool,
) -> Identity {
    let sysfs = Sysfs::default();
    let kind = metadata.file_type();
    let found = if kind.is_block_device() {
        block_device(&sysfs, &sysfs.folder(metadata.rdev()))
    } else if kind.is_char_device() {
        character_device(&sysfs, metadata.rdev())
    } else {
        regular_file(fd.as_raw_fd(), metadata)
            .map(|(name, birth)| Identity {
                birth,
                start: Some(0),
                ..Identity::of(hash(&name))
            })
            .or_else(|| unnamed_file(path))
    };
    known_by_path(found, path, by_path)
}

/// Adds the path to an identity that rests on nothing better.
fn known_by_path(found: Option<Identity>, path: &Path, by_path: bool) -> Identity {
    let by_name = hash(&format!("path {}", path.display()));
    match found {
        Some(found) if found.basis == Basis::Name => found,
        // An identity that was recorded with the other setting agrees.
        Some(found) if by_path => Identity {
            medium: by_name,
            alias: found.medium,
            instance: 0,
            basis: Basis::Path,
            ..found
        },
        Some(found) => Identity {
            alias: by_name,
            ..found
        },
        None if by_path => Identity {
            basis: Basis::Path,
            ..Identity::of(by_name)
        },
        None => Identity::default(),
    }
}

/// Returns the identity of a file on a file system that has no number, by its path.
fn unnamed_file(path: &Path) -> Option<Identity> {
    let path = canonicalize(path).ok()?;
    Some(Identity {
        start: Some(0),
        basis: Basis::Place,
        ..Identity::of(hash(&format!("file at {}", path.display())))
    })
}

fn block_device(sysfs: &Sysfs, folder: &Path) -> Option<Identity> {
    let Some(part) = sysfs.descend(folder) else {
        // A loop device whose file was removed, say.
        return unnamed_disk(sysfs, folder);
    };
    let mut found = match &part.bottom {
        Bottom::File(path, metadata) => {
            let file = std::fs::File::open(path).ok()?;
            match regular_file(file.as_raw_fd(), metadata) {
                Some((name, birth)) => Identity {
                    birth,
                    ..Identity::of(hash(&name))
                },
                None => unnamed_file(path)?,
            }
        }
        Bottom::Disk(folder) => disk(sysfs, folder)?,
    };
    found.start = Some(part.start_bytes);
    // An earlier version put the number of a partition into its name, and the file under a loop
    // device.
    let former = former_name(folder).map_or(0, |name| hash(&name));
    if former != found.medium && found.basis == Basis::Name {
        found.alias = former;
    }
    Some(found)
}

/// Attributes of a disk that name it, the best first.
const NAMES: [&str; 7] = [
    "wwid",
    "device/wwid",
    "device/serial",
    "serial",
    "dm/uuid",
    "md/uuid",
    "device/uuid",
];

fn disk(sysfs: &Sysfs, folder: &Path) -> Option<Identity> {
    let named = |name: &&str| Some(format!("{name} {}", text(&folder.join(name))?));
    let name = NAMES.iter().find_map(named).or_else(|| rbd(folder));
    match name {
        Some(name) => Some(Identity::of(hash(&name))),
        None => unnamed_disk(sysfs, folder),
    }
}

fn unnamed_disk(sysfs: &Sysfs, folder: &Path) -> Option<Identity> {
    let (name, instance) = match is_virtual(sysfs, folder)? {
        true => given_name(folder)?,
        false => (place(sysfs, folder)?, instance(folder)),
    };
    Some(Identity {
        start: Some(0),
        instance,
        basis: Basis::Place,
        ..Identity::of(hash(&name))
    })
}

/// Returns whether a disk is on no bus, so that a number of the kernel is all that its place says.
/// After a restart of the machine, or of a client, the number may be another disk's.
fn is_virtual(sysfs: &Sysfs, folder: &Path) -> Option<bool> {
    Some((sysfs.location(folder)?).starts_with("devices/virtual/"))
}

/// Returns the name that a virtual disk was given when it was made, and which disk of that name it
/// is. The medium does not carry the name: another one may get it.
fn given_name(folder: &Path) -> Option<(String, u64)> {
    let named = |attribute: &str| text(&folder.join(attribute));
    if let Some(name) = named("dm/name") {
        return Some((format!("dm/name {name}"), instance(folder)));
    }
    // The client names the server and the export. After a reconnection it is the same export.
    named("backend").map(|backend| (format!("nbd backend {backend}"), 0))
}

/// Returns the name of an image of a Ceph cluster that the kernel has mapped.
fn rbd(folder: &Path) -> Option<String> {
    let of = |name: &str| text(&folder.join("device").join(name));
    let (cluster, pool, image) = (of("cluster_fsid")?, of("pool_id")?, of("image_id")?);
    let snapshot = of("snap_id").unwrap_or_default();
    let space = of("pool_ns").unwrap_or_default();
    Some(format!("rbd {cluster} {pool} {space} {image} {snapshot}"))
}

/// Returns where in the machine a device without a name is, and its driver.
fn place(sysfs: &Sysfs, folder: &Path) -> Option<String> {
    let location = sysfs.location(folder)?;
    let driver = read_link(folder.join("device/driver")).ok();
    let driver = driver.and_then(|path| path.file_name().map(|name| name.display().to_string()));
    Some(format!(
        "place {location} driver {}",
        driver.unwrap_or_default()
    ))
}

/// Returns which disk it is that stands in its place, as far as this boot of the machine goes.
fn instance(folder: &Path) -> u64 {
    let (Some(count), Ok(boot)) = (number(&folder.join("diskseq")), boot_id()) else {
        return 0;
    };
    let boot = boot.iter().fold(FNV_BASIS, fnv) >> 32 | 1;
    boot << 32 | count & 0xffff_ffff
}

fn character_device(sysfs: &Sysfs, device: u64) -> Option<Identity> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let folder = canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    // The namespace on persistent memory is one of the devices above.
    let uuid = (folder.ancestors().skip(1).take(3)).find_map(|above| text(&above.join("uuid")));
    let (name, basis) = match uuid {
        Some(uuid) => (format!("namespace {uuid}"), Basis::Name),
        None => (place(sysfs, &folder)?, Basis::Place),
    };
    Some(Identity {
        start: Some(0),
        basis,
        ..Identity::of(hash(&name))
    })
}

/// Returns the name that earlier versions gave a block device. Identities that they recorded must
/// agree with the present ones.
fn former_name(folder: &Path) -> Option<String> {
    if let Some(number) = text(&folder.join("partition")) {
        let disk = canonicalize(folder).ok()?;
        let name = former_name(disk.parent()?)?;
        return Some(format!("{name} partition {number}"));
    }
    if let Some(path) = text(&folder.join("loop/backing_file")) {
        let file = std::fs::File::open(&path).ok()?;
        let (name, _) = regular_file(file.as_raw_fd(), &file.metadata().ok()?)?;
        return Some(format!("loop of {name}"));
    }
    let named = |name: &&str| Some(format!("{name} {}", text(&folder.join(name))?));
    NAMES[..6].iter().find_map(named)
}

/// Returns the name of a file, and its birth. None where the file system has no number.
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

/// Returns whether two different regular files have one identity: the file system of one is a clone
/// of the other's, with its UUID and inodes.
#[must_use]
pub fn are_clones(one: &Path, other: &Path) -> bool {
    let look = |path: &Path| {
        let metadata = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        let file = std::fs::File::open(path).ok()?;
        let identity = regular_file(file.as_raw_fd(), &metadata)?;
        Some((identity, metadata.dev()))
    };
    match (look(one), look(other)) {
        (Some((first, on)), Some((second, other_on))) => first == second && on != other_on,
        _ => false,
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(hash: u64, byte: &u8) -> u64 {
    (hash ^ *byte as u64).wrapping_mul(0x0100_0000_01b3)
}

/// FNV-1a, never zero.
fn hash(text: &str) -> u64 {
    text.as_bytes().iter().fold(FNV_BASIS, fnv).max(1)
}

#[cfg(test)]
mod tests;
