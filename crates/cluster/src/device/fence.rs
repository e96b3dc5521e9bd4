//! Whether what a node has begun to write is over when its process is.
//!
//! A node is declared dead when its process has ended, and what it wrote may be written anew by others from then on. The
//! kernel ends a write to a file or a disk of this machine before the process that asked for it; what has gone to a
//! server may be done there later, over what others have written since. So sources with a server behind them are read,
//! and not written.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What becomes of a write that is under way when this process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// The kernel ends it first: the device is opened by its path.
    Ends,
    /// A server may do it later: this process speaks to one (NBD, NVMe/TCP, an object store).
    MayLand,
}

/// Why nobody may write to a source, if so.
pub(crate) fn unfenced(source: &Path) -> Option<String> {
    let metadata = fs::metadata(source).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let number = metadata.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    remote(&link).map(|name| {
        format!("{name} is not known as a disk of this machine: a write of a node that is killed may be done by its server later, over what others have written since")
    })
}

/// The name of the device at the bottom that is not known as one of this machine, if there is one.
fn remote(link: &Path) -> Option<String> {
    let Ok(path) = fs::canonicalize(link) else {
        return Some(link.display().to_string());
    };
    let name = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if path.join("partition").exists() {
        // The disk's folder has those of its parts.
        return path.parent().and_then(remote);
    }
    // Device mapper, RAID: what they are made of.
    let under: Vec<PathBuf> = fs::read_dir(path.join("slaves"))
        .map(|parts| parts.flatten().map(|part| part.path()).collect())
        .unwrap_or_default();
    if !under.is_empty() {
        return under.iter().find_map(|part| remote(part));
    }
    let memory = ["loop", "ram", "zram", "pmem"];
    if memory.iter().any(|kind| name.starts_with(kind)) {
        return None;
    }
    let path = path.to_string_lossy();
    let bus = path.contains("/pci") || path.contains("/virtio");
    // SCSI by a network: iSCSI, Fibre Channel, SRP.
    let network = ["/session", "/rport-"]
        .iter()
        .any(|part| path.contains(part));
    (!bus || network).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_this_machine_are_told_from_those_with_a_server() {
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
