//! `forebay forget`: removes an unserved volume from a cache.

use std::future::ready;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_cache::{Cache, RecoveryReport, RepairOptions, ReportSink, open_alone};
use forebay_io::{Engine, Reactor, system};
use forebay_metadata::journal::Journal;
use forebay_metadata::superblock::Superblock;

use super::check::{self, Place};
use crate::config::Config;
use crate::config::server::default_control;
use crate::control::client::{Client, Control, Patience};
use crate::control::protocol::{Reply, Request, line};
use crate::stack::forget;
use crate::stack::journal::{self, JournalOwner};
use crate::state::{CacheId, Opening, StateDirectory, append_help};
use forebay_terminal::out;

/// Remove a volume that is not served from a cache
///
/// This frees the volume's entry in the cache and drops its cached data. The backing device is not
/// needed. The command asks the running daemon. If none runs, name the configuration or the cache.
/// A volume with data that its backing device lacks is refused, unless --discard-dirty is given. To
/// write such data back, serve the volume and use `forebay detach`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Name of the volume
    volume: String,
    /// Configuration of the cache; if its daemon runs, the command asks that
    #[arg(conflicts_with = "cache")]
    config: Option<PathBuf>,
    /// Device or file that holds a cache which no daemon uses
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,
    /// Device or file that holds the cache's metadata, if it is a separate one
    #[arg(long, value_name = "PATH", requires = "cache")]
    metadata: Option<PathBuf>,
    /// Process journal, if it is not at its default path
    #[arg(long, value_name = "PATH", requires = "cache")]
    journal: Option<PathBuf>,
    /// Give up data that the backing device lacks: THE DATA IS LOST. It is listed, range by range,
    /// also in the state directory of the configuration
    #[arg(long)]
    discard_dirty: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, control: Option<&Path>, patience: Patience) -> Result<()> {
    let done = done(arguments, control, patience)?;
    match arguments.json {
        true => out::print(&String::from_utf8_lossy(&line(&Reply::Done(done)))),
        false => out::print(&format!("{done}\n")),
    }
}

/// Runs the command. Returns a description of the result.
fn done(arguments: &Arguments, control: Option<&Path>, patience: Patience) -> Result<String> {
    let ask = |path: PathBuf| ask(arguments, &Control { path, patience });
    if let Some(path) = &arguments.config {
        let mut config = Config::load(path)?;
        if let Some(control) = control {
            config.server.set_control(control)?;
        }
        // The daemon of another configuration may have the same control socket.
        if check::own_daemon(&config, patience)?.is_some() {
            return ask(config.server.control);
        }
        let Some(place) = check::place(&config) else {
            let what = "the configuration names no cache that outlives the daemon\n\
                        help: name a configuration with a [cache] on a device, or --cache PATH";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        let state = Arc::new(StateDirectory::open(&config.server.state)?);
        return alone(arguments, place, Some(state));
    }
    let Some(data) = &arguments.cache else {
        let control = control.map_or_else(default_control, Path::to_path_buf);
        return ask(control);
    };
    let place = Place {
        data: data.clone(),
        metadata: arguments.metadata.clone(),
        journal: arguments.journal.clone(),
        config: None,
    };
    alone(arguments, place, None)
}

fn ask(arguments: &Arguments, control: &Control) -> Result<String> {
    let request = Request::Forget {
        volume: arguments.volume.clone(),
        discard_dirty: arguments.discard_dirty,
    };
    let mut client = Client::connect(control).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => error,
        kind => {
            let help = "where no daemon runs, name the configuration (`forebay forget NAME \
                        CONFIG`) or the cache (--cache)";
            Error::new(kind, append_help(error.report(), help))
        }
    })?;
    match client.call(&request, out::note)? {
        Reply::Done(done) => Ok(done),
        _ => {
            let what = "the daemon's answer is invalid\nhelp: use the version of the daemon";
            Err(Error::new(ErrorKind::Disconnected, what))
        }
    }
}

/// Removes the volume from a cache that no daemon uses.
fn alone(
    arguments: &Arguments,
    place: Place,
    state: Option<Arc<StateDirectory>>,
) -> Result<String> {
    let (name, discard) = (arguments.volume.clone(), arguments.discard_dirty);
    Reactor::new(Engine::Auto)?.run(async move {
        let devices = match &place.config {
            Some(config) => match check::open_configured(config, true, false).await? {
                Ok(devices) => devices,
                Err(first) => {
                    let what = format!(
                        "{first}\nhelp: start the daemon once, stop it, and repeat the command"
                    );
                    return Err(Error::new(ErrorKind::Busy, what));
                }
            },
            None => check::open_named(&place, true).await?,
        };
        let places = place.places();
        let named = places.metadata.clone();
        let look =
            super::format::inspect_with_journal(&devices, &places, place.journal.as_deref(), false);
        let (found, (whose, path)) = look.await?;
        let uuid = whose.uuid;
        let last = match &state {
            Some(state) => StateDirectory::opening_in(state.path(), &uuid)?,
            None => None,
        };
        let options = RepairOptions {
            generation: last.map_or(0, |last| last.generation),
            place: named.clone(),
            data_place: places.data.clone(),
            moved: false,
            // The original has the data that a copy lacks.
            journal: journal::own(&whose, &path, true)??,
            boot_id: system::boot_id()?,
            data: false,
            // Damage that appears after the inspection is not forgotten, either.
            report_sink: Some(ReportSink::new(|report| ready(refuse_losses(&report)))),
        };
        let left = (options.journal.as_ref())
            .and_then(|journal| Journal::recover(journal, &uuid, &options.boot_id));
        if !found.problems.is_empty() || left.is_some_and(|left| left.poisoned) {
            return Err(damaged());
        }
        let opened = open_alone(&devices, &options).await;
        let (cache, _) = opened.context(|| "the cache cannot be opened")?;
        let forgotten =
            forget_in(&cache, &name, discard, state.as_ref(), CacheId::Uuid(uuid)).await;
        // The volume is unchanged or forgotten: the cache can be closed cleanly in both cases.
        let closed = cache.close().await;
        if closed.is_ok() {
            if let Some(state) = &state {
                let service = cache.service();
                let opening = Opening {
                    generation: service.generation,
                    media: service.media,
                    place: named.clone(),
                    data_place: places.data.clone(),
                };
                state.store_opening(&uuid, &opening)?;
            }
            // The opening took a new generation, and a cleanly closed cache needs no process
            // journal.
            let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
            let found = Superblock::read(holder.as_ref()).await?;
            journal::remove(&JournalOwner::of(&found, &devices, &places, false), &path);
        }
        let done = forgotten?;
        closed.context(|| {
            "the volume is forgotten, but the cache has no clean end\n\
             help: see the device of the cache; the next start recovers it"
        })?;
        Ok(done)
    })
}

fn damaged() -> Error {
    let what = "the cache is damaged, or its device failed a flush\n\
                help: see `forebay check`, and repair it first (`forebay check --repair`)";
    Error::new(ErrorKind::Corrupt, what)
}

/// Fails if an opening found a loss.
fn refuse_losses(report: &RecoveryReport) -> Result<()> {
    let has_damage = report.damaged_records + report.unreadable_units > 0;
    match has_damage || !report.lost.is_empty() || !report.cut.is_empty() {
        true => Err(damaged()),
        false => Ok(()),
    }
}

async fn forget_in(
    cache: &Cache,
    name: &str,
    discard_dirty: bool,
    state: Option<&Arc<StateDirectory>>,
    id: CacheId,
) -> Result<String> {
    let dirty: Vec<Range<u64>> = cache.idle_dirty_ranges(name)?;
    let mut list = None;
    if let Some(state) = state {
        if dirty.is_empty() {
            forget::note_clean(state, name, id).await?;
        } else if discard_dirty {
            list = forget::note_discarded(state, name, id, &dirty).await?;
        }
    }
    let owed = forget::note_owed_losses(cache, state, name).await?;
    let lost = cache.forget(name, discard_dirty).await?;
    if let Some(state) = state {
        forget::note_forgotten(state, name, id).await?;
    }
    Ok(forget::forgotten_in_words(name, &lost, list) + &owed)
}
