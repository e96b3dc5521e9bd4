//! Inspects the directories that hold volumes in object storage.

use std::fs::Metadata;
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use forebay_block::ErrorKind;
use forebay_io::system::check_writable;
use forebay_object::stores::address::Place;

use crate::config::problem::Problems;
use crate::config::{Config, Device, DeviceKind};

impl Config {
    /// Inspects the directories under the volumes. All must exist, be distinct, and be writable
    /// where a volume is written.
    pub(in crate::config) fn look_at_folders(&self, problems: &mut Problems<'_>) {
        let mut seen: Vec<(Metadata, &Device, &Path)> = Vec::new();
        for volume in &self.volumes {
            let Some(leaf) = self.stack(&volume.backing).pop() else {
                continue;
            };
            let DeviceKind::Object(settings) = &leaf.kind else {
                continue;
            };
            let Place::Directory(path) = &settings.address.place else {
                continue;
            };
            // A snapshot is only read. It may be in the folder of a volume that is served.
            let is_written = settings.snapshot.is_none();
            let found = match look(path, is_written) {
                Ok(found) => found,
                Err((what, help)) => {
                    problems.add_at(leaf.line, format!("device {:?}: {what}", leaf.name), help);
                    continue;
                }
            };
            if !is_written {
                continue;
            }
            let twin = (seen.iter())
                .find(|(other, ..)| (other.dev(), other.ino()) == (found.dev(), found.ino()));
            if let Some((_, other, other_path)) = twin {
                problems.add_at(
                    leaf.line,
                    format!(
                        "devices {:?} and {:?} are in one directory: {} and {}",
                        other.name,
                        leaf.name,
                        other_path.display(),
                        path.display()
                    ),
                    "give each its own folder",
                );
            }
            seen.push((found, leaf, path));
        }
    }
}

/// Returns the metadata of the directory at `path`; otherwise its problem and the remedy.
fn look(path: &Path, is_written: bool) -> Result<Metadata, (String, String)> {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == IoKind::NotFound => {
            let help = format!("mount its file system, or create it with `mkdir -p {shown}`");
            return Err((format!("the directory {shown} does not exist"), help));
        }
        Err(error) => {
            let help = "correct `url`, or run as a user that may reach it";
            return Err((format!("{shown} cannot be inspected: {error}"), help.into()));
        }
    };
    if !found.is_dir() {
        let help = "name a directory for the objects";
        return Err((format!("{shown} is not a directory"), help.into()));
    }
    if !is_written {
        return Ok(found);
    }
    check_writable(path).map(|()| found).map_err(|error| {
        let help = match error.kind() {
            ErrorKind::ReadOnly => "mount its file system for writing, or correct `url`",
            _ => "run as a user that may write to it, or correct `url`",
        };
        (
            format!("{shown} is not writable: {}", error.report()),
            help.into(),
        )
    })
}
