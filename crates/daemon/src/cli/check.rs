//! `forebay check`: a configuration, or a cache that is not in use, is looked at and not changed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_cache::{Devices, Inspection};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::{Engine, Reactor};
use serde_json::json;

use super::out;
use crate::config::size::human_bytes;
use crate::config::{Config, DeviceKind};
use crate::stack::odd_end;
use crate::state::hex;
use crate::table::Table;

/// The exit status for a cache with damage.
const DAMAGED: u8 = 3;

/// Check a configuration and the cache that it names, or a cache alone
///
/// Nothing is changed; the cache must not be in use. The exit status is 0 if all is in order, 1 if it could not be checked (a wrong configuration, no
/// cache, a device in use or unreadable), 2 for a wrong command line, and 3 if the cache has damage.
/// After a crash a cache is in order: the next start recovers it.
#[derive(Debug, clap::Args)]
#[group(id = "what", required = true)]
pub(super) struct Arguments {
    /// The configuration
    #[arg(required_unless_present = "cache", conflicts_with = "cache")]
    pub(super) config: Option<PathBuf>,
    /// The device or file that holds a cache
    #[arg(long, value_name = "PATH")]
    pub(super) cache: Option<PathBuf>,
    /// The device or file that holds the cache's metadata, where that is another one
    #[arg(long, value_name = "PATH", requires = "cache")]
    pub(super) metadata: Option<PathBuf>,
    /// The process journal, where it is not in its usual place
    #[arg(long, value_name = "PATH", requires = "cache")]
    pub(super) journal: Option<PathBuf>,
    /// Print what was found as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Where a cache lies.
struct Place {
    data: PathBuf,
    metadata: Option<PathBuf>,
    journal: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let place = match (&arguments.config, &arguments.cache) {
        (Some(config), _) => {
            let config = Config::load(config)?;
            config.check_media(true)?;
            let ends = Reactor::new(Engine::Auto)?.run(odd_ends(config.clone()))?;
            for warning in config.warnings.iter().chain(&ends) {
                out::note(&format!("warning: {warning}"));
            }
            if !arguments.json {
                out::print(&format!(
                    "{}: in order ({} devices, {} volumes, {} exports)\n",
                    config.path.display(),
                    config.devices.len(),
                    config.volumes.len(),
                    config.exports.len()
                ))?;
            }
            match place(&config) {
                Some(place) => place,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
        (None, Some(data)) => Place {
            data: data.clone(),
            metadata: arguments.metadata.clone(),
            journal: arguments.journal.clone(),
        },
        (None, None) => return Err(Error::new(ErrorKind::InvalidInput, "name what to check")),
    };
    let what = place.data.display().to_string();
    let reactor = Reactor::new(Engine::Auto)?;
    let found = reactor.run(inspect(place));
    let found = found.context(|| format!("cannot check the cache on {what}"))?;
    out::print(&match arguments.json {
        true => format!("{}\n", as_json(&found)),
        false => render(&what, &found),
    })?;
    let damaged = !found.problems.is_empty();
    Ok(if damaged {
        ExitCode::from(DAMAGED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Where the cache of a configuration lies; none if it has none that outlives the process.
fn place(config: &Config) -> Option<Place> {
    let cache = config.cache.as_ref()?;
    let file = |name: &str| match &config.stack(name).last()?.kind {
        DeviceKind::File { path, .. } => Some(path.clone()),
        _ => None,
    };
    Some(Place {
        data: file(&cache.data)?,
        metadata: match &cache.metadata {
            Some(name) => Some(file(name)?),
            None => None,
        },
        journal: cache.journal.clone(),
    })
}

/// Warnings about volumes whose files end in the middle of a block.
async fn odd_ends(config: Config) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for volume in &config.volumes {
        let leaf = config.stack(&volume.backing).pop();
        let Some(DeviceKind::File { path, direct }) = leaf.map(|leaf| &leaf.kind) else {
            continue;
        };
        let options = FileDeviceOptions {
            read_only: true,
            direct: *direct,
            ..FileDeviceOptions::default()
        };
        let device = FileDevice::open(path, options).context(|| config.place(volume.line))?;
        warnings.extend(odd_end(&config, &volume.backing, device.as_ref()));
    }
    Ok(warnings)
}

async fn inspect(place: Place) -> Result<Inspection> {
    let options = FileDeviceOptions {
        read_only: true,
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let open = |path: &Path| FileDevice::open(path, options.clone());
    let devices = Devices {
        data: open(&place.data)?,
        metadata: place.metadata.as_deref().map(open).transpose()?,
    };
    super::format::inspect_with_journal(&devices, place.journal.as_deref())
        .await
        .map(|(inspection, _)| inspection)
}

fn as_json(found: &Inspection) -> serde_json::Value {
    let volumes: Vec<_> = found
        .volumes
        .iter()
        .map(|volume| {
            json!({
                "name": volume.name,
                "epoch": volume.epoch,
                "size_bytes": volume.size_bytes,
                "cached_blocks": volume.cached_blocks,
                "dirty_bytes": volume.dirty_bytes,
            })
        })
        .collect();
    json!({
        "uuid": hex(&found.uuid),
        "block_size_bytes": found.block_size_bytes,
        "blocks": found.blocks,
        "clean_shutdown": found.clean_shutdown,
        "records": found.records,
        "damaged_records": found.damaged_records,
        "unreadable_units": found.unreadable_units,
        "problems": found.problems,
        "volumes": volumes,
    })
}

fn render(what: &str, found: &Inspection) -> String {
    let state = match found.clean_shutdown {
        true => "shut down cleanly",
        false if found.records == 0 => "never used",
        false => "not shut down cleanly: the next start recovers it",
    };
    let block = u64::from(found.block_size_bytes);
    let mut text = format!(
        "{what}: cache {}, {} blocks of {}, {} records of metadata, {state}\n",
        hex(&found.uuid),
        found.blocks,
        human_bytes(block),
        found.records,
    );
    if !found.volumes.is_empty() {
        text.push_str(&volumes(found).render(2));
    }
    for problem in &found.problems {
        text.push_str(&format!("PROBLEM: {problem}\n"));
    }
    text.push_str(match found.problems.is_empty() {
        true => "In order.\n",
        false => {
            "NOT IN ORDER, see above. What is damaged is not used. To be rid of damage: serve the cache, \
                  `forebay detach` its volumes, which writes back what is sound, and format it anew.\n"
        }
    });
    text
}

/// The volumes that a cache knows.
pub(super) fn volumes(found: &Inspection) -> Table {
    let mut table = Table::new(&["volume", ">size", ">cached", ">dirty", ">epoch"]);
    for volume in &found.volumes {
        table.row(vec![
            volume.name.clone(),
            human_bytes(volume.size_bytes),
            human_bytes(volume.cached_blocks * u64::from(found.block_size_bytes)),
            human_bytes(volume.dirty_bytes),
            volume.epoch.to_string(),
        ]);
    }
    table
}
