//! The source, and the mounts of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LARGE_FILE, SMALL_FILE, TIMES};
use crate::bench::server::{Scratch, Server};
use crate::bench::{Outcome, run_for_output};

/// The directory with both files. It is removed when dropped.
pub(in crate::bench) struct Source(pub(in crate::bench) PathBuf);

impl Source {
    /// Creates it below the workspace.
    pub(in crate::bench) fn create(root: &Path, size_bytes: u64) -> Outcome<Self> {
        let source = Self(root.join("target/bench-mount"));
        let _ = fs::remove_dir_all(&source.0);
        let made = fs::create_dir_all(&source.0);
        made.map_err(|error| format!("{}: {error}", source.0.display()))?;
        source.add(LARGE_FILE, size_bytes)?;
        source.add(SMALL_FILE, size_bytes / TIMES / 2)?;
        Ok(source)
    }

    /// Adds a file of random data.
    pub(in crate::bench) fn add(&self, name: &str, size_bytes: u64) -> Outcome<()> {
        let mut fill = Command::new("fio");
        fill.args(["--name=fill", "--rw=write", "--bs=1m", "--direct=1"]);
        fill.args(["--end_fsync=1", "--refill_buffers"]);
        fill.arg(format!("--size={size_bytes}"));
        fill.arg("--filename").arg(self.0.join(name));
        run_for_output(fill).map(drop)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A mount of bindfs. The end of this value unmounts.
pub(in crate::bench) struct Peer {
    pub(in crate::bench) server: Server,
    pub(in crate::bench) mountpoint: PathBuf,
}

impl Peer {
    pub(in crate::bench) fn start(
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

/// A directory process and a node.
pub(in crate::bench) struct Mounted {
    pub(in crate::bench) node: Node,
    pub(in crate::bench) directory: Server,
}

impl Mounted {
    /// Starts both. All nodes together have `capacity_bytes` of memory, and this one has
    /// `memory_bytes`.
    pub(in crate::bench) fn start(
        binary: &Path,
        scratch: &Scratch,
        source: &Source,
        capacity_bytes: u64,
        memory_bytes: u64,
    ) -> Outcome<Self> {
        let pool = scratch.path("pool");
        let mut directory = Command::new(binary);
        directory.args(["pagecache", "directory", "--pool"]);
        directory.arg(&pool).arg("--source").arg(&source.0);
        directory.args(["--capacity", &capacity_bytes.to_string()]);
        let log = scratch.path("log");
        let at = pool.clone();
        let has_socket = move || {
            let entries = fs::read_dir(&at).into_iter().flatten().flatten();
            let mut names = entries.map(|entry| entry.file_name());
            names.any(|name| name == "directory.sock")
        };
        let directory = Server::start_until(&directory, None, PathBuf::new(), &log, has_socket)?;
        let node = Node::start(binary, scratch, 1, memory_bytes)?;
        Ok(Self { node, directory })
    }
}

/// A node with a mount. The end of this value unmounts.
pub(in crate::bench) struct Node {
    pub(in crate::bench) server: Server,
    pub(in crate::bench) mountpoint: PathBuf,
}

impl Node {
    /// Starts node `id` of the directory process in `scratch`, with this number of bytes of memory.
    pub(in crate::bench) fn start(
        binary: &Path,
        scratch: &Scratch,
        id: u32,
        memory_bytes: u64,
    ) -> Outcome<Self> {
        let mountpoint = scratch.path(&format!("mount{id}"));
        let mut node = Command::new(binary);
        node.args(["pagecache", "node", "--pool"]);
        node.arg(scratch.path("pool"));
        node.args(["--id", &id.to_string()]);
        node.args(["--memory", &memory_bytes.to_string(), "--mount"]);
        node.arg(&mountpoint);
        let log = scratch.path(&format!("node{id}.log"));
        let file = mountpoint.join(SMALL_FILE);
        let is_mounted = move || file.exists();
        let server = Server::start_until(&node, None, PathBuf::new(), &log, is_mounted)?;
        Ok(Self { server, mountpoint })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        unmount(&self.mountpoint);
    }
}
