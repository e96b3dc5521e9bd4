//! Inspects the files and block devices of a configuration on this machine, before any is opened.

mod folders;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind as IoKind, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use forebay_block::{ErrorKind, Result};
use forebay_io::file::{Place, are_clones, check_device_writable, kind_in_words};
use forebay_io::pmem::is_dax;
use forebay_io::shm::check_shared;
use forebay_io::system::check_writable;

use super::problem::Problems;
use super::{Config, Device, DeviceKind};

/// Least size of a file or block device, in bytes. No device has smaller blocks.
const LEAST_BYTES: u64 = 512;

/// Use of a file.
#[derive(Clone, Copy)]
enum Use<'a> {
    /// Data device of the cache.
    Cache,
    /// Metadata device of the cache.
    Metadata,
    /// Backing device of the volume with this name.
    Backing(&'a str),
}

impl Use<'_> {
    /// Returns the remedy if the file is missing or empty.
    fn help(self, path: &Path) -> String {
        let name = path.display();
        match self {
            Self::Cache => format!(
                "correct `path`, or make a cache with `forebay format --create SIZE --cache {name}`"
            ),
            // A new cache would not have the contents of the present one.
            Self::Metadata => format!(
                "correct `path`, or put {name} back: without its metadata, a cache and its dirty \
                 data ARE LOST"
            ),
            Self::Backing(volume) if path.starts_with("/dev") => format!(
                "correct `path`, put the device back, or take volume {volume:?} and its exports \
                 out of the configuration: what the cache has of it stays"
            ),
            Self::Backing(volume) => format!(
                "correct `path`, put the file back (a new volume: `truncate -s SIZE {name}`), or \
                 take volume {volume:?} and its exports out of the configuration: what the cache \
                 has of it stays"
            ),
        }
    }

    /// Returns the remedy if the block device has no medium.
    fn help_for_medium(self, path: &Path) -> String {
        let name = path.display();
        let attach =
            format!("attach its medium (a loop device: `losetup {name} FILE`), or correct `path`");
        match self {
            Self::Cache | Self::Metadata => attach,
            Self::Backing(volume) => format!(
                "{attach}, or take volume {volume:?} and its exports out of the configuration: the \
                 cache keeps its data"
            ),
        }
    }
}

/// Returns the file under a loop device, given its directory in sysfs.
fn under_loop(folder: &Path) -> Option<Metadata> {
    let path = std::fs::read_to_string(folder.join("loop/backing_file")).ok()?;
    std::fs::metadata(path.trim_end_matches('\n')).ok()
}

/// Returns the loop device over a file, if there is one. A user of both would change the file
/// without the kernel's knowledge.
pub(crate) fn loop_on(file: &Metadata) -> Option<PathBuf> {
    loops_on(file).into_iter().next()
}

/// Returns all loop devices over a file, in order.
fn loops_on(file: &Metadata) -> Vec<PathBuf> {
    let Some(blocks) = Some(file)
        .filter(|file| file.is_file())
        .and_then(|_| std::fs::read_dir("/sys/block").ok())
    else {
        return Vec::new();
    };
    let standing = |folder: &Path| {
        let under = under_loop(folder)?;
        (under.dev() == file.dev() && under.ino() == file.ino()).then_some(())
    };
    let mut found: Vec<_> = (blocks.flatten())
        .filter(|device| standing(&device.path()).is_some())
        .map(|device| Path::new("/dev").join(device.file_name()))
        .collect();
    found.sort();
    found
}

impl Config {
    /// Inspects the files and block devices that will be opened. All must exist, have the right
    /// kind, be writable, and be distinct. `cached` says whether those of the cache are used.
    pub(super) fn look_at_media(&self, cached: bool, problems: &mut Problems<'_>) {
        let mut seen: Vec<(Place, &Device, &Path)> = Vec::new();
        for (name, used) in self.uses(cached) {
            let stack = self.stack(name);
            let leaf = stack[stack.len() - 1];
            let (path, looked) = match &leaf.kind {
                DeviceKind::File { path, .. } => (path, look(path, used)),
                DeviceKind::Pmem { path } => {
                    let of_table =
                        (stack.iter()).any(|entry| matches!(entry.kind, DeviceKind::Btt { .. }));
                    (path, look_at_memory(path, of_table))
                }
                _ => continue,
            };
            let found = match looked {
                Ok(found) => found,
                Err((what, help)) => {
                    let what = format!("device {:?}: {} {what}", leaf.name, path.display());
                    problems.add_at(leaf.line, what, help);
                    continue;
                }
            };
            let place = Place::of(&found);
            let mut is_distinct = true;
            for (other_place, other, other_path) in &seen {
                if !other_place.overlaps(&place) {
                    continue;
                }
                is_distinct = false;
                problems.add_at(
                    leaf.line,
                    format!(
                        "devices {:?} and {:?} {}: {} and {}",
                        other.name,
                        leaf.name,
                        match other_place.is_same_as(&place) {
                            true => "are one and the same",
                            false => "overlap, as parts of one medium",
                        },
                        other_path.display(),
                        path.display()
                    ),
                    "give each device a file or block device of its own, or a part of one that no \
                     other has",
                );
            }
            let clone = seen.iter().find(|(.., other)| are_clones(other, path));
            if let Some((_, other, other_path)) = clone.filter(|_| is_distinct) {
                problems.add_at(
                    leaf.line,
                    format!(
                        "devices {:?} and {:?} have one identity: {} and {} are in a file system \
                         and its clone",
                        other.name,
                        leaf.name,
                        other_path.display(),
                        path.display()
                    ),
                    "unmount the clone and change its UUID (`tune2fs -U random`, `xfs_admin -U \
                     generate`), or name a copy of the file",
                );
            }
            seen.push((place, leaf, path));
        }
        let cache = self.cache.as_ref().filter(|_| cached);
        let Some((path, line)) = cache.and_then(|cache| cache.journal.as_ref()) else {
            return;
        };
        let own = "give the journal a path of its own, where nothing is: a file on a tmpfs, as in \
            /dev/shm";
        let place = std::fs::metadata(path).ok().map(|found| Place::of(&found));
        let is_device = |(other, ..): &&(Place, _, _)| {
            place.as_ref().is_some_and(|place| place.overlaps(other))
        };
        let name = path.display();
        let (what, help) = match seen.iter().find(is_device) {
            Some((_, device, _)) => (format!("is device {:?}", device.name), own.to_owned()),
            None => match look_at_journal(path) {
                Ok(()) => return,
                Err(wrong) => wrong,
            },
        };
        problems.add_at(*line, format!("`journal` {name} {what}"), help);
    }

    /// Returns the problems that [`Config::look_at_media`] finds.
    #[cfg(test)]
    pub(crate) fn check_media(&self, cached: bool) -> Result<()> {
        let mut problems = Problems::new(&self.path, "");
        self.look_at_media(cached, &mut problems);
        problems.into_result()
    }

    fn uses(&self, cached: bool) -> Vec<(&str, Use<'_>)> {
        let mut uses = Vec::new();
        if let Some(cache) = self.cache.as_ref().filter(|_| cached) {
            uses.push((&*cache.data, Use::Cache));
            uses.extend(cache.metadata.as_deref().map(|name| (name, Use::Metadata)));
        }
        for volume in &self.volumes {
            uses.push((&volume.backing, Use::Backing(&volume.name)));
        }
        uses
    }
}

/// Returns the metadata of the file at `path`; otherwise its problem and the remedy.
fn look(path: &Path, used: Use<'_>) -> Result<Metadata, (String, String)> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == IoKind::NotFound => {
            return Err(("does not exist".into(), used.help(path)));
        }
        Err(error) => {
            let help = "correct `path`, or run as a user that may reach it";
            return Err((format!("cannot be inspected: {error}"), help.into()));
        }
    };
    if found.file_type().is_block_device() {
        return device(path, used).map(|()| found);
    }
    if !found.is_file() {
        let help = "let `path` name a regular file or a block device";
        return Err((format!("is {}", kind_in_words(&found)), help.into()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(path) {
        let help = match error.kind() {
            IoKind::ReadOnlyFilesystem => {
                "mount its file system for writing, or let `path` name a file elsewhere"
            }
            _ => "run as a user that may read and write it, or correct `path`",
        };
        return Err((
            format!("cannot be opened for writing: {error}"),
            help.into(),
        ));
    }
    match &loops_on(&found)[..] {
        [] => {}
        [device] => {
            let device = device.display();
            let help =
                format!("let `path` name {device}, or detach it first (`losetup -d {device}`)");
            return Err((format!("is the file under {device}"), help));
        }
        devices => {
            let devices: Vec<_> = (devices.iter())
                .map(|device| device.display().to_string())
                .collect();
            let help = "let `path` name the one with this volume's part (`losetup -l` lists them), \
                        or detach all of them first (`losetup -d`)";
            let what = format!("is the file under {}", devices.join(", "));
            return Err((what, help.into()));
        }
    }
    if found.len() < LEAST_BYTES {
        return Err((too_small(found.len()), used.help(path)));
    }
    Ok(found)
}

/// Returns the problem and the remedy if a process journal cannot be created or opened at `path`.
fn look_at_journal(path: &Path) -> Result<(), (String, String)> {
    let own =
        "give the journal a path of its own, where nothing is: a file on a tmpfs, as in /dev/shm";
    let directory = path.parent().unwrap_or(path);
    let found = std::fs::symlink_metadata(path).ok();
    if found.as_ref().is_some_and(|found| found.is_symlink()) {
        let (what, help) = match path.canonicalize() {
            Ok(leads_to) => (
                "is a symbolic link",
                format!(
                    "let `journal` name {}, to which it leads",
                    leads_to.display()
                ),
            ),
            Err(_) => (
                "is a symbolic link that leads nowhere",
                format!("remove it, or {own}"),
            ),
        };
        return Err((what.into(), help));
    }
    // Permissions are checked only once it is known to be a journal.
    if let Err(error) = check_shared(path)
        && error.kind() != ErrorKind::Permission
    {
        return Err((format!("cannot be used: {}", error.report()), own.into()));
    }
    if !directory.is_dir() {
        let what = format!(
            "cannot be made: there is no directory {}",
            directory.display()
        );
        return Err((what, own.into()));
    }
    if found.is_none()
        && let Err(error) = check_writable(directory)
    {
        let what = format!(
            "cannot be made in {}: {}",
            directory.display(),
            error.report()
        );
        return Err((what, own.into()));
    }
    Ok(())
}

/// As [`look`], for a file to be mapped, with or without a table on it.
fn look_at_memory(path: &Path, of_table: bool) -> Result<Metadata, (String, String)> {
    let found = std::fs::metadata(path).map_err(|error| {
        let help = match of_table {
            true => {
                "correct `path`, or make a file with a table with `forebay format --create SIZE \
                 --btt PATH`"
            }
            false => {
                "correct `path`, or put the medium back: without it, the contents of the cache are \
                 unknown"
            }
        };
        match error.kind() {
            IoKind::NotFound => ("does not exist".to_owned(), help.to_owned()),
            _ => (
                format!("cannot be inspected: {error}"),
                "correct `path`, or run as a user that may reach it".to_owned(),
            ),
        }
    })?;
    let is_device = found.file_type().is_char_device() && is_dax(&found);
    if !is_device && !found.is_file() {
        let help = "let `path` name a DAX character device (/dev/dax0.0) or a regular file, best \
                    on a file system mounted with -o dax";
        let what = format!(
            "is {}, which cannot be mapped as memory",
            kind_in_words(&found)
        );
        return Err((what, help.into()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(path) {
        let help = "run as a user that may read and write it, or correct `path`";
        return Err((
            format!("cannot be opened for writing: {error}"),
            help.into(),
        ));
    }
    Ok(found)
}

/// Returns the problem of a block device, and the remedy.
fn device(path: &Path, used: Use<'_>) -> Result<(), (String, String)> {
    let error = match check_device_writable(path) {
        Ok(()) => return check_medium(path, used),
        Err(error) => error,
    };
    let (what, help) = match error.kind() {
        ErrorKind::ReadOnly => (
            "is read-only".to_owned(),
            format!(
                "make it writable (`blockdev --setrw {}`; a loop device: attach it without \
                 --read-only), or let `path` name another: in every mode a cache and what it \
                 caches are written \
                 to",
                path.display()
            ),
        ),
        _ => (
            format!("cannot be opened for writing: {}", error.report()),
            "run as a user that may read and write it, or correct `path`".to_owned(),
        ),
    };
    Err((what, help))
}

/// Returns the problem of a block device without a medium, such as a detached loop device, and the
/// remedy. The kernel opens such a device and fails its requests.
fn check_medium(path: &Path, used: Use<'_>) -> Result<(), (String, String)> {
    // An error of an open or a seek is left to the later open, which reports it with its cause.
    let size_bytes = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    match size_bytes {
        Ok(size_bytes) if size_bytes < LEAST_BYTES => {
            Err((too_small(size_bytes), used.help_for_medium(path)))
        }
        _ => Ok(()),
    }
}

/// Returns the problem of a file or device that has less than [`LEAST_BYTES`].
fn too_small(size_bytes: u64) -> String {
    format!("has {size_bytes} bytes, less than a block")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    const TEXT: &str = r#"
[[device]]
name = "ssd"
kind = "file"
path = "cache"

[[device]]
name = "disk"
kind = "file"
path = "DISK"

[cache]
data = "ssd"

[[volume]]
name = "db"
backing = "disk"
"#;

    #[test]
    fn unusable_and_duplicate_media_are_named_with_their_line() {
        let place = std::env::temp_dir().join(format!("fb-media-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a temporary directory");
        let path = place.join("forebay.toml");
        let file = |name: &str, bytes| {
            let made = std::fs::File::create(place.join(name)).expect("made");
            made.set_len(bytes).expect("sparse");
        };
        file("cache", 1 << 20);
        file("good", 1 << 20);
        file("empty", 0);
        std::fs::hard_link(place.join("cache"), place.join("hard")).expect("linked");
        std::os::unix::fs::symlink("cache", place.join("soft")).expect("linked");
        let fifo = Command::new("mkfifo").arg(place.join("fifo")).status();
        assert!(fifo.expect("mkfifo runs").success());
        let check = |disk: &str, cached| {
            let text = TEXT.replace("DISK", disk);
            std::fs::write(&path, &text).expect("written");
            let config = Config::load(&path).expect("right as far as it can be seen");
            config.check_media(cached).map_err(|error| error.report())
        };
        assert_eq!(check("good", true), Ok(()));
        for (disk, said) in [
            ("missing", "does not exist"),
            (".", "is a directory"),
            ("fifo", "is a named pipe"),
            ("empty", "has 0 bytes"),
            ("hard", "one and the same"),
            ("soft", "one and the same"),
            ("/dev/null", "is a character device"),
        ] {
            let report = check(disk, true).expect_err(disk);
            let at = format!("{}:8: ", path.display());
            assert!(report.starts_with(&at), "file and line: {report}");
            assert!(report.contains(said), "{report}");
            assert!(report.contains("help: "), "{report}");
        }
        std::fs::set_permissions(place.join("good"), Permissions::from_mode(0o444)).expect("ours");
        match std::fs::OpenOptions::new()
            .write(true)
            .open(place.join("good"))
        {
            Ok(_) => eprintln!("SKIPPED: to this user every file is writable"),
            Err(_) => {
                let report = check("good", true).expect_err("not writable");
                assert!(report.contains("cannot be opened for writing"), "{report}");
            }
        }
        std::fs::remove_file(place.join("cache")).expect("there");
        let report = check("good", true).expect_err("the cache is not there");
        assert!(report.contains("forebay format --create"), "{report}");
        assert_eq!(check("good", false), Ok(()), "nobody needs it");
        std::fs::remove_dir_all(&place).expect("it was there");
    }
}
