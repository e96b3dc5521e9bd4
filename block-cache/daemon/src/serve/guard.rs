//! Refuses files of the daemon on a file system that is on one of its own volumes. A write to such
//! a file would wait for the daemon, which waits for the write.
//!
//! The check covers paths under a FUSE export. It also covers file systems on block devices,
//! through partitions and device-mapper. Such a block device is one of these:
//!
//! - a loop device over a file of an export;
//! - an NBD device that is a client of our addresses;
//! - our ublk device.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};
use forebay_device::percent_decode;
use forebay_frontend::ublk;

use crate::config::places::UBLK_AT;
use crate::config::{Config, DeviceKind, Listen, Nbd, Protocol};

/// Checks all paths that the daemon writes to.
///
/// # Errors
/// `InvalidInput` with the path, and the export that it is on.
pub(crate) fn check(config: &Config) -> Result<()> {
    let served = Served::of(config);
    for (what, path) in own_paths(config) {
        if let Some(export) = served.holds(&path, Path::new("/sys"), 0) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "{what} {} lies on a volume of this configuration ({export})\n\
                     help: move it to another file system: the daemon would wait for itself",
                    path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the export under `path`, if one is found. `listening` has the addresses of the daemon,
/// as in its status.
pub(crate) fn export_with(path: &Path, listening: &[String]) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    Served::at(listening).holds(&path, Path::new("/sys"), 0)
}

/// Places where volumes appear.
struct Served {
    directories: Vec<PathBuf>,
    /// Socket paths and TCP ports, as in a client's command line.
    addresses: Vec<String>,
    /// TCP ports of NVMe subsystems.
    nvme_ports: Vec<u16>,
    /// Names of block devices.
    disks: Vec<String>,
}

/// Returns the last part of a block device's path.
fn disk(number: u32) -> String {
    let path = ublk::path(number);
    path.file_name().unwrap_or_default().display().to_string()
}

impl Served {
    fn of(config: &Config) -> Self {
        let mut served = Self {
            directories: Vec::new(),
            addresses: Vec::new(),
            nvme_ports: Vec::new(),
            disks: Vec::new(),
        };
        for export in &config.exports {
            match &export.protocol {
                Protocol::Fuse(directory) => served.directories.push(directory.clone()),
                Protocol::Nbd(Nbd {
                    listen: Listen::Unix(path),
                    ..
                }) => {
                    served.addresses.push(path.display().to_string());
                }
                Protocol::Nbd(Nbd {
                    listen: Listen::Tcp(address),
                    ..
                }) if address.port() != 0 => {
                    served.addresses.push(address.port().to_string());
                }
                Protocol::NvmeTcp(target) if target.listen.port() != 0 => {
                    served.nvme_ports.push(target.listen.port());
                }
                Protocol::Ublk(number) => served.disks.push(disk(*number)),
                // The disk of a virtual machine is not a device of this machine.
                Protocol::Nbd(_) | Protocol::NvmeTcp(_) | Protocol::VhostUserBlk(_) => {}
            }
        }
        served
    }

    /// Returns the places from the addresses in a daemon's status.
    fn at(listening: &[String]) -> Self {
        let mut served = Self {
            directories: Vec::new(),
            addresses: Vec::new(),
            nvme_ports: Vec::new(),
            disks: Vec::new(),
        };
        for place in listening {
            if let Some((_, file)) = place.split_once(" is the file ") {
                served
                    .directories
                    .extend(Path::new(file).parent().map(Path::to_path_buf));
            } else if let Some(disk) = place.strip_prefix(UBLK_AT) {
                served
                    .disks
                    .extend(disk.rsplit('/').next().map(str::to_owned));
            } else if let Some((_, socket)) = place.split_once("?socket=") {
                served.addresses.extend(percent_decode(socket));
            } else if let Some(address) = place
                .strip_prefix("NBD: nbd://")
                .or_else(|| place.strip_prefix("NBD: nbds://"))
            {
                let port = address
                    .split('/')
                    .next()
                    .and_then(|at| at.rsplit(':').next());
                served.addresses.extend(port.map(str::to_owned));
            } else if let Some(address) = place.strip_prefix("NVMe/TCP: nvme-tcp://") {
                let address = address.split('/').next().and_then(|at| at.parse().ok());
                let port = address.map(|address: SocketAddr| address.port());
                served.nvme_ports.extend(port);
            }
        }
        served
    }

    /// Returns the export under `path`, if there is one.
    fn holds(&self, path: &Path, sys: &Path, depth: u32) -> Option<String> {
        for directory in &self.directories {
            if path.starts_with(directory) {
                return Some(format!("the FUSE export {}", directory.display()));
            }
        }
        // A new file will be where its directory is.
        let there = path
            .ancestors()
            .find_map(|path| std::fs::metadata(path).ok())?;
        let of_device = there.rdev();
        let number = if of_device != 0 {
            of_device
        } else {
            there.dev()
        };
        self.holds_device(number, sys, depth)
    }

    fn holds_device(&self, number: u64, sys: &Path, depth: u32) -> Option<String> {
        let node = sys.join(format!(
            "dev/block/{}:{}",
            libc::major(number),
            libc::minor(number)
        ));
        self.holds_node(&node.canonicalize().ok()?, sys, depth)
    }

    /// Checks a block device's directory in sysfs, and the devices under it.
    fn holds_node(&self, node: &Path, sys: &Path, depth: u32) -> Option<String> {
        if depth > 16 {
            return None;
        }
        if node.join("partition").exists() {
            return self.holds_node(node.parent()?, sys, depth + 1);
        }
        if let Ok(file) = std::fs::read_to_string(node.join("loop/backing_file")) {
            let file = file.trim_end().trim_end_matches(" (deleted)");
            return self.holds(Path::new(file), sys, depth + 1);
        }
        if let Ok(client) = std::fs::read_to_string(node.join("pid")) {
            let command = std::fs::read(format!("/proc/{}/cmdline", client.trim())).ok()?;
            return self.named_in(&command).map(|address| {
                let device = node.file_name().unwrap_or_default().display();
                format!("the NBD export {address}, through {device}")
            });
        }
        let name = node.file_name().unwrap_or_default();
        if self.disks.iter().any(|disk| **disk == *name) {
            return Some(format!("the ublk export /dev/{}", name.display()));
        }
        if let Some(export) = self.nvme_path(&node.join("device")) {
            return Some(export);
        }
        let under = std::fs::read_dir(node.join("slaves")).ok()?;
        under
            .flatten()
            .filter_map(|slave| slave.path().canonicalize().ok())
            .find_map(|slave| self.holds_node(&slave, sys, depth + 1))
    }

    /// Returns our subsystem to which an NVMe namespace is connected. The addresses of controllers
    /// are in sysfs, one level deeper for a namespace with several paths.
    fn nvme_path(&self, device: &Path) -> Option<String> {
        let below = std::fs::read_dir(device).into_iter().flatten().flatten();
        let folders = below.map(|entry| entry.path());
        let mut addresses = std::iter::once(device.to_path_buf())
            .chain(folders)
            .filter_map(|folder| std::fs::read_to_string(folder.join("address")).ok());
        addresses.find_map(|address| {
            let port = address
                .trim()
                .split(',')
                .find_map(|part| part.strip_prefix("trsvcid="));
            let port = port?.trim().parse().ok()?;
            self.nvme_ports
                .contains(&port)
                .then(|| format!("the NVMe/TCP export at {}", address.trim()))
        })
    }

    /// Returns one of our addresses that a command line names.
    fn named_in(&self, command: &[u8]) -> Option<&str> {
        let words: BTreeSet<_> = command
            .split(|&byte| byte == 0 || byte == b' ' || byte == b'=')
            .filter_map(|word| std::str::from_utf8(word).ok())
            .collect();
        let found = self
            .addresses
            .iter()
            .find(|address| words.contains(address.as_str()));
        found.map(String::as_str)
    }
}

/// Returns the paths that the daemon itself writes to, with descriptions.
fn own_paths(config: &Config) -> Vec<(String, PathBuf)> {
    let mut paths = vec![
        (
            "the state directory".to_owned(),
            config.server.state.clone(),
        ),
        (
            "the control socket".to_owned(),
            config.server.control.clone(),
        ),
    ];
    for device in &config.devices {
        if let DeviceKind::File { path, .. } | DeviceKind::Pmem { path } = &device.kind {
            paths.push((format!("device {:?},", device.name), path.clone()));
        }
    }
    if let Some(journal) = config.cache.as_ref().and_then(|cache| cache.journal_path()) {
        paths.push(("the process journal".to_owned(), journal.to_path_buf()));
    }
    for (what, descriptor) in [
        ("the log on standard error,", std::io::stderr().as_raw_fd()),
        ("standard output,", std::io::stdout().as_raw_fd()),
    ] {
        // A file or terminal has a path; a pipe or socket has none.
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
        paths.extend(
            link.ok()
                .filter(|path| path.is_absolute())
                .map(|path| (what.to_owned(), path)),
        );
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Served {
        Served {
            directories: vec!["/run/forebay/db".into()],
            addresses: vec!["/run/forebay/db?.sock".into(), "10809".into()],
            nvme_ports: vec![4420],
            disks: vec!["ublkb3".into()],
        }
    }

    #[test]
    fn files_under_an_export_are_found() {
        let sys = Path::new("/sys");
        let on = |path: &str| served().holds(Path::new(path), sys, 0);
        assert!(on("/run/forebay/db/cache.img").is_some_and(|what| what.contains("FUSE")));
        assert_eq!(on("/run/forebay/dbx"), None);
        assert_eq!(on("/"), None);
    }

    #[test]
    fn listening_lines_of_a_daemon_name_its_exports() {
        let listening = [
            "NBD: nbd+unix:///db?socket=/run/forebay/db%3F.sock",
            "NBD: nbds://[::1]:10809/db",
            "NVMe/TCP: nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.forebay:db is volume \"db\", \
             namespace 1",
            "FUSE: volume \"db\" is the file /run/forebay/db/db",
            "ublk: volume \"db\" is /dev/ublkb3",
            "control on /run/forebay/control.sock",
        ];
        let at = Served::at(&listening.map(str::to_owned));
        assert_eq!(at.directories, served().directories);
        assert_eq!(at.addresses, served().addresses);
        assert_eq!(at.nvme_ports, served().nvme_ports);
        assert_eq!(at.disks, served().disks);
    }

    #[test]
    fn loop_devices_partitions_and_mappings_are_followed() {
        let sys = std::env::temp_dir().join(format!("fb-guard-{}", std::process::id()));
        let make = |name: &str| {
            let path = sys.join(name);
            std::fs::create_dir_all(&path).expect("a temporary directory");
            path
        };
        let ours = make("loop0/loop");
        std::fs::write(ours.join("backing_file"), "/run/forebay/db/db (deleted)\n")
            .expect("written");
        let partition = make("loop0/loop0p1");
        std::fs::write(partition.join("partition"), "1\n").expect("written");
        let mapping = make("dm-0/slaves");
        std::os::unix::fs::symlink(&partition, mapping.join("loop0p1")).expect("linked");
        let other = make("loop1/loop");
        std::fs::write(other.join("backing_file"), "/\n").expect("written");
        let direct = make("nvme1n1/device");
        std::fs::write(
            direct.join("address"),
            "traddr=127.0.0.1,trsvcid=4420,src_addr=127.0.0.1\n",
        )
        .expect("written");
        let path = make("nvme2n1/device/nvme2");
        std::fs::write(path.join("address"), "traddr=::1,trsvcid=4420\n").expect("written");
        let part = make("ublkb3/ublkb3p1");
        std::fs::write(part.join("partition"), "1\n").expect("written");
        make("ublkb4");
        let foreign = make("nvme3n1/device");
        std::fs::write(foreign.join("address"), "traddr=10.0.0.1,trsvcid=4421\n").expect("written");
        let found = |name: &str| served().holds_node(&sys.join(name), &sys, 0);
        assert!(found("loop0").is_some());
        assert!(found("loop0/loop0p1").is_some());
        assert!(found("dm-0").is_some());
        assert_eq!(found("loop1"), None);
        assert!(found("nvme1n1").is_some_and(|what| what.contains("NVMe/TCP")));
        assert!(found("nvme2n1").is_some());
        assert_eq!(found("nvme3n1"), None);
        assert!(found("ublkb3/ublkb3p1").is_some_and(|what| what.contains("ublk")));
        assert_eq!(found("ublkb4"), None);
        std::fs::remove_dir_all(&sys).expect("it was there");
    }

    #[test]
    fn an_nbd_client_is_known_by_its_command_line() {
        let named = |command: &str| served().named_in(command.as_bytes()).map(str::to_owned);
        assert!(named("nbd-client\0-unix\0/run/forebay/db?.sock\0/dev/nbd0").is_some());
        assert!(named("nbd-client\x00127.0.0.1\x0010809\x00/dev/nbd0").is_some());
        assert_eq!(named("nbd-client\0-unix\0/run/other.sock\0/dev/nbd0"), None);
    }
}
