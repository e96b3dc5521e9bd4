//! Reads of a volume.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Buf, Completion, Error, ErrorKind, Result};
use forebay_io::rt;

use crate::chunks::{Source, chunks_with, read_runs, runs_of};
use crate::claim::fenced;
use crate::core::{Core, Log};
use crate::format::{SECTOR_BYTES, seq_of};
use crate::map::Place;
use crate::objects::{Content, bytes_of};
use crate::replay::read_header;

/// Part of a read that is in the store.
struct Part {
    /// First sector on the volume.
    first: u64,
    /// Sectors within the payload.
    sectors: Range<u32>,
    source: Source,
}

/// Reads sectors from `first` into `buf`.
pub(crate) fn read(core: &Rc<Core>, first: u64, buf: Buf, done: Completion) {
    let sectors = first..first + buf.len() as u64 / SECTOR_BYTES;
    let parts = look_up(core, first, sectors, &buf);
    match parts {
        Err(error) => done.complete(Err(error)),
        Ok(parts) if parts.is_empty() => done.complete(Ok(())),
        Ok(parts) => {
            let core = Rc::clone(core);
            rt::spawn(async move { done.complete(fetch(&core, first, &buf, parts).await) });
        }
    }
}

/// Copies the parts of `sectors` that are in memory. Returns the others. `buf` begins at sector
/// `first`.
fn look_up(core: &Core, first: u64, sectors: Range<u64>, buf: &Buf) -> Result<Vec<Part>> {
    let log = core.log.borrow();
    log.check()?;
    let mut parts = Vec::new();
    log.chain.map.visit(sectors, |piece| {
        let begin = ((piece.sectors.start - first) * SECTOR_BYTES) as usize;
        let len = u32::try_from(piece.sectors.end - piece.sectors.start);
        match piece.place {
            None => {
                let end = ((piece.sectors.end - first) * SECTOR_BYTES) as usize;
                buf.slice(begin..end).fill(0);
            }
            Some(place) => {
                let len = len.expect("shorter than a payload");
                let part = copy(&log, place, len, piece.sectors.start, buf, begin);
                parts.extend(part);
            }
        }
    });
    Ok(parts)
}

/// Copies data that are in memory. Returns a part for those in the store.
fn copy(log: &Log, place: Place, len: u32, first: u64, buf: &Buf, begin: usize) -> Option<Part> {
    let object = log.chain.objects.get(place.object);
    let bytes = bytes_of(place.offset)..bytes_of(place.offset + len);
    match &object.content {
        Content::Open => buf.copy_from(begin, &log.batch.payload[bytes]),
        Content::Closed(payload) => buf.copy_from(begin, &payload[bytes]),
        Content::Stored(..) => {
            let source = Source::of(object).expect("the content is stored");
            return Some(Part {
                first,
                sectors: place.offset..place.offset + len,
                source,
            });
        }
        Content::Pinned => unreachable!("the map names no object without chunks"),
    }
    None
}

/// Reads parts that are in the store. An object may be deleted meanwhile, after its data moved.
async fn fetch(core: &Rc<Core>, first: u64, buf: &Buf, mut parts: Vec<Part>) -> Result<()> {
    loop {
        let before: Vec<_> = parts.iter().map(|it| (it.first, it.source.seq)).collect();
        let missing = match fetch_once(core, first, buf, &parts).await {
            Ok(()) => return core.log.borrow().check(),
            Err(error) if is_replaced(&error) => error,
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for part in &parts {
            let end = part.first + u64::from(part.sectors.end - part.sectors.start);
            found.extend(look_up(core, first, part.first..end, buf)?);
        }
        let now: Vec<_> = found.iter().map(|it| (it.first, it.source.seq)).collect();
        if now == before {
            return Err(explain(core, missing).await);
        }
        if found.is_empty() {
            return Ok(());
        }
        parts = found;
    }
}

async fn fetch_once(core: &Core, first: u64, buf: &Buf, parts: &[Part]) -> Result<()> {
    let mut by_object: BTreeMap<u64, Vec<&Part>> = BTreeMap::new();
    for part in parts {
        by_object.entry(part.source.seq).or_default().push(part);
    }
    let mut runs = Vec::new();
    for parts in by_object.values_mut() {
        parts.sort_by_key(|it| it.sectors.start);
        let source = &parts[0].source;
        let chunks = parts.iter().map(|it| chunks_with(it.sectors.clone()));
        runs.extend(runs_of(chunks).into_iter().map(|run| (source.clone(), run)));
    }
    read_runs(&core.link, runs, |run| {
        for part in &by_object[&run.source.seq] {
            run.each(part.sectors.clone(), |sector, data| {
                let at = part.first - first + u64::from(sector - part.sectors.start);
                buf.copy_from((at * SECTOR_BYTES) as usize, data);
            });
        }
    })
    .await
}

/// Returns whether an object is not what it was. It may have been deleted since. A late creation of
/// another object in its place is possible then.
pub(crate) fn is_replaced(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt)
}

/// Returns the error for an object that is missing or differs. Another writer may have deleted it.
pub(crate) async fn explain(core: &Rc<Core>, missing: Error) -> Error {
    let Some(writer) = &core.writer else {
        if missing.kind() == ErrorKind::Corrupt {
            return missing;
        }
        let what = format!(
            "volume {}: its writer has deleted an object that is still to be read\n\
             help: open the volume again",
            core.link.name()
        );
        return Error::with_source(ErrorKind::Busy, what, missing);
    };
    if let Some(error) = find_successor(core, writer).await {
        return error;
    }
    if missing.kind() == ErrorKind::Corrupt {
        return missing;
    }
    let what = format!(
        "object store {}: DATA IS LOST: an object of the log is missing\n\
         help: restore the object from a version or a copy of the folder",
        core.link.name()
    );
    Error::with_source(ErrorKind::Lost, what, missing)
}

/// Fails the volume if a later writer has claimed its log. Returns the error then.
async fn find_successor(core: &Rc<Core>, writer: &crate::claim::Writer) -> Option<Error> {
    let durable = {
        let log = core.log.borrow();
        log.seq_of(log.durable)
    };
    // Objects of this writer may follow the durable part, or may have been deleted. The claim
    // follows them.
    for listed in core.link.list("log/").await.ok()? {
        let Some(seq) = seq_of(&listed.name).filter(|seq| *seq >= durable) else {
            continue;
        };
        match read_header(&core.link, &writer.volume, seq).await {
            Ok(header) if header.epoch > writer.epoch => {
                let error = fenced(&core.link, &writer.volume, &header).await;
                core.fail_in_service(&error);
                return Some(error);
            }
            _ => {}
        }
    }
    None
}
