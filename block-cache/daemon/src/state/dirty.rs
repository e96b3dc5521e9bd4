//! `NAME.dirty`: all ranges that were dirty in a volume's cache when the cache failed in service
//! and the volume continued without it.
//!
//! The file is text. It has a line with the volume's name, one line for each range (offset and
//! length in bytes), and a check value. It is valid only if the record in `NAME.epoch` says so. It
//! is durable before that record is.

use std::ops::Range;
use std::path::Path;

use forebay_block::Result;

use super::epoch::check;
use super::files;

const HEAD: &str = "forebay dirty data 1";

/// Writes the list at `path` and replaces an existing one. On return it is durable.
///
/// # Errors
/// The error of the operating system. The former list is intact then.
pub(super) fn store(path: &Path, volume: &str, dirty: &[Range<u64>]) -> Result<()> {
    use std::fmt::Write as _;
    let mut text = format!("{HEAD}\nvolume {volume}\n");
    for Range { start, end } in dirty {
        let _ = writeln!(text, "{start} {}", end - start);
    }
    let check = check(&text);
    let _ = writeln!(text, "check {check:016x}");
    let new = path.with_extension("dirty-new");
    files::replace(path, &new, text.as_bytes())
}

/// Reads the list at `path`. Returns `None` if it is absent or damaged: the dirty ranges are then
/// unknown.
///
/// # Errors
/// The error of the operating system.
pub(super) fn load(path: &Path, volume: &str) -> Result<Option<Vec<Range<u64>>>> {
    let Some(bytes) = files::read(path)? else {
        return Ok(None);
    };
    let dirty = parse(volume, &String::from_utf8_lossy(&bytes));
    if dirty.is_none() {
        tracing::error!(
            "{} is damaged: all dirty data of volume {volume:?} counts as older than what was \
             written without the cache",
            path.display()
        );
    }
    Ok(dirty)
}

fn parse(volume: &str, text: &str) -> Option<Vec<Range<u64>>> {
    let body_len = text.strip_suffix('\n')?.rfind('\n')? + 1;
    let (body, last) = text.split_at(body_len);
    let expected = last.strip_suffix('\n')?.strip_prefix("check ")?;
    if u64::from_str_radix(expected, 16).ok()? != check(body) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != HEAD || lines.next()?.strip_prefix("volume ")? != volume {
        return None;
    }
    let range = |line: &str| {
        let (start, len) = line.split_once(' ')?;
        let start: u64 = start.parse().ok()?;
        Some(start..start.checked_add(len.parse().ok()?)?)
    };
    lines.map(range).collect()
}
