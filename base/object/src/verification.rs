//! Verification of all data of a volume.

use forebay_block::{Error, ErrorKind, Result};
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::chunks::{Source, read_runs, runs_of};
use crate::core::Core;
use crate::format::log_name;

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

/// Reads all objects that the map names, and verifies their data.
///
/// # Errors
/// Errors of the store. Missing and damaged objects are part of the result.
pub(crate) async fn verify(core: &Core) -> Result<Verification> {
    let sources: Vec<Source> = {
        let log = core.log.borrow();
        let live = log.chain.objects.iter().map(|(_, object)| object);
        let live = live.filter(|object| object.live_sectors > 0);
        live.filter_map(Source::of).collect()
    };
    let reads = sources.into_iter().map(|source| async move {
        let chunks = (0..source.chunks()).map(|chunk| chunk..chunk + 1);
        let runs = runs_of(chunks).into_iter();
        let runs = runs.map(|run| (source.clone(), run)).collect();
        (read_runs(&core.link, runs, drop).await, source)
    });
    let mut reads = stream::iter(reads).buffer_unordered(OBJECTS);
    let mut found = Verification::default();
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
    found.damage.sort_by_key(ToString::to_string);
    Ok(found)
}
