//! Opens devices for `forebay check`: backing devices without a lock, and the cache's devices with
//! one.

use std::path::Path;

use forebay_block::{Context as _, DeviceInfo, Error, ErrorKind, Identity, Result};
use forebay_cache::Devices;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_device::rbd::Access;
use forebay_metadata::superblock::Superblock;
use forebay_object::Id;

use super::Place;
use crate::config::server::default_state;
use crate::config::{Config, DeviceKind};
use crate::stack::journal::{self, JournalOwner};
use crate::stack::{
    Remains, check_memory, check_room, connect, foresee, foresee_records, judge_identity, left,
    needs_no_slot_check, odd_end, open_metadata, open_path, open_to_look, place_of, place_of_path,
    place_of_volume, read_superblock, refuse_copy, refuse_if_gone, refuse_if_left_in, refuse_new,
    refuse_without_table, shared_bytes, unreadable, with_table,
};
use crate::state::StateDirectory;
use forebay_terminal::out;

/// Results from the backing devices that are files or on other machines: warnings about those that
/// end within a block, and identities.
#[derive(Clone, Default)]
pub(super) struct Backing {
    pub(super) warnings: Vec<String>,
    /// Devices by the volume's number in the configuration.
    pub(super) devices: Vec<(usize, DeviceInfo)>,
    /// Identity and size in bytes of each volume's backing device, in the order of the
    /// configuration.
    pub(super) identities: Vec<Sized>,
    /// Last writer of each backing device that is in object storage, in the same order.
    pub(super) writers: Vec<Option<Id>>,
}

/// Identity of a device, and its size in bytes.
pub(super) type Sized = (Identity, u64);

impl Backing {
    /// Adds the backing device of the volume with this number in the configuration.
    ///
    /// # Errors
    /// `InvalidInput` if its identity is insufficient for the volume's mode; `Busy` if it shares
    /// bytes with another volume's device.
    fn add(&mut self, config: &Config, number: usize, info: DeviceInfo) -> Result<()> {
        let volume = &config.volumes[number];
        let place = || place_of_volume(config, volume);
        if config.cache.is_some() {
            let unnamed = judge_identity(volume, volume.mode, &info).context(place)?;
            let unnamed = unnamed.map(|what| format!("{}: {what}", place()));
            self.warnings.extend(unnamed);
        }
        let overlaps = |(_, other): &&(usize, DeviceInfo)| {
            (other.identity).overlaps(other.size_bytes, info.identity, info.size_bytes)
        };
        if let Some((other, twin)) = self.devices.iter().find(overlaps) {
            let other = &config.volumes[*other].backing;
            let what = shared_bytes(other, twin, &volume.backing, &info);
            return Err(Error::new(ErrorKind::Busy, what)).context(place);
        }
        self.devices.push((number, info));
        Ok(())
    }
}

fn sized(info: &DeviceInfo) -> Sized {
    (info.identity, info.size_bytes)
}

/// Returns whether the file at the bottom of a stack is identified by its path if its medium has no
/// name.
fn known_by_path(config: &Config, name: &str) -> bool {
    (config.stack(name).pop()).is_some_and(|leaf| leaf.known_by_path)
}

/// Reads the backing devices. If a daemon is `running`, it holds the data of the slots itself.
/// Reads nothing that may hang, and writes nothing.
pub(super) async fn look_at_backing(config: Config, running: bool) -> Result<Backing> {
    let mut seen = Backing::default();
    if !running {
        foresee_records(&config)?;
    }
    seen.identities = vec![Default::default(); config.volumes.len()];
    seen.writers = vec![None; config.volumes.len()];
    for (number, volume) in config.volumes.iter().enumerate() {
        let name = &volume.backing;
        let place = || config.place(volume.line);
        let device = config.device(name);
        let place_of_device = || format!("{}: device {name:?}", config.place(device.line));
        let whole = |info: &DeviceInfo| match needs_no_slot_check(&config, name) {
            _ if running => Ok(()),
            true => foresee(&config, name, info),
            false => refuse_if_left_in(&config.server.state, info)
                .and_then(|()| refuse_if_gone(&config.server.state, info))
                .context(place_of_device),
        };
        let (path, direct) = match config.stack(name).pop().map(|leaf| &leaf.kind) {
            Some(DeviceKind::File { path, direct }) => (path, direct),
            Some(DeviceKind::Pmem { path }) if !running => {
                refuse_without_table(&config, name)?;
                if path.is_file() {
                    let options = FileDeviceOptions {
                        read_only: true,
                        direct: false,
                        ..FileDeviceOptions::default()
                    };
                    let medium = FileDevice::open(path, options).context(place)?;
                    whole(&with_table(&config, name, medium.info()))?;
                    seen.identities[number] = sized(&medium.info());
                }
                continue;
            }
            // A server may serve one client only, the daemon. An image's lock is the daemon's.
            Some(DeviceKind::Nbd { .. } | DeviceKind::Rbd(_)) if running => continue,
            Some(other) => {
                let volume_name = &*volume.name;
                let record = || StateDirectory::load_in(&config.server.state, volume_name);
                let place_of_volume = || place_of_volume(&config, volume);
                let leaf = *config.stack(name).last().expect("it is a stack");
                let place_of_leaf =
                    || format!("{}: device {:?}", config.place(leaf.line), leaf.name);
                let connected = connect(other, Access::Look).await;
                if let Some(connected) = connected.context(place_of_leaf)? {
                    let older = connected.refuse_older(volume_name, record()?).await;
                    older.context(place_of_volume)?;
                    let info = connected.device.info();
                    seen.writers[number] = connected.last_writer().await.context(place)?;
                    whole(&info)?;
                    seen.identities[number] = sized(&info);
                    seen.add(&config, number, info)?;
                } else if let DeviceKind::Object(settings) = other {
                    refuse_new(volume_name, settings, record()?).context(place_of_volume)?;
                    let what = format!("{}: the start creates it in {settings}", place_of_device());
                    seen.warnings.push(what);
                }
                continue;
            }
            None => continue,
        };
        let options = FileDeviceOptions {
            read_only: true,
            direct: *direct,
            known_by_path: known_by_path(&config, name),
            // A running daemon has the lock. Without one, no process may have it.
            exclusive: !running,
            locks_as_writer: true,
            ..FileDeviceOptions::default()
        };
        let device = FileDevice::open(path, options).context(|| {
            let leaf = *config.stack(name).last().expect("it is a stack");
            format!("{}: device {:?}", config.place(leaf.line), leaf.name)
        })?;
        whole(&device.info())?;
        let odd = odd_end(&config, name, device.as_ref());
        seen.warnings.extend(odd);
        seen.identities[number] = sized(&device.info());
        seen.add(&config, number, device.info())?;
    }
    if !running {
        check_room(&config, true).await?;
    }
    Ok(seen)
}

/// Opens the cache's devices like the daemon of the configuration. Otherwise returns the event that
/// must precede an inspection. `moved` states that the cache was copied to these devices.
pub(in crate::cli) async fn open_configured(
    config: &Config,
    repair: bool,
    moved: bool,
) -> Result<Result<Devices, String>> {
    let cache = (config.cache.as_ref()).expect("what is inspected of a configuration is its cache");
    let mut opened = Vec::new();
    for name in [Some(&cache.data), cache.metadata.as_ref()]
        .into_iter()
        .flatten()
    {
        let device = open_to_look(config, name, repair).await?;
        let info = device.info();
        let entry = config.device(name);
        let place = || format!("{}: device {name:?}", config.place(entry.line));
        if needs_no_slot_check(config, name) && !repair {
            foresee(config, name, &info)?;
            if let Some((file, blocks)) = left(&info).context(place)? {
                return Ok(Err(format!(
                    "device {name:?} gets {blocks} acknowledged blocks from {} when the daemon is \
                     started",
                    file.display()
                )));
            }
        }
        refuse_if_left_in(&config.server.state, &info)
            .and_then(|()| refuse_if_gone(&config.server.state, &info))
            .context(place)?;
        opened.push(device);
    }
    let mut opened = opened.into_iter();
    let devices = Devices {
        data: opened.next().expect("the first"),
        metadata: opened.next(),
    };
    let found = read_superblock(config, cache, &devices).await?;
    // The inspection takes memory, too.
    check_memory(config, &found)?;
    let places = place_of(config, cache);
    let copy = refuse_copy(&config.server.state, &devices, &found, &places, moved).await;
    if let (Some(note), false) = (copy.context(|| config.place(cache.line))?, moved) {
        out::note(&format!("warning: {note}"));
    }
    let whose = JournalOwner::of(&found, &devices, &places, moved);
    journal::foresee(cache.journal_path(), &whose)
        .context(|| config.place(cache.journal_line()))?;
    Ok(Ok(devices))
}

/// Opens devices of which only the paths are known.
pub(in crate::cli) async fn open_named(place: &Place, repair: bool) -> Result<Devices> {
    let options = FileDeviceOptions {
        read_only: !repair,
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let missing = |path: &Path| {
        let gone = !path.exists();
        let what = format!(
            "{} does not exist\n    help: name the device or file that `forebay format` made a \
             cache on",
            path.display()
        );
        move |error: Error| match gone {
            true => Error::new(ErrorKind::NotFound, what),
            false => error,
        }
    };
    let devices = Devices {
        data: open_path(&place.data, options.clone()).map_err(missing(&place.data))?,
        metadata: match &place.metadata {
            Some(path) => Some(open_metadata(path, options).map_err(missing(path))?),
            None => None,
        },
    };
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    match Superblock::read(holder.as_ref()).await {
        Ok(_) => Ok(devices),
        Err(error) => {
            let (name, metadata) = (holder.info().name, place.metadata.as_deref());
            let here = place_of_path(metadata.unwrap_or(&place.data));
            let part = match metadata {
                Some(_) => Superblock::read(devices.data.as_ref()).await.ok(),
                None => None,
            };
            let part = part.map(|part| part.uuid);
            let remains = Remains::find(&default_state(), &here, place.journal.as_deref(), part);
            let paths = (Some(&*place.data), metadata);
            Err(unreadable(error, &name, paths, false, remains))
        }
    }
}
