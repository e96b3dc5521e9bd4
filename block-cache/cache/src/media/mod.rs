//! Which devices a cache and its process journal belong to.
//!
//! A copy of a cache device has the UUID of the original. A device onto which an older copy was
//! restored has its identity as well. The superblock and the process journal name the devices and
//! count the openings, so that neither is taken for what it is not ([`Relation`]).

pub(crate) mod metadata;
pub(crate) mod missing;
pub(crate) mod truncation;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_metadata::Media;
use forebay_metadata::journal::{Journal, Recovered, Relation, Tie};
use forebay_metadata::replay::Replayed;
use forebay_metadata::superblock::Superblock;

use crate::failpoints::{Fault, planted};
use crate::lost_range::LostRange;
use crate::options::Devices;

/// Returns the identities of the devices.
pub(crate) fn media_of(devices: &Devices) -> Media {
    Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref())
}

/// Refuses a data device that holds another state of the cache than the metadata device does.
/// `data` is its superblock.
///
/// # Errors
/// `Lost`, naming the device that is older.
pub(crate) fn check_same_state(
    devices: &Devices,
    superblock: &Superblock,
    data: &Superblock,
) -> Result<()> {
    let Some(metadata) = &devices.metadata else {
        return Ok(());
    };
    if superblock.agrees_with(data) || planted(Fault::MixStates) {
        return Ok(());
    }
    let (names, states) = (
        (devices.data.info().name, metadata.info().name),
        (data.service.generation, superblock.service.data_generation),
    );
    let (older, newer) = match states.0 < states.1 {
        true => ((names.0, "data", states.0), names.1),
        false => ((names.1, "metadata", states.1), names.0),
    };
    let (older, part, state) = older;
    Err(Error::new(
        ErrorKind::Lost,
        format!(
            "{older} ({part}) has an earlier state of the cache than {newer}: opening {state}, not \
             {}\n\
             help: put the newest state of {older} back. If that is gone, make a new cache with \
             `forebay format --force --discard-dirty`, and start once with --adopt VOLUME: data \
             that was not written back IS LOST THEN",
            states.0.max(states.1)
        ),
    ))
}

/// Reads the process journal in `buf`, if it is that of the cache's last opening on these devices.
///
/// # Errors
/// `Busy` for one that belongs to other devices, `Lost` for one of another opening. It is left
/// alone.
pub(crate) fn own_journal(
    buf: &Buf,
    superblock: &Superblock,
    devices: &Devices,
    boot_id: &[u8; 16],
    moved: bool,
) -> Result<Option<Recovered>> {
    let Some(found) = Journal::recover(buf, &superblock.uuid, boot_id) else {
        return Ok(None);
    };
    check_relation(
        found.tie,
        media_of(devices),
        superblock.service.generation,
        moved,
    )?;
    Ok(Some(found))
}

/// Returns the problem of the process journal, if its loss lost acknowledged writes. Such a start
/// must fail: clients would otherwise never learn of the loss.
pub(crate) fn journal_trouble(
    replayed: &Replayed,
    journal: Option<&Recovered>,
    boot_id: &[u8; 16],
    superblock: &Superblock,
) -> Option<Error> {
    const ACCEPT: &str =
        "or start with --accept-journal-loss and check the last writes of the clients";
    let stake = || writes_at_stake(superblock);
    if let Some(found) = journal.filter(|found| found.damaged > 0) {
        let state = found.cut_from_bytes.map_or_else(
            || "is damaged".to_owned(),
            |bytes| format!("was truncated: it had {bytes} bytes"),
        );
        let trouble = format!(
            "the process journal {state}: {} acknowledged writes ARE LOST\n    \
             help: put a sound copy of it back, {ACCEPT}{}; {} acknowledged writes are not in the \
             log",
            found.damaged,
            stake(),
            found.entries.len() as u64 + found.damaged
        );
        return Some(Error::new(ErrorKind::Lost, trouble));
    }
    let had_journal = (replayed.last_open.as_ref())
        .is_some_and(|open| open.had_journal && open.boot_id == *boot_id);
    let is_clean = replayed.clean || superblock.service.is_closed;
    (!is_clean && had_journal && journal.is_none()).then(|| {
        // The mark of a clean end is a record, too.
        let unless = match replayed.damaged_records + replayed.unreadable_units {
            0 => "",
            _ => "; or the daemon ended cleanly, and the record of that is damaged",
        };
        let trouble = format!(
            "its process journal is missing or damaged: UNFLUSHED WRITES MAY BE LOST\n    \
             help: the daemon died in this boot. Put the journal back, {ACCEPT}{}{unless}",
            stake()
        );
        Error::new(ErrorKind::Lost, trouble)
    })
}

/// Refuses a process journal that is not that of the last opening of the cache on `media` with this
/// generation. With `moved`, one of the same opening on other devices counts.
///
/// # Errors
/// `Busy` for one that belongs to other devices, `Lost` for one of another opening.
pub fn check_relation(tie: Tie, media: Media, generation: u64, moved: bool) -> Result<()> {
    let (kind, what) = match tie.relation(media, generation) {
        // The header is damaged where it names the owner. That is refused as damage.
        _ if tie.is_damaged => return Ok(()),
        Relation::Own => return Ok(()),
        _ if planted(Fault::TrustJournal) => return Ok(()),
        Relation::Copied if moved => return Ok(()),
        Relation::Copied | Relation::Foreign => (
            ErrorKind::Busy,
            "this device is a copy, and the process journal belongs to the original\n\
             help: serve the original"
                .to_owned(),
        ),
        Relation::Newer => (
            ErrorKind::Lost,
            format!(
                "the cache device holds an earlier state: it is at opening {generation}, the \
                 process journal at {}",
                tie.generation
            ),
        ),
        Relation::Older => (
            ErrorKind::Lost,
            format!(
                "the process journal is an earlier one: it is of opening {}, the cache device at \
                 {generation}",
                tie.generation
            ),
        ),
    };
    Err(Error::new(kind, what))
}

/// Most ranges that a message names.
const NAMED: usize = 4;

/// Names the ranges in which acknowledged writes may be lost with the process journal, in the words
/// of a remedy.
#[must_use]
pub fn writes_at_stake(superblock: &Superblock) -> String {
    let ranges = may_be_dirty(superblock);
    let bytes: u64 = ranges.iter().map(|range| range.len).sum();
    let named = |range: &LostRange| {
        format!(
            "{} bytes at {} of volume {:?}",
            range.len, range.offset, range.volume
        )
    };
    let named: Vec<_> = ranges.iter().take(NAMED).map(named).collect();
    let more = if ranges.len() > NAMED { ", ..." } else { "" };
    match ranges.len() {
        0 => ": nothing was dirty when the superblock was last written".to_owned(),
        1 => format!(
            ": lost writes would be within 1 range, {bytes} bytes ({})",
            named[0]
        ),
        count => format!(
            ": lost writes would be within {count} ranges, {bytes} bytes ({}{more})",
            named.join(", ")
        ),
    }
}

/// Returns what the superblock calls dirty; everything, if it does not know.
pub(crate) fn may_be_dirty(superblock: &Superblock) -> Vec<LostRange> {
    let mut ranges = Vec::new();
    for volume in &superblock.volumes {
        let mut add = |offset: u64, len: u64| {
            ranges.push(LostRange {
                volume: volume.name.clone(),
                offset,
                len,
            });
        };
        let Some(zones) = &superblock.zones else {
            add(0, volume.size_bytes);
            continue;
        };
        let zone = 1 << zones.shift();
        for nth in 0..volume.size_bytes.div_ceil(zone) {
            let (start, end) = (nth * zone, ((nth + 1) * zone).min(volume.size_bytes));
            if zones.may_be_dirty(volume.id, start..end) {
                add(start, end - start);
            }
        }
    }
    LostRange::joined(ranges)
}
