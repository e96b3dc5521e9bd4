//! Output of `forebay check` about a configuration and its cache.

use std::path::Path;

use forebay_block::Error;
use forebay_cache::Inspection;
use serde_json::json;

use super::mend::{Work, corrupt, unreported_loss};
use crate::config::Config;
use crate::config::block_sizes::block_sizes_in_words;
use crate::stack::journal::JournalOwner;
use crate::state::hex;
use forebay_terminal::size::{human_bytes, human_count};
use forebay_terminal::table::Table;

pub(super) fn summary(config: &Config) -> String {
    let count = |items: usize, noun| human_count(items as u64, noun);
    format!(
        "{}: the configuration is in order ({}, {}, {})\n",
        config.path.display(),
        count(config.devices.len(), "device"),
        count(config.volumes.len(), "volume"),
        count(config.exports.len(), "export"),
    )
}

/// Returns a summary of a configuration for programs.
pub(super) fn summary_as_json(config: &Config, more: &[String]) -> serde_json::Value {
    json!({
        "path": config.path,
        "devices": config.devices.len(),
        "volumes": config.volumes.len(),
        "exports": config.exports.len(),
        "warnings": config.warnings.iter().chain(more).collect::<Vec<_>>(),
    })
}

pub(super) fn as_json(
    found: &Inspection,
    unverified_bytes: u64,
    work: Option<&Work>,
) -> serde_json::Value {
    let volumes: Vec<_> = found
        .volumes
        .iter()
        .map(|volume| {
            json!({
                "name": volume.name,
                "epoch": volume.epoch,
                "size_bytes": volume.size_bytes,
                "cached_bytes": volume.cached_bytes,
                "dirty_bytes": volume.dirty_bytes,
                "unreported_loss": volume.has_unreported_loss,
            })
        })
        .collect();
    json!({
        "uuid": hex(&found.uuid),
        "block_size_bytes": found.block_size_bytes,
        "block_sizes": found.block_sizes,
        "dirty_tracking": found.dirty_tracking.as_str(),
        "checksums": found.checksums,
        "unverified_bytes": unverified_bytes,
        "blocks": found.blocks,
        "memory_needed_bytes": found.memory_needed(),
        "clean_shutdown": found.clean_shutdown,
        "records": found.records,
        "damaged_records": found.damaged_records,
        "unreadable_units": found.unreadable_units,
        "problems": problems(found).chain(known_corrupt(found, work)).collect::<Vec<_>>(),
        "notes": found.notes,
        "spare_damage": found.spare_damage,
        "volumes": volumes,
        "work": work.map(Work::as_json),
    })
}

pub(super) fn render(
    what: &str,
    found: &Inspection,
    place: (&JournalOwner, &Path),
    unverified_bytes: u64,
    work: Option<&Work>,
) -> String {
    let mut text = described(what, found);
    if !found.volumes.is_empty() {
        text.push_str(&volumes(found).render(2));
    }
    let lines = work.map(|work| work.lines(found.checksums));
    for line in lines.unwrap_or_default() {
        text.push_str(&format!("{line}\n"));
    }
    if unverified_bytes > 0 {
        text.push_str(&format!(
            "UNVERIFIED: {} of cached data have no valid checksum: {}\n  \
             the cache serves this data unverified; the next read or write computes a checksum\n",
            human_bytes(unverified_bytes),
            match found.clean_shutdown {
                true => "a process died while it wrote, or checksums are damaged",
                false => "as data written just before a crash",
            }
        ));
    }
    for lost in known_corrupt(found, work) {
        text.push_str(&format!("{lost}\n"));
    }
    for lost in unreported(found) {
        text.push_str(&format!("{lost}\n"));
    }
    for note in &found.notes {
        text.push_str(&format!("NOTE: {note}\n"));
    }
    for problem in problems(found) {
        text.push_str(&format!("PROBLEM: {problem}\n"));
    }
    for damage in &found.spare_damage {
        text.push_str(&format!("DAMAGE: {damage}\n"));
    }
    text.push_str(&verdict(found, place, unverified_bytes, work));
    text
}

/// Describes the cache on `what`, and its last shutdown.
fn described(what: &str, found: &Inspection) -> String {
    let state = match found.clean_shutdown {
        true => "shut down cleanly",
        false if found.records == 0 => "never used",
        false => {
            "not shut down cleanly: the next start replays the log and recovers the data listed \
             here\n  \
             clean data cached just before the crash may be missing: it is read from the backing \
             device"
        }
    };
    format!(
        "{what}: cache {}\n  \
         {} of {}, {}, dirty tracking {}, {}\n  \
         {state}\n",
        hex(&found.uuid),
        human_count(u64::from(found.blocks), "block"),
        block_sizes_in_words(u64::from(found.block_size_bytes), &found.block_sizes),
        human_count(found.records, "valid log record"),
        found.dirty_tracking,
        match found.checksums {
            true => "checksums",
            false => "no checksums",
        },
    )
}

/// Returns the conclusion, with the remedy.
fn verdict(
    found: &Inspection,
    (whose, journal): (&JournalOwner, &Path),
    unverified_bytes: u64,
    work: Option<&Work>,
) -> String {
    if found.journal_problem.is_some() && whose.twin.is_some() {
        return "NOT IN ORDER, see above: the daemon refuses this copy\n    \
                help: decide on the copy first; --repair is possible after that\n"
            .to_owned();
    }
    if found.journal_problem.is_some() {
        return format!(
            "NOT IN ORDER, see above: the next start is refused without process journal {}\n    \
             help: restore the journal, or start with --accept-journal-loss. --repair is not \
             possible before that\n",
            journal.display()
        );
    }
    let line = if !found.problems.is_empty() {
        match work.is_some_and(Work::is_repair) {
            true => "NOT IN ORDER, see above: no repair corrects this.",
            false => {
                "NOT IN ORDER, see above: damaged parts are not used\n    \
                 help: `forebay check --repair` repairs the cache, and lists data that is lost"
            }
        }
    } else if !found.corrupt.is_empty() || work.is_some_and(Work::has_corrupt_dirty_data) {
        "NOT IN ORDER, see above: no repair restores lost data."
    } else if work.is_some_and(Work::has_unreadable_dirty_data) {
        "NOT IN ORDER, see above: no repair reads this data."
    } else if !found.spare_damage.is_empty()
        || unreported(found).next().is_some()
        || work.is_some_and(Work::is_damaged)
    {
        "In order, except for the damage or loss listed above."
    } else if unverified_bytes > 0 {
        "No damage was found, but some data could not be verified, see above."
    } else {
        "In order."
    };
    format!("{line}\n")
}

/// Returns the messages of all problems.
fn problems(found: &Inspection) -> impl Iterator<Item = String> {
    let journal = found.journal_problem.as_ref().map(Error::report);
    found.problems.iter().cloned().chain(journal)
}

/// Returns the messages of data that records call corrupt. If all data was read, it is among the
/// findings of that.
fn known_corrupt(found: &Inspection, work: Option<&Work>) -> impl Iterator<Item = String> {
    let is_listed = work.is_some_and(Work::has_read_data);
    let corrupt_ranges = found.corrupt.iter().filter(move |_| !is_listed);
    corrupt_ranges.map(corrupt)
}

/// Describes losses that an earlier opening found and that no start has reported.
fn unreported(found: &Inspection) -> impl Iterator<Item = String> {
    let owing = found.volumes.iter().filter(|it| it.has_unreported_loss);
    owing.map(|volume| unreported_loss(&volume.name))
}

/// Returns the volumes that a cache knows.
fn volumes(found: &Inspection) -> Table {
    let mut table = Table::new(&["volume", ">size", ">cached", ">dirty", ">epoch"]);
    for volume in &found.volumes {
        table.row(vec![
            volume.name.clone(),
            human_bytes(volume.size_bytes),
            human_bytes(volume.cached_bytes),
            human_bytes(volume.dirty_bytes),
            volume.epoch.to_string(),
        ]);
    }
    table
}
