//! Garbage collection: moves what is live in an object to the end of the log.
//!
//! A move is a write of data that the volume has already. It is appended only where the map still
//! names the source, in one step of one task. So the log has moves and writes in the order in which
//! they had their effect, and replay needs no condition.

use std::ops::Range;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use forebay_block::{Result, completion_pair};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::checkpointer::delete_free;
use crate::chunks::{Source, chunks_with, read_runs, runs_of};
use crate::core::{Change, Core, Log};
use crate::fault::Fault;
use crate::map::Place;
use crate::objects::Object;
use crate::reader::{explain, is_replaced};
use crate::replay::read_header;
use crate::writer::submit;

/// Number of objects that are collected at once.
const VICTIMS: usize = 4;
/// Maximum number of small objects that are merged at once.
const MERGED: usize = 256;

/// Returns whether there is more garbage than is allowed.
fn has_garbage(core: &Core, log: &Log) -> bool {
    let sums = log.chain.objects.sums();
    sums.stored_bytes > 2 * sums.live_bytes + core.limits.slack_bytes
}

/// Returns whether there is something to collect.
pub(crate) fn is_due(core: &Core) -> bool {
    let log = core.log.borrow();
    let sums = log.chain.objects.sums();
    log.stalled.is_none() && (has_garbage(core, &log) || sums.small > core.limits.small_objects)
}

/// Returns the objects to collect, by number.
fn choose(core: &Core) -> Vec<u32> {
    let log = core.log.borrow();
    let objects = log.chain.objects.iter();
    let is_movable = |it: &Object| it.live_sectors > 0 && it.pins == 0 && Source::of(it).is_some();
    let movable = objects.filter(|(_, it)| is_movable(it));
    if has_garbage(core, &log) {
        let share = |it: &Object| it.live_bytes() * 1024 / it.stored_bytes.max(1);
        let mut movable: Vec<_> = movable.map(|(number, it)| (share(it), number)).collect();
        let count = VICTIMS.min(movable.len());
        if count < movable.len() {
            movable.select_nth_unstable(count);
        }
        return movable
            .into_iter()
            .take(count)
            .map(|(_, number)| number)
            .collect();
    }
    // The oldest small objects: those that follow may still change much.
    let small = movable.filter(|(_, it)| it.stored_bytes < core.limits.small_bytes);
    let mut small: Vec<_> = small.map(|(number, it)| (it.seq, number)).collect();
    small.sort_unstable();
    let numbers = small.into_iter().map(|(_, number)| number);
    numbers.take(MERGED).collect()
}

/// Moves the data of some objects. Returns whether there were any.
///
/// # Errors
/// Errors of the store. `Corrupt` for an object that does not verify.
pub(crate) async fn collect(core: &Rc<Core>) -> Result<bool> {
    let chosen = choose(core);
    let has_any = !chosen.is_empty();
    // A pinned object keeps its number while its data move.
    pin(core, &chosen, true);
    let moves = chosen.iter().map(|number| move_object(core, *number));
    let mut moves = futures_util::stream::iter(moves).buffer_unordered(VICTIMS);
    let mut outcome = Ok(has_any);
    while let Some(moved) = moves.next().await {
        match moved {
            Ok(()) => {}
            Err(error) if is_replaced(&error) => {
                outcome = Err(explain(core, error).await);
            }
            Err(error) => outcome = Err(error),
        }
    }
    drop(moves);
    pin(core, &chosen, false);
    if core.faults.has(Fault::DeleteUncovered) {
        delete_free(core).await?;
    }
    outcome
}

fn pin(core: &Core, numbers: &[u32], is_pinned: bool) {
    let mut log = core.log.borrow_mut();
    for number in numbers {
        log.chain.objects.change(*number, |it| match is_pinned {
            true => it.pins += 1,
            false => it.pins -= 1,
        });
    }
}

/// Live data of an object.
struct Live {
    /// First sector on the volume.
    first: u64,
    /// Sectors within the payload.
    sectors: Range<u32>,
}

async fn move_object(core: &Rc<Core>, number: u32) -> Result<()> {
    let source = Source::of(core.log.borrow().chain.objects.get(number));
    let Some(source) = source else { return Ok(()) };
    let seq = source.seq;
    let live = find_live(core, number, seq).await?;
    let chunks = live.iter().map(|it| chunks_with(it.sectors.clone()));
    let runs = runs_of(chunks).into_iter().map(|run| (source.clone(), run));
    let mut data: Vec<_> = live.iter().map(|it| zeroed(it.sectors.clone())).collect();
    let read = read_runs(&core.link, runs.collect(), |run| {
        for (live, data) in live.iter().zip(&mut data) {
            run.each(live.sectors.clone(), |sector, part| {
                let at = crate::objects::bytes_of(sector - live.sectors.start);
                data[at..at + part.len()].copy_from_slice(part);
            });
        }
    });
    read.await?;
    let mut moves = FuturesUnordered::new();
    for (live, data) in live.into_iter().zip(data) {
        let (done, future) = completion_pair();
        let change = Change::Move {
            first: live.first,
            source: Place {
                object: number,
                offset: live.sectors.start,
            },
            data: Bytes::from(data),
        };
        submit(core, change, done);
        moves.push(future);
    }
    while let Some(moved) = moves.next().await {
        moved?;
    }
    Ok(())
}

fn zeroed(sectors: Range<u32>) -> BytesMut {
    BytesMut::zeroed(crate::objects::bytes_of(sectors.end - sectors.start))
}

/// Returns the data of an object that the map names, in the order of the payload.
async fn find_live(core: &Core, number: u32, seq: u64) -> Result<Vec<Live>> {
    let header = read_header(&core.link, &core.volume, seq).await?;
    let mut live: Vec<Live> = Vec::new();
    let mut offset = 0;
    let log = core.log.borrow();
    for record in header.records.iter().filter(|it| it.is_data) {
        let sectors = record.first..record.first + u64::from(record.sectors);
        let own = Place {
            object: number,
            offset,
        };
        log.chain.map.visit(sectors, |piece| {
            let begin = piece.sectors.start - record.first;
            let Some(place) = piece.place.filter(|it| *it == own.at(begin)) else {
                return;
            };
            let len = u32::try_from(piece.sectors.end - piece.sectors.start).expect("bounded");
            live.push(Live {
                first: piece.sectors.start,
                sectors: place.offset..place.offset + len,
            });
        });
        offset += record.sectors;
    }
    Ok(live)
}
