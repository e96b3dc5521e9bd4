//! Compares the limit on the size of files (`RLIMIT_FSIZE`) with the files that a configuration
//! writes.
//!
//! The limit also refuses a write within the present size of a larger file. So the check covers the
//! size of each regular file, before any of them is opened. Block devices and mapped media have no
//! such limit.

use std::path::Path;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::limits::file_size_limit;

use crate::config::{Config, DeviceKind};
use forebay_terminal::size::human_bytes;

/// Size that a file of the state directory may reach, bytes. Logs of ranges grow with writes.
const STATE_BYTES: u64 = 1 << 20;

/// A file that the start creates, or that is written in service.
pub(super) struct Written {
    /// Description of its use.
    pub(super) what: String,
    /// Place in the configuration.
    pub(super) place: String,
    /// Size, bytes.
    pub(super) bytes: u64,
}

/// Refuses a configuration with a file that is larger than this process may write. `made` are the
/// files that the start creates; `cached` says whether the cache is used.
///
/// # Errors
/// `NoSpace` with the largest file, the limit and the remedy.
pub(super) fn check(config: &Config, cached: bool, made: Vec<Written>) -> Result<()> {
    match file_size_limit() {
        Some(limit) => check_against(limit, config, cached, made),
        None => Ok(()),
    }
}

fn check_against(
    limit: u64,
    config: &Config,
    cached: bool,
    mut written: Vec<Written>,
) -> Result<()> {
    let state = &config.server.state;
    written.push(Written {
        what: format!("the state directory {}", state.display()),
        place: match config.server.state_line {
            Some(line) => config.place(line),
            None => config.path.display().to_string(),
        },
        bytes: STATE_BYTES,
    });
    let cache = config.cache.as_ref().filter(|_| cached);
    let cache = cache
        .into_iter()
        .flat_map(|cache| [Some(&cache.data), cache.metadata.as_ref()]);
    let volumes = config.volumes.iter().filter(|volume| !volume.read_only);
    let devices = cache.flatten().chain(volumes.map(|volume| &volume.backing));
    written.extend(devices.filter_map(|name| file_under(config, name)));
    let Some(largest) = written.into_iter().max_by_key(|file| file.bytes) else {
        return Ok(());
    };
    if largest.bytes <= limit {
        return Ok(());
    }
    Err(Error::with_source(
        ErrorKind::NoSpace,
        "",
        format!(
            "{}: {} needs files of {}, and the process may write files of {}\n    \
             help: raise the limit of file sizes (ulimit -f, LimitFSIZE=)",
            largest.place,
            largest.what,
            human_bytes(largest.bytes),
            human_bytes(limit),
        ),
    ))
}

/// Returns the regular file at the bottom of the device `name`, if there is one that is not mapped.
fn file_under(config: &Config, name: &str) -> Option<Written> {
    let leaf = *config.stack(name).last()?;
    let DeviceKind::File { path, .. } = &leaf.kind else {
        return None;
    };
    Some(Written {
        what: format!("device {:?}", leaf.name),
        place: config.place(leaf.line),
        bytes: file_bytes(path)?,
    })
}

fn file_bytes(path: &Path) -> Option<u64> {
    let found = std::fs::metadata(path).ok()?;
    found.is_file().then_some(found.len())
}
