//! `forebay format`: creates an empty cache or block translation table. Never destroys data
//! silently.

mod btt;
mod create;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_cache::{Devices, DirtyTracking, FormatOptions, Inspection};
use forebay_device::file::FileDeviceOptions;
use forebay_device::pmem::PmemDevice;
use forebay_device::signature::{self, Found};
use forebay_io::file::Place;
use forebay_io::{Engine, Reactor, system};
use forebay_metadata::superblock::Superblock;

use crate::config::block_sizes::{block_sizes, block_sizes_in_words};
use crate::config::loop_on;
use crate::stack::journal::{self, JournalOwner};
use crate::stack::{Places, open_path, refuse_all, warning_of_few};
use crate::state::opening::{MADE_AFTER, clone_command};
use crate::state::{append_help, hex};
use create::{check_create, no_size};
use forebay_terminal::out;
use forebay_terminal::size::{Size, human_bytes};

/// Create an empty cache on a device or file, or a block translation table on byte-addressable
/// media
///
/// A device with a block translation table (--btt) is formatted through the table. A device that is
/// not empty is refused, unless --force is given. A cache with data that its backing devices lack
/// is refused even then, unless --discard-dirty is given too; the lost data is then listed.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Device or file for cached data
    #[arg(long, value_name = "PATH", required_unless_present = "btt")]
    pub(super) cache: Option<PathBuf>,
    /// Separate device or file for metadata
    #[arg(long, value_name = "PATH")]
    pub(super) metadata: Option<PathBuf>,
    /// The metadata device is byte-addressable: a DAX device, a file on a DAX mount, or for tests
    /// any file, each of which is mapped. Metadata is then written in lines of 64 bytes instead of
    /// blocks; the configuration needs kind = "pmem" for this device
    #[arg(long, requires = "metadata")]
    pub(super) pmem: bool,
    /// Create a block translation table on this DAX device or file, instead of a cache. A power
    /// loss does not tear its blocks. Linux calls the layout sector mode
    #[arg(long, value_name = "PATH", conflicts_with_all = ["cache", "metadata"])]
    pub(super) btt: Option<PathBuf>,
    /// With --btt: version of the layout. Linux expects 1.1 in a namespace without a label
    #[arg(long, value_name = "VERSION", requires = "btt", default_value = "2.0")]
    pub(super) btt_version: String,
    /// Size of a cache block, 4K to 1M [default: 32K]; several, as in 32K,64K,128K,256K, to fill
    /// each missed range with the largest blocks that fit. With --btt: size of a table's block, 512
    /// or 4K [default: 4K]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub(super) block_size: Vec<Size>,
    /// How the cache recognizes overwritten blocks after a crash. exact: marks in its log. abt: an
    /// adaptive bit-tree, with fewer writes in service and more to write back after a crash. none:
    /// everything is written back
    #[arg(
        long,
        value_name = "HOW",
        default_value = "exact",
        conflicts_with = "btt"
    )]
    pub(super) dirty_tracking: DirtyTracking,
    /// Store a checksum of each 4 KiB of cached data (0.1% of it). Verify it on every read and
    /// write-back, and serve corrupt clean data from the backing device. Versions without checksums
    /// cannot open the cache
    #[arg(long, conflicts_with = "btt")]
    pub(super) checksums: bool,
    /// Create the file with this size; an existing file must have this size already. 64G and 64GiB
    /// are powers of 1024, 64GB is a power of 1000
    #[arg(long, value_name = "SIZE")]
    pub(super) create: Option<Size>,
    /// Format even if the device is not empty
    #[arg(long)]
    pub(super) force: bool,
    /// With --force: format even if the device holds the only copy of data
    #[arg(long, requires = "force")]
    pub(super) discard_dirty: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let Some(cache) = arguments.cache.clone() else {
        return btt::run(arguments);
    };
    let wanted = match &arguments.block_size[..] {
        [] => &[Size(32 << 10)],
        sizes => sizes,
    };
    let sizes = block_sizes(wanted).map_err(|what| {
        let help = "help: write a size such as 32K, or several, as in 32K,64K,128K,256K";
        Error::new(
            ErrorKind::InvalidInput,
            format!("--block-size: {what}\n{help}"),
        )
    });
    let reactor = Reactor::new(Engine::Auto)?;
    let what = cache.display().to_string();
    let (metadata, in_lines) = (arguments.metadata.clone(), arguments.pmem);
    let (force, discard) = (arguments.force, arguments.discard_dirty);
    let create = arguments.create.map(|size| size.0);
    let (dirty_tracking, checksums) = (arguments.dirty_tracking, arguments.checksums);
    // All wrong arguments are reported together.
    let different = check_different(&cache, metadata.as_deref());
    let made_here = create.map_or(Ok(None), |bytes| check_create(&cache, bytes));
    let (cache_there, metadata_there) = (
        create.map_or_else(|| check_present(&cache), |_| Ok(())),
        metadata.as_deref().map_or(Ok(()), check_present),
    );
    let (sizes, made_here) = match (sizes, made_here) {
        (Ok(sizes), Ok(made)) if different.is_ok() && cache_there.is_ok() => {
            metadata_there?;
            (sizes, made)
        }
        (sizes, made) => {
            let others = [different, cache_there, metadata_there];
            let refused = [sizes.err(), made.err()].into_iter().flatten();
            return refuse_all(
                refused
                    .chain(others.into_iter().filter_map(Result::err))
                    .collect(),
            );
        }
    };
    let mut uuid = [0; 16];
    system::random(&mut uuid);
    let made = reactor.run(async move {
        let devices = Devices {
            data: open(&cache, create)?,
            metadata: match metadata.as_deref() {
                Some(path) if in_lines => {
                    Some(PmemDevice::open(path, "").map_err(|error| missing(error, path))?)
                }
                Some(path) => Some(open(path, None)?),
                None => None,
            },
        };
        let (lost, replaced) = look(&devices, force, discard).await?;
        let options = FormatOptions {
            dirty_tracking,
            checksums,
            ..FormatOptions::sizes(&sizes, uuid)
        };
        let formatted = forebay_cache::format(&devices, &options).await;
        formatted
            .map_err(|error| match create {
                Some(_) if error.kind() == ErrorKind::NoSpace => no_size(&error, &cache),
                _ => error,
            })
            .context(|| format!("cannot format {}", cache.display()))?;
        if let Some((whose, path)) = replaced {
            journal::remove(&whose, &path);
        }
        let made = forebay_cache::inspect(&devices, None, &system::boot_id()?).await?;
        Ok::<_, Error>((made, lost))
    });
    let (made, lost) = made?;
    if let Some(file) = made_here {
        file.keep();
    }
    if let Some(lost) = lost {
        out::print(&format!("LOST, as --discard-dirty says: {lost}\n"))?;
    }
    if let Some(few) = warning_of_few(made.blocks, made.block_size_bytes) {
        out::note(&format!("warning: {few}"));
    }
    out::print(&format!(
        "{what}: cache {} with room for {} in blocks of {}\n",
        hex(&made.uuid),
        human_bytes(u64::from(made.blocks) * u64::from(made.block_size_bytes)),
        block_sizes_in_words(u64::from(made.block_size_bytes), &made.block_sizes),
    ))
}

/// Refuses one device in two roles, under whatever names.
fn check_different(cache: &Path, metadata: Option<&Path>) -> Result<()> {
    let Some(metadata) = metadata else {
        return Ok(());
    };
    let place = |path: &Path| std::fs::metadata(path).ok().as_ref().map(Place::of);
    let same = match (place(cache), place(metadata)) {
        (Some(one), Some(other)) => one.overlaps(&other),
        // The device does not exist yet: only the name can show it.
        _ => std::path::absolute(cache).ok() == std::path::absolute(metadata).ok(),
    };
    if !same {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "--cache {} and --metadata {} are one and the same\n\
             help: give metadata a device of its own, or leave --metadata out to have it on the \
             cache device",
            cache.display(),
            metadata.display()
        ),
    ))
}

/// Refuses a device that does not exist.
fn check_present(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(missing(error.into(), path)),
    }
}

fn open(path: &Path, create_bytes: Option<u64>) -> Result<Rc<dyn BlockDevice>> {
    if let Some(device) = std::fs::metadata(path).ok().as_ref().and_then(loop_on) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{path} is the file under {device}\n\
                 help: name {device}, or detach it first (`losetup -d {device}`)",
                path = path.display(),
                device = device.display()
            ),
        ));
    }
    let options = FileDeviceOptions {
        direct: true,
        exclusive: true,
        create_bytes,
        ..FileDeviceOptions::default()
    };
    open_path(path, options).map_err(|error| missing(error, path))
}

/// Returns the error for a device that does not exist, with the remedy.
fn missing(error: Error, path: &Path) -> Error {
    if path.exists() || error.kind() != ErrorKind::NotFound {
        return error;
    }
    // A file there would be memory that ends with the machine.
    let is_node = path.starts_with("/dev") && !path.starts_with("/dev/shm");
    let name = path.display();
    let what = match is_node {
        true => format!("{name} does not exist\nhelp: put the device back, or name another"),
        false => format!(
            "{name} does not exist\n\
             help: name a device, or make a file (--create SIZE makes that of --cache or --btt, \
             `truncate -s SIZE {name}` any)"
        ),
    };
    Error::new(ErrorKind::NotFound, what)
}

/// Inspects the contents of the devices, and refuses those that the flags do not allow. Returns a
/// description of discarded dirty data, and the cache that is replaced.
async fn look(
    devices: &Devices,
    force: bool,
    discard_dirty: bool,
) -> Result<(Option<String>, Option<Replaced>)> {
    let mut forebay = false;
    for device in [Some(&devices.data), devices.metadata.as_ref()]
        .into_iter()
        .flatten()
    {
        let found = signature::probe(device.as_ref()).await?;
        // The second copy of a superblock reveals a cache even if the first is damaged.
        forebay |= found.is_forebay()
            || match Superblock::read(device.as_ref()).await {
                Ok(_) => true,
                Err(error) => error.kind() != ErrorKind::NotFound,
            };
        if !force && found != Found::Empty {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} is not empty ({found})\n\
                     help: name another device, or add --force to destroy that",
                    device.info().name
                ),
            ));
        }
    }
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let metadata = devices.metadata.as_ref().map(|device| device.info().name);
    let places = Places::of(
        Path::new(&devices.data.info().name),
        metadata.as_deref().map(Path::new),
    );
    let place = &places.metadata;
    if !forebay {
        let left = journal::left_of(place, None, Some(holder.info().identity));
        return left.map_or(Ok((None, None)), |(uuid, path)| {
            let lost = format!(
                "acknowledged writes in the process journal {}",
                path.display()
            );
            if discard_dirty {
                return Ok((Some(lost), None));
            }
            let uuid = hex(&uuid);
            Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{place} lost the superblocks of cache {uuid}, whose daemon was killed\n    \
                     help: put the device back, or a copy of it, and serve it; or add --force \
                     --discard-dirty: {lost} ARE LOST THEN"
                ),
            ))
        });
    }
    let (lost, replaced) = match inspect_with_journal(devices, &places, None, false).await {
        Ok((found, replaced)) => (dirty_data(&found), Some(replaced)),
        // A daemon serves it, under whatever name.
        Err(error) if error.kind() == ErrorKind::Busy => return Err(error),
        Err(error) => {
            let report = error.report();
            let lost = format!("unknown: {report}");
            (Some(lost), None)
        }
    };
    let lost = match lost {
        Some(lost) if !discard_dirty => lost,
        lost => return Ok((lost, replaced)),
    };
    let serve = match replaced {
        Some(_) => "serve it and run `forebay detach`, or add",
        None => "add",
    };
    let name = &devices.data.info().name;
    let what = format!("{name} holds a cache with data that is nowhere else: {lost}");
    let help = format!("{serve} --discard-dirty: that data IS LOST THEN");
    Err(Error::new(ErrorKind::Busy, append_help(what, &help)))
}

/// Describes the dirty data of a cache; `None` if there is none.
pub(super) fn dirty_data(found: &Inspection) -> Option<String> {
    let dirty: Vec<_> = found
        .volumes
        .iter()
        .filter(|volume| volume.dirty_bytes > 0)
        .map(|volume| {
            format!(
                "{} of volume {:?}",
                human_bytes(volume.dirty_bytes),
                volume.name
            )
        })
        .collect();
    let sound = found.problems.is_empty() && found.journal_problem.is_none();
    match (dirty.is_empty(), found.clean_shutdown && sound) {
        (true, true) => None,
        // A missing journal may have held more data, and damage may hide data.
        (true, false) if found.volumes.is_empty() && sound => None,
        (true, false) => {
            let names: Vec<_> = found
                .volumes
                .iter()
                .map(|v| format!("{:?}", v.name))
                .collect();
            let names = names.join(", ");
            Some(format!(
                "possibly some of volume {names} (no clean shutdown, or damage)"
            ))
        }
        (false, _) => Some(dirty.join(", ")),
    }
}

/// A cache, and the path of its process journal.
pub(super) type Replaced = (JournalOwner, PathBuf);

/// Inspects a cache at `places` together with its process journal. A journal of another copy, or of
/// another opening, does not apply to this cache and is reported. `moved` states that the cache was
/// copied to these devices, so that the journal is its own.
pub(super) async fn inspect_with_journal(
    devices: &Devices,
    places: &Places,
    journal: Option<&Path>,
    moved: bool,
) -> Result<(Inspection, Replaced)> {
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let superblock = Superblock::read(holder.as_ref()).await?;
    let whose = JournalOwner::of(&superblock, devices, places, moved);
    let path = journal.map_or_else(|| journal::find(&whose.uuid), Path::to_path_buf);
    let (found, foreign) = match journal::own(&whose, &path, false)? {
        Ok(found) => (found, None),
        Err(error) => (None, Some(error)),
    };
    let boot_id = system::boot_id()?;
    let mut inspection = forebay_cache::inspect(devices, found.as_ref(), &boot_id).await?;
    if foreign.is_none()
        && !moved
        && inspection.journal_problem.is_some()
        && let Some(twin) = &whose.twin
    {
        // The missing journal belongs to the original, if there is one.
        let place = &whose.place;
        let copy = format!(
            "{place} is a copy of the cache on {twin}, made while that was in use\n    \
             help: serve {twin}; or make this copy a cache of its own with `{}`; or, if it takes \
             the place of {twin}{MADE_AFTER}, start once with --moved-cache and \
             --accept-journal-loss",
            clone_command(place, &whose.data_place)
        );
        inspection.journal_problem = Some(Error::new(ErrorKind::Busy, copy));
    }
    if let Some(error) = foreign {
        // A copy that was shut down cleanly needs no journal.
        match error.kind() == ErrorKind::Busy && inspection.journal_problem.is_none() {
            true => inspection.notes.push(error.report()),
            false => inspection.journal_problem = Some(error),
        }
    }
    Ok((inspection, (whose, path)))
}
