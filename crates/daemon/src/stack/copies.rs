//! Copies of a cache: the device of one is told from that of the original, and both are named.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use forebay_block::Result;
use forebay_cache::Devices;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::file::Place;
use forebay_metadata::Media;
use forebay_metadata::superblock::{RESERVED_BYTES, Superblock};

use crate::config::{self, Config};
use crate::state::StateDirectory;
use crate::state::opening::{Found, Opening, check};

/// Returns the path of the device that holds a cache's metadata, or its name where it has no path.
pub(crate) fn place_of(config: &Config, cache: &config::Cache) -> String {
    let name = cache.metadata.as_ref().unwrap_or(&cache.data);
    config
        .file_of(name)
        .map_or_else(|| name.clone(), place_of_path)
}

/// Returns a path as it is noted: absolute.
pub(crate) fn place_of_path(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let absolute = absolute.as_deref().unwrap_or(path);
    absolute.display().to_string()
}

/// Refuses to open a cache on these devices if they hold a copy beside the original, or an earlier state
/// of the cache than was opened last. Returns what a person should know.
///
/// # Errors
/// As [`check`], or what the system says.
pub(crate) async fn refuse_copy(
    state: &Path,
    devices: &Devices,
    found: &Superblock,
    place: &str,
    moved: bool,
) -> Result<Option<String>> {
    let media = Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref());
    let record = StateDirectory::opening_in(state, &found.uuid)?;
    let last = Opening {
        generation: found.service.generation,
        media: found.service.media,
        place: found.place.clone(),
    };
    let mut twin = None;
    for former in record.iter().chain([&last]) {
        let differs = former.media.differs_from(media) && is_on(former, &found.uuid, media).await;
        if differs || has_twin_at(&former.place, &found.uuid, place) {
            twin = Some(former.place.clone());
            break;
        }
    }
    let now = Found {
        last,
        media,
        place,
        moved,
    };
    check(&now, record.as_ref(), twin.as_deref())
}

/// Whether the device that a cache was on is there still, and still has it.
async fn is_on(former: &Opening, uuid: &[u8; 16], now: Media) -> bool {
    let options = FileDeviceOptions {
        read_only: true,
        ..FileDeviceOptions::default()
    };
    let Ok(device) = FileDevice::open(&former.place, options) else {
        return false;
    };
    let identity = device.info().identity;
    let is_there = identity.is_same_as(former.media.metadata) && !identity.is_same_as(now.metadata);
    is_there
        && Superblock::read(device.as_ref())
            .await
            .is_ok_and(|found| found.uuid == *uuid)
}

/// Returns whether the cache `uuid`, found at `here`, is at the path `former` as well, in another file or
/// on another disk.
///
/// Identities do not tell a clone of a whole file system from the original: its UUID, its inodes and their
/// birth are the same. The numbers of mounted devices and their inodes do.
pub(crate) fn has_twin_at(former: &str, uuid: &[u8; 16], here: &str) -> bool {
    let former = Path::new(former);
    // A device that is no file has a name in place of a path.
    former.is_absolute() && former != Path::new(here) && {
        match std::fs::metadata(former) {
            Ok(there) if !there.is_dir() => {
                let is_here = std::fs::metadata(here)
                    .is_ok_and(|here| Place::of(&here).overlaps(&Place::of(&there)));
                !is_here && uuid_at(former, &there).as_ref() == Some(uuid)
            }
            _ => false,
        }
    }
}

/// Returns the UUID of the cache in a file or on a block device; none where there is no cache.
fn uuid_at(path: &Path, found: &std::fs::Metadata) -> Option<[u8; 16]> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let mut reserved = vec![0; usize::try_from(RESERVED_BYTES).ok()?];
    File::open(path).ok()?.read_exact(&mut reserved).ok()?;
    Superblock::uuid_in(&reserved)
}
