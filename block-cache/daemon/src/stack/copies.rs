//! Recognizes copies of a cache, and names both the copy and the original.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use forebay_block::{Identity, Result};
use forebay_cache::{Devices, check_parts};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::file::{Place, open_to_look};
use forebay_metadata::superblock::{RESERVED_BYTES, Service, Superblock};

use super::offload;
use crate::config::{self, Config};
use crate::state::opening::{Found, Opening, Twin, check};
use crate::state::{StateDirectory, hex};

/// Paths of a cache's devices.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Path of the metadata device, or its name if it has no path.
    pub(crate) metadata: String,
    /// The same for a separate data device; otherwise empty.
    pub(crate) data: String,
}

impl Places {
    /// Returns the paths in the form of the record.
    pub(crate) fn of(data: &Path, metadata: Option<&Path>) -> Self {
        Self {
            metadata: place_of_path(metadata.unwrap_or(data)),
            data: metadata.map_or_else(String::new, |_| place_of_path(data)),
        }
    }
}

/// Returns the paths of a cache's devices.
pub(crate) fn place_of(config: &Config, cache: &config::Cache) -> Places {
    let place = |name: &String| {
        let path = config.file_of(name);
        path.map_or_else(|| name.clone(), place_of_path)
    };
    match &cache.metadata {
        Some(metadata) => Places {
            metadata: place(metadata),
            data: place(&cache.data),
        },
        None => Places {
            metadata: place(&cache.data),
            data: String::new(),
        },
    }
}

/// Stores the record of the last opening, as the superblock has it, durably.
///
/// # Errors
/// The error of the state directory. The older record refuses no start.
pub(super) async fn note_opening(
    state: &Arc<StateDirectory>,
    uuid: [u8; 16],
    service: Service,
    places: Places,
) -> Result<()> {
    let opening = Opening {
        generation: service.generation,
        media: service.media,
        place: places.metadata,
        data_place: places.data,
    };
    let state = Arc::clone(state);
    offload(move || state.store_opening(&uuid, &opening)).await
}

/// Returns a path in the form of the record: absolute.
pub(crate) fn place_of_path(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let absolute = absolute.as_deref().unwrap_or(path);
    absolute.display().to_string()
}

/// Refuses to open a cache if its devices hold a copy next to its original, or an earlier state.
/// Parts of two different states are refused as well. Returns a notice for the user.
///
/// # Errors
/// As [`check`] and [`check_parts`]; otherwise the error of the operating system.
pub(crate) async fn refuse_copy(
    state: &Path,
    devices: &Devices,
    found: &Superblock,
    places: &Places,
    moved: bool,
) -> Result<Option<String>> {
    let media = Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref());
    let data = check_parts(devices, found).await?;
    let record = StateDirectory::opening_in(state, &found.uuid)?;
    // A new cache, or a new state directory, has no record yet.
    let was_opened = found.service.generation != 0;
    if record.is_none() && was_opened && StateDirectory::lacks_opening_in(state, &found.uuid)? {
        tracing::warn!(
            "{} is missing: an earlier state of the cache device would not be recognized",
            state.join(format!("{}.cache", hex(&found.uuid))).display()
        );
    }
    let last = Opening {
        generation: found.service.generation,
        media: found.service.media,
        place: found.place.clone(),
        data_place: data
            .as_ref()
            .map_or_else(String::new, |data| data.place.clone()),
    };
    let mut twin = None;
    for former in record.iter().chain([&last]) {
        let metadata = (former.media.metadata, media.metadata);
        let apart = (former.media.data, media.data);
        let is_twin = async |place: &str, identities, here: &str| {
            is_on(place, identities, &found.uuid).await || has_twin_at(place, &found.uuid, here)
        };
        if is_twin(&former.place, metadata, &places.metadata).await {
            twin = Some((former.place.clone(), false));
        } else if data.is_some() && is_twin(&former.data_place, apart, &places.data).await {
            twin = Some((former.data_place.clone(), true));
        }
        if twin.is_some() {
            break;
        }
    }
    let now = Found {
        last,
        media,
        place: &places.metadata,
        data_place: &places.data,
        moved,
    };
    let twin = twin.as_ref().map(|(place, is_data)| Twin {
        place,
        is_data: *is_data,
    });
    check(&now, record.as_ref(), twin)
}

/// Whether the former device of the cache at `place` still exists, differs from the present one and
/// still holds the cache.
async fn is_on(place: &str, (former, now): (Identity, Identity), uuid: &[u8; 16]) -> bool {
    if place.is_empty() || !former.differs_from(now) {
        return false;
    }
    let options = FileDeviceOptions {
        read_only: true,
        ..FileDeviceOptions::default()
    };
    let Ok(device) = FileDevice::open(place, options) else {
        return false;
    };
    let identity = device.info().identity;
    let is_there = identity.is_same_as(former) && !identity.is_same_as(now);
    is_there
        && Superblock::read(device.as_ref())
            .await
            .is_ok_and(|found| found.uuid == *uuid)
}

/// Returns whether the cache `uuid`, found at `here`, is also at the path `former`, in another file
/// or on another disk.
///
/// The identity of a cloned file system equals the original's: its UUID, its inodes and their birth
/// times are the same. The numbers of mounted devices and their inodes differ.
pub(crate) fn has_twin_at(former: &str, uuid: &[u8; 16], here: &str) -> bool {
    let former = Path::new(former);
    // A device that is not a file has a name in place of a path.
    former.is_absolute() && former != Path::new(here) && {
        match std::fs::metadata(former) {
            Ok(there) if !there.is_dir() => {
                let is_here = std::fs::metadata(here)
                    .is_ok_and(|here| Place::of(&here).overlaps(&Place::of(&there)));
                !is_here && uuid_at(former).as_ref() == Some(uuid)
            }
            _ => false,
        }
    }
}

/// Returns the UUID of the cache in a file or on a block device; `None` if there is no cache.
fn uuid_at(path: &Path) -> Option<[u8; 16]> {
    let mut reserved = vec![0; usize::try_from(RESERVED_BYTES).ok()?];
    (open_to_look(path).ok()?.read_exact(&mut reserved)).ok()?;
    Superblock::uuid_in(&reserved)
}
