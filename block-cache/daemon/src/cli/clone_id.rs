//! `forebay clone-id`: turns the copy of a cache into a cache of its own.

use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};
use forebay_cache::Devices;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::{Engine, Reactor, system};
use forebay_metadata::superblock::{Role, Superblock};

use super::format::{dirty_data, inspect_with_journal};
use crate::stack::journal::{self, JournalOwner};
use crate::stack::{Places, has_twin_at, open_metadata, open_path};
use crate::state::hex;
use forebay_terminal::out;
use forebay_terminal::size::human_bytes;

/// Turn the copy of a cache device into a cache of its own
///
/// A copy has the UUID of the original. This command gives it a new one, so that both can be used
/// on one machine. It does not touch the original and its process journal.
///
/// Dirty data in the copy stays dirty, as of the time of the copy. Writes that the original had
/// acknowledged without a flush, and held only in its process journal, are not in the copy. Each
/// volume must be adopted once (`forebay serve --adopt VOLUME`), with a backing device that is a
/// copy, too. On the backing device of the original, the copy would overwrite newer data.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Device or file that holds the copy
    #[arg(long, value_name = "PATH")]
    pub(super) cache: PathBuf,
    /// Device or file that holds the copy's metadata, if it is a separate one
    #[arg(long, value_name = "PATH")]
    pub(super) metadata: Option<PathBuf>,
}

/// Result of the command.
struct Cloned {
    former: [u8; 16],
    uuid: [u8; 16],
    /// Descriptions of volumes and their dirty data.
    dirty: Vec<String>,
    was_clean: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let (cache, metadata) = (arguments.cache.clone(), arguments.metadata.clone());
    let what = cache.display().to_string();
    let cloned = Reactor::new(Engine::Auto)?.run(async move {
        let options = FileDeviceOptions {
            direct: true,
            exclusive: true,
            ..FileDeviceOptions::default()
        };
        let devices = Devices {
            data: open_path(&cache, options.clone())?,
            metadata: match &metadata {
                Some(path) => Some(open_metadata(path, options)?),
                None => None,
            },
        };
        let places = Places::of(&cache, metadata.as_deref());
        let what = match &metadata {
            Some(metadata) => format!(
                "{}, with metadata on {},",
                cache.display(),
                metadata.display()
            ),
            None => cache.display().to_string(),
        };
        clone_id(&devices, &places, &what).await
    })?;
    let Cloned {
        former,
        uuid,
        dirty,
        was_clean,
    } = cloned;
    out::print(&format!(
        "{what}: cache {}, which was a copy of {}\n",
        hex(&uuid),
        hex(&former)
    ))?;
    for volume in dirty {
        out::print(&format!("  {volume}\n"))?;
    }
    if !was_clean {
        out::print(
            "The copy was not shut down cleanly: what was acknowledged and not flushed before it \
             was copied is not in it. In this boot of the machine, start it once with \
             --accept-journal-loss\n",
        )?;
    }
    Ok(())
}

/// Gives the copy on these devices a new identity. `what` names the devices at `places`.
async fn clone_id(devices: &Devices, places: &Places, what: &str) -> Result<Cloned> {
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let found = Superblock::read(holder.as_ref()).await?;
    let data = check_parts(devices, &found).await?;
    let whose = JournalOwner::of(&found, devices, places, false);
    let path = journal::find(&whose.uuid);
    // A copy has none.
    if let Ok(Some(_)) = journal::own(&whose, &path, false)? {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{what} is no copy: the process journal {} belongs to it\n    \
                 help: name the copy; or start this one once and stop it, so that it has what the \
                 journal has",
                path.display()
            ),
        ));
    }
    let (inspection, _) = inspect_with_journal(devices, places, None, false).await?;
    if let Some(stake) = dirty_data(&inspection)
        && !is_copy(devices, &found, data.as_ref(), places).await
    {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{what} is no copy that is recognized: its superblock names this device\n    \
                 help: name the copy. Or serve this cache, write its data back with `forebay \
                 flush`, stop it, and repeat the command: it has dirty data, {stake}"
            ),
        ));
    }
    let mut uuid = [0; 16];
    system::random(&mut uuid);
    Superblock::change_uuid(
        devices.data.as_ref(),
        devices.metadata.as_deref(),
        uuid,
        &places.metadata,
    )
    .await
    .context(|| format!("{what} has no identity of its own yet\nhelp: repeat the command"))?;
    let (inspection, _) = inspect_with_journal(devices, places, None, false).await?;
    let dirty = (inspection.volumes.iter())
        .map(|volume| {
            let dirty = human_bytes(volume.dirty_bytes);
            format!("volume {:?}: {dirty} of dirty data", volume.name)
        })
        .collect();
    Ok(Cloned {
        former: found.uuid,
        uuid,
        dirty,
        was_clean: inspection.clean_shutdown || inspection.records == 0,
    })
}

/// Returns whether the devices are certainly not those of the cache's last opening. A journal that
/// is not found proves nothing: it may have been moved. `data` is the superblock of a separate data
/// device.
async fn is_copy(
    devices: &Devices,
    found: &Superblock,
    data: Option<&Superblock>,
    places: &Places,
) -> bool {
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let (last, now) = (
        found.service.media,
        Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref()),
    );
    // After an interruption the command is repeated.
    let metadata = Superblock::is_half_changed(holder.as_ref()).await
        || is_another_at(
            &places.metadata,
            (last.metadata, now.metadata),
            &found.place,
            found,
        );
    let Some(data) = data else {
        return metadata;
    };
    let data = data.uuid != found.uuid
        || is_another_at(&places.data, (last.data, now.data), &data.place, found);
    metadata && data
}

/// Returns whether the device at `here` is certainly another one than the `former` device of a
/// cache. A file in a clone of a whole file system has the identity of the original, which is then
/// at the former path.
fn is_another_at(
    here: &str,
    (last, now): (Identity, Identity),
    former: &str,
    found: &Superblock,
) -> bool {
    let is_original = || {
        let options = FileDeviceOptions {
            read_only: true,
            ..FileDeviceOptions::default()
        };
        let there = FileDevice::open(Path::new(former), options);
        there.is_ok_and(|there| there.info().identity.is_same_as(last))
    };
    last.differs_from(now) || has_twin_at(former, &found.uuid, here) && is_original()
}

/// Checks that the devices are parts of one cache. One of them may have its new UUID already.
/// Returns the superblock of a separate data device.
async fn check_parts(devices: &Devices, found: &Superblock) -> Result<Option<Superblock>> {
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    let name = devices.data.info().name;
    match (&devices.metadata, found.role) {
        (None, Role::Whole) => Ok(None),
        (None, _) => wrong(format!(
            "{name} holds a part of a cache\n    help: name both, with --cache and --metadata"
        )),
        (Some(_), Role::Metadata) => {
            let data = Superblock::read(devices.data.as_ref()).await?;
            if data.role == Role::Data && data.shares_lineage(found) && !found.agrees_with(&data) {
                return wrong(format!(
                    "{name} holds another state of the cache than its metadata device\n    \
                     help: name both parts of one copy, made while the cache was stopped"
                ));
            }
            match data.role == Role::Data && data.shares_lineage(found) {
                true => Ok(Some(data)),
                false => wrong(format!(
                    "{name} is not the data device of this cache\n    help: name both parts of one \
                     copy"
                )),
            }
        }
        (Some(_), _) => wrong(format!(
            "the devices are given in the wrong roles: {name} and its metadata device\n    \
             help: exchange them, or leave --metadata out where one device holds all"
        )),
    }
}
