//! Whether a volume has all that it acknowledged to clients that outlive the daemon: the users of
//! its block device, and virtual machines.
//!
//! These do not notice that a process died, and go on with the next one: so it is remembered here,
//! in `NAME.disk`, when something may be missing. A block device is told by the reason, until one
//! is made anew. A virtual machine has kept the generation of the daemon that it began with, and
//! goes on with that only.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use forebay_block::{Context as _, Result};
use forebay_io::system::random;

use super::sync_directory;

/// What is remembered.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// Another one whenever something may be missing.
    pub(super) generation: String,
    /// Why something may be missing of what the users of the block device have; empty if nothing
    /// is.
    pub(super) gap: String,
}

impl Disk {
    pub(super) fn renew(&mut self) {
        let mut bytes = [0; 16];
        random(&mut bytes);
        self.generation = super::hex(&bytes);
    }

    /// Of a volume of which nothing is known.
    pub(super) fn unknown() -> Self {
        let mut disk = Self {
            generation: String::new(),
            gap: "nothing is remembered of it here".into(),
        };
        disk.renew();
        disk
    }
}

/// What is remembered: none of a volume that never had such clients.
pub(super) fn load(directory: &Path, volume: &str) -> Result<Option<Disk>> {
    let path = directory.join(format!("{volume}.disk"));
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.context(|| path.display().to_string())?,
    };
    let text = String::from_utf8_lossy(&bytes);
    let (generation, gap) = text.split_once('\n').unwrap_or_default();
    // What is damaged is not known.
    Ok((generation.len() == 32).then(|| Disk {
        generation: generation.into(),
        gap: gap.into(),
    }))
}

/// Remembers it, durably.
pub(super) fn store(directory: &Path, volume: &str, disk: &Disk) -> Result<()> {
    let path = directory.join(format!("{volume}.disk"));
    let new = directory.join(format!("{volume}.disk.new"));
    let written = File::create(&new).and_then(|mut file| {
        write!(file, "{}\n{}", disk.generation, disk.gap)?;
        file.sync_all()
    });
    let stored = written.and_then(|()| fs::rename(&new, &path));
    stored.context(|| path.display().to_string())?;
    sync_directory(directory)
}
