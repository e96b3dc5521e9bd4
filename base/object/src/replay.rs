//! Loading the state of a volume: the newest checkpoint, and the log that follows it.

use std::collections::BTreeSet;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use futures_util::stream::{self, FuturesOrdered};
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::chain::Chain;
use crate::fault::{Fault, Faults};
use crate::format::checkpoint::{self, Tables, decode_tables, tables_bytes};
use crate::format::log::{HEAD_BYTES, Header, header_bytes};
use crate::format::superblock::Superblock;
use crate::format::{Id, PIPELINE, corrupt, log_name, map_name, seq_of};
use crate::limits::Limits;
use crate::link::Link;
use crate::map::Map;

/// Length of the first read of an object, bytes. Most headers and many tables are shorter.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// Number of headers that are read at once.
const READ_AHEAD: u64 = 16;
/// Number of snapshots that are read at once.
const READS: usize = 8;

/// Reads the header of an object of the log.
///
/// # Errors
/// `NotFound` if there is none. `Corrupt` if it does not verify, or belongs elsewhere.
pub(crate) async fn read_header(link: &Link<'_>, volume: &Superblock, seq: u64) -> Result<Header> {
    let name = log_name(seq);
    let what = || format!("object {name} of {}", link.name());
    let mut bytes = link.read(&name, 0..FIRST_READ_BYTES).await?;
    let len = header_bytes(&bytes).with_help(what)?;
    if len > bytes.len() {
        bytes = link.read(&name, 0..len as u64).await?;
    }
    let header = Header::decode(&bytes).with_help(what)?;
    if header.volume != volume.id || header.seq != seq {
        return Err(corrupt("it belongs to another volume or place")).with_help(what);
    }
    debug_assert!(len >= HEAD_BYTES);
    Ok(header)
}

/// Adds the name of an object, and a remedy, to an error of its content.
pub(crate) trait WithHelp<T> {
    /// Adds both.
    fn with_help(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> WithHelp<T> for Result<T> {
    fn with_help(self, what: impl FnOnce() -> String) -> Self {
        let help = "restore the object from a version or a copy of the folder";
        self.context(|| format!("{}\nhelp: {help}", what()))
    }
}

/// Returns the place of the newest checkpoint.
async fn newest_checkpoint(link: &Link<'_>) -> Result<Option<u64>> {
    let listed = link.list("map/").await?;
    Ok(listed.iter().filter_map(|it| seq_of(&it.name)).max())
}

/// Returns whether a checkpoint is still the newest. If it is, no object that follows it has been
/// deleted, and so none was created twice.
pub(crate) async fn is_newest(link: &Link<'_>, checkpoint: Option<u64>) -> Result<bool> {
    Ok(newest_checkpoint(link).await? == checkpoint)
}

/// Loads the state at the end of the log. Returns the place of the checkpoint that it began with.
///
/// No object that was read can have been deleted meanwhile, or be a late creation in the place of a
/// deleted one. Otherwise a newer checkpoint would exist.
///
/// # Errors
/// `Corrupt` if an object does not verify. `Lost` if a later object proves that the log was longer.
/// Errors of the store.
pub(crate) async fn load(
    link: &Link<'_>,
    volume: &Superblock,
    limits: Limits,
    faults: Faults,
) -> Result<(Chain, Option<u64>)> {
    load_with(link, volume, limits, faults, async |name| {
        let bytes = link.read_whole(name).await?;
        let (tables, map) = checkpoint::decode(&bytes)?;
        Ok((tables, map, bytes.len() as u64))
    })
    .await
}

/// Returns the identities of the snapshots that have a record in the log. Reads no map.
///
/// # Errors
/// As [`load`].
pub(crate) async fn recorded_snapshots(
    link: &Link<'_>,
    volume: &Superblock,
) -> Result<BTreeSet<Id>> {
    let read = async |name: &str| Ok((read_tables(link, name).await?, Map::default(), 0));
    let loaded = load_with(link, volume, Limits::default(), Faults::default(), read).await;
    loaded.map(|(chain, _)| chain.snapshots)
}

/// Reads a checkpoint or a snapshot but its map.
///
/// # Errors
/// `NotFound` if there is none. `Corrupt` if it does not verify. Errors of the store.
pub(crate) async fn read_tables(link: &Link<'_>, name: &str) -> Result<Tables> {
    let mut bytes = link.read(name, 0..FIRST_READ_BYTES).await?;
    let len = tables_bytes(&bytes)?;
    if len > bytes.len() as u64 {
        bytes = link.read(name, 0..len).await?;
    }
    decode_tables(&bytes)
}

/// As [`load`]. `read` reads and decodes a checkpoint, and returns its length, too.
async fn load_with(
    link: &Link<'_>,
    volume: &Superblock,
    limits: Limits,
    faults: Faults,
    read: impl AsyncFn(&str) -> Result<(Tables, Map, u64)>,
) -> Result<(Chain, Option<u64>)> {
    loop {
        let newest = newest_checkpoint(link).await?;
        let Some(mut chain) = load_checkpoint(link, volume, newest, limits, &read).await? else {
            continue;
        };
        chain.faults = faults;
        let followed = follow_to_end(link, volume, &mut chain).await;
        let is_error = followed
            .as_ref()
            .is_err_and(|it| !matches!(it.kind(), ErrorKind::Corrupt | ErrorKind::Lost));
        if faults.has(Fault::MissingIsEnd) || is_error || is_newest(link, newest).await? {
            return followed.map(|()| (chain, newest));
        }
    }
}

/// Loads a checkpoint. Returns `None` if it has been deleted, since a newer one exists.
async fn load_checkpoint(
    link: &Link<'_>,
    volume: &Superblock,
    seq: Option<u64>,
    limits: Limits,
    read: &impl AsyncFn(&str) -> Result<(Tables, Map, u64)>,
) -> Result<Option<Chain>> {
    let Some(seq) = seq else {
        return Ok(Some(Chain::empty(volume.size_bytes, limits)));
    };
    let name = map_name(seq);
    let loaded = match read(&name).await {
        Ok((tables, _, _)) if tables.volume != volume.id || tables.seq != seq => {
            Err(corrupt("it belongs to another volume or place"))
        }
        Ok((tables, map, checkpoint_bytes)) => Ok(Chain {
            checkpoint_bytes,
            ..Chain::of(tables, map, limits)
        }),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return Ok(None),
            ErrorKind::Corrupt | ErrorKind::Unsupported => Err(error),
            _ => return Err(error),
        },
    };
    let what = || format!("checkpoint {name} of {}", link.name());
    loaded.with_help(what).map(Some)
}

/// Applies all objects up to the end of the log.
///
/// # Errors
/// As [`follow`]. `Lost` if the object that is missing there has existed.
async fn follow_to_end(link: &Link<'_>, volume: &Superblock, chain: &mut Chain) -> Result<()> {
    follow(link, volume, chain).await?;
    while let Some(proof) = find_proof_of_next(link, volume, chain).await? {
        let end = chain.seq;
        // A writer in service may have created both meanwhile.
        follow(link, volume, chain).await?;
        if chain.seq == end && !chain.faults.has(Fault::HoleIsEnd) {
            return Err(lost(link, end + 1, &proof));
        }
        if chain.seq == end {
            break;
        }
    }
    Ok(())
}

/// Returns the name of an object which proves that the next object of the log has existed, if there
/// is one. A crash leaves a hole, too, but no such object beyond it.
async fn find_proof_of_next(
    link: &Link<'_>,
    volume: &Superblock,
    chain: &Chain,
) -> Result<Option<String>> {
    let next = chain.seq + 1;
    for listed in link.list("log/").await? {
        let Some(seq) = seq_of(&listed.name).filter(|seq| *seq > next) else {
            continue;
        };
        // A writer has no creation in flight so far beyond its durable part.
        if seq >= next + PIPELINE {
            return Ok(Some(listed.name));
        }
        match read_header(link, volume, seq).await {
            Ok(header) if header.durable_to.is_some_and(|to| to >= next) => {
                return Ok(Some(listed.name));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let snapshots = link.list("snapshots/").await?;
    let reads = snapshots.into_iter().map(async |it| {
        let proves = match read_tables(link, &it.name).await {
            // A snapshot is created when the log is durable up to it.
            Ok(tables) => tables.seq >= next,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                return Err(error).with_help(|| format!("{} of {}", it.name, link.name()));
            }
        };
        Ok(proves.then_some(it.name))
    });
    let reads: Vec<_> = stream::iter(reads).buffered(READS).try_collect().await?;
    Ok(reads.into_iter().flatten().next())
}

/// Error of a log with a hole.
fn lost(link: &Link<'_>, seq: u64, proof: &str) -> Error {
    let what = format!(
        "{} of {} is missing, and {proof} was made after it: DATA IS LOST\n\
         help: restore it from a copy; or remove all later objects of log/ and snapshots/, to give \
         up later writes",
        log_name(seq),
        link.name()
    );
    Error::new(ErrorKind::Lost, what)
}

/// Applies all objects up to the first that is missing.
///
/// # Errors
/// `Corrupt` if an object does not verify. Errors of the store.
pub(crate) async fn follow(link: &Link<'_>, volume: &Superblock, chain: &mut Chain) -> Result<()> {
    let mut next = chain.seq + 1;
    let mut reads = FuturesOrdered::new();
    loop {
        while next <= chain.seq + READ_AHEAD {
            reads.push_back(read_header(link, volume, next));
            next += 1;
        }
        let header = reads.next().await.expect("a read is queued");
        match header {
            Ok(header) => {
                let what = || format!("object {} of {}", log_name(header.seq), link.name());
                chain.apply(&header).with_help(what)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
