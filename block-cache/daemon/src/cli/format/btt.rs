//! `forebay format --btt`: creates a block translation table.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Persistence, Result};
use forebay_btt::layout::Version;
use forebay_btt::{Btt, BttDevice, FormatOptions, Formatted};
use forebay_cache::Devices;
use forebay_device::pmem::{PmemDevice, describe};
use forebay_io::pmem::PmemMapping;
use forebay_io::{Engine, Reactor, system};

use super::create::check_create;
use super::{Arguments, look, missing, out};
use crate::stack::refuse_if_left;
use forebay_terminal::size::{Size, human_bytes};

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let Some(path) = &arguments.btt else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "name what to format\nhelp: --cache PATH, or --btt PATH",
        ));
    };
    let options = options(arguments)?;
    let create = arguments.create.map(|size| size.0);
    let made_here = match create {
        Some(bytes) => check_create(path, bytes)?,
        None => None,
    };
    let memory = PmemMapping::open(path, create).map_err(|error| missing(error, path))?;
    let memory = Arc::new(memory);
    let (force, discard) = (arguments.force, arguments.discard_dirty);
    let (looked, name) = (Arc::clone(&memory), path.display().to_string());
    let lost = Reactor::new(Engine::Auto)?.run(look_at(looked, name, force, discard))?;
    let made = forebay_btt::format(&*memory, &options)
        .context(|| format!("cannot format {}", path.display()))?;
    if let Some(file) = made_here {
        file.keep();
    }
    if let Some(lost) = lost {
        out::print(&format!("LOST, as --discard-dirty says: {lost}\n"))?;
    }
    out::print(&said(path, &options, made, &memory))
}

fn options(arguments: &Arguments) -> Result<FormatOptions> {
    let wrong = |what| Err(Error::new(ErrorKind::InvalidInput, what));
    let block_bytes = match arguments.block_size[..] {
        [] | [Size(4096)] => 4096,
        [Size(512)] => 512,
        [Size(other)] => {
            return wrong(format!(
                "a table with blocks of --block-size {} is not possible\nhelp: choose 512 or 4K",
                human_bytes(other)
            ));
        }
        _ => {
            return wrong(
                "--block-size has several sizes, a table one\nhelp: choose 512 or 4K".into(),
            );
        }
    };
    let named = |version: &Version| version.to_string() == arguments.btt_version;
    let Some(version) = Version::ALL.into_iter().find(named) else {
        return wrong(format!(
            "--btt-version {} is not known\nhelp: choose 2.0 or 1.1",
            arguments.btt_version
        ));
    };
    let mut uuid = [0; 16];
    system::random(&mut uuid);
    let mut options = FormatOptions::new(block_bytes, uuid);
    options.version = version;
    Ok(options)
}

/// Inspects the contents of the medium, and of a table on it, as for a cache. Returns a description
/// of discarded dirty data.
async fn look_at(
    memory: Arc<PmemMapping>,
    name: String,
    force: bool,
    discard: bool,
) -> Result<Option<String>> {
    let device = PmemDevice::new(Arc::clone(&memory), name.clone(), Persistence::Media);
    let mut info = device.info();
    info.identity = memory.identity();
    refuse_if_left(&info).context(|| format!("cannot format {name}"))?;
    let mut lost = look_on(Rc::new(device), force, discard).await?;
    if let Ok(table) = Btt::open(memory) {
        let device = BttDevice::new(Arc::new(table), name, &info);
        lost = look_on(Rc::new(device), force, discard).await?.or(lost);
    }
    Ok(lost)
}

async fn look_on(data: Rc<dyn BlockDevice>, force: bool, discard: bool) -> Result<Option<String>> {
    let devices = Devices {
        data,
        metadata: None,
    };
    look(&devices, force, discard).await.map(|(lost, _)| lost)
}

fn said(path: &Path, options: &FormatOptions, made: Formatted, memory: &PmemMapping) -> String {
    let block = u64::from(options.block_bytes);
    format!(
        "{}: block translation table {} with {} in blocks of {}, on {}\n",
        path.display(),
        options.version,
        human_bytes(made.blocks * block),
        human_bytes(block),
        describe(memory)
    )
}
