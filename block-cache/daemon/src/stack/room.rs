//! Checks the space for process journals and the slots of transit caches, before any is allocated.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_block::{BlockDevice, Context as _, DeviceInfo, Error, ErrorKind, Result};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_device::rbd::Access;
use forebay_io::tree;
use forebay_metadata::superblock::Superblock;

use super::devices::open_to_look;
use super::file_size::{self, Written};
use super::remote::{connect, remote_of};
use super::table::with_table;
use super::{cache, journal, transit};
use crate::config::{Config, Device, DeviceKind};
use forebay_terminal::size::human_bytes;

/// A file that the start creates or extends.
struct Need {
    /// Description of its use.
    what: String,
    /// Place in the configuration.
    place: String,
    directory: PathBuf,
    /// Size of the file, bytes.
    size_bytes: u64,
    /// Bytes to allocate beyond those that the file has.
    bytes: u64,
}

/// Refuses a configuration whose journal and slots together exceed the space of their file systems.
/// Also refuses files larger than this process may write. Changes nothing. `cached` says whether
/// the cache is used.
///
/// # Errors
/// `NoSpace` with the sum, the space and the remedy. An error of a device on another machine.
pub(crate) async fn check(config: &Config, cached: bool) -> Result<()> {
    let mut needs = Vec::new();
    if let Some(cache) = config.cache.as_ref().filter(|_| cached) {
        needs.extend(journal_need(config, cache).await?);
        for name in [Some(&cache.data), cache.metadata.as_ref()]
            .into_iter()
            .flatten()
        {
            needs.extend(slots_need(config, name).await?);
        }
    }
    for volume in &config.volumes {
        needs.extend(slots_need(config, &volume.backing).await?);
    }
    let made = needs.iter().filter(|need| need.bytes > 0);
    let made = made.map(|need| Written {
        what: need.what.clone(),
        place: need.place.clone(),
        bytes: need.size_bytes,
    });
    file_size::check(config, cached, made.collect())?;
    while let Some(first) = needs.first() {
        let on = device_of(&first.directory);
        let (here, others): (Vec<_>, Vec<_>) =
            (needs.into_iter()).partition(|need| device_of(&need.directory) == on);
        refuse_without_room(here)?;
        needs = others;
    }
    Ok(())
}

/// Describes what [`check`] may wait for.
pub(super) fn waits_for(config: &Config) -> String {
    let backings = config.volumes.iter().map(|volume| &volume.backing);
    let targets: Vec<_> = backings.filter_map(|it| remote_of(config, it)).collect();
    match targets.is_empty() {
        true => "the file systems of the journal and the slots".into(),
        false => targets.join(", "),
    }
}

/// Returns the file system of a directory; `None` if it cannot be read, which its user reports.
fn device_of(directory: &Path) -> Option<u64> {
    Some(std::fs::metadata(directory).ok()?.dev())
}

/// Compares the need on one file system with its free space.
fn refuse_without_room(mut needs: Vec<Need>) -> Result<()> {
    needs.sort_by_key(|need| std::cmp::Reverse(need.bytes));
    let wanted: u64 = needs.iter().map(|need| need.bytes).sum();
    let Some(largest) = needs.first() else {
        return Ok(());
    };
    let directory = largest.directory.display();
    let Some(room) = File::open(&largest.directory)
        .and_then(|directory| tree::room(&directory))
        .ok()
    else {
        return Ok(());
    };
    let free = room.free * u64::from(room.block_bytes);
    // A file system without a limit reports no blocks.
    if room.blocks == 0 || wanted <= free {
        return Ok(());
    }
    let parts: Vec<_> = needs
        .iter()
        .map(|need| format!("{} for {}", human_bytes(need.bytes), need.what))
        .collect();
    Err(Error::new(
        ErrorKind::NoSpace,
        format!(
            "{}: {directory} lacks room: the start needs {}, and {} are free ({})\n    help: use a \
             smaller `capacity` or `journal_size`, or make {directory} larger",
            largest.place,
            human_bytes(wanted),
            human_bytes(free),
            parts.join(", "),
        ),
    ))
}

/// Returns the need of a cache's process journal. Returns `None` for a cache in memory, or if the
/// cache cannot be read, which its opening reports.
async fn journal_need(config: &Config, of: &crate::config::Cache) -> Result<Option<Need>> {
    if config.memory_cache().is_some() {
        return Ok(None);
    }
    let path = match of.journal_path() {
        Some(path) => path.to_path_buf(),
        None => {
            let holder = of.metadata.as_ref().unwrap_or(&of.data);
            match superblock(config, holder).await {
                Ok(found) => journal::wanted(None, &found.uuid),
                Err(_) => return Ok(None),
            }
        }
    };
    let Some(directory) = path.parent() else {
        return Ok(None);
    };
    let (size_bytes, bytes) = journal::wanted_bytes(&path, cache::journal_len(of)? as u64);
    Ok(Some(Need {
        what: "the process journal".into(),
        place: config.place(of.journal_line()),
        directory: directory.to_path_buf(),
        size_bytes,
        bytes,
    }))
}

/// Reads the superblock on the device `name` without a lock, or through the table on it.
async fn superblock(config: &Config, name: &str) -> Result<Superblock> {
    let is_table = |entry: &&Device| matches!(entry.kind, DeviceKind::Btt { .. });
    let device: Rc<dyn BlockDevice> = match config.file_of(name) {
        Some(path) if !config.stack(name).iter().any(is_table) => {
            let options = FileDeviceOptions {
                read_only: true,
                direct: false,
                ..FileDeviceOptions::default()
            };
            FileDevice::open(path, options)?
        }
        _ => open_to_look(config, name, false).await?,
    };
    Superblock::read(device.as_ref()).await
}

/// Returns the need of the slots of a transit cache in the stack of device `name`, if there is one
/// with a file.
async fn slots_need(config: &Config, name: &str) -> Result<Option<Need>> {
    let stack = config.stack(name);
    let mut layers = stack.iter().enumerate();
    let Some((at, entry)) = layers.find(|(_, entry)| is_transit(entry)) else {
        return Ok(None);
    };
    let DeviceKind::Transit { capacity_bytes, .. } = entry.kind else {
        return Ok(None);
    };
    let place = format!("{}: device {:?}", config.place(entry.line), entry.name);
    let looked = look(config, &stack[at + 1..])
        .await
        .context(|| place.clone())?;
    Ok(looked.map(|info| {
        let (size_bytes, bytes) = transit::wanted_bytes(&info, capacity_bytes);
        Need {
            what: format!("the slots of {:?}", entry.name),
            place,
            directory: transit::DIRECTORY.into(),
            size_bytes,
            bytes,
        }
    }))
}

fn is_transit(entry: &Device) -> bool {
    matches!(entry.kind, DeviceKind::Transit { .. })
}

/// Returns the part of a device's description that determines its slots: identity and block size.
/// Reads it without a lock. Returns `None` for memory of the process, whose slots have no file. A
/// path that cannot be opened as a file gets a description without an identity.
async fn look(config: &Config, under: &[&Device]) -> Result<Option<DeviceInfo>> {
    let Some(leaf) = under.last() else {
        return Ok(None);
    };
    let (path, direct) = match &leaf.kind {
        DeviceKind::File { path, direct } => (path, *direct),
        DeviceKind::Pmem { path } => (path, false),
        remote => {
            return Ok(connect(remote, Access::Look)
                .await?
                .map(|connected| connected.device.info()));
        }
    };
    let options = FileDeviceOptions {
        read_only: true,
        direct,
        ..FileDeviceOptions::default()
    };
    let info = match FileDevice::open(path, options) {
        Ok(device) => device.info(),
        // A DAX device, which has no identity.
        Err(_) => DeviceInfo::new(under[0].name.as_str(), 0),
    };
    Ok(Some(with_table(config, &under[0].name, info)))
}
