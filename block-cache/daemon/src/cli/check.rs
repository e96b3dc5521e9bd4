//! `forebay check`: inspects a configuration, or a cache that is not in use. Changes the cache only
//! to repair it.

mod foresee;
mod mend;
mod objects;
mod open;
mod report;
mod running;
mod start;

use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_cache::Inspection;
use forebay_io::limits::address_space_at_start;
use forebay_io::{Engine, Reactor, system};
use forebay_metadata::superblock::Superblock;
use serde_json::json;

use super::{FAILURE, SUCCESS, Status};
use crate::config::Config;
use crate::control::client::Patience;
use crate::stack::journal::{self, JournalOwner};
use crate::stack::memory::{CacheNeeds, Needs};
use crate::stack::{Places, Wishes, error_of_opening, place_of_volume, refuse_all, warning_of_few};
use crate::state::report_with_help;
use forebay_terminal::out;
use mend::{Losses, Work};
use objects::{VerifiedDevice, has_objects, verify_objects};
use open::Backing;
pub(super) use open::{open_configured, open_named};
use report::{as_json, render, summary, summary_as_json};
use running::check_config;
pub(super) use running::own_daemon;
pub(super) use start::{refuse_start, with_decisions_after_move};

/// Exit status for a cache with damage.
const DAMAGED: Status = 3;

/// Check a configuration and the cache that it names, or a cache alone
///
/// Without --repair, nothing is changed or allocated. A block translation table under the cache
/// completes an interrupted write, and replaces a damaged info block, in memory alone. The cache
/// must not be in use. Sockets and mount points of the daemon that serves the configuration are no
/// errors.
///
/// The exit status is 0 if all is in order. It is 1 if the check was not possible: a wrong
/// configuration, no cache, a device in use or unreadable. It is 2 for a wrong command line. It is
/// 3 if the cache has damage or a loss that no start has reported, or slots of a transit cache are
/// missing.
///
/// A cache is in order after a crash: the next start recovers it. Data that its checksums cannot
/// verify then is reported, but is no damage. A repaired cache is in order, too, unless dirty data
/// is lost or may be lost: the exit status of the repair is then 3.
#[derive(Debug, clap::Args)]
#[group(id = "what", required = true)]
pub(super) struct Arguments {
    /// Configuration file
    #[arg(required_unless_present = "cache", conflicts_with = "cache")]
    pub(super) config: Option<PathBuf>,
    /// Device or file that holds a cache
    #[arg(long, value_name = "PATH")]
    pub(super) cache: Option<PathBuf>,
    /// Device or file that holds the cache's metadata, if it is a separate one
    #[arg(long, value_name = "PATH", requires = "cache")]
    pub(super) metadata: Option<PathBuf>,
    /// Process journal, if it is not at its default path
    #[arg(long, value_name = "PATH", requires = "cache")]
    pub(super) journal: Option<PathBuf>,
    /// Also read all cached data, and verify it if the cache has checksums. Without a daemon, also
    /// read and verify all objects of volumes in object storage
    #[arg(long)]
    pub(super) data: bool,
    /// Repair copies of the superblock, the bit-tree and the damaged log; with --data, drop clean
    /// data that is corrupt. Dirty data is never dropped. Lost data is listed, and recorded in the
    /// state directory of the configuration. So no block device or virtual machine continues
    /// without it
    #[arg(long)]
    pub(super) repair: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Paths of a cache.
pub(super) struct Place {
    pub(super) data: PathBuf,
    pub(super) metadata: Option<PathBuf>,
    pub(super) journal: Option<PathBuf>,
    /// Configuration that names it.
    pub(super) config: Option<Config>,
}

/// Result of an attempt to inspect a cache.
enum Inspected {
    At(Box<Found>),
    /// Inspection is not possible before this event.
    NotBefore(String),
}

/// Results of an inspection, and of a repair.
struct Found {
    inspection: Inspection,
    /// Path of its process journal, existing or not, and its owner.
    journal: PathBuf,
    whose: JournalOwner,
    work: Option<Work>,
    /// Unverified cached data of a cache with checksums, bytes.
    unverified_bytes: u64,
    /// Refusals of the attaches of volumes, in the order of the configuration.
    refused: Vec<Error>,
}

pub(super) fn run(
    arguments: &Arguments,
    control: Option<&Path>,
    patience: Patience,
) -> Result<Status> {
    forebay_io::system::ignore_file_size_signal();
    // As in the daemon, whose limits are compared.
    system::one_heap();
    address_space_at_start();
    // Logs repairs that happen on opening. A program that uses this as a library may log already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(out::LogOutputs::new())
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .try_init();
    let (place, config) = match (&arguments.config, &arguments.cache) {
        (Some(path), _) => {
            let mut config = Config::load(path)?;
            if let Some(control) = control {
                config.server.set_control(control)?;
            }
            (place(&config), Some(config))
        }
        (None, Some(data)) => {
            let place = Place {
                data: data.clone(),
                metadata: arguments.metadata.clone(),
                journal: arguments.journal.clone(),
                config: None,
            };
            (Some(place), None)
        }
        (None, None) => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "name what to check\nhelp: CONFIG, or --cache PATH",
            ));
        }
    };
    let checked = config.as_ref().map(|config| check_config(config, patience));
    let (running, backing) = match checked {
        Some(Err(error)) if error.kind() == ErrorKind::Lost => {
            return damage(&error, arguments.json);
        }
        Some(checked) => checked?,
        None => Default::default(),
    };
    let verified = match (&config, &running) {
        (Some(config), None) if arguments.data => verify_objects(config),
        // The daemon deletes objects while they are read.
        (Some(config), Some(_)) if arguments.data && has_objects(config) => {
            out::note("warning: no object was verified: a daemon serves this configuration");
            Ok(Vec::new())
        }
        _ => Ok(Vec::new()),
    };
    let verified = match verified {
        Err(error) if error.kind() == ErrorKind::Lost => return damage(&error, arguments.json),
        verified => verified?,
    };
    if !arguments.json {
        for device in &verified {
            out::print(&device.line())?;
        }
    }
    let in_order = || match &config {
        Some(config) if !arguments.json => out::print(&summary(config)),
        _ => Ok(()),
    };
    let print_json = |mut found: serde_json::Value, of_memory: Option<String>| {
        if let Some(config) = &config {
            let warnings: Vec<_> = backing.warnings.iter().cloned().chain(of_memory).collect();
            found["configuration"] = summary_as_json(config, &warnings);
        }
        if !verified.is_empty() {
            let devices = verified.iter().map(VerifiedDevice::as_json);
            found["verified_devices"] = devices.collect();
        }
        out::print(&format!("{found}\n"))
    };
    let Some(place) = place else {
        if let (None, Some(config)) = (&running, &config) {
            let wishes = Wishes::default();
            refuse_all(foresee::attaches(config, &backing, None, &wishes).1)?;
        }
        match (arguments.json, &config) {
            (true, _) => print_json(json!({}), None)?,
            (false, None) => in_order()?,
            (false, Some(config)) => {
                in_order()?;
                if config.cache.is_none() {
                    let needs = Needs::of(config, None);
                    warn_of_memory(&needs);
                    out::print(&needs.lines())?;
                }
            }
        }
        return Ok(SUCCESS);
    };
    let what = place.data.display().to_string();
    let (data, repair) = (arguments.data, arguments.repair);
    let wishes = Wishes::default();
    let found = inspect(place, backing.clone(), (data, repair), wishes);
    let found = Reactor::new(Engine::Auto)?.run(found);
    let running = match (&found, running, &config) {
        // A daemon that began to start meanwhile.
        (Err(error), None, Some(config)) if error.kind() == ErrorKind::Busy => {
            own_daemon(config, patience)?
        }
        (_, running, _) => running,
    };
    let with_more = |error| match &config {
        Some(config) => with_decisions_after_move(error, config, &Wishes::default()),
        None => error,
    };
    let Found {
        inspection: found,
        journal,
        whose,
        work,
        unverified_bytes,
        refused,
    } = match (found, running) {
        (Err(error), Some(status)) if error.kind() == ErrorKind::Busy => {
            in_order()?;
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the cache on {what} is in use, and was not checked: a daemon (process {}) \
                     answers on the control socket\n\
                     help: see `forebay status`, or stop the daemon and repeat the check",
                    status.pid
                ),
            ));
        }
        (Err(error), _)
            if error.kind() == ErrorKind::Corrupt
                || (error.kind() == ErrorKind::Lost && !repair) =>
        {
            return damage(&error, arguments.json);
        }
        (found, _) => match found.map_err(with_more)? {
            Inspected::At(found) => *found,
            Inspected::NotBefore(first) => {
                in_order()?;
                match arguments.json {
                    true => print_json(json!({ "not_looked_at": first }), None)?,
                    false => {
                        out::print(&format!("The cache on {what} was not checked: {first}.\n"))?;
                    }
                }
                return Ok(SUCCESS);
            }
        },
    };
    // A repair has changed the cache. Its report comes before a refusal of the next start.
    let start = match &config {
        Some(config) => foresee::check_start(config, &found, refused),
        None => Ok(()),
    };
    let refusal = match repair {
        true => start.err(),
        false => start.map(|()| None)?,
    };
    if let Some(config) = config.as_ref().filter(|config| config.cache.is_some()) {
        for (number, info) in &backing.devices {
            let volume = &config.volumes[*number];
            let place = || place_of_volume(config, volume);
            for warned in found.warnings_of_backing(&volume.name, info.identity, info.size_bytes) {
                out::note(&format!("warning: {}: {warned}", place()));
            }
            let mut volumes = found.volumes.iter();
            let known = volumes.find(|known| known.name == volume.name);
            if let Some(at) = known.and_then(|known| known.differs_at) {
                out::note(&format!(
                    "warning: {}: the backing device differed from clean data at byte {at}\n    \
                     help: the next start compares that byte first, and is refused if it \
                     still differs",
                    place()
                ));
            }
        }
    }
    if let Some(few) = warning_of_few(found.blocks, found.block_size_bytes) {
        out::note(&format!("warning: {few}"));
    }
    in_order()?;
    let needs = (config.as_ref()).map(|config| needs(config, &found));
    let of_memory = needs.as_ref().and_then(warn_of_memory);
    if let (Some(needs), false) = (&needs, arguments.json) {
        out::print(&needs.lines())?;
    }
    match arguments.json {
        true => print_json(as_json(&found, unverified_bytes, work.as_ref()), of_memory)?,
        false => out::print(&render(
            &what,
            &found,
            (&whose, &journal),
            unverified_bytes,
            work.as_ref(),
        ))?,
    }
    let damaged = !found.problems.is_empty()
        || !found.corrupt.is_empty()
        || found.journal_problem.is_some()
        || !found.spare_damage.is_empty()
        || found.volumes.iter().any(|it| it.has_unreported_loss)
        || work.is_some_and(|work| work.is_damaged());
    if let Some(error) = &refusal {
        out::error(&format!("forebay: {}", report_with_help(error)));
    }
    Ok(match (damaged, refusal) {
        (true, _) => DAMAGED,
        (false, Some(_)) => FAILURE,
        (false, None) => SUCCESS,
    })
}

/// Reports damage, or a missing device, that prevents further inspection.
fn damage(error: &Error, json: bool) -> Result<Status> {
    if json {
        out::print(&super::error_as_json(error))?;
    }
    out::note(&format!("forebay: {}", report_with_help(error)));
    Ok(DAMAGED)
}

/// Prints and returns the warning of memory that this machine does not have.
fn warn_of_memory(needs: &Needs) -> Option<String> {
    let warning = needs.warning()?;
    out::note(&format!("warning: {warning}"));
    Some(warning)
}

/// Returns the memory that the daemon of a configuration needs when its cache is full.
fn needs(config: &Config, found: &Inspection) -> Needs {
    Needs::of(
        config,
        Some(CacheNeeds {
            blocks: found.blocks,
            map_bytes: found.memory_needed(),
        }),
    )
}

/// Returns the paths of a configuration's cache; `None` if no cache outlives the process.
pub(super) fn place(config: &Config) -> Option<Place> {
    let cache = config.cache.as_ref()?;
    let file = |name: &str| config.file_of(name).map(Path::to_path_buf);
    Some(Place {
        data: file(&cache.data)?,
        metadata: match &cache.metadata {
            Some(name) => Some(file(name)?),
            None => None,
        },
        journal: cache.journal_path().map(Path::to_path_buf),
        config: Some(config.clone()),
    })
}

/// Inspects a cache; `wishes` are the options of the start that is foreseen.
async fn inspect(
    place: Place,
    backing: Backing,
    (data, repair): (bool, bool),
    wishes: Wishes,
) -> Result<Inspected> {
    let what = place.data.display().to_string();
    let failed = || {
        let what = format!("cannot check the cache on {what}");
        match place.named_at() {
            Some(place) => format!("{place}: {what}"),
            None => what,
        }
    };
    let devices = match &place.config {
        Some(config) => match open_configured(config, repair, wishes.moved_cache).await? {
            Ok(devices) => devices,
            Err(first) => return Ok(Inspected::NotBefore(first)),
        },
        None => open_named(&place, repair).await.context(failed)?,
    };
    let places = place.places();
    let look = || {
        let journal = place.journal.as_deref();
        super::format::inspect_with_journal(&devices, &places, journal, wishes.moved_cache)
    };
    let (mut inspection, (whose, journal)) = match (look().await, place.named_at()) {
        (Err(error), Some(line)) if error.kind() == ErrorKind::InvalidInput => {
            // As a start says it: the devices do not fit the cache.
            return Err(error_of_opening(error, &line, None));
        }
        (looked, _) => looked.context(failed)?,
    };
    if let Some(line) = place.named_at() {
        // As a start says it.
        let found = inspection.journal_problem.take();
        inspection.journal_problem =
            found.map(|error| error_of_opening(error, &line, Some(&journal)));
    }
    let is_copy = |error: &Error| error.kind() == ErrorKind::Busy;
    let problem = inspection.journal_problem.take();
    let is_accepted =
        |error: &Error| wishes.accept_journal_loss || (wishes.moved_cache && is_copy(error));
    inspection.journal_problem = problem.filter(|error| !is_accepted(error));
    let of = (&whose, journal.as_path());
    let work = match (repair, data) {
        (true, _) => {
            // The original has the data that a copy lacks.
            if let (Err(error), Some(_)) = (
                journal::own(&whose, &journal, false)?,
                &inspection.journal_problem,
            ) {
                return Err(error).context(failed);
            }
            let state = (place.config.as_ref()).map(|config| &*config.server.state);
            let losses = Losses::of(state, &inspection).context(failed)?;
            let work = mend::repair(&devices, of, data, losses).await;
            let work = work.context(failed)?;
            // The repair was an opening, and a cleanly closed cache needs no process journal.
            let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
            let found = Superblock::read(holder.as_ref()).await.context(failed)?;
            let repaired = JournalOwner::of(&found, &devices, &places, false);
            journal::remove(&repaired, &journal);
            inspection = look().await.context(failed)?.0;
            Some(work)
        }
        (false, true) => Some(mend::verify(&devices, of).await.context(failed)?),
        (false, false) => None,
    };
    let read = work.as_ref().and_then(Work::unverified_bytes);
    let unverified_bytes = match read {
        Some(bytes) => bytes,
        None if inspection.checksums => match mend::count_unverified(&devices, of).await {
            // A report of damage matters more.
            Err(_) if !inspection.problems.is_empty() => 0,
            counted => counted.context(failed)?,
        },
        None => 0,
    };
    let refused = match &place.config {
        Some(config) => foresee::refusals(config, &backing, &devices, of, &inspection, &wishes)
            .await
            .context(failed)?,
        None => Vec::new(),
    };
    Ok(Inspected::At(Box::new(Found {
        inspection,
        journal,
        whose,
        work,
        unverified_bytes,
        refused,
    })))
}

impl Place {
    /// Paths in the form of the record.
    pub(super) fn places(&self) -> Places {
        Places::of(&self.data, self.metadata.as_deref())
    }

    /// Returns its place in a configuration.
    fn named_at(&self) -> Option<String> {
        let config = self.config.as_ref()?;
        Some(config.place(config.cache.as_ref()?.line))
    }
}
