//! A stack of devices according to a configuration, open on the calling reactor: devices, the cache
//! on some of them, and volumes on the cache. The daemon adds exports. A program that uses Forebay
//! as a library does I/O on the volumes directly.

mod attach;
mod attaching;
mod backing;
mod cache;
mod claiming;
mod close;
mod control;
mod copies;
mod degraded;
mod devices;
mod fence;
mod file_size;
mod foresee;
pub(crate) mod forget;
mod formatted;
pub(crate) mod journal;
mod lines;
pub(crate) mod memory;
mod object;
mod offload;
mod presence;
mod remains;
mod remote;
mod room;
mod scrub;
mod status;
mod stop;
mod table;
mod transit;
mod uncached;
mod watched;
mod wishes;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::failpoints::{Fault, planted};
use forebay_io::sync::{Promise, Semaphore};
use forebay_io::{Stop, rt};
use forebay_transit::Transit;
use forebay_volume::{Volume, VolumeHandle};
use futures_util::future::{join_all, try_join_all};

use crate::config::{self, Config, Mode};
use crate::state::{Record, StateDirectory};
pub(crate) use backing::{judge_identity, shared_bytes};
pub(crate) use cache::recovery::{lists_of, log_losses, lost_with};
pub(crate) use cache::{MEMORY_BLOCK_BYTES, check_memory, error_of_opening, read_superblock};
pub(crate) use close::CLOSE;
pub(crate) use copies::{Places, has_twin_at, place_of, place_of_path, refuse_copy};
pub(crate) use devices::{needs_no_slot_check, odd_end, open_path, open_to_look};
pub(crate) use foresee::{
    foresee_attach, foresee_records, options_of, place_of_volume, refuse_all,
};
pub(crate) use formatted::{
    check_block_sizes, check_checksums, check_dirty_tracking, warning_of_few,
};
pub(crate) use lines::open_metadata;
pub(crate) use object::refuse_new;
pub(crate) use offload::offload;
pub(crate) use presence::LOOK;
pub(crate) use remains::{Remains, unreadable};
pub(crate) use remote::connect;
pub(crate) use room::check as check_room;
use stop::{STOPPED, unfinished, unless_cut, unless_stopped};
pub(crate) use table::{refuse_without_table, with_table};
pub(crate) use transit::{
    foresee, left, refuse_if_gone, refuse_if_left, refuse_if_left_in, refuse_if_older,
};
pub use wishes::Wishes;

fn no_volume<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<_> = names.collect();
    let help = match names.is_empty() {
        true => {
            "none is served any more: restart the daemon to serve those of the configuration".into()
        }
        false => format!("there are: {}", names.join(", ")),
    };
    Error::new(
        ErrorKind::NotFound,
        format!("there is no volume {name:?}\nhelp: {help}"),
    )
}

/// An open stack. It belongs to the reactor that it was opened on.
pub struct Stack {
    state: Arc<StateDirectory>,
    cache: Option<Rc<cache::OpenCache>>,
    /// Whether all volumes bypass the cache of the configuration (`--without-cache`). It may have
    /// dirty data.
    bypasses_cache: bool,
    /// Attaches of volumes that are served while their cache is being opened, by name.
    pending: RefCell<Vec<(String, Promise<Result<()>>)>>,
    /// Ends when all attaches have ended, or their common time limit has passed. Before that, no
    /// volume is written back or served from the cache, since the last one may refuse the start.
    attached: Promise<Result<()>>,
    volumes: RefCell<Vec<Rc<Served>>>,
    devices: RefCell<Vec<watched::Watched>>,
    /// Whether a request to stop dropped a step of the start. The cache is then left as after a
    /// kill.
    is_cut: Cell<bool>,
}

/// Records durably that these volumes lost writes to their backing devices.
///
/// # Errors
/// The error of the state directory.
pub(crate) async fn note_lost(state: &Arc<StateDirectory>, names: Vec<String>) -> Result<()> {
    const WHY: &str = "a flush of its backing device failed";
    let state = Arc::clone(state);
    let note = move |name: &String| state.note_disk_gap(name, Some(WHY), true);
    offload(move || names.iter().try_for_each(note)).await
}

/// Time limit for the attaches of all volumes together. After it, the attached ones are served.
const ATTACH: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });

/// A volume of a stack.
struct Served {
    config: config::Volume,
    volume: Volume,
    /// Device under the volume: the cache's device for it, or the backing device.
    device: Rc<dyn BlockDevice>,
    backing: String,
    cached: bool,
    mode: Cell<Mode>,
    record: Cell<Record>,
    /// Whether the cache is removing the volume.
    leaving: Cell<bool>,
    /// Whether a detach has withdrawn its exports. They stay withdrawn if the detach fails.
    is_unexported: Cell<bool>,
    /// Whether a detach is in progress.
    is_detaching: Cell<bool>,
    /// Serializes changes of the record.
    remembering: Semaphore,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let volumes = self.volumes.borrow();
        let names: Vec<_> = volumes.iter().map(|served| &served.config.name).collect();
        f.debug_struct("Stack")
            .field("volumes", &names)
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// Opens everything that `config` describes, except the exports, on the calling reactor.
    ///
    /// # Errors
    /// The error of a device, the cache or the state directory, with the place in the
    /// configuration. Everything opened is closed then. A cache that takes long to open continues
    /// to open: [`Stack::ready`] waits for it. Until then only reads of certainly clean data are
    /// served; all else waits.
    ///
    /// # Panics
    /// On a thread that runs no reactor.
    pub async fn open(config: &Config, wishes: &Wishes) -> Result<Self> {
        Self::open_until(config, wishes, &Stop::default()).await
    }

    /// As [`Stack::open`], which may take long with a large journal or transit cache. `stop` ends
    /// it.
    ///
    /// # Errors
    /// As [`Stack::open`], and `ShuttingDown` if it was stopped.
    ///
    /// # Panics
    /// As [`Stack::open`].
    pub async fn open_until(config: &Config, wishes: &Wishes, stop: &Stop) -> Result<Self> {
        wishes.check(config)?;
        let directory = format!("the state directory {}", config.server.state.display());
        let opening = stop.wait_for(directory.as_str());
        let state = StateDirectory::open(&config.server.state);
        drop(opening);
        let state = Arc::new(state.map_err(|error| match config.server.state_line {
            Some(line) => error.context(config.place(line)),
            None => error,
        })?);
        // Before the cache is opened: the reason is not visible any more after that. No process
        // writes to a volume that is not in the configuration, unless its backing device is served
        // under another name: `attach` records that. `cache::open` records an accepted loss of the
        // process journal for all volumes of the cache.
        for volume in &config.volumes {
            let (device, machines) = disk_gap(config, wishes, &volume.name);
            let (state, name) = (Arc::clone(&state), volume.name.clone());
            let note = offload(move || state.note_disk_gap(&name, device.as_deref(), machines));
            unless_stopped(stop, directory.as_str(), note).await??;
        }
        memory::Needs::of(config, None).check()?;
        let room = Box::pin(room::check(config, !wishes.all_without_cache(config)));
        unless_stopped(stop, room::waits_for(config), room).await??;
        let mut stack = Self {
            state,
            cache: None,
            bypasses_cache: config.cache.is_some() && wishes.all_without_cache(config),
            pending: RefCell::default(),
            attached: Promise::new(),
            volumes: RefCell::new(Vec::new()),
            devices: RefCell::default(),
            is_cut: Cell::new(false),
        };
        if let Err(error) = stack.fill(config, wishes, stop).await {
            stack.attached.set(Err(error.clone()));
            let closed = match stop.is_asked() {
                true => stack.close_within(STOPPED).await,
                false => stack.close().await,
            };
            let is_closed = closed.is_ok();
            if let Err(error) = closed {
                tracing::warn!("after a failed start: {}", error.report());
            }
            return Err(match error.kind() {
                ErrorKind::ShuttingDown if !is_closed => unfinished(),
                _ => error,
            });
        }
        if let Some(unserved) = stack.unserved() {
            tracing::warn!("{unserved}");
        }
        Ok(stack)
    }

    /// Opens the cache and attaches the volumes. On failure, `self` has everything opened before.
    async fn fill(&mut self, config: &Config, wishes: &Wishes, stop: &Stop) -> Result<()> {
        let start = transit::Start {
            state: &self.state,
            accept_loss: wishes.accept_journal_loss,
            stop,
            hold_evictions: !planted(Fault::EvictBeforeAllAttached),
        };
        if let Some(cache) = &config.cache
            && !wishes.all_without_cache(config)
        {
            // A cache that is refused, as a copy for example, decides on no volume.
            let opening = cache::open(config, cache, wishes, &start, &self.devices).await?;
            self.cache = Some(Rc::new(opening));
        }
        let mut unclaimed = Vec::new();
        for (number, volume) in config.volumes.iter().enumerate() {
            let what = format!("volume {:?} and its devices", volume.name);
            let attach = Box::pin(self.attach(config, volume, wishes, &start));
            let attached = unless_cut(stop, what, attach).await;
            match attached.unwrap_or_else(|| Err(self.cut())) {
                Ok(checked) => unclaimed.extend(checked),
                Err(error) => {
                    let later = &config.volumes[number + 1..];
                    return Err(self.with_later_refusals(error, config, later, wishes).await);
                }
            }
        }
        let objects = Box::pin(self.serve_objects(config, unclaimed, stop));
        let served = unless_cut(stop, "volumes in object storage to be claimed", objects).await;
        served.unwrap_or_else(|| Err(self.cut()))?;
        let transits = watched::transit_caches(&self.devices.borrow());
        let pending = self.pending.borrow().clone();
        let cached = self.volumes.borrow().iter().filter(|it| it.cached).count();
        let all_are_pending = pending.len() == cached && cached > 0;
        let ending = end_of_attaches(pending, self.cache.clone(), transits, stop.clone());
        // Otherwise an attached volume would be served before the others.
        if !all_are_pending {
            let ending = Box::pin(ending);
            let ended = unless_cut(stop, "all volumes to be attached", ending).await;
            let ended = ended.unwrap_or_else(|| Err(self.cut()));
            self.attached.set(ended.clone());
            return ended;
        }
        self.allow_evictions_of_served();
        let attached = self.attached.clone();
        rt::spawn(async move { attached.set(ending.await) });
        Ok(())
    }

    /// Notes that a step of the start was dropped. Returns the error for it.
    fn cut(&self) -> Error {
        self.is_cut.set(true);
        unfinished()
    }

    /// Returns whether the cache is being opened, or volumes are being attached to it.
    pub(crate) fn is_opening(&self) -> bool {
        !self.attached.is_set()
    }

    /// Waits until a volume is attached. Returns the reason why acknowledged writes may be missing
    /// for users of its block device; `None` if none are.
    ///
    /// # Errors
    /// As [`Stack::ready`], or the error of the state directory.
    pub async fn disk_gap(&self, volume: &str) -> Result<Option<String>> {
        self.ready().await?;
        let (state, name) = (Arc::clone(&self.state), volume.to_owned());
        offload(move || state.disk_gap(&name)).await
    }

    /// Waits until a volume is attached. Returns the generation by which virtual machines know that
    /// no acknowledged write is missing.
    ///
    /// # Errors
    /// As [`Stack::disk_gap`].
    pub async fn disk_generation(&self, volume: &str) -> Result<String> {
        self.ready().await?;
        let (state, name) = (Arc::clone(&self.state), volume.to_owned());
        offload(move || state.disk_generation(&name)).await
    }

    /// Records that the block device of a volume lacks no acknowledged writes.
    ///
    /// # Errors
    /// The error of the state directory.
    pub async fn clear_disk_gap(&self, volume: &str) -> Result<()> {
        let (state, name) = (Arc::clone(&self.state), volume.to_owned());
        offload(move || state.clear_disk_gap(&name)).await
    }

    /// Forgets the losses that the cache has to report of attached volumes. Call this once clients
    /// can use the volumes: the log and [`Stack::status`] report the losses then. A volume that is
    /// attached later forgets its losses by itself.
    pub async fn forget_reported_losses(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_reported_losses().await;
        }
    }

    /// Returns the memory that the configuration needs with the present cache.
    pub(crate) fn memory_needs(&self, config: &Config) -> memory::Needs {
        let cache = self.cache.as_ref();
        memory::Needs::of(
            config,
            cache.map(|cache| memory::CacheNeeds::of(&cache.found)),
        )
    }

    /// Describes data in the cache of volumes that are not served from it.
    fn unserved(&self) -> Option<String> {
        let cache = self.cache.as_ref()?;
        let volumes = self.volumes.borrow();
        let served = |name: &str| volumes.iter().any(|s| s.cached && s.config.name == name);
        let mut names = cache.idle_volumes();
        names.retain(|name| !served(name));
        (!names.is_empty()).then(|| {
            format!(
                "the cache has data of volumes that it does not serve: {}",
                names.join(", ")
            )
        })
    }

    /// Returns the handle of volume `name`, for use on any thread.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn volume(&self, name: &str) -> Result<VolumeHandle> {
        self.served(name).map(|served| served.volume.handle())
    }

    /// Returns all volumes.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeHandle> {
        let volumes = self.volumes.borrow();
        volumes
            .iter()
            .map(|served| served.volume.handle())
            .collect()
    }

    fn served(&self, name: &str) -> Result<Rc<Served>> {
        let volumes = self.volumes.borrow();
        let found = volumes.iter().find(|served| served.config.name == name);
        found
            .cloned()
            .ok_or_else(|| no_volume(name, volumes.iter().map(|served| &*served.config.name)))
    }

    /// Changes the record of a volume in the state directory, durably.
    async fn remember(&self, served: &Served, change: impl Fn(Record) -> Record) -> Result<()> {
        served.remembering.acquire(1).await;
        let result = self
            .remember_alone(served, change(served.record.get()))
            .await;
        served.remembering.release(1);
        result
    }

    async fn remember_alone(&self, served: &Served, record: Record) -> Result<()> {
        if served.record.get() == record {
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let name = served.config.name.clone();
        offload(move || state.store(&name, &record)).await?;
        served.record.set(record);
        Ok(())
    }
}

/// Waits for the attaches of volumes. Then allows the cache to write back and the transit caches to
/// evict.
///
/// # Errors
/// The first attach that fails, or the opening of the cache.
async fn end_of_attaches(
    pending: Vec<(String, Promise<Result<()>>)>,
    cache: Option<Rc<cache::OpenCache>>,
    transits: Vec<Rc<Transit>>,
    stop: Stop,
) -> Result<()> {
    let opened = match &cache {
        Some(cache) => Some(cache.opened_unless_stopped(&stop).await?),
        None => None,
    };
    let late = await_attaches(&pending).await?;
    if !late.is_empty() {
        tracing::error!(
            "volumes wait for backing devices that do not answer: {}; the others are served",
            late.join(", ")
        );
    }
    transits.iter().for_each(|cache| cache.allow_evictions());
    if let (Some(cache), Some(opened)) = (cache, opened) {
        let flushing = stop.wait_for("the backing devices to flush");
        opened.cache.flush_attached().await?;
        drop(flushing);
        cache.note_in_service(&opened).await;
        opened.cache.allow_write_back();
    }
    Ok(())
}

/// Time that the other attaches get after one is refused, so that all refusals are reported
/// together.
const REFUSED: Duration = Duration::from_millis(500);

/// Waits until each of these volumes is attached, for at most [`ATTACH`]: a backing device that
/// does not respond delays no other volume. Returns the volumes that are not attached by then.
///
/// # Errors
/// The attaches that fail, in the order of the configuration.
async fn await_attaches(pending: &[(String, Promise<Result<()>>)]) -> Result<Vec<&str>> {
    let attaches = pending.iter().map(|(_, attach)| attach.get());
    if let Some(ended) = rt::at_most(ATTACH, try_join_all(attaches)).await {
        if ended.is_err() {
            let all = pending.iter().map(|(_, attach)| attach.get());
            let _ = rt::at_most(REFUSED, join_all(all)).await;
        }
        let refused = pending.iter().filter_map(|(_, attach)| attach.now()?.err());
        return refuse_all(refused.collect()).map(|()| Vec::new());
    }
    let late = pending.iter().filter(|(_, attach)| !attach.is_set());
    Ok(late.map(|(name, _)| name.as_str()).collect())
}

/// Returns the reason why users of a volume's block device must not continue after this start, and
/// whether virtual machines must not. The reason is an option of the start, or that others may
/// write to the volume while its users wait.
fn disk_gap(config: &Config, wishes: &Wishes, volume: &str) -> (Option<String>, bool) {
    let asked = wishes.gap(volume);
    let mut exports = (config.exports.iter()).filter(|export| export.volume == volume);
    let is_device = |export: &config::Export| matches!(export.protocol, config::Protocol::Ublk(_));
    let is_machine =
        |export: &config::Export| matches!(export.protocol, config::Protocol::VhostUserBlk(_));
    let machines = asked.is_some() || !exports.clone().any(is_machine);
    let without =
        (!exports.any(is_device)).then(|| "it was served without its block device".into());
    (asked.or(without), machines)
}

#[cfg(test)]
mod tests;
