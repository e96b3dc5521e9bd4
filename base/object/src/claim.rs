//! The claim by which a writer owns the log.
//!
//! A claim takes the first free place of the log. No writer before it can append anything there, so
//! that no later flush of such a writer is good. `docs/internals/object-volumes.md` has the
//! argument.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::system::wall_clock;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;

use crate::chain::Chain;
use crate::fault::{Fault, Faults};
use crate::format::log::{Header, Kind};
use crate::format::superblock::Superblock;
use crate::format::{Id, PIPELINE, log_name};
use crate::limits::Limits;
use crate::link::Link;
use crate::replay::{follow, is_newest, load, read_header};
use crate::store::Creation;

/// Identity of a writer.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) volume: Superblock,
    pub(crate) id: Id,
    pub(crate) epoch: u64,
    /// Place of its claim.
    pub(crate) claim: u64,
    /// Size of the volume, bytes.
    pub(crate) size_bytes: u64,
}

impl Writer {
    /// Returns the header of an object of this writer, without content.
    pub(crate) fn header(&self, kind: Kind, seq: u64) -> Header {
        Header {
            kind,
            volume: self.volume.id,
            writer: self.id,
            epoch: self.epoch,
            seq,
            claim: self.claim,
            size_bytes: self.size_bytes,
            time: wall_clock(),
            snapshot: Id::default(),
            durable_to: None,
            text: String::new(),
            records: Vec::new(),
            payload_sectors: 0,
            chunks: Vec::new(),
            crc: 0,
        }
    }
}

/// Meaning of an object at a place that a writer wanted.
#[derive(Debug)]
pub(crate) enum Occupant {
    /// An earlier attempt of the writer.
    Own,
    /// An object of an earlier writer.
    Orphan(Header),
    /// An object of a later writer.
    Successor(Header),
    /// The object has been deleted.
    Gone,
}

/// Finds whose object is at a place that the writer wanted. `content` is what it wanted to create.
///
/// # Errors
/// `Corrupt` if the object does not verify. Errors of the store.
pub(crate) async fn occupant(
    link: &Link<'_>,
    writer: &Writer,
    seq: u64,
    content: &Bytes,
) -> Result<Occupant> {
    let header = match read_header(link, &writer.volume, seq).await {
        Ok(header) => header,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Occupant::Gone),
        Err(error) => return Err(error),
    };
    let own = Header::decode(content)?;
    let is_own = header.writer == writer.id && header.crc == own.crc;
    Ok(match header.epoch {
        _ if is_own => Occupant::Own,
        epoch if epoch > writer.epoch => Occupant::Successor(header),
        _ => Occupant::Orphan(header),
    })
}

/// Returns the time of a claim for a message. Returns nothing for a clock beyond the year 9999.
fn in_words(time: Duration) -> String {
    const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);
    match time < YEAR_10000 {
        true => {
            let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + time);
            format!(" at {time}")
        }
        false => String::new(),
    }
}

/// Error of a writer whose successor has the volume.
pub(crate) async fn fenced(link: &Link<'_>, volume: &Superblock, seen: &Header) -> Error {
    let successor = match claimant(link, volume, seen.claim).await {
        Ok(Some(claimant)) => {
            let time = in_words(claimant.time);
            format!("{} took it over{time}", claimant.text)
        }
        _ => "another writer took it over".to_owned(),
    };
    taken(link, &successor)
}

/// Condition of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// There is no condition.
    Always,
    /// No other writer has claimed the log since it was loaded.
    SameWriter,
}

/// Properties of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Identity of the writer.
    pub(crate) id: Id,
    /// New size of the volume, bytes; `None` for the size that it has.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) condition: Condition,
}

/// Writer that has claimed a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Identity of the writer.
    pub id: Id,
    /// Its process and host.
    pub text: String,
    /// Time of its claim, since 1970.
    pub time: Duration,
}

/// Returns the writer whose claim is at this place; `None` for place 0, which no claim has.
///
/// # Errors
/// `Corrupt` if the claim does not verify. Errors of the store.
pub(crate) async fn claimant(
    link: &Link<'_>,
    volume: &Superblock,
    seq: u64,
) -> Result<Option<Claimant>> {
    if seq == 0 {
        return Ok(None);
    }
    let claim = read_header(link, volume, seq).await?;
    Ok(Some(Claimant {
        id: claim.writer,
        text: claim.text,
        time: claim.time,
    }))
}

/// Error of a daemon that has lost a volume to another one. `how` says by whom.
pub(crate) fn taken(link: &Link<'_>, how: &str) -> Error {
    let what = format!(
        "volume {}: {how}\n\
         help: stop one of the two daemons, and start the one that is to serve the volume",
        link.name()
    );
    Error::new(ErrorKind::Busy, what)
}

/// Claims the log. Returns the state of the volume at the writer's first place, and the place of
/// the checkpoint that it began with. `known` is a state that was loaded before. A larger size is
/// the new size of the volume.
///
/// # Errors
/// - `InvalidInput` for a size that is less than that of the volume.
/// - `Busy` if another writer claims the log at the same time, or has claimed it against the
///   condition.
/// - `Corrupt` if an object does not verify. Errors of the store.
pub(crate) async fn claim(
    link: &Link<'_>,
    volume: &Superblock,
    wanted: &Wanted,
    mut known: Option<(Chain, Option<u64>)>,
    limits: Limits,
    faults: Faults,
) -> Result<(Chain, Writer, Option<u64>)> {
    let seen = known.as_ref().map(|(chain, _)| chain.claim);
    let seen = seen.filter(|_| wanted.condition == Condition::SameWriter);
    loop {
        // A known state may be old: the objects that follow are applied where they are in the way.
        let (mut chain, base) = match known.take() {
            Some(known) => known,
            None => load(link, volume, limits, faults).await?,
        };
        let claimed = append_claim(link, volume, &mut chain, wanted, seen).await;
        let is_error = claimed
            .as_ref()
            .is_err_and(|it| it.kind() != ErrorKind::Corrupt);
        // A deleted object could have looked like the end of the log, or a late creation like an
        // object of it.
        if !faults.has(Fault::MissingIsEnd) && !is_error && !is_newest(link, base).await? {
            continue;
        }
        let Some(writer) = claimed? else { continue };
        if !faults.has(Fault::NoBarriers) && !faults.has(Fault::NoClaim) {
            append_barriers(link, &mut chain, &writer).await?;
        }
        return Ok((chain, writer, base));
    }
}

/// Checks that a volume of `has_bytes` can get this size.
///
/// # Errors
/// `InvalidInput` for a size that is less.
pub(crate) fn check_growth(link: &Link<'_>, size_bytes: u64, has_bytes: u64) -> Result<()> {
    match size_bytes < has_bytes {
        true => Err(smaller(link, size_bytes, has_bytes)),
        false => Ok(()),
    }
}

fn smaller(link: &Link<'_>, size_bytes: u64, has_bytes: u64) -> Error {
    let what = format!(
        "volume {}: its size is {has_bytes} bytes; {size_bytes} are less\n\
         help: a volume cannot shrink; set a size of at least {has_bytes} bytes, or none",
        link.name()
    );
    Error::new(ErrorKind::InvalidInput, what)
}

/// Creates the claim at the first free place. Returns `None` if the log has to be loaded again.
/// `seen` is the place of the claim that has to be the last one.
async fn append_claim(
    link: &Link<'_>,
    volume: &Superblock,
    chain: &mut Chain,
    wanted: &Wanted,
    seen: Option<u64>,
) -> Result<Option<Writer>> {
    loop {
        if seen.is_some_and(|seen| seen != chain.claim) {
            let claimant = claimant(link, volume, chain.claim).await?;
            // This claim may be in the log already: after it, a new checkpoint was found.
            if claimant.as_ref().is_none_or(|it| it.id != wanted.id) {
                let name = claimant.map_or_else(|| "another writer".to_owned(), |it| it.text);
                let how = format!("{name} took it over during this start");
                return Err(taken(link, &how));
            }
        }
        let size_bytes = wanted.size_bytes.unwrap_or(chain.size_bytes);
        check_growth(link, size_bytes, chain.size_bytes)?;
        let seq = chain.seq + 1;
        let writer = Writer {
            volume: volume.clone(),
            id: wanted.id,
            epoch: chain.epoch + 1,
            claim: seq,
            size_bytes,
        };
        let header = Header {
            text: this_process(),
            durable_to: Some(seq - 1),
            ..writer.header(Kind::Claim, seq)
        };
        let content = encoded(&header);
        if chain.faults.has(Fault::NoClaim) {
            chain.epoch = writer.epoch;
            return Ok(Some(writer));
        }
        let mut is_ours = true;
        if link.create(&log_name(seq), &content).await? == Creation::Exists {
            match occupant(link, &writer, seq, &content).await? {
                Occupant::Own => {}
                Occupant::Gone => return Ok(None),
                Occupant::Orphan(other) | Occupant::Successor(other) => {
                    chain.apply(&other)?;
                    follow(link, volume, chain).await?;
                    is_ours = false;
                }
            }
        }
        if is_ours {
            chain.apply(&header)?;
            return Ok(Some(writer));
        }
    }
}

/// Occupies the places that objects of earlier writers could take late. Each writer has at most
/// [`PIPELINE`] creations beyond the durable part of its log, which ends before the claim.
async fn append_barriers(link: &Link<'_>, chain: &mut Chain, writer: &Writer) -> Result<()> {
    let places = writer.claim + 1..writer.claim + PIPELINE;
    let barriers = places.map(|seq| create_barrier(link, writer, seq));
    let mut barriers: FuturesOrdered<_> = barriers.collect();
    while let Some(header) = barriers.next().await {
        chain.apply(&header?)?;
    }
    Ok(())
}

/// Occupies a place. Returns the header of the object there.
async fn create_barrier(link: &Link<'_>, writer: &Writer, seq: u64) -> Result<Header> {
    let header = Header {
        durable_to: Some(writer.claim),
        ..writer.header(Kind::Barrier, seq)
    };
    let content = encoded(&header);
    loop {
        if link.create(&log_name(seq), &content).await? == Creation::Created {
            return Ok(header);
        }
        match occupant(link, writer, seq, &content).await? {
            Occupant::Own => return Ok(header),
            Occupant::Orphan(orphan) => return Ok(orphan),
            Occupant::Successor(seen) => return Err(fenced(link, &writer.volume, &seen).await),
            Occupant::Gone => {}
        }
    }
}

/// Returns the content of an object without chunks.
fn encoded(header: &Header) -> Bytes {
    let mut content = Vec::new();
    header.encode_to(&mut content);
    content.into()
}

/// Returns a description of this process for the claim.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().take(255).collect();
    let host = if host.is_empty() { "a host" } else { &host };
    format!("process {} on {host}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_show_any_time() {
        assert_eq!(in_words(Duration::ZERO), " at 1970-01-01T00:00:00Z");
        let last = in_words(Duration::from_secs(253_402_300_799));
        assert_eq!(last, " at 9999-12-31T23:59:59Z");
        assert_eq!(in_words(Duration::from_secs(253_402_300_800)), "");
        assert_eq!(in_words(Duration::MAX), "");
    }
}
