//! Fencing: whether a node's write has ended when its process has.
//!
//! A node is declared dead when its process has ended. From then on other nodes may overwrite its
//! data. The kernel completes a write to a local file or disk before the process ends. A server may
//! execute a write later and overwrite newer data. So a source with a server behind it is
//! read-only.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Fate of a write in flight when this process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// The kernel completes it first: the device is opened by its path.
    Ends,
    /// A server may execute it later: this process speaks to one (NBD, NVMe/TCP, an object store).
    MayLand,
}

/// Returns the reason why a source must not be written, if there is one.
pub(crate) fn unfenced(source: &Path) -> Option<String> {
    let metadata = match fs::metadata(source) {
        Ok(metadata) => metadata,
        Err(error) => return Some(format!("{}: {error}", source.display())),
    };
    if !metadata.file_type().is_block_device() {
        return served(source);
    }
    let number = metadata.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    remote(&link).map(|name| {
        format!(
            "{name} is not known as a disk of this machine: a write of a node that is killed may \
             be done by its server later, over what others have written since"
        )
    })
}

/// Returns the reason why a file must not be written: its file system has a server.
fn served(file: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    let (Ok(file), Ok(mounts)) = (fs::canonicalize(file), mounts) else {
        return Some(format!(
            "{}: where it lies cannot be found out",
            file.display()
        ));
    };
    let kind = file_system(&file, &mounts)?;
    let served = [
        "nfs", "cifs", "smb", "ceph", "9p", "virtiofs", "fuse", "afs", "lustre", "gfs2", "ocfs2",
    ];
    served.iter().any(|name| kind.starts_with(name)).then(|| {
        format!(
            "{} lies on a file system with a server ({kind}): a write of a node that is killed may \
             be done there later, over what others have written since",
            file.display()
        )
    })
}

/// Returns the type of the file system of a file, according to the mountinfo of proc(5). The
/// deepest mount above the file counts, and the last of several at the same place.
fn file_system<'a>(file: &Path, mounts: &'a str) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let (before, behind) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?.replace("\\040", " ");
        let depth = Path::new(&place).components().count();
        (file.starts_with(&place)).then(|| (depth, behind.split(' ').next().unwrap_or_default()))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// Returns the name of an underlying device that is not known as local, if there is one.
fn remote(link: &Path) -> Option<String> {
    let Ok(path) = fs::canonicalize(link) else {
        return Some(link.display().to_string());
    };
    let name = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if path.join("partition").exists() {
        // The folder of a disk contains those of its partitions.
        return path.parent().and_then(remote);
    }
    // Underlying devices of device mapper and RAID.
    let under: Vec<PathBuf> = fs::read_dir(path.join("slaves"))
        .map(|parts| parts.flatten().map(|part| part.path()).collect())
        .unwrap_or_default();
    if !under.is_empty() {
        return under.iter().find_map(|part| remote(part));
    }
    if let Ok(file) = fs::read_to_string(path.join("loop/backing_file")) {
        return served(Path::new(file.trim_end())).map(|_| name);
    }
    let memory = ["loop", "ram", "zram", "pmem"];
    if memory.iter().any(|kind| name.starts_with(kind)) {
        return None;
    }
    let path = path.to_string_lossy();
    let bus = path.contains("/pci") || path.contains("/virtio");
    // SCSI over a network: iSCSI, Fibre Channel, SRP.
    let network = ["/session", "/rport-"]
        .iter()
        .any(|part| path.contains(part));
    (!bus || network).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lies_on_the_deepest_mount_above_it() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 21 0:40 / /srv rw shared:1 - nfs4 server:/x rw\n\
            31 30 0:41 / /srv/with\\040space rw - tmpfs tmpfs rw\n\
            32 21 0:42 / /srvother rw - fuse.sshfs x rw\n";
        for (file, kind) in [
            ("/var/image", "ext4"),
            ("/srv/image", "nfs4"),
            ("/srv/with space/image", "tmpfs"),
            ("/srvother/image", "fuse.sshfs"),
        ] {
            assert_eq!(file_system(Path::new(file), mounts), Some(kind), "{file}");
        }
        let missing = unfenced(Path::new("/nowhere/at/all"));
        assert!(missing.is_some(), "what is not known is not written to");
    }

    #[test]
    fn local_disks_are_distinguished_from_those_with_a_server() {
        let top = std::env::temp_dir().join(format!("forebay-fence-{}", std::process::id()));
        let block = |place: &str| {
            let path = top.join("devices").join(place);
            fs::create_dir_all(path.join("slaves")).expect("made");
            path
        };
        let nvme = block("pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1");
        let part = nvme.join("nvme0n1p1");
        fs::create_dir_all(&part).expect("made");
        fs::write(part.join("partition"), "1").expect("written");
        let virtio = block("platform/a0.virtio_mmio/virtio0/block/vda");
        let loop0 = block("virtual/block/loop0");
        let nbd = block("virtual/block/nbd0");
        let fabrics = block("virtual/nvme-fabrics/ctl/nvme1/nvme1n1");
        let iscsi = block("pci0000:00/0000:00:05.0/host2/session1/target2:0:0/block/sda");
        let over = |name: &str, under: &[&Path]| {
            let path = block(&format!("virtual/block/{name}"));
            for part in under {
                let name = part.file_name().expect("a name");
                let link = path.join("slaves").join(name);
                std::os::unix::fs::symlink(part, link).expect("linked");
            }
            path
        };
        let local = over("dm-0", &[&part, &loop0]);
        let mixed = over("dm-1", &[&part, &nbd]);
        let deep = over("md0", &[&local, &mixed]);
        for disk in [&nvme, &part, &virtio, &loop0, &local] {
            assert_eq!(remote(disk), None, "{}", disk.display());
        }
        for (disk, name) in [
            (&nbd, "nbd0"),
            (&fabrics, "nvme1n1"),
            (&iscsi, "sda"),
            (&mixed, "nbd0"),
            (&deep, "nbd0"),
            (&over("dm-2", &[]), "dm-2"),
        ] {
            assert_eq!(remote(disk).as_deref(), Some(name), "{}", disk.display());
        }
        assert!(remote(&top.join("nowhere")).is_some());
        assert_eq!(unfenced(&top), None, "it is no block device");
        fs::remove_dir_all(&top).expect("removed");
    }
}
