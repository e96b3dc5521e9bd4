//! Verification of all data of a volume.

use std::collections::BTreeMap;

use forebay_block::{Error, ErrorKind, Result};
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::chunks::{Source, read_runs, runs_of};
use crate::core::Core;
use crate::format::{digits, log_name};
use crate::replay::is_newest;
use crate::snapshots::read_tables;

/// Number of objects that are read at once.
const OBJECTS: usize = 4;

/// Result of the verification of a volume.
#[derive(Debug, Default)]
pub struct Verification {
    /// Number of intact objects.
    pub objects: u64,
    /// Stored bytes of their data.
    pub bytes: u64,
    /// An error for each missing or damaged object.
    pub damage: Vec<Error>,
}

/// Reads all objects that the map and the snapshots of the volume name, and verifies their data.
///
/// # Errors
/// `Busy` if objects are missing or damaged, and a writer has changed the volume meanwhile. Errors
/// of the store. Missing and damaged objects are part of the result otherwise.
pub(crate) async fn verify(core: &Core) -> Result<Verification> {
    let mut found = Verification::default();
    let mut sources: BTreeMap<u64, Source> = {
        let log = core.log.borrow();
        let live = log.chain.objects.iter().map(|(_, object)| object);
        let live = live.filter(|object| object.live_sectors > 0);
        let sources = live.filter_map(Source::of);
        sources.map(|source| (source.seq, source)).collect()
    };
    let is_snapshot = core.identity != core.volume.id;
    let snapshots = snapshots(core).await?;
    for name in snapshots.iter().filter(|_| !is_snapshot) {
        match read_tables(&core.link, name).await {
            Ok(Some(tables)) if core.log.borrow().chain.snapshots.contains(&tables.id) => {
                for entry in tables.entries {
                    let source = || Source::of_entry(&entry);
                    sources.entry(entry.seq).or_insert_with(source);
                }
            }
            // It has been deleted, or its creation has failed.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => found.damage.push(error),
            Err(error) => return Err(error),
        }
    }
    let reads = sources.into_values().map(|source| async move {
        let chunks = (0..source.chunks()).map(|chunk| chunk..chunk + 1);
        let runs = runs_of(chunks).into_iter();
        let runs = runs.map(|run| (source.clone(), run)).collect();
        (read_runs(&core.link, runs, drop).await, source)
    });
    let mut reads = stream::iter(reads).buffer_unordered(OBJECTS);
    while let Some((outcome, source)) = reads.next().await {
        match outcome {
            Ok(()) => {
                found.objects += 1;
                found.bytes += source.stored_bytes();
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let what = format!("object {} is missing", log_name(source.seq));
                found.damage.push(Error::new(ErrorKind::Lost, what));
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => found.damage.push(error),
            Err(error) => return Err(error),
        }
    }
    if !found.damage.is_empty() && has_changed(core, &snapshots).await? {
        let what = format!(
            "volume {}: a daemon has deleted objects during the verification\n\
             help: stop the daemon that serves the volume, and repeat the verification",
            core.link.name()
        );
        return Err(Error::new(ErrorKind::Busy, what));
    }
    found.damage.sort_by_key(ToString::to_string);
    Ok(found)
}

/// Returns the names of the objects of snapshots. Of an open snapshot, only its own.
async fn snapshots(core: &Core) -> Result<Vec<String>> {
    let listed = core.link.list("snapshots/").await?;
    let own = digits(&core.identity);
    let is_wanted = |name: &String| core.identity == core.volume.id || name.ends_with(&own);
    let names = listed.into_iter().map(|it| it.name);
    Ok(names.filter(is_wanted).collect())
}

/// Returns whether objects may have been deleted since the opening. Before a deletion, a writer
/// writes a checkpoint, or deletes a snapshot. `before` has the snapshots.
async fn has_changed(core: &Core, before: &[String]) -> Result<bool> {
    let is_snapshot = core.identity != core.volume.id;
    let checkpoint = core.log.borrow().checkpoint;
    if !is_snapshot && !is_newest(&core.link, checkpoint).await? {
        return Ok(true);
    }
    let now = snapshots(core).await?;
    let is_there = |name: &String| now.contains(name);
    Ok(!before.iter().all(is_there) || (is_snapshot && now.is_empty()))
}
