//! Opens the cache: identity, process journal, recovery.

pub(super) mod recovery;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::{BlockDevice, Buf, Context as _, Error, ErrorKind, Result};
use forebay_cache::{
    BlockSizes, Cache, CacheOptions, Devices, FormatOptions, OpeningMap, OpeningProgress,
    RecoveryReport, ReportSink,
};
use forebay_io::sync::{Promise, Semaphore};
use forebay_io::system::{boot_id, random};
use forebay_io::{Stop, rt};
use forebay_metadata::superblock::Superblock;

use super::copies::{Places, note_opening};
use super::devices;
use super::formatted::{check_block_sizes, check_checksums, check_dirty_tracking, warning_of_few};
use super::journal::{self, JournalOwner};
use super::memory::{CacheNeeds, Needs};
use super::presence::Presence;
use super::remains::{Remains, unreadable};
use super::stop::unless_stopped;
use super::table::behind_table;
use super::transit::Start;
use super::watched::Watched;
use super::{Wishes, offload, place_of, refuse_copy};
use crate::config::{self, Config, DeviceKind, Durability};
use crate::state::{CacheId, StateDirectory, unnoted, with_help};

/// Block size of a cache in memory, which is formatted at each start, bytes.
pub(crate) const MEMORY_BLOCK_BYTES: u64 = 32 << 10;

/// Time that a start waits for the cache to open before it serves anything.
const SOON: Duration = Duration::from_millis(200);

/// A cache, which may still be opening.
pub(super) struct OpenCache {
    pub(super) id: CacheId,
    pub(super) uuid: [u8; 16],
    whose: JournalOwner,
    /// Superblock at the beginning of the opening.
    pub(super) found: Superblock,
    pub(super) devices: Devices,
    pub(super) durability: forebay_cache::Durability,
    /// For a cache in memory: whether acknowledged writes may be lost with it. `None` for others.
    pub(super) memory: Option<bool>,
    pub(super) config: config::Cache,
    /// Volumes in the configuration.
    pub(super) configured: Vec<String>,
    /// Configured volumes that this start attaches to the cache.
    pub(super) cached: Vec<String>,
    /// Serializes making room for a volume and attaching it.
    pub(super) room: Semaphore,
    pub(super) began: Instant,
    pub(super) progress: OpeningProgress,
    pub(super) opening_map: OpeningMap,
    opened: Promise<Result<Rc<Opened>>>,
    journal: Option<PathBuf>,
    journal_presence: Option<Presence>,
    /// State directory for the record of its openings, with the paths; `None` for a cache in
    /// memory.
    noting: Option<(Arc<StateDirectory>, Places)>,
    /// Whether the state directory has the record of this opening.
    is_noted: Cell<bool>,
}

/// A cache that is open.
pub(super) struct Opened {
    pub(super) cache: Cache,
    pub(super) recovery: RecoveryReport,
    pub(super) recovery_time: Duration,
}

/// Opens the cache's devices, adds them to `watched`, and starts opening the cache on them.
pub(super) async fn open(
    config: &Config,
    cache: &config::Cache,
    wishes: &Wishes,
    start: &Start<'_>,
    watched: &RefCell<Vec<Watched>>,
) -> Result<OpenCache> {
    let begin = Instant::now();
    // Opening the cache writes to it.
    let start = &Start {
        hold_evictions: false,
        ..*start
    };
    let open = async |name: &str, role| -> Result<Rc<dyn BlockDevice>> {
        let opened = devices::open(config, name, role, start).await?;
        let device = Rc::clone(&opened.device);
        watched.borrow_mut().push(opened);
        Ok(device)
    };
    let devices = Devices {
        data: open(&cache.data, "cache").await?,
        metadata: match &cache.metadata {
            Some(name) => Some(open(name, "metadata").await?),
            None => None,
        },
    };
    let memory = config.memory_cache();
    if memory.is_some() {
        let mut uuid = [0; 16];
        random(&mut uuid);
        let sizes = cache.block_sizes.as_ref();
        let sizes = sizes.map_or(&[MEMORY_BLOCK_BYTES][..], |(sizes, _)| sizes);
        let options = FormatOptions {
            dirty_tracking: cache
                .dirty_tracking
                .map_or_else(Default::default, |it| it.0),
            checksums: cache.checksums.is_some_and(|(wanted, _)| wanted),
            ..FormatOptions::sizes(sizes, uuid)
        };
        let formatting = forebay_cache::format(&devices, &options);
        let formatted = unless_stopped(start.stop, "the cache in memory", formatting).await?;
        formatted.context(|| format!("{}: cache in memory", config.place(cache.line)))?;
    }
    let holder = cache.metadata.as_ref().unwrap_or(&cache.data);
    let superblock = format!("the superblock on device {holder:?}");
    let reading = Box::pin(read_superblock(config, cache, &devices));
    let known = unless_stopped(start.stop, superblock.as_str(), reading).await??;
    let reading = Box::pin(forebay_cache::spare_damage(&devices));
    for damage in unless_stopped(start.stop, superblock.as_str(), reading).await? {
        tracing::warn!("{damage}");
    }
    if let Some(few) = warning_of_few(known.slots, known.block_size_bytes) {
        tracing::warn!("{}: {few}", config.place(cache.line));
    }
    let there = BlockSizes::from_mask(known.block_size_bytes, known.classes);
    check_block_sizes(config, cache, &there.to_string())?;
    check_dirty_tracking(config, cache, known.dirty_tracking)?;
    check_checksums(config, cache, known.has_checksums())?;
    check_memory(config, &known)?;
    let len = journal_len(cache)?;
    let places = place_of(config, cache);
    let place = places.metadata.clone();
    let whose = JournalOwner::of(&known, &devices, &places, wishes.moved_cache);
    let mut generation = 0;
    if memory.is_none() {
        let state = start.state.path();
        let reading = Box::pin(refuse_copy(
            state,
            &devices,
            &known,
            &places,
            wishes.moved_cache,
        ));
        let note = unless_stopped(start.stop, superblock, reading).await?;
        if let Some(note) = note.context(|| config.place(cache.line))? {
            tracing::warn!("{note}");
        }
        let last = StateDirectory::opening_in(state, &known.uuid)?;
        generation = last.map_or(0, |last| last.generation);
    }
    let mut created = false;
    let (journal, path) = match memory {
        // The journal ends with the process, as the cache does.
        Some(_) => (Buf::zeroed(len), None),
        None => {
            let (configured, asks) = (cache.journal_path().map(Path::to_path_buf), whose.clone());
            let stop = start.stop.clone();
            let opened =
                offload(move || journal::open(configured.as_deref(), len, &asks, &stop)).await;
            let opened = opened.context(|| config.place(cache.journal_line()))?;
            created = opened.created;
            (opened.memory, Some(opened.path))
        }
    };
    let durability = match cache.durability {
        Durability::Sync => forebay_cache::Durability::Sync,
        Durability::Flush => forebay_cache::Durability::Flush,
    };
    let (progress, opening_map) = (OpeningProgress::default(), OpeningMap::default());
    let state = Arc::clone(start.state);
    let names: Vec<String> = known.volumes.iter().map(|it| it.name.clone()).collect();
    recovery::note_accepted_loss(config, wishes, &state, names.clone()).await?;
    let report_sink = ReportSink::new(move |report| {
        recovery::note_losses(report, Arc::clone(&state), names.clone())
    });
    let options = CacheOptions {
        durability,
        journal: Some(journal),
        dirty_limit_percent: cache.dirty_limit_percent,
        dirty_low_percent: cache.dirty_low_percent,
        cleaning: cache.cleaning,
        hold_write_back: true,
        admission: cache.admission,
        commit_interval: cache.commit_interval,
        accept_journal_loss: wishes.accept_journal_loss,
        generation,
        place,
        data_place: places.data.clone(),
        moved: wishes.moved_cache,
        progress: Some(progress.clone()),
        report_sink: Some(report_sink),
        opening_map: Some(opening_map.clone()),
        ..CacheOptions::new(boot_id()?)
    };
    let (opened, on) = (Promise::new(), devices.clone());
    let (set, path_of, uuid) = (opened.clone(), path.clone(), known.uuid);
    let (accepted, line) = (wishes.accept_journal_loss, config.place(cache.line));
    let noting = (memory.is_none()).then(|| (Arc::clone(start.state), places));
    rt::spawn(async move {
        let opened = Cache::open(on, options).await;
        if let (Err(_), Some(path), true) = (&opened, &path_of, created) {
            journal::remove_unused(path, &uuid);
        }
        let opened = opened.map_err(|error| error_of_opening(error, &line, path_of.as_deref()));
        if let (Ok(_), Some(path)) = (&opened, &path_of) {
            journal::link_default_path(&uuid, path);
            journal::sweep();
        }
        set.set(opened.map(|(cache, recovery)| {
            recovery::log_result(&recovery, accepted);
            Rc::new(Opened {
                cache,
                recovery,
                recovery_time: begin.elapsed(),
            })
        }));
    });
    Ok(OpenCache {
        id: match memory {
            Some(_) => CacheId::Memory,
            None => CacheId::Uuid(known.uuid),
        },
        uuid: known.uuid,
        whose,
        found: known,
        devices,
        durability,
        memory,
        config: cache.clone(),
        configured: (config.volumes.iter())
            .map(|volume| volume.name.clone())
            .collect(),
        cached: (config.volumes.iter())
            .map(|volume| volume.name.clone())
            .filter(|name| !wishes.without_cache.contains(name))
            .collect(),
        room: Semaphore::new(1),
        began: begin,
        progress,
        opening_map,
        opened,
        journal_presence: path.as_deref().and_then(Presence::of),
        journal: path,
        noting,
        is_noted: Cell::new(false),
    })
}

/// Checks that there is enough memory for the cache's map and all other needs of a configuration.
///
/// # Errors
/// `NoSpace` with each need and its size.
pub(crate) fn check_memory(config: &Config, known: &Superblock) -> Result<()> {
    Needs::of(config, Some(CacheNeeds::of(known))).check()
}

/// Returns the error for a cache that cannot be opened. `place` is its place in the configuration.
/// Errors of a device lack a remedy, which this adds; all others have one.
pub(crate) fn error_of_opening(error: Error, place: &str, journal: Option<&Path>) -> Error {
    let what = format!("{place}: the cache cannot be opened");
    match (error.kind(), journal) {
        (ErrorKind::Lost, Some(path)) => {
            let help = format!("the path of the process journal is {}", path.display());
            with_help(&error, &what, &help)
        }
        (ErrorKind::Io | ErrorKind::TimedOut, _) => with_help(
            &error,
            &what,
            "the cache keeps its data: repair its device, and start again; or bypass it for its \
             volumes (`--without-cache VOLUME`)",
        ),
        _ => error.context(what),
    }
}

/// Reads the superblock from the devices of a configuration.
///
/// # Errors
/// The error of a device, with the place and the remedy.
pub(crate) async fn read_superblock(
    config: &Config,
    cache: &config::Cache,
    devices: &Devices,
) -> Result<Superblock> {
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let name = cache.metadata.as_ref().unwrap_or(&cache.data);
    let read = Superblock::read(holder.as_ref()).await;
    let part = match (&read, &devices.metadata) {
        (Err(_), Some(_)) => Superblock::read(devices.data.as_ref()).await.ok(),
        _ => None,
    };
    read.map_err(|error| {
        if let (ErrorKind::NotFound, Some(table)) = (error.kind(), behind_table(config, name)) {
            return table;
        }
        let (state, place) = (&config.server.state, place_of(config, cache).metadata);
        let part = part.map(|part| part.uuid);
        let remains = Remains::find(state, &place, cache.journal_path(), part);
        let file = |name: &str| config.file_of(name).map(Path::to_path_buf);
        let (data, metadata) = (file(&cache.data), cache.metadata.as_deref().and_then(file));
        let what = format!("device {:?}", holder.info().name);
        let is_memory = |name: &String| matches!(config.device(name).kind, DeviceKind::Pmem { .. });
        let in_lines = cache.metadata.as_ref().is_some_and(is_memory);
        let paths = (data.as_deref(), metadata.as_deref());
        unreadable(error, &what, paths, in_lines, remains).context(config.place(cache.line))
    })
}

pub(super) fn journal_len(cache: &config::Cache) -> Result<usize> {
    let what = |_| {
        Error::new(
            ErrorKind::InvalidInput,
            "`journal_size` in [cache] is more than this machine can address\n    help: write a \
             smaller one",
        )
    };
    usize::try_from(cache.journal_bytes).map_err(what)
}

impl OpenCache {
    /// Waits until the cache is open.
    ///
    /// # Errors
    /// The reason why it cannot be opened.
    pub(super) async fn opened(&self) -> Result<Rc<Opened>> {
        self.opened.get().await
    }

    /// As [`OpenCache::opened`], for a start. The opening continues after a request to stop.
    ///
    /// # Errors
    /// As [`OpenCache::opened`], and `ShuttingDown` if it was stopped.
    pub(super) async fn opened_unless_stopped(&self, stop: &Stop) -> Result<Rc<Opened>> {
        unless_stopped(stop, "the cache to be opened from its log", self.opened()).await?
    }

    /// Waits until [`SOON`] after the beginning of the opening. Returns whether the opening has
    /// ended by then, with success or failure.
    pub(super) async fn wait_briefly(&self) -> bool {
        while !self.opened.is_set() && self.began.elapsed() < SOON {
            rt::sleep(Duration::from_millis(1)).await;
        }
        self.opened.is_set()
    }

    /// Returns the cache if it is open.
    pub(super) fn if_open(&self) -> Option<Rc<Opened>> {
        self.opened.now()?.ok()
    }

    /// Returns the names of volumes that the cache keeps and that are not attached. While the cache
    /// is being opened, these are all that it knows. If volumes of this start need their places,
    /// the list is empty, since it is unknown which ones the cache will forget.
    pub(super) fn idle_volumes(&self) -> Vec<String> {
        if let Some(opened) = self.if_open() {
            let idle = opened.cache.idle_volumes().into_iter();
            return idle.map(|idle| idle.name).collect();
        }
        let known: Vec<_> = (self.found.volumes.iter())
            .map(|known| known.name.clone())
            .collect();
        let new = self.cached.iter().filter(|name| !known.contains(name));
        match known.len() + new.count() > Cache::MAX_VOLUMES {
            true => Vec::new(),
            false => known,
        }
    }

    /// Returns the file of the process journal.
    pub(super) fn journal_presence(&self) -> Option<Presence> {
        self.journal_presence.clone()
    }

    /// Describes a process journal that is missing at its path, with the remedy.
    pub(super) fn journal_trouble(&self) -> Option<String> {
        let journal = self.journal_presence.as_ref()?;
        journal.danger("the process journal", "the cache device")
    }

    /// Returns whether it could not be opened, for the reason of this error.
    pub(super) fn has_failed_with(&self, error: &Error) -> bool {
        matches!(self.opened.now(), Some(Err(of)) if of.report() == error.report())
    }

    /// Returns the epoch of a volume at the beginning of the opening; `None` if the cache did not
    /// know it.
    pub(super) fn epoch_of(&self, volume: &str) -> Option<u64> {
        let mut volumes = self.found.volumes.iter();
        let known = volumes.find(|known| known.name == volume)?;
        Some(known.epoch)
    }

    /// Checks whether the mode is allowed on this cache.
    pub(super) fn check_mode(&self, volume: &str, mode: config::Mode) -> Result<()> {
        if self.memory == Some(false) && mode.keeps_dirty_data() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "volume {volume:?} in mode {mode} on a cache in memory loses acknowledged \
                     writes when the process dies\n    \
                     help: use wt, wa, wi or pt, or set volatile = true on the memory device"
                ),
            ));
        }
        Ok(())
    }

    /// Stores the record of this opening, once no volume can refuse the start any more. A refused
    /// start leaves the state directory unchanged. Otherwise the newest state of the cache,
    /// restored from a copy, would count as an earlier one.
    pub(super) async fn note_in_service(&self, opened: &Opened) {
        self.is_noted.set(true);
        if let Err(error) = self.note_opening(opened).await {
            tracing::error!("the opening of the cache is not noted: {}", error.report());
        }
    }

    /// Forgets the losses of attached volumes, which the log and the status of this daemon report.
    pub(super) async fn forget_reported_losses(&self) {
        let Some(opened) = self.if_open() else { return };
        if let Err(error) = opened.cache.forget_reported_losses().await {
            tracing::warn!(
                "the next start reports losses once more: {}",
                error.report()
            );
        }
    }

    async fn note_opening(&self, opened: &Opened) -> Result<()> {
        match &self.noting {
            Some((state, places)) => {
                note_opening(state, self.uuid, opened.cache.service(), places.clone()).await
            }
            None => Ok(()),
        }
    }

    /// Closes the cache, if it could be opened. The cache then has all data of the process journal,
    /// and the journal is removed. With `unflushed`, backing devices are not flushed, and the next
    /// opening recovers as after a crash. Returns whether the state directory has the record of it.
    ///
    /// # Errors
    /// The error of the cache.
    pub(super) async fn close(&self, unflushed: bool) -> Result<Result<()>> {
        let Ok(opened) = self.opened().await else {
            return Ok(Ok(()));
        };
        if unflushed {
            return opened.cache.close_unflushed().await.map(Ok);
        }
        opened.cache.close().await?;
        // The superblock has this already: between the two writes it is ahead of the record, never
        // behind.
        let noted = match self.is_noted.get() {
            true => self.note_opening(&opened).await,
            false => Ok(()),
        };
        if let Some(path) = &self.journal {
            journal::remove(&self.whose.opened(opened.cache.service()), path);
        }
        Ok(noted.map_err(|error| {
            let next = "the next start opens the cache as usual, and until then an earlier copy of \
                its device would not be recognized";
            unnoted(&error, "the stop of the cache", next)
        }))
    }
}
