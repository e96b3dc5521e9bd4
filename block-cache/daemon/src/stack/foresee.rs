//! What the state directory will have a start refuse, without taking the directory.

use forebay_block::{Context as _, Identity, Result};

use crate::config::{self, Config};
use crate::state::decide::{self, Meeting};
use crate::state::{CacheId, StateDirectory};

/// Reads what is remembered of each volume.
///
/// # Errors
/// As [`super::Stack::open`]: what the system says.
pub(crate) fn foresee_records(config: &Config) -> Result<()> {
    for volume in &config.volumes {
        StateDirectory::look_disk_in(&config.server.state, &volume.name)?;
    }
    Ok(())
}

/// Says what the attach of a volume with this backing device, of so many bytes, will of the state directory. `cache` is the cache that the
/// volume is attached to, with the epoch that it remembers of the volume; none for a volume without a cache.
///
/// # Errors
/// As the attach, with the place in the configuration.
pub(crate) fn foresee_attach(
    config: &Config,
    volume: &config::Volume,
    backing: (Identity, u64),
    cache: Option<(CacheId, Option<u64>)>,
) -> Result<()> {
    decided(config, volume, backing, cache)
        .context(|| format!("{}: volume {:?}", config.place(volume.line), volume.name))
}

fn decided(
    config: &Config,
    volume: &config::Volume,
    (backing, backing_bytes): (Identity, u64),
    cache: Option<(CacheId, Option<u64>)>,
) -> Result<()> {
    let (state, name) = (&config.server.state, &*volume.name);
    let others = StateDirectory::others_in(state, name, (backing, backing_bytes))?;
    let Some((cache, cache_epoch)) = cache else {
        let own = StateDirectory::load_in(state, name)?;
        let own = own.map(|record| (name.to_owned(), record));
        for (last, record) in own.iter().chain(&others) {
            decide::check_without(name, last, *record)?;
        }
        return Ok(());
    };
    for (other, record) in others {
        decide::renamed(name, cache, false, &other, record)?;
    }
    let record = StateDirectory::load_in(state, name)?;
    let meeting = Meeting {
        volume: name,
        dirty: match record {
            Some(record) if record.dirty_listed => StateDirectory::dirty_in(state, name)?,
            _ => None,
        },
        record,
        ranges: StateDirectory::ranges_in(state, name)?,
        cache,
        cache_epoch,
        adopt: false,
        dirty_mode: volume.mode.keeps_dirty_data(),
        backing,
        backing_bytes,
    };
    decide::attach(&meeting).map(|_| ())
}
