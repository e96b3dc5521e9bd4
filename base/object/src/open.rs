//! Opening of a volume.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::system::wall_clock;

use crate::chain::Chain;
use crate::claim::{Condition, Wanted, Writer, check_growth, claim, taken};
use crate::core::{Core, Log};
use crate::fault::Faults;
use crate::format::superblock::{self, Superblock};
use crate::format::{Id, checkpoint, corrupt, digits, new_id};
use crate::limits::Limits;
use crate::link::Link;
use crate::options::{Access, Options};
use crate::replay::{WithHelp as _, load};
use crate::snapshots::{self, check_name, pin_all};
use crate::store::{Creation, Store};

/// A size is a multiple of this, bytes.
const SIZE_UNIT_BYTES: u64 = 4096;

/// Work that a claim has left to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    /// Whether the object `volume` is still to be created.
    pub(crate) is_new: bool,
    /// New size of the volume, bytes; `None` for the size that it has.
    pub(crate) size_bytes: Option<u64>,
}

/// Opens a volume to read it, and checks it as its access needs. Changes nothing in the log.
pub(crate) async fn open(
    store: Rc<dyn Store>,
    options: &Options,
    limits: Limits,
    faults: Faults,
) -> Result<(Core, Option<Prepared>)> {
    let link = Link::new(store, options.times);
    check_size(options.size_bytes)?;
    if let Some(name) = &options.snapshot {
        check_name(name)?;
    }
    let mut found = link.read(superblock::NAME, 0..superblock::BYTES + 1).await;
    let is_missing = |found: &Result<Bytes>| {
        found
            .as_ref()
            .is_err_and(|it| it.kind() == ErrorKind::NotFound)
    };
    if is_missing(&found) && !link.list("log/").await?.is_empty() {
        // Another process may have created the volume just now.
        found = link.read(superblock::NAME, 0..superblock::BYTES + 1).await;
        if is_missing(&found) {
            return Err(without_superblock(&link));
        }
    }
    let is_new = is_missing(&found);
    let is_served = options.access != Access::Look && options.snapshot.is_none();
    if is_served {
        probe(&link).await?;
    }
    let volume = match (is_new, options.size_bytes) {
        (false, _) => decode(&link, &found?)?,
        (true, Some(size_bytes)) if is_served => Superblock {
            id: new_id(),
            size_bytes,
            time: wall_clock(),
        },
        (true, size) => return Err(not_found(&link, options, size)),
    };
    let (chain, base, identity) = match &options.snapshot {
        Some(name) => {
            let (chain, id) = load_snapshot(&link, &volume, name, limits).await?;
            (chain, None, id)
        }
        None if is_new => (Chain::empty(volume.size_bytes, limits), None, volume.id),
        None => {
            let (chain, base) = load(&link, &volume, limits, faults).await?;
            (chain, base, volume.id)
        }
    };
    let prepared = Prepared {
        is_new,
        size_bytes: options.size_bytes,
    };
    if let (None, Some(size)) = (&options.snapshot, options.size_bytes) {
        check_growth(&link, size, chain.size_bytes)?;
    }
    let log = Log::new(Chain { faults, ..chain }, base);
    let core = core_of(link, volume, identity, None, log, limits, faults);
    Ok((core, is_served.then_some(prepared)))
}

fn core_of(
    link: Link<'static>,
    volume: Superblock,
    identity: Id,
    writer: Option<Writer>,
    log: Log,
    limits: Limits,
    faults: Faults,
) -> Core {
    Core {
        link,
        volume,
        identity,
        writer,
        limits,
        faults,
        log: RefCell::new(log),
        pinned: RefCell::new(BTreeMap::new()),
        work: forebay_io::sync::WaitList::new(),
        closing: Cell::new(false),
    }
}

/// Claims the log of a volume that was opened as `seen`, whose requests fail from now on. Creates a
/// new volume first. Returns the volume with the writer `id`.
pub(crate) async fn serve(
    seen: &Core,
    prepared: Prepared,
    id: Id,
    condition: Condition,
) -> Result<Core> {
    let what = format!(
        "volume {}: it is being claimed\nhelp: repeat the request when the start is over",
        seen.link.name()
    );
    seen.fail(&Error::new(ErrorKind::Busy, what));
    let link = seen.link.clone();
    // It may be large.
    let (chain, base) = {
        let mut log = seen.log.borrow_mut();
        (std::mem::take(&mut log.chain), log.checkpoint)
    };
    let mut volume = seen.volume.clone();
    let mut known = Some((chain, base));
    if prepared.is_new {
        let found = decode(&link, &create(&link, &volume).await?)?;
        if found.id != volume.id {
            if condition == Condition::SameWriter {
                return Err(taken(&link, "another process has just created it"));
            }
            (volume, known) = (found, None);
        }
    }
    let wanted = Wanted {
        id,
        size_bytes: prepared.size_bytes,
        condition,
    };
    let (limits, faults) = (seen.limits, seen.faults);
    let (chain, writer, base) = claim(&link, &volume, &wanted, known, limits, faults).await?;
    let identity = volume.id;
    let log = Log::new(chain, base);
    let core = core_of(link, volume, identity, Some(writer), log, limits, faults);
    pin_all(&core).await?;
    Ok(core)
}

fn decode(link: &Link<'_>, bytes: &Bytes) -> Result<Superblock> {
    Superblock::decode(bytes)
        .with_help(|| format!("object {} of {}", superblock::NAME, link.name()))
}

fn check_size(size_bytes: Option<u64>) -> Result<()> {
    let Some(size_bytes) = size_bytes else {
        return Ok(());
    };
    let is_possible = size_bytes.is_multiple_of(SIZE_UNIT_BYTES)
        && (SIZE_UNIT_BYTES..1 << 62).contains(&size_bytes);
    if is_possible {
        return Ok(());
    }
    let what = format!(
        "a volume cannot have a size of {size_bytes} bytes\n\
         help: use a multiple of {SIZE_UNIT_BYTES} bytes"
    );
    Err(Error::new(ErrorKind::InvalidInput, what))
}

fn not_found(link: &Link<'_>, options: &Options, size: Option<u64>) -> Error {
    let help = match (&options.snapshot, size) {
        (Some(_), _) => "see whether the folder is right",
        (None, None) => "set a size to create one, or see whether the folder is right",
        (None, Some(_)) => "it is created when it is served",
    };
    let what = format!("there is no volume in {}\nhelp: {help}", link.name());
    Error::new(ErrorKind::NotFound, what)
}

/// Creates the object `volume`, unless another process does. Returns its content.
async fn create(link: &Link<'_>, volume: &Superblock) -> Result<Bytes> {
    if !link.list("log/").await?.is_empty() {
        // Another process may have created the volume just now.
        let found = link.read(superblock::NAME, 0..superblock::BYTES + 1).await;
        return match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(without_superblock(link)),
            found => found,
        };
    }
    let content = volume.encode();
    match link.create(superblock::NAME, &content).await? {
        Creation::Created => Ok(content),
        Creation::Exists => link.read(superblock::NAME, 0..superblock::BYTES + 1).await,
    }
}

fn without_superblock(link: &Link<'_>) -> Error {
    let what = format!(
        "there is a log in {}, but no object {}\n\
         help: restore the object from a version or a copy, or use another folder",
        link.name(),
        superblock::NAME
    );
    corrupt(&what)
}

/// Checks that the store creates no object twice. Without that, two writers could not be fenced.
async fn probe(link: &Link<'_>) -> Result<()> {
    let name = format!("probe/{}", digits(&new_id()));
    // An attempt whose answer was lost may have created it.
    link.create(&name, &Bytes::from_static(b"first")).await?;
    let second = link.create(&name, &Bytes::from_static(b"second")).await?;
    link.delete(&name).await?;
    if second == Creation::Exists {
        return Ok(());
    }
    let what = format!(
        "object store {}: it replaces an object that exists, so two writers cannot be fenced\n\
         help: use a store with conditional creation (If-None-Match)",
        link.name()
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

async fn load_snapshot(
    link: &Link<'_>,
    volume: &Superblock,
    name: &str,
    limits: Limits,
) -> Result<(Chain, Id)> {
    let (object, bytes) = snapshots::read(link, volume, name).await?;
    let decoded = checkpoint::decode(&bytes).and_then(|(tables, map)| {
        match tables.volume == volume.id && tables.name == name {
            true => {
                let id = tables.id;
                Ok((Chain::of(tables, map, limits), id))
            }
            false => Err(corrupt("it belongs to another volume or snapshot")),
        }
    });
    decoded.with_help(|| format!("{object} of {}", link.name()))
}
