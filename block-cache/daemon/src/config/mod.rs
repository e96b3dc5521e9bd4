//! The configuration: named devices, a cache, volumes and exports.
//!
//! Reading has two steps. The first parses TOML to raw tables with the place of each value. The
//! second resolves these to small typed values and checks references. Every problem names the file,
//! the line and the remedy. All problems that one step finds are reported together.

pub(crate) mod block_sizes;
pub mod cache;
mod conflicts;
pub mod device;
mod distinct;
mod document;
pub(crate) mod duration;
pub mod export;
mod kinds;
mod media;
pub(crate) mod places;
mod problem;
pub mod server;
pub mod tls;
pub mod volume;
mod whole;

use std::fs::OpenOptions;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::file::{irregular_kind, open_regular};
use serde::Deserialize;
use toml::Spanned;

pub use cache::{Cache, Durability};
pub use device::{Device, DeviceKind};
pub use export::{Export, Listen, Nbd, NvmeTcp, Protocol};
pub(crate) use media::loop_on;
use problem::Problems;
pub use server::{Io, Poll, Server};
pub use tls::Tls;
pub use volume::{Mode, Promotion, Volume};

/// Longest path of a Unix socket on Linux, bytes.
const SOCKET_PATH_BYTES: usize = 107;
const LONG_SOCKET: &str = "the path of a Unix socket has at most 107 bytes, and this one is longer";
const LONG_SOCKET_HELP: &str = "choose a shorter path, such as one under /run";

/// Begins the names of records of slots in the state directory.
const OWN_PREFIX: &str = "forebay-";

/// Longest configuration, bytes.
const LONGEST_BYTES: u64 = 1 << 20;

/// A configuration in which all names are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// File of the configuration.
    pub path: PathBuf,
    /// Settings of the process.
    pub server: Server,
    /// The devices, in the file's order.
    pub devices: Vec<Device>,
    /// The cache; `None` if volumes are served without one.
    pub cache: Option<Cache>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The exports.
    pub exports: Vec<Export>,
    /// Warnings: sentences with file and line.
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    server: server::RawServer,
    #[serde(default)]
    device: Vec<device::RawDevice>,
    cache: Option<cache::RawCache>,
    #[serde(default)]
    volume: Vec<volume::RawVolume>,
    #[serde(default)]
    export: Vec<export::RawExport>,
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read; `InvalidInput` for a wrong one, with file, line and remedy.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(path, &read(path)?)
    }

    /// Checks `text`, which was read from `path`.
    ///
    /// # Errors
    /// `InvalidInput` if it is wrong, with file, line and remedy.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let mut problems = Problems::new(path, text);
        let Some(file) = document::read(text, &mut problems) else {
            return Err(problems.into_error());
        };
        let mut config = Self {
            path: path.to_path_buf(),
            server: file.server.resolve(&mut problems),
            devices: Vec::new(),
            cache: file
                .cache
                .as_ref()
                .map(|cache| cache.resolve(&mut problems)),
            volumes: Vec::new(),
            exports: Vec::new(),
            warnings: Vec::new(),
        };
        for device in &file.device {
            config.devices.extend(device.resolve(&mut problems));
        }
        for volume in &file.volume {
            config.volumes.push(volume.resolve(&mut problems));
        }
        for export in &file.export {
            config.exports.extend(export.resolve(&mut problems));
        }
        if file.volume.is_empty() {
            problems.add(
                &(0..0),
                "there is no volume: nothing would be served",
                "add a [[volume]] table, and an [[export]] of it (docs/reference/configuration.md \
                 has all keys)",
            );
        }
        file.check_names(&mut problems);
        file.check_uses(&mut problems);
        file.check_kinds(&mut problems);
        config.check_exports(&file, &mut problems);
        config.check_addresses(&mut problems);
        config.check_subsystems(&mut problems);
        config.check_tls(&mut problems);
        config.check_paths(&file, &mut problems);
        if !problems.any() {
            config.check_survivors(&mut problems);
            config.check_memory(&file, &mut problems);
        }
        if problems.any() {
            return Err(problems.into_error());
        }
        config.warnings = problems.warnings;
        Ok(config)
    }

    /// Returns the device `name`.
    ///
    /// # Panics
    /// If there is none. A loaded configuration has no unknown names.
    #[must_use]
    pub fn device(&self, name: &str) -> &Device {
        let found = self.devices.iter().find(|device| device.name == name);
        found.expect("names were checked when the file was read")
    }

    /// Returns the device `name` and the devices under it, from the top down.
    #[must_use]
    pub fn stack(&self, name: &str) -> Vec<&Device> {
        let mut stack = vec![self.device(name)];
        while let DeviceKind::Emulate { on, .. }
        | DeviceKind::EmulatedDisk { on, .. }
        | DeviceKind::EmulatedMemory { on, .. }
        | DeviceKind::Transit { on, .. }
        | DeviceKind::Btt { on } = &stack[stack.len() - 1].kind
        {
            stack.push(self.device(on));
        }
        stack
    }

    /// Returns the file or device node at the bottom of device `name`; `None` if that is memory of
    /// the process.
    #[must_use]
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        match &self.stack(name).last()?.kind {
            DeviceKind::File { path, .. } | DeviceKind::Pmem { path } => Some(path),
            _ => None,
        }
    }

    /// Returns whether the user accepts the loss of a cache in memory; `None` for other caches.
    #[must_use]
    pub fn memory_cache(&self) -> Option<bool> {
        let cache = self.cache.as_ref()?;
        match self.stack(&cache.data).last()?.kind {
            DeviceKind::Mem { volatile, .. } => Some(volatile),
            _ => None,
        }
    }

    /// Returns `file:line`, for problems that are found later.
    #[must_use]
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    fn check_exports(&self, file: &File, problems: &mut Problems<'_>) {
        for (index, export) in self.exports.iter().enumerate() {
            let twin = self.exports[..index].iter().find(|other| {
                match (&other.protocol, &export.protocol) {
                    (Protocol::Fuse(a), Protocol::Fuse(b))
                    | (Protocol::VhostUserBlk(a), Protocol::VhostUserBlk(b)) => a == b,
                    (Protocol::Ublk(a), Protocol::Ublk(b)) => a == b,
                    (a, b) => a == b && other.volume == export.volume,
                }
            });
            let raw = file
                .export
                .iter()
                .find(|raw| problems.line(raw.volume.span().start) == export.line);
            if let (Some(twin), Some(raw)) = (twin, raw) {
                problems.add(
                    &raw.volume.span(),
                    format!("the export in line {} is in the same place", twin.line),
                    "remove one of the two, or give it another address or directory",
                );
            }
        }
        for volume in &file.volume {
            let name = volume.name.get_ref();
            if !file.export.iter().any(|e| e.volume.get_ref() == name) {
                problems.warn(
                    &volume.name.span(),
                    &format!("volume {name:?} has no export: no client can reach it"),
                );
            }
        }
    }

    /// Checks that each medium has one user: two devices on one file would overwrite each other.
    fn check_paths(&self, file: &File, problems: &mut Problems<'_>) {
        let mut seen: Vec<(String, &str)> = Vec::new();
        for device in &self.devices {
            let (medium, help) = match &device.kind {
                DeviceKind::File { path, .. } | DeviceKind::Pmem { path } => (
                    path.display().to_string(),
                    "give each device a file or block device of its own",
                ),
                DeviceKind::NvmeTcp { uri, .. } => (uri.to_string(), "give each its own namespace"),
                DeviceKind::Rbd(image) => (image.in_cluster(), "give each an image of its own"),
                DeviceKind::Nbd { uri, .. } => (uri.to_string(), "give each an export of its own"),
                DeviceKind::Object(volume) => (volume.to_string(), "give each its own folder"),
                _ => continue,
            };
            match seen.iter().find(|(other, _)| *other == medium) {
                Some((_, other)) => {
                    let raw = file
                        .device
                        .iter()
                        .find(|raw| *raw.name.get_ref() == device.name);
                    problems.add(
                        &raw.map_or(0..0, |raw| raw.name.span()),
                        format!("devices {other:?} and {:?} are both {medium}", device.name,),
                        help,
                    );
                }
                None => seen.push((medium, &device.name)),
            }
        }
    }

    /// Refuses a cache in memory for the only copy of data, since it ends with the process. The
    /// user can override this.
    fn check_memory(&self, file: &File, problems: &mut Problems<'_>) {
        let (Some(accepted), Some(cache)) = (self.memory_cache(), &file.cache) else {
            return;
        };
        problems.warn(
            &cache.data.span(),
            "the cache is in memory: its data is lost when the daemon ends",
        );
        for volume in file.volume.iter().filter(|_| !accepted) {
            let Some(mode) = &volume.mode else { continue };
            if mode.get_ref().keeps_dirty_data() {
                problems.add(
                    &mode.span(),
                    format!(
                        "volume {:?} in mode {} on a cache in memory loses acknowledged writes \
                         when the process dies",
                        volume.name.get_ref(),
                        mode.get_ref()
                    ),
                    "use mode wt, wa, wi or pt, or add volatile = true to the memory device where \
                     the data may be lost",
                );
            }
        }
    }
}

/// Reads the text of a configuration. Another file, such as a disk image of any length, is reported
/// as such and not parsed.
fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    if let Some(kind) = irregular_kind(path) {
        let path = path.display();
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{path} is no configuration: it is {kind} and not a regular file\n    \
                 help: name a TOML file; to look at the cache on a device, `forebay check --cache \
                 {path}`"
            ),
        ));
    }
    let opened = open_regular(path, OpenOptions::new().read(true));
    let done = opened.and_then(|file| file.take(LONGEST_BYTES + 1).read_to_end(&mut bytes));
    done.context(|| {
        format!(
            "cannot read the configuration {}\n\
             help: name a file that exists and that you may read",
            path.display()
        )
    })?;
    let none = |why: &str| {
        let path = path.display();
        Error::with_source(
            ErrorKind::InvalidInput,
            "",
            format!(
                "{path} is no configuration: {why}\n    \
                 help: name a TOML file that names devices by their `path` \
                 (docs/start/first-volume.md has an example); to look at the cache on a device, \
                 `forebay check --cache {path}`"
            ),
        )
    };
    let text = String::from_utf8(bytes).map_err(|_| none("it is not text"))?;
    match text.len() as u64 {
        _ if text.contains('\0') => Err(none("it is not text")),
        LONGEST_BYTES.. => Err(none("it has more than 1 MiB")),
        _ => Ok(text),
    }
}

impl File {
    /// Checks that no two devices, and no two volumes, have the same name.
    fn check_names(&self, problems: &mut Problems<'_>) {
        let devices: Vec<_> = self.device.iter().map(|d| &d.name).collect();
        let volumes: Vec<_> = self.volume.iter().map(|v| &v.name).collect();
        for (noun, names) in [("device", devices), ("volume", volumes)] {
            for (index, name) in names.iter().enumerate() {
                let twin = names[..index]
                    .iter()
                    .find(|n| n.get_ref() == name.get_ref());
                if let Some(twin) = twin {
                    let line = problems.line(twin.span().start);
                    problems.add(
                        &name.span(),
                        format!("{noun} {:?} is in line {line} already", name.get_ref()),
                        "give one of the two another name",
                    );
                }
            }
        }
    }

    /// Checks that every used name exists, and that no device has two users.
    fn check_uses(&self, problems: &mut Problems<'_>) {
        let mut uses: Vec<(&Spanned<String>, String)> = Vec::new();
        if let Some(cache) = &self.cache {
            uses.push((&cache.data, "[cache] data".into()));
            if let Some(metadata) = &cache.metadata {
                uses.push((metadata, "[cache] metadata".into()));
            }
        }
        for device in &self.device {
            if let Some(on) = device.under() {
                uses.push((on, format!("device {:?}", device.name.get_ref())));
            }
        }
        for volume in &self.volume {
            uses.push((
                &volume.backing,
                format!("volume {:?}", volume.name.get_ref()),
            ));
        }
        for (index, (name, user)) in uses.iter().enumerate() {
            if !self
                .device
                .iter()
                .any(|d| d.name.get_ref() == name.get_ref())
            {
                problems.add(
                    &name.span(),
                    format!(
                        "{user} uses device {:?}, which does not exist",
                        name.get_ref()
                    ),
                    known("device", self.device.iter().map(|d| d.name.get_ref())),
                );
            }
            let other = uses[..index]
                .iter()
                .find(|(n, _)| n.get_ref() == name.get_ref());
            if let Some((_, other)) = other {
                problems.add(
                    &name.span(),
                    format!("device {:?} is used by {other} already", name.get_ref()),
                    "give each user a device of its own",
                );
            }
        }
        for device in &self.device {
            self.check_loop(device, problems);
            let name = device.name.get_ref();
            if !uses.iter().any(|(used, _)| used.get_ref() == name) {
                problems.warn(
                    &device.name.span(),
                    &format!("nothing uses device {name:?}"),
                );
            }
        }
        for export in &self.export {
            let name = export.volume.get_ref();
            if !self.volume.iter().any(|v| v.name.get_ref() == name) {
                problems.add(
                    &export.volume.span(),
                    format!("this exports volume {name:?}, which does not exist"),
                    known("volume", self.volume.iter().map(|v| v.name.get_ref())),
                );
            }
        }
    }

    /// Checks that a device is not under itself.
    fn check_loop(&self, device: &device::RawDevice, problems: &mut Problems<'_>) {
        let mut current = device;
        for _ in 0..self.device.len() {
            let Some(on) = current.under() else { return };
            let next = self
                .device
                .iter()
                .find(|d| d.name.get_ref() == on.get_ref());
            let Some(next) = next else { return };
            if next.name == device.name {
                problems.add(
                    &on.span(),
                    format!("device {:?} lies on itself", device.name.get_ref()),
                    "let `on` lead to a device of kind file, mem or pmem",
                );
                return;
            }
            current = next;
        }
    }
}

fn known<'a>(noun: &str, names: impl Iterator<Item = &'a String>) -> String {
    let mut known: Vec<String> = Vec::new();
    // A name that is refused itself is no remedy.
    for name in names
        .filter(|name| is_name(name))
        .map(|name| format!("{name:?}"))
    {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    match &known[..] {
        [] => format!("add a [[{noun}]] table with this name"),
        [one] => format!("use {one}, or add a [[{noun}]] table"),
        _ => format!("use one of {}, or add a [[{noun}]] table", known.join(", ")),
    }
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let short = (1..=64).contains(&text.len());
    short && text.chars().all(plain) && !text.starts_with(['.', '-'])
}

/// Checks a name. Names become parts of file names, metrics and export names, so they are plain.
fn check_name(problems: &mut Problems<'_>, name: &Spanned<String>, noun: &str) {
    let text = name.get_ref();
    if !is_name(text) {
        problems.add(
            &name.span(),
            format!("{text:?} cannot be the name of a {noun}"),
            "use 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter, digit or '_'",
        );
    }
    // Slots of transit caches have records of such names in the state directory.
    if noun == "device" && text.starts_with(OWN_PREFIX) {
        problems.add(
            &name.span(),
            format!("{text:?} cannot be the name of a device: Forebay's own files begin like this"),
            format!("use a name that does not begin with {OWN_PREFIX:?}"),
        );
    }
}

#[cfg(test)]
mod tests;
