//! The writer of the log: changes become batches, and batches become objects.

use std::rc::Rc;

use forebay_block::{Completion, Error, ErrorKind, IoFuture, Result, completion_pair};
use forebay_io::rt;

use crate::batch::{Closed, Sealed, seal};
use crate::claim::{Occupant, fenced, occupant};
use crate::core::{Change, Core, Log, Queued};
use crate::fault::Fault;
use crate::format::log::{Header, Kind, MAX_RECORDS, Record};
use crate::format::{PIPELINE, SECTOR_BYTES, corrupt, log_name};
use crate::link::Pause;
use crate::map::Place;
use crate::objects::{Content, Object, bytes_of};
use crate::store::Creation;

/// Maximum length of zeroes in a record, sectors.
const MAX_ZERO_SECTORS: u64 = 1 << 31;
/// Blocks of this length are written wholly or not at all, sectors.
pub(crate) const ATOMIC_SECTORS: u64 = 8;

/// Makes a change, now or when there is room.
pub(crate) fn submit(core: &Rc<Core>, change: Change, done: Completion) {
    let refused = refusal(core);
    if let Err(error) = refused {
        return done.complete(Err(error));
    }
    let queued = Queued {
        change,
        at: 0,
        done,
    };
    core.log.borrow_mut().queue.push_back(queued);
    pump(core);
}

/// Makes all acknowledged changes durable.
pub(crate) fn flush(core: &Rc<Core>, done: Completion) {
    let refused = refusal(core);
    if let Err(error) = refused {
        return done.complete(Err(error));
    }
    let mut log = core.log.borrow_mut();
    let target = log.batch.number + u64::from(!log.batch.is_empty());
    if target <= log.durable {
        drop(log);
        return done.complete(Ok(()));
    }
    log.flushes.push_back((target, done));
    log.wants_close |= !log.batch.is_empty();
    drop(log);
    pump(core);
}

/// Flushes as [`flush`], and returns the completion as a future.
pub(crate) fn flushed(core: &Rc<Core>) -> IoFuture {
    let (done, future) = completion_pair();
    flush(core, done);
    future
}

/// Waits until all closed batches are durable. The wait begins with the call.
pub(crate) fn closed_are_durable(log: &mut Log) -> IoFuture {
    let (done, future) = completion_pair();
    let target = log.batch.number;
    if target <= log.durable {
        done.complete(Ok(()));
    } else {
        log.flushes.push_back((target, done));
    }
    future
}

fn refusal(core: &Core) -> Result<()> {
    core.writer()?;
    let log = core.log.borrow();
    log.check()?;
    log.stalled.clone().map_or(Ok(()), Err)
}

/// Makes the changes for which there is room, and creates the objects that may be created.
pub(crate) fn pump(core: &Rc<Core>) {
    let mut done = Vec::new();
    let mut fua = Vec::new();
    {
        let log = &mut *core.log.borrow_mut();
        if log.wants_close {
            close_batch(core, log);
        }
        while let Some(mut queued) = log.queue.pop_front() {
            if !make(core, log, &queued.change, &mut queued.at) {
                log.queue.push_front(queued);
                break;
            }
            match queued.change {
                Change::Write { fua: true, .. } | Change::Zero { fua: true, .. } => {
                    fua.push(queued.done);
                }
                _ => done.push(queued.done),
            }
        }
    }
    for done in done {
        done.complete(Ok(()));
    }
    start_uploads(core);
    for done in fua {
        flush(core, done);
    }
}

/// Makes a change from sector `at` of it. Returns whether all of it is done; otherwise there is no
/// room.
fn make(core: &Core, log: &mut Log, change: &Change, at: &mut u64) -> bool {
    match change {
        Change::Write { first, buf, .. } => {
            let len = buf.len() as u64 / SECTOR_BYTES;
            while *at < len {
                let Some(take) = room(core, log, first + *at, len - *at) else {
                    return false;
                };
                let from = (*at * SECTOR_BYTES) as usize;
                append(log, first + *at, take, |out| buf.copy_to(from, out));
                *at += take;
            }
        }
        Change::Zero { sectors, .. } => {
            while sectors.start + *at < sectors.end {
                if !make_record_room(core, log) {
                    return false;
                }
                let start = sectors.start + *at;
                let longest = start + MAX_ZERO_SECTORS;
                let end = sectors.end.min(longest - longest % ATOMIC_SECTORS);
                append_zeroes(log, start, end);
                *at = end - sectors.start;
            }
        }
        Change::Move {
            first,
            source,
            data,
        } => {
            let len = data.len() as u64 / SECTOR_BYTES;
            while *at < len {
                let Some(take) = room(core, log, first + *at, len - *at) else {
                    return false;
                };
                let sectors = first + *at..first + *at + take;
                for piece in log.chain.map.pieces(sectors.clone()) {
                    let begin = piece.sectors.start - first;
                    let end = piece.sectors.end - first;
                    let is_there = piece.place == Some(source.at(begin));
                    if !is_there && !core.faults.has(Fault::BlindMove) {
                        continue;
                    }
                    let from = (begin * SECTOR_BYTES) as usize;
                    let to = (end * SECTOR_BYTES) as usize;
                    append(log, piece.sectors.start, end - begin, |out| {
                        out.copy_from_slice(&data[from..to]);
                    });
                    *log.moved_sectors.entry(log.batch.number).or_default() += end - begin;
                }
                *at += take;
            }
        }
    }
    true
}

/// Makes room for a record in the open batch: closes a full batch. Returns whether there is room.
fn make_record_room(core: &Core, log: &mut Log) -> bool {
    log.batch.records.len() < MAX_RECORDS || close_batch(core, log)
}

/// Makes room for sectors at `first` in the open batch: closes a full batch. Returns the number of
/// sectors that fit, at most `wanted`, without a split of an atomic block. `None` if none fits.
fn room(core: &Core, log: &mut Log, first: u64, wanted: u64) -> Option<u64> {
    loop {
        let used = log.batch.payload.len() as u64 / SECTOR_BYTES;
        let free = u64::from(core.limits.batch_sectors).saturating_sub(used);
        // A move may need a record for each sector.
        let records = MAX_RECORDS.saturating_sub(log.batch.records.len()) as u64;
        let mut end = first + wanted.min(free).min(records);
        if end < first + wanted {
            end -= end % ATOMIC_SECTORS;
        }
        if end > first {
            return Some(end - first);
        }
        if !close_batch(core, log) {
            return None;
        }
    }
}

/// Appends data to the open batch. `copy` copies them.
fn append(log: &mut Log, first: u64, sectors: u64, copy: impl FnOnce(&mut [u8])) {
    let short = u32::try_from(sectors).expect("shorter than a batch");
    let object = open_object(log);
    // Data that the open batch has already are replaced there.
    let mut pieces = log.chain.map.pieces(first..first + sectors);
    if let (Some(only), true) = (pieces.pop(), pieces.is_empty())
        && let Some(place) = only.place.filter(|it| it.object == object)
    {
        // Moved data may be replaced, so that less than before is in the store at an old place.
        if let Some(moved) = log.moved_sectors.get_mut(&log.batch.number) {
            *moved = moved.saturating_sub(sectors);
        }
        let begin = bytes_of(place.offset);
        return copy(&mut log.batch.payload[begin..begin + bytes_of(short)]);
    }
    let begin = log.batch.payload.len();
    log.batch.payload.resize(begin + bytes_of(short), 0);
    copy(&mut log.batch.payload[begin..]);
    let offset = u32::try_from(begin / bytes_of(1)).expect("shorter than a batch");
    let place = Place { object, offset };
    log.chain.replace(first..first + sectors, Some(place));
    log.batch.push(Record {
        first,
        sectors: short,
        is_data: true,
    });
}

/// Appends zeroes to the open batch, if there is anything else now.
fn append_zeroes(log: &mut Log, start: u64, end: u64) {
    let mut is_mapped = false;
    log.chain
        .map
        .visit(start..end, |piece| is_mapped |= piece.place.is_some());
    if is_mapped {
        log.chain.replace(start..end, None);
        log.batch.push(Record {
            first: start,
            sectors: u32::try_from(end - start).expect("a short record"),
            is_data: false,
        });
    }
}

/// Returns the object of the open batch, by its number in the table.
fn open_object(log: &mut Log) -> u32 {
    let seq = log.seq_of(log.batch.number);
    let objects = &mut log.chain.objects;
    let new = || objects.add(Object::new(seq, Content::Open));
    *log.batch.object.get_or_insert_with(new)
}

/// Closes the open batch if its object may be created now. Returns whether an empty batch is open.
fn close_batch(core: &Core, log: &mut Log) -> bool {
    let may =
        log.batch.number < log.durable + PIPELINE || core.faults.has(Fault::UnboundedPipeline);
    if may {
        close_any_batch(log);
    }
    may
}

/// Closes the open batch. Its object is created when the log has room for it.
pub(crate) fn close_any_batch(log: &mut Log) {
    if log.batch.is_empty() {
        return;
    }
    let object = open_object(log);
    log.moved_sectors = log.moved_sectors.split_off(&log.durable);
    log.wants_close = false;
    let batch = std::mem::take(&mut log.batch);
    log.batch.number = batch.number + 1;
    let payload = bytes::Bytes::from(batch.payload);
    log.chain.objects.change(object, |it| {
        it.content = Content::Closed(payload.clone());
        it.stored_bytes = payload.len() as u64;
        it.payload_sectors = u32::try_from(payload.len() / bytes_of(1)).expect("bounded");
    });
    log.chain.seq = log.seq_of(batch.number);
    log.closed.push_back(Closed {
        number: batch.number,
        seq: log.seq_of(batch.number),
        object,
        payload,
        records: batch.records,
        snapshot: batch.snapshot,
    });
}

/// Creates the objects that may be created. Those in flight are at most [`PIPELINE`] beyond the
/// durable part of the log.
pub(crate) fn start_uploads(core: &Rc<Core>) {
    loop {
        let mut log = core.log.borrow_mut();
        let end = match core.faults.has(Fault::UnboundedPipeline) {
            true => u64::MAX,
            false => log.durable + PIPELINE,
        };
        if log.failed.is_some() || log.closed.front().is_none_or(|it| it.number >= end) {
            return;
        }
        let closed = log.closed.pop_front().expect("it is there");
        if log.durable == closed.number {
            log.progress = rt::now(); // Nothing else is in flight.
        }
        if !log.is_watched {
            log.is_watched = true;
            rt::spawn(watch(Rc::clone(core)));
        }
        drop(log);
        rt::spawn(upload(Rc::clone(core), closed));
    }
}

/// Creates the object of a batch, however long it takes.
async fn upload(core: Rc<Core>, closed: Closed) {
    let writer = core.writer.as_ref().expect("only a writer has batches");
    let durable_to = {
        let log = core.log.borrow();
        log.seq_of(log.durable) - 1
    };
    let header = Header {
        records: closed.records,
        snapshot: closed.snapshot,
        durable_to: Some(durable_to),
        ..writer.header(Kind::Data, closed.seq)
    };
    let sealed = seal(header, &closed.payload).await;
    let mut pause = Pause::new(core.link.times);
    while !core.has_failed() {
        match create(&core, closed.seq, &sealed).await {
            Ok(true) => return finish(&core, closed.number, closed.object, &sealed),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => core.fail_in_service(&error),
            Err(error) => {
                tracing::debug!("{}", error.report());
                core.log.borrow_mut().last_error = Some(error);
                pause.wait().await;
            }
        }
    }
}

/// Creates an object of the log, in one attempt. Returns whether it is there.
async fn create(core: &Rc<Core>, seq: u64, sealed: &Sealed) -> Result<bool> {
    let writer = core.writer()?;
    let name = log_name(seq);
    if core.link.create_once(&name, &sealed.content).await? == Creation::Created
        || core.faults.has(Fault::ExistsIsOwn)
    {
        return Ok(true);
    }
    match occupant(&core.link, writer, seq, &sealed.content).await? {
        Occupant::Own => Ok(true),
        Occupant::Gone => Ok(false),
        Occupant::Successor(seen) => {
            let error = fenced(&core.link, &writer.volume, &seen).await;
            core.fail_in_service(&error);
            Ok(false)
        }
        Occupant::Orphan(_) => {
            let what = format!(
                "object {name} of {}: another writer created it where none may\n\
                 help: see whether the folder was copied or restored while it was in use",
                core.link.name()
            );
            Err(corrupt(&what))
        }
    }
}

/// Records that an object is in the store, and completes the flushes that waited for it.
fn finish(core: &Rc<Core>, number: u64, object: u32, sealed: &Sealed) {
    let mut log = core.log.borrow_mut();
    log.chain.objects.change(object, |it| {
        it.content = Content::Stored(sealed.header_bytes, sealed.chunks.clone());
        it.stored_bytes = sealed.content.len() as u64;
    });
    log.since_bytes += sealed.content.len() as u64;
    log.since_objects += 1;
    log.ahead.insert(number);
    let mut durable = log.durable;
    while log.ahead.remove(&durable) {
        durable += 1;
    }
    log.durable = durable;
    if core.faults.has(Fault::FlushOverGap) {
        durable = durable.max(number + 1);
    }
    log.progress = rt::now();
    if log.stalled.take().is_some() {
        tracing::info!("object store {} answers again", core.link.name());
    }
    let count = log
        .flushes
        .iter()
        .take_while(|(target, _)| *target <= durable)
        .count();
    let flushes: Vec<_> = log.flushes.drain(..count).collect();
    drop(log);
    for (_, done) in flushes {
        done.complete(Ok(()));
    }
    pump(core);
    core.work.wake_all();
}

/// Fails flushes and changes while the store has not answered for the patience. Ends when nothing
/// is in flight.
async fn watch(core: Rc<Core>) {
    let patience = core.link.times.patience;
    loop {
        let deadline = core.log.borrow().progress + patience;
        rt::sleep(deadline.saturating_sub(rt::now())).await;
        let mut log = core.log.borrow_mut();
        let is_idle = log.durable == log.batch.number;
        if is_idle || log.failed.is_some() {
            log.is_watched = false;
            return;
        }
        if rt::now() < log.progress + patience {
            continue;
        }
        log.progress = rt::now();
        let cause = log.last_error.clone();
        let cause = cause.unwrap_or_else(|| Error::new(ErrorKind::TimedOut, "no creation ended"));
        let error = core.link.silent(cause);
        if log.stalled.replace(error.clone()).is_none() {
            tracing::warn!("{}", error.report());
        }
        drop(log);
        core.fail_changes(&error);
    }
}
