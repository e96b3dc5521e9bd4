//! Finds the refusals of attaches before a start. They depend on the state directory, on the
//! backing devices, and on data in the cache that is older than writes without it.

use forebay_block::{Context as _, DeviceInfo, Error, Result};
use forebay_cache::{Devices, Inspection, VolumeOptions};

use super::mend::{self, Place};
use super::open::{Backing, Sized};
use crate::config::{Config, Volume};
use crate::stack::{
    Wishes, check_block_sizes, check_checksums, check_dirty_tracking, foresee_attach, options_of,
    place_of_volume, refuse_all, refuse_if_older,
};
use crate::state::CacheId;
use crate::state::decide::Attach;

/// A volume, and the decision on its attach.
type Planned<'a> = (&'a Volume, Attach);

/// Decides on the attach of each volume. `backing` has the backing device of each volume. Without
/// an inspected cache, volumes have none, or one in memory. Also returns the refusals.
pub(super) fn attaches<'a>(
    config: &'a Config,
    backing: &Backing,
    cache: Option<&Inspection>,
    wishes: &Wishes,
) -> (Vec<Planned<'a>>, Vec<Error>) {
    let (mut planned, mut refused) = (Vec::new(), Vec::new());
    let mut cache_now = cache.cloned();
    let sized = config.volumes.iter().zip(&backing.identities);
    for (number, (volume, sized)) in sized.enumerate() {
        let cache = match cache {
            Some(found) => {
                let mut known = found.volumes.iter();
                let known = known.find(|known| known.name == volume.name);
                Some((CacheId::Uuid(found.uuid), known.map(|known| known.epoch)))
            }
            None => config.memory_cache().map(|_| (CacheId::Memory, None)),
        };
        let adopt = wishes.adopt.contains(&volume.name);
        let last_writer = backing.writers.get(number).copied().flatten();
        let mut devices = backing.devices.iter();
        let device = devices.find(|(known, _)| *known == number);
        let slots = device.map_or(Ok(()), |(_, info)| {
            refuse_if_older(config, volume, info, last_writer)
                .context(|| place_of_volume(config, volume))
        });
        let decided = slots
            .and_then(|()| foresee_attach(config, volume, (*sized, last_writer), cache, adopt));
        let checked = decided.and_then(|attach| {
            let checked = match &mut cache_now {
                Some(found) if device.is_some() => check_device(found, &volume.name, *sized, adopt),
                _ => Ok(()),
            };
            checked
                .map(|()| attach)
                .context(|| place_of_volume(config, volume))
        });
        match checked {
            Ok(attach) => planned.extend(attach.map(|attach| (volume, attach))),
            Err(error) => refused.push(error),
        }
    }
    (planned, refused)
}

/// Checks the backing device of a volume, as its attach does after those of earlier volumes.
fn check_device(found: &mut Inspection, name: &str, backing: Sized, adopt: bool) -> Result<()> {
    if backing.0.is_known() {
        found.check_identity(name, backing, adopt)?;
    }
    found.check_size(name, backing.1)?;
    found.note_attached(name, backing);
    Ok(())
}

/// Returns the refusals of the attaches to a cache on these devices. Changes nothing.
///
/// # Errors
/// The errors of the devices, if the cache seems undamaged.
pub(super) async fn refusals(
    config: &Config,
    backing: &Backing,
    devices: &Devices,
    place: Place<'_>,
    found: &Inspection,
    wishes: &Wishes,
) -> Result<Vec<Error>> {
    let (planned, mut refused) = attaches(config, backing, Some(found), wishes);
    let data = devices.data.info();
    for (number, info) in &backing.devices {
        let volume = &config.volumes[*number];
        // The device has this name in a start.
        let info = DeviceInfo {
            name: volume.backing.clone(),
            ..info.clone()
        };
        let checked = found.check_logical_blocks(&data, &info);
        let place = || place_of_volume(config, volume);
        refused.extend(checked.context(place).err());
    }
    if let Some(problem) = &found.journal_problem {
        // The opening is refused for it, so that no attach is reached.
        if !refused.is_empty() {
            refused.push(problem.clone());
        }
        return Ok(refused);
    }
    let is_ahead = |(volume, attach): &&Planned<'_>| {
        let mut known = found.volumes.iter();
        known.any(|known| known.name == volume.name && attach.epoch > known.epoch)
    };
    let ahead: Vec<_> = planned.iter().filter(is_ahead).collect();
    if ahead.is_empty() {
        return Ok(refused);
    }
    let asked = ahead.iter();
    let asked = asked.map(|(volume, attach)| {
        let options = VolumeOptions {
            discard_stale_dirty: wishes.discard_stale_dirty.contains(&volume.name),
            ..options_of(volume, attach)
        };
        (&*volume.name, options)
    });
    let asked: Vec<_> = asked.collect();
    let options = mend::options(place, false, false)?;
    let checked = match forebay_cache::predict_stale(devices, &options, &asked).await {
        // A report of damage matters more.
        Err(_) if !found.problems.is_empty() => return Ok(refused),
        checked => checked.context(|| "cannot tell what is stale")?,
    };
    for ((volume, _), checked) in ahead.into_iter().zip(checked) {
        refused.extend(
            checked
                .err()
                .map(|error| error.context(place_of_volume(config, volume))),
        );
    }
    Ok(refused)
}

/// Returns the refusal of the next start, if the cache does not fit its configuration, or if the
/// attach of a volume is refused.
pub(super) fn check_start(config: &Config, found: &Inspection, refused: Vec<Error>) -> Result<()> {
    let Some(cache) = &config.cache else {
        return Ok(());
    };
    check_block_sizes(config, cache, &found.block_sizes)?;
    check_dirty_tracking(config, cache, found.dirty_tracking)?;
    check_checksums(config, cache, found.checksums)?;
    let names: Vec<&str> = (config.volumes.iter())
        .map(|volume| &*volume.name)
        .collect();
    // The first volume that needs room is the one that `serve` refuses.
    let is_new = |name: &str| !found.volumes.iter().any(|known| known.name == name);
    let mut volumes = config.volumes.iter();
    let first = volumes.find(|volume| is_new(&volume.name));
    found.check_room(&names).context(|| match first {
        Some(volume) => place_of_volume(config, volume),
        None => config.place(cache.line),
    })?;
    refuse_all(refused)
}
