//! Checkpoints: the state of a volume at a place in its log, in one object.

use std::collections::HashMap;
use std::rc::Rc;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, IoFuture, Result};
use forebay_io::rt;
use forebay_io::system::wall_clock;
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::core::{Core, Log};
use crate::fault::Fault;
use crate::format::checkpoint::{Encoder, Entry, HEAD_BYTES, Tables};
use crate::format::{Id, corrupt, log_name, map_name, seq_of};
use crate::map::Map;
use crate::objects::{Content, Object};
use crate::reader::{explain, is_replaced};
use crate::store::Creation;
use crate::writer::{close_any_batch, closed_are_durable, start_uploads};

/// Number of regions that are encoded before other tasks run.
const REGIONS_A_TURN: usize = 256;
/// Number of deletions at once.
const DELETIONS: usize = 8;

/// Content of a checkpoint or snapshot that is about to be encoded.
pub(crate) struct Capture {
    map: Map,
    tables: Tables,
    /// Numbers of the objects that the map names.
    pub(crate) objects: Vec<u32>,
    /// Places in the log of objects that the map does not name.
    dead: Vec<u64>,
    /// Resolves when the log is durable up to the captured place.
    durable: IoFuture,
}

impl Capture {
    /// Returns the last place of the log that it covers.
    pub(crate) const fn seq(&self) -> u64 {
        self.tables.seq
    }
}

/// Captures the state with all acknowledged changes. Closes the open batch, so that a place in the
/// log has this very state.
pub(crate) fn capture(core: &Rc<Core>, id: Id, name: &str) -> Result<Capture> {
    let writer = core.writer()?;
    let captured = {
        let log = &mut *core.log.borrow_mut();
        log.check()?;
        close_any_batch(log);
        let durable = closed_are_durable(log);
        let Log { chain, .. } = log;
        let is_live = |it: &(u32, &Object)| it.1.live_sectors > 0;
        let (live, dead): (Vec<_>, Vec<_>) = chain.objects.iter().partition(is_live);
        let number = |(number, _): (u32, &Object)| number;
        Capture {
            map: chain.map.clone(),
            tables: Tables {
                volume: core.volume.id,
                id,
                epoch: writer.epoch,
                seq: chain.seq,
                claim: writer.claim,
                size_bytes: writer.size_bytes,
                time: wall_clock(),
                name: name.to_owned(),
                claims: chain.claims.clone(),
                snapshots: chain.snapshots.iter().copied().collect(),
                entries: Vec::new(),
            },
            objects: live.into_iter().map(number).collect(),
            dead: dead.into_iter().map(|(_, it)| it.seq).collect(),
            durable,
        }
    };
    start_uploads(core);
    Ok(captured)
}

/// Waits until the log is durable up to the captured place, and returns the content of the object.
pub(crate) async fn encode(core: &Rc<Core>, capture: Capture) -> Result<Bytes> {
    if !core.faults.has(Fault::CheckpointAhead) {
        capture.durable.await?;
    }
    if core.faults.has(Fault::FlushOverGap) {
        // Only flushes of clients have the fault.
        let is_durable = |log: &Log| log.seq_of(log.durable) > capture.tables.seq;
        let is_over = || is_durable(&core.log.borrow()) || core.has_failed();
        core.work.until(is_over).await;
    }
    let mut tables = capture.tables;
    let mut index_of = HashMap::with_capacity(capture.objects.len());
    {
        let log = core.log.borrow();
        for (index, number) in capture.objects.iter().enumerate() {
            let object = log.chain.objects.get(*number);
            index_of.insert(*number, u32::try_from(index).expect("bounded"));
            tables.entries.push(entry_of(object)?);
        }
    }
    let mut encoder = Encoder::new(&tables);
    for (count, (index, extents)) in capture.map.regions().enumerate() {
        if count > 0 && count.is_multiple_of(REGIONS_A_TURN) {
            rt::next_turn().await;
        }
        let named = extents
            .iter()
            .map(|it| it.with_object(index_of[&it.place().object]));
        encoder.push(index, named);
    }
    Ok(encoder.finish())
}

fn entry_of(object: &Object) -> Result<Entry> {
    let Content::Stored(header_bytes, chunks) = &object.content else {
        return Err(Error::new(ErrorKind::Io, "an object is not in the store"));
    };
    Ok(Entry {
        seq: object.seq,
        stored_bytes: u32::try_from(object.stored_bytes).expect("bounded"),
        header_bytes: *header_bytes,
        payload_sectors: object.payload_sectors,
        chunks: chunks.to_vec(),
    })
}

/// Writes a checkpoint, and deletes the objects of the log that it frees. Returns whether the log
/// has grown since the last.
///
/// # Errors
/// `Unreachable` if the store does not answer. The error of a volume that has failed.
pub(crate) async fn checkpoint(core: &Rc<Core>) -> Result<bool> {
    let writer = core.writer()?;
    let (bytes_before, objects_before) = {
        let log = core.log.borrow();
        (log.since_bytes, log.since_objects)
    };
    let mut capture = capture(core, writer.id, "")?;
    let seq = capture.seq();
    if core.log.borrow().checkpoint == Some(seq) {
        return Ok(false);
    }
    let dead = std::mem::take(&mut capture.dead);
    let content = encode(core, capture).await?;
    let created = create(core, seq, &content).await;
    let is_too_long = |it: &Error| it.kind() == ErrorKind::Unsupported;
    let older = {
        let mut log = core.log.borrow_mut();
        log.is_too_long = created.as_ref().is_err_and(is_too_long);
        if !log.is_too_long {
            created.clone()?;
        }
        log.since_bytes = log.since_bytes.saturating_sub(bytes_before);
        log.since_objects = log.since_objects.saturating_sub(objects_before);
        log.checkpoint_bytes = content.len() as u64;
        if let Err(error) = created {
            return Err(too_long(core, content.len(), &error));
        }
        for seq in &dead {
            // The deletion of a snapshot may have freed it meanwhile.
            if let Some((number, _)) = log.chain.objects.find(*seq) {
                log.chain
                    .objects
                    .change(number, |it| it.is_dead_durably = true);
            }
        }
        log.checkpoint.replace(seq)
    };
    delete_free(core).await?;
    let Some(older) = older else { return Ok(true) };
    for listed in core.link.list("map/").await? {
        if seq_of(&listed.name).is_some_and(|it| it < older) {
            core.link.delete(&listed.name).await?;
        }
    }
    Ok(true)
}

/// Error of a checkpoint that the store refuses.
fn too_long(core: &Core, len: usize, cause: &Error) -> Error {
    tracing::info!("{}", cause.report());
    let what = format!(
        "object store {}: it takes no checkpoint of {len} bytes\n\
         help: allow larger objects, or use smaller volumes; no data is lost, but the log grows",
        core.link.name()
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// Creates the object of a checkpoint.
async fn create(core: &Rc<Core>, seq: u64, content: &Bytes) -> Result<()> {
    let name = map_name(seq);
    if core.link.create(&name, content).await? == Creation::Created {
        return Ok(());
    }
    // An earlier attempt may have created it.
    let head = match core.link.read(&name, 0..HEAD_BYTES as u64).await {
        Ok(head) => head,
        // Only a successor deletes the newest checkpoint of this writer.
        Err(error) if is_replaced(&error) => return Err(explain(core, error).await),
        Err(error) => return Err(error),
    };
    match head == content[..HEAD_BYTES] {
        true => Ok(()),
        false => {
            let what = format!("checkpoint {name} of {}: it exists", core.link.name());
            Err(corrupt(&what))
        }
    }
}

/// Deletes the objects that no durable state maps.
///
/// # Errors
/// Errors of the store. The other objects are deleted later.
pub(crate) async fn delete_free(core: &Rc<Core>) -> Result<()> {
    let is_free = |it: &Object| {
        let is_pinned = it.pins > 0 && !core.faults.has(Fault::DeletePinned);
        let is_covered = it.is_dead_durably
            || (core.faults.has(Fault::DeleteUncovered)
                && matches!(it.content, Content::Stored(..)));
        it.live_sectors == 0 && is_covered && !is_pinned
    };
    let free: Vec<_> = {
        let log = core.log.borrow();
        let free = log.chain.objects.iter().filter(|(_, it)| is_free(it));
        free.map(|(_, it)| it.seq).collect()
    };
    let deletions = free.into_iter().map(async |seq| {
        core.link.delete(&log_name(seq)).await?;
        Ok::<_, Error>(seq)
    });
    let mut deletions = stream::iter(deletions).buffer_unordered(DELETIONS);
    let mut outcome = Ok(());
    while let Some(deleted) = deletions.next().await {
        match deleted {
            Ok(seq) => core.log.borrow_mut().chain.objects.remove(seq),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}
