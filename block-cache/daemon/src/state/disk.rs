//! `NAME.disk`: whether a volume has all writes that it acknowledged to clients that outlive the
//! daemon. Such clients are users of the volume's block device, and virtual machines.
//!
//! These clients do not notice the death of a daemon and continue with the next one. So this file
//! records when acknowledged writes may be missing. For a block device it holds the reason until
//! the device is recreated. A virtual machine keeps the generation of the daemon that it started
//! with, and continues only with the same generation.

use std::path::Path;

use forebay_block::Result;
use forebay_io::system::random;

use super::files;

/// Contents of the file.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// Generation, which changes whenever acknowledged writes may be missing.
    pub(super) generation: String,
    /// Reason why acknowledged writes may be missing for users of the block device; empty if none
    /// are.
    pub(super) gap: String,
}

impl Disk {
    pub(super) fn renew(&mut self) {
        let mut bytes = [0; 16];
        random(&mut bytes);
        self.generation = super::hex(&bytes);
    }

    /// Returns the state of a volume without a record.
    pub(super) fn unknown() -> Self {
        let mut disk = Self {
            generation: String::new(),
            gap: "the state directory has no record of it".into(),
        };
        disk.renew();
        disk
    }
}

/// Reads the file. Returns `None` for a volume that never had such clients.
pub(super) fn load(directory: &Path, volume: &str) -> Result<Option<Disk>> {
    let path = directory.join(format!("{volume}.disk"));
    let Some(bytes) = files::read(&path)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let (generation, gap) = text.split_once('\n').unwrap_or_default();
    // A damaged file counts as unknown.
    Ok((generation.len() == 32).then(|| Disk {
        generation: generation.into(),
        gap: gap.into(),
    }))
}

/// Stores the file, durably.
pub(super) fn store(directory: &Path, volume: &str, disk: &Disk) -> Result<()> {
    let path = directory.join(format!("{volume}.disk"));
    let new = directory.join(format!("{volume}.disk.new"));
    let content = format!("{}\n{}", disk.generation, disk.gap);
    files::replace(&path, &new, content.as_bytes())
}
