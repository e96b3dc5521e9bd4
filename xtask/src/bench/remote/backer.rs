//! A peer: s3backer, a FUSE file system with one file, whose blocks are objects in S3.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::minio::Minio;
use super::{CACHE_BYTES, SET_BYTES};
use crate::bench::server::Server;
use crate::bench::{Outcome, require};

/// Size of a block, bytes. This is the default, and each has an object.
const BLOCK_BYTES: u64 = 4096;

/// A volume of s3backer with a cache, served by `nbdkit file`. Drop ends and unmounts it.
pub(super) struct Backer {
    server: Server,
    _mounted: Mounted,
}

/// The mount. It ends after the server of its file: fields drop in their order.
struct Mounted {
    _program: Server,
    mountpoint: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.mountpoint)
            .status();
    }
}

impl Backer {
    /// Starts it on processor `cpu`. Returns `None`, and reports a skip, without s3backer.
    pub(super) fn start(minio: &Minio, cpu: &str) -> Outcome<Option<Self>> {
        if let Err(missing) = require(&["s3backer"]) {
            println!("SKIPPED: {missing} (apt-get install s3backer)");
            return Ok(None);
        }
        let mountpoint = minio.place.join("backer");
        std::fs::create_dir_all(&mountpoint)
            .map_err(|error| format!("{}: {error}", mountpoint.display()))?;
        let mut command = Command::new("s3backer");
        command.args(["-f", "--quiet", "--directIO"]);
        command.arg(format!("--size={SET_BYTES}"));
        command.arg(format!("--blockSize={BLOCK_BYTES}"));
        command.arg(format!("--blockCacheSize={}", CACHE_BYTES / BLOCK_BYTES));
        command.args(minio.backer("backer")).arg(&mountpoint);
        let (file, log) = (mountpoint.join("file"), minio.place.join("backer.log"));
        let there = file.clone();
        let is_there = move || there.exists();
        let program = Server::start_until(&command, Some(cpu), PathBuf::new(), &log, is_there)?;
        let mounted = Mounted {
            _program: program,
            mountpoint,
        };
        let socket = minio.place.join("backer.sock");
        let mut server = Command::new("nbdkit");
        server.args(["--foreground", "--unix"]).arg(&socket);
        server.arg("file").arg(&file);
        let server = Server::start(&server, Some(cpu), socket, &log)?;
        Ok(Some(Self {
            server,
            _mounted: mounted,
        }))
    }

    pub(super) fn socket(&self) -> &Path {
        self.server.socket()
    }
}
