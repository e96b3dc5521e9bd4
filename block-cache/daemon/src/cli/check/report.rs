//! Output of `forebay check` about a configuration and its cache.

use std::path::Path;

use forebay_block::Error;
use forebay_cache::Inspection;
use serde_json::json;

use super::mend::{Work, corrupt};
use crate::config::Config;
use crate::config::block_sizes::block_sizes_in_words;
use crate::stack::journal::Whose;
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
    (whose, journal): (&Whose, &Path),
    unverified_bytes: u64,
    work: Option<&Work>,
) -> String {
    let state = match found.clean_shutdown {
        true => "shut down cleanly",
        false if found.records == 0 => "never used",
        false => {
            "not shut down cleanly: the next start recovers what is listed, and clean data filled \
             shortly before is read anew"
        }
    };
    let mut text = format!(
        "{what}: cache {}, {} of {}, {} of metadata, dirty tracking {}, {}, {state}\n",
        hex(&found.uuid),
        human_count(u64::from(found.blocks), "block"),
        block_sizes_in_words(u64::from(found.block_size_bytes), &found.block_sizes),
        human_count(found.records, "record"),
        found.dirty_tracking,
        match found.checksums {
            true => "checksums",
            false => "no checksums",
        },
    );
    if !found.volumes.is_empty() {
        text.push_str(&volumes(found).render(2));
    }
    for line in work.map(Work::lines).unwrap_or_default() {
        text.push_str(&format!("{line}\n"));
    }
    if unverified_bytes > 0 {
        text.push_str(&format!(
            "UNVERIFIED: {} of cached data have no checksum that is known, as data that was \
             written shortly before a crash. They are believed as they are; the daemon gives them \
             checksums when it reads or rewrites them.\n",
            human_bytes(unverified_bytes)
        ));
    }
    for lost in known_corrupt(found, work) {
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
    if found.journal_problem.is_some() && whose.twin.is_some() {
        text.push_str(
            "NOT IN ORDER, see above: no start serves this copy as it is. --repair has nothing to \
             mend there, and waits for the decision, too.\n",
        );
    } else if found.journal_problem.is_some() {
        text.push_str(&format!(
            "NOT IN ORDER, see above. The next start is refused until the process journal {} is \
             there and sound, or until a start with --accept-journal-loss does without it. \
             --repair has nothing to mend there, and waits for that, too.\n",
            journal.display()
        ));
    } else if !found.problems.is_empty() {
        text.push_str(match work.is_some_and(Work::is_repair) {
            true => "NOT IN ORDER, see above: no repair mends that.\n",
            false => {
                "NOT IN ORDER, see above. What is damaged is not used. `forebay check --repair` \
                 mends what can be mended.\n"
            }
        });
    } else if !found.corrupt.is_empty() {
        text.push_str("NOT IN ORDER, see above: no repair restores lost data.\n");
    } else if found.spare_damage.is_empty() && !work.is_some_and(Work::is_damaged) {
        text.push_str(match unverified_bytes {
            0 => "In order.\n",
            _ => "No damage was found, but not all data could be verified, see above.\n",
        });
    } else {
        text.push_str("In order but for that.\n");
    }
    text
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
