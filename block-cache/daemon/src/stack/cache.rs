//! Opens the cache: identity, process journal, recovery.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::{BlockDevice, Buf, Context as _, Error, ErrorKind, Result};
use forebay_cache::{
    BlockSizes, Cache, CacheOptions, Devices, DirtyTracking, EarlyMap, FormatOptions,
    OpeningProgress, RecoveryReport,
};
use forebay_io::rt;
use forebay_io::sync::{Promise, Semaphore};
use forebay_io::system::{boot_id, random};
use forebay_metadata::superblock::Superblock;

use super::copies::{Places, note_opening};
use super::devices;
use super::journal::{self, Whose};
use super::memory::{CacheNeeds, Needs};
use super::presence::Presence;
use super::table::behind_table;
use super::transit::Around;
use super::watched::Watched;
use super::{Wishes, offload, place_of, refuse_copy};
use crate::config::{self, Config, DeviceKind, Durability};
use crate::state::{CacheId, StateDirectory, hex};
use forebay_terminal::size::{human_bytes, human_count};

/// Block size of a cache in memory, which is formatted at each start, bytes.
pub(crate) const MEMORY_BLOCK_BYTES: u64 = 32 << 10;

/// A cache that is open by then is open before anything is served from it.
const SOON: Duration = Duration::from_millis(200);

/// A cache, which may still be opening.
pub(super) struct OpenCache {
    pub(super) id: CacheId,
    pub(super) uuid: [u8; 16],
    whose: Whose,
    /// What it was when its opening began.
    pub(super) found: Superblock,
    pub(super) devices: Devices,
    pub(super) durability: forebay_cache::Durability,
    /// Whether it is memory, and then whether acknowledged writes may go with it.
    pub(super) memory: Option<bool>,
    pub(super) config: config::Cache,
    /// The volumes that the configuration names.
    pub(super) configured: Vec<String>,
    /// The volumes among them that this start attaches to the cache.
    pub(super) cached: Vec<String>,
    /// Whose turn it is to make room for a volume, and to attach it.
    pub(super) room: Semaphore,
    pub(super) began: Instant,
    pub(super) progress: OpeningProgress,
    pub(super) early: EarlyMap,
    opened: Promise<Result<Rc<Opened>>>,
    journal: Option<PathBuf>,
    journal_presence: Option<Presence>,
    /// The state directory that remembers its openings, and where it lies; none for one in memory.
    noting: Option<(Arc<StateDirectory>, Places)>,
    /// Whether the state directory remembers this opening.
    is_noted: Cell<bool>,
}

/// When it is open.
pub(super) struct Opened {
    pub(super) cache: Cache,
    pub(super) recovery: RecoveryReport,
    pub(super) recovery_time: Duration,
}

/// Opens the cache's devices, which are added to `watched`, and begins to open the cache on them.
pub(super) async fn open(
    config: &Config,
    cache: &config::Cache,
    wishes: &Wishes,
    around: &Around<'_>,
    watched: &RefCell<Vec<Watched>>,
) -> Result<OpenCache> {
    let begin = Instant::now();
    // The cache is written to while it is being opened.
    let around = &Around {
        hold_evictions: false,
        ..*around
    };
    let open = async |name: &str, role| -> Result<Rc<dyn BlockDevice>> {
        let opened = devices::open(config, name, role, around).await?;
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
        let formatted = forebay_cache::format(&devices, &options).await;
        formatted.context(|| format!("{}: cache in memory", config.place(cache.line)))?;
    }
    let known = read_superblock(config, cache, &devices).await?;
    for damage in forebay_cache::spare_damage(&devices).await {
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
    let boot_id = boot_id()?;
    let len = journal_len(cache)?;
    let places = place_of(config, cache);
    let place = places.metadata.clone();
    let whose = Whose::of(&known, &devices, place.clone(), wishes.moved_cache);
    let mut generation = 0;
    if memory.is_none() {
        let state = around.state.path();
        let note = refuse_copy(state, &devices, &known, &places, wishes.moved_cache).await;
        if let Some(note) = note.context(|| config.place(cache.line))? {
            tracing::warn!("{note}");
        }
        let last = StateDirectory::opening_in(state, &known.uuid)?;
        generation = last.map_or(0, |last| last.generation);
    }
    let mut created = false;
    let (journal, path) = match memory {
        // It goes with the process, as the cache does.
        Some(_) => (Buf::zeroed(len), None),
        None => {
            let (configured, asks) = (cache.journal_path().map(Path::to_path_buf), whose.clone());
            let stop = around.stop.clone();
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
    let (progress, early) = (OpeningProgress::default(), EarlyMap::default());
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
        early: Some(early.clone()),
        ..CacheOptions::new(boot_id)
    };
    let (opened, on) = (Promise::new(), devices.clone());
    let (set, path_of, uuid) = (opened.clone(), path.clone(), known.uuid);
    let (accepted, line) = (wishes.accept_journal_loss, config.place(cache.line));
    let noting = (memory.is_none()).then(|| (Arc::clone(around.state), places));
    rt::spawn(async move {
        let opened = Cache::open(on, options).await;
        if let (Err(_), Some(path), true) = (&opened, &path_of, created) {
            journal::remove_unused(path, &uuid);
        }
        let opened = opened.map_err(|error| {
            let journal = path_of.as_ref().filter(|_| error.kind() == ErrorKind::Lost);
            let journal = journal.map_or_else(String::new, |path| {
                format!(" (process journal: {})", path.display())
            });
            let what = format!("{line}: the cache {} cannot be opened{journal}", hex(&uuid));
            error_of_opening(error, what)
        });
        if let (Ok(_), Some(path)) = (&opened, &path_of) {
            journal::point(&uuid, path);
            journal::sweep();
        }
        set.set(opened.map(|(cache, recovery)| {
            report(&recovery, accepted);
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
        early,
        opened,
        journal_presence: path.as_deref().and_then(Presence::of),
        journal: path,
        noting,
        is_noted: Cell::new(false),
    })
}

/// Caches of fewer blocks are hardly of use: what evicts and what writes back works on many blocks
/// at a time.
const FEW_BLOCKS: u64 = 256;

/// A warning about a cache that has few blocks; none if it has enough.
pub(crate) fn warning_of_few(blocks: u32, block_bytes: u32) -> Option<String> {
    let (blocks, block_bytes) = (u64::from(blocks), u64::from(block_bytes));
    (blocks < FEW_BLOCKS).then(|| {
        format!(
            "the cache has room for {} of {}, {} in all: it keeps next to nothing. Use a device of \
             {} or more, or smaller \
             blocks (`forebay format --block-size`)",
            human_count(blocks, "block"),
            human_bytes(block_bytes),
            human_bytes(blocks * block_bytes),
            human_bytes(FEW_BLOCKS * block_bytes * 5 / 4),
        )
    })
}

/// What the map of a cache and all else of a configuration need is there.
///
/// # Errors
/// `NoSpace` with what needs how much.
pub(crate) fn check_memory(config: &Config, known: &Superblock) -> Result<()> {
    Needs::of(config, Some(CacheNeeds::of(known))).check()
}

/// The sizes in the configuration are those of the cache.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_block_sizes(config: &Config, cache: &config::Cache, there: &str) -> Result<()> {
    let Some((wanted, line)) = &cache.block_sizes else {
        return Ok(());
    };
    let wanted = BlockSizes::new(wanted).expect("checked when the configuration was read");
    if wanted.to_string() == there {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "{}: the cache was formatted with blocks of {there}, not {wanted}: correct or remove \
             `block_sizes`, or \
             `forebay detach` its volumes and format it with --block-size {}",
            config.place(*line),
            sizes_for_format(wanted),
        ),
    ))
}

/// What the configuration says of dirty tracking is what the cache was formatted with.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_dirty_tracking(
    config: &Config,
    cache: &config::Cache,
    there: DirtyTracking,
) -> Result<()> {
    match cache.dirty_tracking {
        Some((wanted, line)) if wanted != there => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: the cache was formatted with dirty tracking {there}, not {wanted}: correct or \
                 remove \
                 `dirty_tracking`, or `forebay detach` its volumes and format it with \
                 --dirty-tracking {wanted}",
                config.place(line),
            ),
        )),
        _ => Ok(()),
    }
}

/// What the configuration says of checksums is what the cache was formatted with.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_checksums(config: &Config, cache: &config::Cache, there: bool) -> Result<()> {
    let (found, remedy) = match there {
        true => ("with checksums", "without --checksums"),
        false => ("without checksums", "with --checksums"),
    };
    match cache.checksums {
        Some((wanted, line)) if wanted != there => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: the cache was formatted {found}: correct or remove `checksums`, or `forebay \
                 detach` its volumes \
                 and format it {remedy}",
                config.place(line),
            ),
        )),
        _ => Ok(()),
    }
}

/// What `forebay format --block-size` takes.
fn sizes_for_format(sizes: BlockSizes) -> String {
    let kib = |class| format!("{}K", sizes.block_bytes(class) >> 10);
    sizes.classes().map(kib).collect::<Vec<_>>().join(",")
}

/// Why a cache cannot be opened. What a device says names no remedy; all else does.
fn error_of_opening(error: Error, what: String) -> Error {
    match error.kind() {
        ErrorKind::Io | ErrorKind::TimedOut => error.context(format!(
            "{what}; nothing that it holds is given up: look after its device, and start again, or \
             serve its volumes past it (`--without-cache VOLUME`)"
        )),
        _ => error.context(what),
    }
}

/// Reads what says that there is a cache on the devices of a configuration.
///
/// # Errors
/// What the devices say, with the place and the remedy.
pub(crate) async fn read_superblock(
    config: &Config,
    cache: &config::Cache,
    devices: &Devices,
) -> Result<Superblock> {
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let name = cache.metadata.as_ref().unwrap_or(&cache.data);
    Superblock::read(holder.as_ref()).await.map_err(|error| {
        if let (ErrorKind::NotFound, Some(table)) = (error.kind(), behind_table(config, name)) {
            return table;
        }
        let file = |name: &str| config.file_of(name).map(Path::to_path_buf);
        let (data, metadata) = (file(&cache.data), cache.metadata.as_deref().and_then(file));
        let what = format!("device {:?}", holder.info().name);
        let is_memory = |name: &String| matches!(config.device(name).kind, DeviceKind::Pmem { .. });
        let in_lines = cache.metadata.as_ref().is_some_and(is_memory);
        unreadable(error, &what, data.as_deref(), metadata.as_deref(), in_lines)
            .context(config.place(cache.line))
    })
}

/// What it means that `what` has no superblock that can be read, and the remedy. `data` and
/// `metadata` are what `forebay format` takes, the latter for lines if `in_lines`.
pub(crate) fn unreadable(
    error: Error,
    what: &str,
    data: Option<&Path>,
    metadata: Option<&Path>,
    in_lines: bool,
) -> Error {
    let flag = |name: &str, path: Option<&Path>| {
        path.map_or_else(String::new, |path| format!(" --{name} {}", path.display()))
    };
    let lines = if in_lines { " --pmem" } else { "" };
    let devices = flag("cache", data) + &flag("metadata", metadata) + lines;
    match error.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            format!(
                "there is no cache on {what}: make one with `forebay format{devices}`, unless \
                 there was one: then put its \
                 device back, or a copy of it, since what was acknowledged and not yet written \
                 back IS LOST with it"
            ),
        ),
        ErrorKind::Corrupt => error.context(format!(
            "the cache on {what} cannot be opened, and what it holds cannot be told. If there is a \
             copy of \
             the device, put that back. Else make a new cache with `forebay format --force \
             --discard-dirty{devices}`, and start once with --adopt VOLUME for each volume: what \
             was \
             acknowledged and not yet written back to the backing devices IS LOST THEN"
        )),
        _ => error.context(format!("the cache on {what} cannot be read")),
    }
}

pub(super) fn journal_len(cache: &config::Cache) -> Result<usize> {
    let what = |_| {
        Error::new(
            ErrorKind::InvalidInput,
            "`journal_size` in [cache] is more than this machine can address: write a smaller one",
        )
    };
    usize::try_from(cache.journal_bytes).map_err(what)
}

impl OpenCache {
    /// Waits until it is open.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) async fn opened(&self) -> Result<Rc<Opened>> {
        self.opened.get().await
    }

    /// Waits for a moment; whether it was open, or could not be opened, by then. Most caches are.
    pub(super) async fn opens_soon(&self) -> bool {
        while !self.opened.is_set() && self.began.elapsed() < SOON {
            rt::sleep(Duration::from_millis(1)).await;
        }
        self.opened.is_set()
    }

    /// The open cache, if it is.
    pub(super) fn now(&self) -> Option<Rc<Opened>> {
        self.opened.now()?.ok()
    }

    /// Says that the process journal is not at its path, and the remedy; none if it is.
    pub(super) fn journal_trouble(&self) -> Option<String> {
        let journal = self.journal_presence.as_ref()?;
        journal.danger("the process journal", "the cache device")
    }

    /// Returns whether it could not be opened.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.opened.now(), Some(Err(_)))
    }

    /// The epoch that it remembered of a volume when its opening began; none if it did not know it.
    pub(super) fn epoch_of(&self, volume: &str) -> Option<u64> {
        let mut volumes = self.found.volumes.iter();
        let known = volumes.find(|known| known.name == volume)?;
        Some(known.epoch)
    }

    /// Whether the mode may be used on this cache.
    pub(super) fn check_mode(&self, volume: &str, mode: config::Mode) -> Result<()> {
        if self.memory == Some(false) && mode.keeps_dirty_data() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "volume {volume:?} in mode {mode} on a cache in memory loses acknowledged \
                     writes \
                     when the process dies: use wt, wa, wi or pt, or set volatile = true on the \
                     memory device"
                ),
            ));
        }
        Ok(())
    }

    /// Has the state directory remember this opening, now that no volume can refuse it any more. A
    /// start that is refused leaves the state directory as it was: the newest state of the cache,
    /// put back, must not count as an earlier one.
    pub(super) async fn note_in_service(&self, opened: &Opened) {
        self.is_noted.set(true);
        self.note_opening(opened).await;
    }

    async fn note_opening(&self, opened: &Opened) {
        if let Some((state, places)) = &self.noting {
            note_opening(state, self.uuid, opened.cache.service(), places.clone()).await;
        }
    }

    /// Closes the cache, if it could be opened. The process journal has then nothing that the cache
    /// has not, and goes. With `unflushed`, the backing devices are left as they are, and the next
    /// opening recovers as after a crash.
    pub(super) async fn close(&self, unflushed: bool) -> Result<()> {
        let Ok(opened) = self.opened().await else {
            return Ok(());
        };
        if unflushed {
            return opened.cache.close_unflushed().await;
        }
        opened.cache.close().await?;
        // The superblock says so already: in between, it is ahead of what is remembered, never
        // behind.
        if self.is_noted.get() {
            self.note_opening(&opened).await;
        }
        if let Some(path) = &self.journal {
            journal::remove(&self.whose.opened(opened.cache.service()), path);
        }
        Ok(())
    }
}

/// Says what the start found, as loud as it deserves.
fn report(recovery: &RecoveryReport, journal_loss_accepted: bool) {
    if recovery.never_used {
        tracing::info!("the cache is open, for the first time");
    } else {
        tracing::info!(
            clean_shutdown = recovery.clean_shutdown,
            cached_blocks = recovery.cached_blocks,
            dirty_blocks = recovery.dirty_blocks,
            journal_entries = recovery.journal_entries,
            "the cache is open"
        );
    }
    if journal_loss_accepted {
        tracing::warn!(
            "--accept-journal-loss: if the process journal was gone, what was acknowledged since \
             the last flush may be lost"
        );
    }
    if recovery.damaged_records + recovery.unreadable_units > 0 {
        tracing::error!(
            damaged_records = recovery.damaged_records,
            unreadable_units = recovery.unreadable_units,
            "the cache's log is damaged: clean data that it may concern is not used, but dirty \
             data whose record was lost is gone; check what the clients stored, and see `forebay check`"
        );
    }
    for range in &recovery.untold {
        tracing::error!(
            volume = range.volume,
            offset = range.offset,
            len = range.len,
            "there was, or may have been, dirty data within: what of it only the damaged records \
             told is LOST, and reads as the backing device has it"
        );
    }
    if recovery.lost_tree_units > 0 {
        tracing::warn!(
            units = recovery.lost_tree_units,
            "units of the bit-tree could not be believed: all blocks under them count as dirty and \
             are written back; nothing is lost"
        );
    }
    if recovery.unverified_bytes > 0 {
        tracing::warn!(
            bytes = recovery.unverified_bytes,
            "cached data that may have been overwritten shortly before the crash, or never had a \
             checksum, is believed as it is, and written back where it counts as dirty: of rot in it nothing could tell"
        );
    }
    for range in &recovery.doubted {
        tracing::warn!(
            volume = range.volume,
            offset = range.offset,
            len = range.len,
            "kept as dirty, or dropped as older than what went round the cache; newer records are \
             damaged, and one may have said otherwise: check what was stored there"
        );
    }
    for cut in &recovery.cut {
        tracing::error!(
            volume = cut.volume,
            offset = cut.offset,
            len = cut.len,
            "LOST: dirty data that lay where the cache device was cut; it reads as the backing \
             device has it"
        );
    }
    for lost in &recovery.lost {
        tracing::error!(
            volume = lost.volume,
            offset = lost.offset,
            len = lost.len,
            "{}",
            recovery.loss()
        );
    }
}
