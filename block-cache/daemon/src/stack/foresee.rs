//! Finds the refusals of a start that depend on the state directory, without locking it. Also finds
//! refusals beyond the first one, so that the user can decide on all of them together.

use std::time::Duration;

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};
use forebay_cache::VolumeOptions;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::rt;
use forebay_object::{Id, new_id};

use super::{Stack, Wishes};
use crate::config::{self, Config, DeviceKind};
use crate::state::decide::{self, Attach, AttachRequest, Claim};
use crate::state::{CacheId, StateDirectory};

/// Time that a refused start waits for the opening of its cache, which may refuse it as well.
const OPENING: Duration = Duration::from_secs(10);

/// Reads the record of each volume.
///
/// # Errors
/// As [`super::Stack::open`]: the error of the operating system.
pub(crate) fn foresee_records(config: &Config) -> Result<()> {
    for volume in &config.volumes {
        StateDirectory::look_disk_in(&config.server.state, &volume.name)?;
    }
    Ok(())
}

/// Decides on the attach of a volume with this backing device. The device is given by its identity
/// and size in bytes, and by its last writer if it is in object storage. `cache` is the volume's
/// cache and the epoch that it has for the volume; `None` for a volume without a cache. `adopt` is
/// the user's option. Returns the decision, if the volume will be attached.
///
/// # Errors
/// As the attach, with the place in the configuration.
pub(crate) fn foresee_attach(
    config: &Config,
    volume: &config::Volume,
    (backing, last_writer): ((Identity, u64), Option<Id>),
    cache: Option<(CacheId, Option<u64>)>,
    adopt: bool,
) -> Result<Option<Attach>> {
    decided(config, volume, (backing, last_writer), cache, adopt)
        .context(|| place_of_volume(config, volume))
}

/// Returns the place of a volume in the configuration, and its name.
pub(crate) fn place_of_volume(config: &Config, volume: &config::Volume) -> String {
    format!("{}: volume {:?}", config.place(volume.line), volume.name)
}

/// Returns the options of a decided attach, as far as they concern stale data.
pub(crate) fn options_of(volume: &config::Volume, attach: &Attach) -> VolumeOptions {
    VolumeOptions {
        epoch: attach.epoch,
        written_elsewhere: attach.stale.clone(),
        dirty_at_failure: attach.dirty.clone(),
        ..VolumeOptions::new(volume.mode.into())
    }
}

/// Joins the refusals of one start, so that the user can decide on all of them. The kind is that of
/// the first.
///
/// # Errors
/// The refusals, if there are any.
pub(crate) fn refuse_all(mut refused: Vec<Error>) -> Result<()> {
    if refused.len() < 2 {
        return refused.pop().map_or(Ok(()), Err);
    }
    let mut reports: Vec<String> = Vec::new();
    for report in refused.iter().map(Error::report) {
        // A refusal to open the cache is repeated by each volume.
        if !reports.contains(&report) {
            reports.push(report);
        }
    }
    let kind = refused[0].kind();
    Err(Error::with_source(kind, "", reports.join("\n")))
}

impl Stack {
    /// Adds later refusals of `volumes` to the first one. Reads only the state directory, the cache
    /// and files of this machine.
    pub(super) async fn with_later_refusals(
        &self,
        error: Error,
        config: &Config,
        volumes: &[config::Volume],
        wishes: &Wishes,
    ) -> Error {
        if !matches!(
            error.kind(),
            ErrorKind::Busy | ErrorKind::Lost | ErrorKind::InvalidInput
        ) {
            return error;
        }
        let mut refused = vec![error];
        let opened = match &self.cache {
            Some(cache) => rt::at_most(OPENING, cache.opened()).await,
            None => None,
        };
        for volume in volumes {
            if wishes.without_cache.contains(&volume.name) {
                continue;
            }
            let later = self.later_refusal(config, volume, wishes);
            refused.extend(later.err());
        }
        refused.extend(opened.and_then(Result::err));
        let first = refused[0].clone();
        refuse_all(refused).err().unwrap_or(first)
    }

    /// Returns the refusal of a volume that the start has not reached, if there will be one.
    fn later_refusal(
        &self,
        config: &Config,
        volume: &config::Volume,
        wishes: &Wishes,
    ) -> Result<()> {
        let cache = self.cache.as_ref().filter(|cache| cache.memory.is_none());
        let (Some(backing), Some(cache)) = (backing_of(config, volume), cache) else {
            return Ok(());
        };
        let adopt = wishes.adopt.contains(&volume.name);
        let cache = (cache.id, cache.epoch_of(&volume.name));
        let place = || place_of_volume(config, volume);
        let attach = decided(config, volume, (backing, None), Some(cache), adopt).context(place)?;
        let opened = self.cache.as_ref().and_then(|cache| cache.if_open());
        if let (Some(attach), Some(opened)) = (attach, opened) {
            let options = VolumeOptions {
                discard_stale_dirty: wishes.discard_stale_dirty.contains(&volume.name),
                adopt,
                ..options_of(volume, &attach)
            };
            let checked = opened.cache.check_device(&volume.name, backing, &options);
            let checked = checked.and_then(|()| opened.cache.check_stale(&volume.name, &options));
            checked.context(place)?;
        }
        Ok(())
    }
}

/// Returns the identity and size in bytes of a volume's backing device, if it is a file or device
/// of this machine. Reads it without a lock.
fn backing_of(config: &Config, volume: &config::Volume) -> Option<(Identity, u64)> {
    let leaf = *config.stack(&volume.backing).last()?;
    let DeviceKind::File { path, .. } = &leaf.kind else {
        return None;
    };
    let options = FileDeviceOptions {
        read_only: true,
        direct: false,
        known_by_path: leaf.known_by_path,
        ..FileDeviceOptions::default()
    };
    let info = FileDevice::open(path, options).ok()?.info();
    Some((info.identity, info.size_bytes))
}

fn decided(
    config: &Config,
    volume: &config::Volume,
    ((backing, backing_bytes), last_writer): ((Identity, u64), Option<Id>),
    cache: Option<(CacheId, Option<u64>)>,
    adopt: bool,
) -> Result<Option<Attach>> {
    let (state, name) = (&config.server.state, &*volume.name);
    let others = StateDirectory::others_in(state, name, (backing, backing_bytes))?;
    let Some((cache, cache_epoch)) = cache else {
        let own = StateDirectory::load_in(state, name)?;
        let own = own.map(|record| (name.to_owned(), record));
        for (last, record) in own.iter().chain(&others) {
            decide::check_without(name, last, *record)?;
        }
        return Ok(None);
    };
    for (other, record) in &others {
        decide::renamed(name, cache, adopt, other, *record)?;
    }
    let record = StateDirectory::load_in(state, name)?;
    let request = AttachRequest {
        volume: name,
        dirty: match record {
            Some(record) if record.dirty_listed => StateDirectory::dirty_in(state, name)?,
            _ => None,
        },
        record,
        ranges: StateDirectory::ranges_in(state, name)?,
        cache,
        cache_epoch,
        adopt,
        dirty_mode: volume.mode.keeps_dirty_data(),
        backing,
        backing_bytes,
        served_as: decide::served_as(&others, cache),
        claim: last_writer.map(|last| Claim::new(Some(last), new_id(), &others)),
    };
    decide::attach(&request).map(Some)
}
