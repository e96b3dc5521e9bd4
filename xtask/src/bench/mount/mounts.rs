//! The source, and the mounts of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LARGE_FILE, SMALL_FILE, TIMES};
use crate::bench::server::{Scratch, Server};
use crate::bench::{Outcome, run_for_output};

/// The directory with both files. It is removed when dropped.
pub(super) struct Source(pub(super) PathBuf);

impl Source {
    /// Creates it below the workspace.
    pub(super) fn create(root: &Path, size_bytes: u64) -> Outcome<Self> {
        let source = Self(root.join("target/bench-mount"));
        let _ = fs::remove_dir_all(&source.0);
        let made = fs::create_dir_all(&source.0);
        made.map_err(|error| format!("{}: {error}", source.0.display()))?;
        for (name, size_bytes) in [
            (LARGE_FILE, size_bytes),
            (SMALL_FILE, size_bytes / TIMES / 2),
        ] {
            let mut fill = Command::new("fio");
            fill.args(["--name=fill", "--rw=write", "--bs=1m", "--direct=1"]);
            fill.args(["--end_fsync=1", "--refill_buffers"]);
            fill.arg(format!("--size={size_bytes}"));
            fill.arg("--filename").arg(source.0.join(name));
            run_for_output(fill)?;
        }
        Ok(source)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A mount of bindfs. The end of this value unmounts.
pub(super) struct Peer {
    pub(super) server: Server,
    pub(super) mountpoint: PathBuf,
}

impl Peer {
    pub(super) fn start(
        scratch: &Scratch,
        source: &Source,
        name: &str,
        options: &[&str],
    ) -> Outcome<Self> {
        let mountpoint = scratch.path(name);
        fs::create_dir(&mountpoint).map_err(|error| error.to_string())?;
        let mut command = Command::new("bindfs");
        command.args(["-f", "--multithreaded", "--no-allow-other"]);
        command.args(options).arg(&source.0).arg(&mountpoint);
        let log = scratch.path(&format!("{name}.log"));
        let file = mountpoint.join(SMALL_FILE);
        let is_mounted = move || file.exists();
        let server = Server::start_until(&command, None, PathBuf::new(), &log, is_mounted)?;
        Ok(Self { server, mountpoint })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        unmount(&self.mountpoint);
    }
}

fn unmount(mountpoint: &Path) {
    let mut unmount = Command::new("umount");
    unmount.arg("--lazy").arg(mountpoint);
    let _ = run_for_output(unmount);
}

/// A directory process and a node with a mount. The end of this value unmounts.
pub(super) struct Mounted {
    pub(super) node: Server,
    pub(super) directory: Server,
    pub(super) mountpoint: PathBuf,
}

impl Mounted {
    /// Starts both, with this number of bytes of memory.
    pub(super) fn start(
        binary: &Path,
        scratch: &Scratch,
        source: &Source,
        memory_bytes: u64,
    ) -> Outcome<Self> {
        let (pool, mountpoint) = (scratch.path("pool"), scratch.path("mount"));
        let memory = memory_bytes.to_string();
        let part = |name: &str| {
            let mut command = Command::new(binary);
            command.args(["pagecache", name, "--pool"]).arg(&pool);
            command
        };
        let mut directory = part("directory");
        directory.arg("--source").arg(&source.0);
        directory.args(["--capacity", &memory]);
        let log = scratch.path("log");
        let at = pool.clone();
        let has_socket = move || {
            let entries = fs::read_dir(&at).into_iter().flatten().flatten();
            let mut names = entries.map(|entry| entry.file_name());
            names.any(|name| name == "directory.sock")
        };
        let directory = Server::start_until(&directory, None, PathBuf::new(), &log, has_socket)?;
        let mut node = part("node");
        node.args(["--id", "1", "--memory", &memory, "--mount"]);
        node.arg(&mountpoint);
        let file = mountpoint.join(SMALL_FILE);
        let is_mounted = move || file.exists();
        let node = Server::start_until(&node, None, PathBuf::new(), &log, is_mounted)?;
        Ok(Self {
            node,
            directory,
            mountpoint,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.mountpoint);
    }
}
