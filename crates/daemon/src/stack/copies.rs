//! Copies of a cache: the device of one is told from that of the original, and both are named.

use std::path::Path;

use forebay_block::Result;
use forebay_cache::Devices;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_metadata::Media;
use forebay_metadata::superblock::Superblock;

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
        if former.media.differs_from(media) && is_on(former, &found.uuid, media).await {
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
