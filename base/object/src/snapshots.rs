//! Snapshots of a volume.
//!
//! A snapshot is a checkpoint under another name. It is complete when the log has a record of it. A
//! successor of the writer sees the record, and pins the objects of the snapshot. A snapshot
//! without a record was never acknowledged.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, Result};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::checkpointer::{capture, delete_free, encode};
use crate::core::{Core, Pinned};
use crate::fault::Fault;
use crate::format::checkpoint::{MAX_NAME_BYTES, Tables};
use crate::format::superblock::{self, Superblock};
use crate::format::{Id, corrupt, new_id, snapshot_name};
use crate::link::Link;
use crate::objects::{Content, Object};
use crate::replay::{self, WithHelp as _, recorded_snapshots};
use crate::store::Store;
use crate::writer::{close_any_batch, flushed};

/// Number of snapshots that are read at once.
const READS: usize = 8;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name.
    pub name: String,
    /// Time of its creation, since 1970.
    pub time: Duration,
    /// Size of the volume at that time, bytes.
    pub size_bytes: u64,
}

/// Returns the complete snapshots of the volume in this folder, by name in ascending order. Reads
/// the log since the last checkpoint.
///
/// # Errors
/// `NotFound` if there is no volume. `Corrupt` for an object that does not verify. Errors of the
/// store.
///
/// # Panics
/// If this thread runs no reactor.
pub async fn list_snapshots(store: &dyn Store) -> Result<Vec<Snapshot>> {
    let link = Link::borrowed(store);
    let found = link.read(superblock::NAME, 0..superblock::BYTES).await;
    if found
        .as_ref()
        .is_err_and(|it| it.kind() == ErrorKind::NotFound)
    {
        let what = format!("there is no volume in {}", link.name());
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    let what = || format!("object {} of {}", superblock::NAME, link.name());
    let volume = Superblock::decode(&found?).with_help(what)?;
    // A snapshot has its record after its object.
    let tables = read_all(&link).await?;
    let recorded = recorded_snapshots(&link, &volume).await?;
    let complete = tables.into_iter().filter(|it| recorded.contains(&it.id));
    let snapshots = complete.map(|it| Snapshot {
        name: it.name,
        time: it.time,
        size_bytes: it.size_bytes,
    });
    Ok(snapshots.collect())
}

/// Deletes a snapshot. Its space becomes free when a writer of the volume opens it again. An open
/// volume frees it earlier with [`ObjectVolume::delete_snapshot`](crate::ObjectVolume).
///
/// # Errors
/// `NotFound` without a snapshot of this name. Errors of the store.
///
/// # Panics
/// If this thread runs no reactor.
pub async fn delete_snapshot(store: &dyn Store, name: &str) -> Result<()> {
    delete_from(&Link::borrowed(store), name).await
}

async fn delete_from(link: &Link<'_>, name: &str) -> Result<()> {
    check_name(name)?;
    let objects = find(link, name).await?;
    if objects.is_empty() {
        return Err(missing(link, name));
    }
    for object in objects {
        link.delete(&object).await?;
    }
    Ok(())
}

/// Returns the objects of the snapshots of this name, also of incomplete ones. There is more than
/// one if a fenced writer has left another.
async fn find(link: &Link<'_>, name: &str) -> Result<Vec<String>> {
    let listed = link.list("snapshots/").await?;
    let prefix = format!("snapshots/{name}.");
    let names = listed.into_iter().map(|it| it.name);
    Ok(names.filter(|it| it.starts_with(&prefix)).collect())
}

/// Reads the newest complete snapshot of this name. Returns the name of its object, too.
///
/// # Errors
/// `NotFound` without one. Errors of the store.
pub(crate) async fn read(
    link: &Link<'_>,
    volume: &Superblock,
    name: &str,
) -> Result<(String, Bytes)> {
    let mut found = Vec::new();
    for object in find(link, name).await? {
        if let Some(tables) = read_tables(link, &object).await? {
            found.push((tables.epoch, tables.seq, tables.id, object));
        }
    }
    if found.is_empty() {
        return Err(missing(link, name));
    }
    let recorded = recorded_snapshots(link, volume).await?;
    let complete = found.into_iter().filter(|it| recorded.contains(&it.2));
    let Some((_, _, _, object)) = complete.max() else {
        return Err(incomplete(link, name));
    };
    match link.read_whole(&object).await {
        Ok(bytes) => Ok((object, bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(missing(link, name)),
        Err(error) => Err(error),
    }
}

/// Error of a snapshot that does not exist.
fn missing(link: &Link<'_>, name: &str) -> Error {
    let what = format!("volume {} has no snapshot {name:?}", link.name());
    Error::new(ErrorKind::NotFound, what)
}

/// Error of a snapshot whose creation has failed or goes on.
fn incomplete(link: &Link<'_>, name: &str) -> Error {
    let what = format!(
        "volume {}: the snapshot {name:?} is not complete\n\
         help: wait for its creation; if that has failed, delete it, and create another",
        link.name()
    );
    Error::new(ErrorKind::NotFound, what)
}

/// Checks the name of a snapshot.
///
/// # Errors
/// `InvalidInput`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-_".contains(&it);
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let what = format!(
        "{name:?} is no name of a snapshot\n\
         help: use 1 to {MAX_NAME_BYTES} lower-case letters, digits, - and _"
    );
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// Reads all snapshots but their maps, by name in ascending order.
pub(crate) async fn read_all(link: &Link<'_>) -> Result<Vec<Tables>> {
    let listed = link.list("snapshots/").await?;
    let reads = listed
        .into_iter()
        .map(async |it| read_tables(link, &it.name).await);
    let read: Vec<_> = stream::iter(reads).buffered(READS).try_collect().await?;
    Ok(read.into_iter().flatten().collect())
}

/// Reads a snapshot but its map. Returns `None` if it has been deleted.
pub(crate) async fn read_tables(link: &Link<'_>, object: &str) -> Result<Option<Tables>> {
    let tables = async {
        let tables = replay::read_tables(link, object).await?;
        match snapshot_name(&tables.name, &tables.id) == object {
            true => Ok(tables),
            false => Err(corrupt("it has another name")),
        }
    };
    match tables.await {
        Ok(tables) => Ok(Some(tables)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_help(|| format!("{object} of {}", link.name())),
    }
}

/// Pins the objects of the snapshots in the folder. Deletes those of earlier writers without a
/// record in the log: their writers can append none any more.
///
/// # Errors
/// `Corrupt` for a snapshot that does not verify. Errors of the store.
pub(crate) async fn pin_all(core: &Core) -> Result<()> {
    let epoch = core.writer()?.epoch;
    for tables in read_all(&core.link).await? {
        if tables.epoch >= epoch {
            continue; // A later writer has the volume already.
        }
        if !core.log.borrow().chain.snapshots.contains(&tables.id) {
            core.link
                .delete(&snapshot_name(&tables.name, &tables.id))
                .await?;
            continue;
        }
        let log = &mut *core.log.borrow_mut();
        let objects = &mut log.chain.objects;
        let mut numbers = Vec::with_capacity(tables.entries.len());
        for entry in &tables.entries {
            let number = match objects.find(entry.seq) {
                Some((number, _)) => number,
                // Only snapshots have data in it, so a checkpoint is without it.
                None => objects.add(Object {
                    stored_bytes: entry.stored_bytes.into(),
                    payload_sectors: entry.payload_sectors,
                    is_dead_durably: true,
                    ..Object::new(entry.seq, Content::Pinned)
                }),
            };
            objects.change(number, |it| it.pins += 1);
            numbers.push(number);
        }
        let pinned = Pinned {
            id: tables.id,
            objects: numbers,
            is_recorded: true,
        };
        core.pinned.borrow_mut().insert(tables.name, pinned);
    }
    let names: Vec<_> = core.pinned.borrow().values().map(|it| it.id).collect();
    let log = &mut *core.log.borrow_mut();
    log.chain.snapshots.retain(|id| names.contains(id));
    Ok(())
}

/// Creates a snapshot with all acknowledged changes.
///
/// # Errors
/// `InvalidInput` for another name. `Busy` if there is a snapshot of this name. Errors of the
/// store.
pub(crate) async fn create(core: &Rc<Core>, name: &str) -> Result<()> {
    core.writer()?;
    check_name(name)?;
    if name.starts_with('-') {
        let what = format!("{name:?} looks like an option\nhelp: begin the name with a letter");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    if !find(&core.link, name).await?.is_empty() {
        return Err(exists(core, name));
    }
    let id = new_id();
    let object = snapshot_name(name, &id);
    let captured = capture(core, id, name)?;
    let pinned = Pinned {
        id,
        objects: captured.objects.clone(),
        is_recorded: false,
    };
    change_pins(core, &pinned, true);
    let content = match encode(core, captured).await {
        Ok(content) => content,
        Err(error) => {
            change_pins(core, &pinned, false);
            return Err(error);
        }
    };
    {
        let mut all = core.pinned.borrow_mut();
        let is_taken = all.get(name).is_some_and(|it| it.is_recorded);
        let unused = match is_taken {
            true => Some(pinned),
            // The earlier one gets no record: see below.
            false => all.insert(name.to_owned(), pinned),
        };
        drop(all);
        if let Some(unused) = unused {
            change_pins(core, &unused, false);
        }
        if is_taken {
            return Err(exists(core, name));
        }
    }
    // From here on the object may exist whatever the answer is, so the pins stay until it is
    // deleted. If it exists, an earlier attempt has created it: its name has a random part.
    core.link.create(&object, &content).await?;
    match core.pinned.borrow_mut().get_mut(name) {
        Some(pinned) if pinned.id == id => pinned.is_recorded = true,
        _ => {
            let what = format!(
                "the snapshot {name:?} was deleted or created again during its creation\n\
                 help: delete it, and create it once more"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
    }
    if core.faults.has(Fault::UnrecordedSnapshot) {
        return Ok(());
    }
    {
        let log = &mut *core.log.borrow_mut();
        log.check()?;
        if log.batch.snapshot != Id::default() {
            close_any_batch(log);
        }
        log.batch.snapshot = id;
        log.chain.snapshots.insert(id);
    }
    flushed(core).await
}

fn exists(core: &Core, name: &str) -> Error {
    let what = format!(
        "volume {} has a snapshot {name:?}\nhelp: use another name, or delete it first",
        core.link.name()
    );
    Error::new(ErrorKind::Busy, what)
}

fn change_pins(core: &Core, pinned: &Pinned, is_pinned: bool) {
    let mut log = core.log.borrow_mut();
    for number in &pinned.objects {
        log.chain.objects.change(*number, |it| match is_pinned {
            true => it.pins += 1,
            false => it.pins -= 1,
        });
    }
}

/// Deletes a snapshot, also an incomplete one, and the objects that only it pinned.
///
/// # Errors
/// `NotFound` without a snapshot of this name. Errors of the store.
pub(crate) async fn delete(core: &Rc<Core>, name: &str) -> Result<()> {
    core.writer()?;
    let deleted = delete_from(&core.link, name).await;
    match deleted {
        // A creation has failed, or the answer to a deletion was lost. The pins are still there.
        Err(error)
            if error.kind() == ErrorKind::NotFound && core.pinned.borrow().contains_key(name) => {}
        deleted => deleted?,
    }
    let pinned = core.pinned.borrow_mut().remove(name);
    if let Some(pinned) = pinned {
        core.log.borrow_mut().chain.snapshots.remove(&pinned.id);
        change_pins(core, &pinned, false);
        core.work.wake_all();
    }
    delete_free(core).await
}
