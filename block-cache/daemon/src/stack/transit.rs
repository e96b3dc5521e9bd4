//! Transit caches of a stack: the files of their slots, and protection of the data in them.
//!
//! The slots of a cache over a medium are in `/dev/shm/forebay-IDENTITY.transit`, named after the
//! identity of the medium. So programs that open the medium without the cache (`forebay format`,
//! `forebay check`) find them. The state directory records the boot in which a cache is in use. If
//! the file is missing later in that boot, the loss is known.

mod cut;
mod files;
mod left;
mod others;
mod refusals;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Context as _, DeviceInfo, Error, ErrorKind, Result,
};
use forebay_cache::failpoints::{Fault, planted};
use forebay_io::shm::check_shared;
use forebay_io::system::boot_id;
use forebay_io::{Stop, rt};
use forebay_transit::{Policy, Run, Transit, TransitOptions, Workers, memory_bytes, was_used};

use super::presence::Presence;
use crate::config::{Config, DeviceKind};
use crate::state::{StateDirectory, unnoted};
use crate::status::TransitStatus;
use cut::note_cut;
pub(super) use files::wanted_bytes;
use files::{generations, look, map, note_of, notes, place, unusable, was_noted};
use forebay_terminal::size::human_bytes;
pub(super) use left::give_up_or_refuse;
use left::tell_of_loss;
pub(crate) use left::{left, refuse_if_gone, refuse_if_left, refuse_if_left_in, refuse_if_older};
use refusals::{refuse_if_earlier, removed, unopened};

/// Directory of slots.
pub(super) const DIRECTORY: &str = "/dev/shm";
/// Evictions that wait or run at a time, for each thread. Enough to keep a thread busy while the
/// reactor runs the tasks of a turn, of which many may be writes to the table. No more than a write
/// can wait for behind an eviction of its own block.
const EVICTIONS_PER_THREAD: usize = 128;

/// Settings of a start for the devices of a stack.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) state: &'a Arc<StateDirectory>,
    /// Whether to open caches although acknowledged writes in them are lost.
    pub(super) accept_loss: bool,
    /// Ends long operations.
    pub(super) stop: &'a Stop,
    /// Whether data of an earlier process stays in its slots until
    /// [`OpenTransit::allow_evictions`].
    pub(super) hold_evictions: bool,
}

/// Configuration of a transit cache.
pub(super) struct Settings<'a> {
    pub(super) name: &'a str,
    pub(super) capacity_bytes: u64,
    pub(super) policy: Policy,
    /// Whether the device under it ends with the process anyway.
    pub(super) in_memory: bool,
}

/// An open transit cache.
pub(super) struct OpenTransit {
    name: String,
    cache: Rc<Transit>,
    block_bytes: u64,
    /// File of its slots; `None` if they end with the process.
    file: Option<PathBuf>,
    presence: Option<Presence>,
}

/// Opens a cache over a device. `run` has the threads for the device's requests, if the processor
/// does the device's work.
///
/// # Errors
/// `NoSpace` if there is no space for the slots; `Busy` and `Lost` as for [`Transit::open`].
pub(super) fn open(
    settings: &Settings<'_>,
    under: &Rc<dyn BlockDevice>,
    run: Option<&Run>,
    start: &Start<'_>,
) -> Result<OpenTransit> {
    let info = under.info();
    let (block_bytes, size_bytes) = (u64::from(info.logical_block_bytes), info.size_bytes);
    let starts_somewhere = info.identity.start.is_some();
    let slots = usize::try_from(settings.capacity_bytes / block_bytes).unwrap_or(usize::MAX);
    let len = memory_bytes(slots, info.logical_block_bytes);
    let boot_id = boot_id()?;
    let ((memory, existed), file) = match settings.in_memory {
        true => ((Buf::zeroed(len), false), None),
        false => {
            let file = place(&info);
            left::refuse_others(start, &info)?;
            check_shared(&file)
                .and_then(|()| note_cut(&file, &boot_id, start.accept_loss))
                .map_err(|error| unusable(error, &file, settings.name))?;
            (map(&file, len, settings.name, start.stop)?, Some(file))
        }
    };
    let (counts, next) = match &file {
        Some(file) => generations(start.state.path(), file, Some(&memory), &boot_id)?,
        None => (0, 0),
    };
    let noted = match &file {
        Some(file) => was_noted(start.state.path(), settings.name, file, &boot_id)?,
        None => false,
    };
    let gone = noted && !(existed && was_used(&memory, &boot_id));
    let mut options = TransitOptions {
        policy: settings.policy,
        in_use: noted && !start.accept_loss,
        accept_damage: start.accept_loss,
        generation: counts,
        next,
        hold_evictions: start.hold_evictions,
        ..TransitOptions::new(settings.name, boot_id)
    };
    let evictor: Rc<dyn BlockDevice> = match run {
        Some(run) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = (cores - 1).max(1);
            options.evictions = threads * EVICTIONS_PER_THREAD;
            Rc::new(Workers::new(info, run.clone(), threads)?)
        }
        None => Rc::clone(under),
    };
    let opened = Transit::open(Rc::clone(under), evictor, memory, options);
    if opened.is_err()
        && !existed
        && let Some(file) = &file
    {
        // It holds no data.
        let _ = std::fs::remove_file(file);
    }
    let (cache, found) = opened.map_err(|error| match &file {
        Some(file) => unopened(error, start.state.path(), file, existed),
        None => error,
    })?;
    if let Some(file) = &file {
        // The record of the missing slots tells how much they may have held.
        if gone {
            tell_of_loss(start.state.path(), file);
        }
        let capacity_bytes = cache.stats().slots * block_bytes;
        (start.state).note_slots_capacity(&note_of(file), &boot_id, capacity_bytes)?;
        (start.state).note_slots_generation(&note_of(file), &boot_id, next)?;
        cache.take_generation();
        for note in notes(settings.name, file) {
            start.state.note_transit(&note, Some(&boot_id))?;
        }
        if starts_somewhere {
            (start.state).note_slots_size(&note_of(file), &boot_id, size_bytes)?;
        }
    }
    if found.blocks > 0 {
        tracing::info!(
            device = settings.name,
            blocks = found.blocks,
            "acknowledged blocks of a killed daemon go to the device when the start is over"
        );
    }
    for damaged in &found.damaged {
        tracing::error!(
            device = settings.name,
            block_bytes,
            "LOST, as --accept-journal-loss says: the writes in damaged slots: {damaged}"
        );
    }
    if found.flush_had_failed {
        tracing::error!(
            device = settings.name,
            "a flush of the device under the transit cache had failed: WRITES SINCE THE FLUSH \
             BEFORE MAY BE LOST"
        );
    }
    Ok(OpenTransit {
        name: settings.name.to_owned(),
        cache,
        block_bytes,
        presence: file.as_deref().and_then(Presence::of),
        file,
    })
}

/// Returns the error that [`open`] will return for the caches over the medium of device `name`,
/// except for lack of space. Changes nothing.
///
/// # Errors
/// `Lost` if the slots of a daemon of this boot that did not close them are missing. The error of
/// [`check_shared`] for the file of the slots.
pub(crate) fn foresee(config: &Config, name: &str, info: &DeviceInfo) -> Result<()> {
    let boot_id = boot_id()?;
    let file = place(info);
    for entry in config.stack(name) {
        if !matches!(entry.kind, DeviceKind::Transit { .. }) {
            continue;
        }
        let name = &entry.name;
        let in_place = || format!("{}: device {name:?}", config.place(entry.line));
        others::refuse_if_left(Some(&config.server.state), info)
            .and_then(|()| others::refuse_if_gone(&config.server.state, info))
            .context(in_place)?;
        check_shared(&file)
            .map_err(|error| unusable(error, &file, name))
            .context(in_place)?;
        let memory = look(&file)
            .map_err(|error| unusable(error, &file, name))
            .context(in_place)?;
        if let Some(memory) = &memory {
            refuse_if_earlier(&config.server.state, &file, memory).context(in_place)?;
        }
        let in_use = was_noted(&config.server.state, name, &file, &boot_id)?;
        if in_use
            && !memory
                .as_ref()
                .is_some_and(|memory| was_used(memory, &boot_id))
        {
            let gone = removed(&config.server.state, &file);
            return Err(Error::new(ErrorKind::Lost, gone)).context(in_place);
        }
        let options = TransitOptions {
            in_use,
            generation: StateDirectory::slots_generation_in(
                &config.server.state,
                &note_of(&file),
                &boot_id,
            )?,
            ..TransitOptions::new(name.as_str(), boot_id)
        };
        if let Some(memory) = memory.filter(|memory| was_used(memory, &boot_id)) {
            let looked = forebay_transit::look(info, memory, &options);
            looked
                .map_err(|error| unopened(error, &config.server.state, &file, true))
                .context(in_place)?;
        }
    }
    Ok(())
}

impl OpenTransit {
    pub(super) fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::clone(&self.cache) as Rc<dyn BlockDevice>
    }

    pub(super) fn status(&self) -> TransitStatus {
        let stats = self.cache.stats();
        TransitStatus {
            name: self.name.clone(),
            policy: self.cache.policy().to_string(),
            capacity_bytes: stats.slots * self.block_bytes,
            used_bytes: stats.used * self.block_bytes,
            owed_bytes: stats.owed * self.block_bytes,
            written: stats.written,
            rewritten: stats.rewritten,
            bypassed: stats.bypassed,
            fua: stats.fua,
            waited: stats.waited,
            evicted: stats.evicted,
            refused: stats.refused,
            read_hits: stats.read_hits,
            read_misses: stats.read_misses,
            flushes: stats.flushes,
            flushed: stats.flushed,
        }
    }

    /// Returns the file of its slots.
    pub(super) fn presence(&self) -> Option<Presence> {
        self.presence.clone()
    }

    /// Describes the absence of the file of its slots from its path, with the remedy.
    pub(super) fn trouble(&self) -> Option<String> {
        let what = format!("the slots of transit cache {:?}", self.name);
        (self.presence.as_ref()?).danger(&what, "the device")
    }

    /// Allows eviction of data of an earlier process to the device.
    pub(super) fn allow_evictions(&self) {
        self.cache.allow_evictions();
    }

    /// Returns the cache.
    pub(super) fn cache(&self) -> Rc<Transit> {
        Rc::clone(&self.cache)
    }

    /// Returns whether its slots hold data that must not be evicted to the device yet.
    pub(super) fn is_withheld(&self) -> bool {
        let owes = self.cache.stats().owed > 0;
        self.cache.holds_evictions() && owes && !planted(Fault::DrainRefused)
    }

    /// Describes data of an earlier process in its slots that is older than data of the device,
    /// with the remedy to give it up. Returns `None` if there is none.
    pub(super) fn withheld_in_words(&self) -> Option<String> {
        let file = self.file.as_ref().filter(|_| self.is_withheld())?;
        let bytes = self.cache.stats().owed * self.block_bytes;
        Some(left::older_in_words(&self.name, bytes, file))
    }

    /// Whether it holds data that the device lacks, in memory that ends with the process.
    pub(super) fn owes_memory(&self) -> bool {
        self.file.is_none() && self.cache.stats().owed > 0
    }

    /// Describes its data that the device lacks, and the place of that data; `None` if the device
    /// has everything.
    pub(super) fn owing(&self) -> Option<String> {
        let owed = self.cache.stats().owed;
        let location = match &self.file {
            Some(file) => format!(
                "they are in {}, and the next start writes them back",
                file.display()
            ),
            None => "they are in memory, and are lost when this process ends".to_owned(),
        };
        (owed > 0).then(|| {
            let bytes = human_bytes(owed * self.block_bytes);
            format!(
                "{bytes} of transit cache {:?} have not reached the device under it: {location}",
                self.name
            )
        })
    }

    /// Drains the slots and removes them, since the device has all their data then. `what`
    /// describes the device under it.
    ///
    /// Slots of a refused start stay unchanged, as does their record. The device may be another
    /// one, or an older state of it.
    ///
    /// # Errors
    /// The error of the device, or `TimedOut` after `limit`. The slots stay then.
    pub(super) async fn close(
        self,
        state: &StateDirectory,
        limit: Duration,
        what: &str,
    ) -> Result<()> {
        if self.is_withheld() {
            tracing::info!(
                device = self.name,
                "the slots stay as they are: what they hold goes to the device when a start \
                 succeeds"
            );
            return Ok(());
        }
        let late = || {
            let left = self.owing();
            let left =
                left.unwrap_or_else(|| "its slots are empty, and its device is not flushed".into());
            Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "it has not ended its flush in time: {left}\n    help: see that the device \
                     answers, then start again and stop"
                ),
            ))
        };
        let flushed = rt::at_most(limit, self.cache.flush()).await;
        let flushed = flushed.unwrap_or_else(late);
        flushed.context(|| format!("device {:?} ({what})", self.name))?;
        match &self.file {
            Some(file) => self.note_closed(state, file),
            None => Ok(()),
        }
    }

    /// Records that the slots in `file` hold nothing, and removes them.
    fn note_closed(&self, state: &StateDirectory, file: &Path) -> Result<()> {
        let what = format!("the end of the slots of transit cache {:?}", self.name);
        let removed = (notes(&self.name, file).iter())
            .map(|note| state.note_transit(note, None))
            .fold(Ok(()), Result::and);
        // A copy of the slots that is restored later is older than the writes that follow.
        let counted = boot_id().and_then(|boot_id| {
            let (_, next) = generations(state.path(), file, None, &boot_id)?;
            state.note_slots_generation(&note_of(file), &boot_id, next)
        });
        // The remaining file is empty. Another file at its path belongs to another user. Slots
        // that count as in use stay: the next start would take them for lost.
        let is_ours = self.presence.as_ref().and_then(Presence::absence).is_none();
        if removed.is_ok() && is_ours {
            let _ = std::fs::remove_file(file);
        }
        let next = match removed.is_ok() {
            true => "until the next start, an old copy of the slots would not be recognized".into(),
            false => format!(
                "the next start takes over {}, which holds nothing that the device lacks",
                file.display()
            ),
        };
        (removed.and(counted)).map_err(|error| unnoted(&error, &what, &next))
    }
}

#[cfg(test)]
mod tests;
