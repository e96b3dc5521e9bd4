//! `NAME.ranges`: parts of a volume that were written without its cache.
//!
//! The file is append-only text. Each line stands for [`RANGE_BYTES`] of the volume, at their first
//! write since the log began. It has the number of the range and, as a check, its complement. A
//! truncated last line was not durable, and neither were zeroes at the end, so their writes were
//! never passed on. Another bad line is damage: everything then counts as written.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Result};

use super::errors::{WRITABLE, with_help};
use super::files::{self, sync_directory};

/// Size of a logged range, bytes.
pub const RANGE_BYTES: u64 = 1 << 20;

const LINE_BYTES: usize = 34;

/// First line of a log that replaces a missing one. It is longer than a truncated line, so that
/// everything counts as written.
const UNKNOWN: &str = "what was written before this log was begun is not known: all of it\n";

fn render(number: u64) -> String {
    format!("{number:016x} {:016x}\n", !number)
}

fn parse(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (number, complement) = line.split_once(' ')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    (u64::from_str_radix(complement, 16).ok()? == !number).then_some(number)
}

/// Returns the numbers in the log and the length of its valid part, bytes. `Err` holds the offset
/// of damage.
fn scan(bytes: &[u8]) -> std::result::Result<(HashSet<u64>, usize), usize> {
    let mut numbers = HashSet::new();
    let mut good = 0;
    for line in bytes.chunks(LINE_BYTES) {
        match parse(line) {
            Some(number) => numbers.insert(number),
            // The end of the log was truncated, or was not on the medium at a power loss.
            None if line.len() < LINE_BYTES || bytes[good..].iter().all(|byte| *byte == 0) => break,
            None => return Err(good),
        };
        good += LINE_BYTES;
    }
    Ok((numbers, good))
}

/// Reads the log at `path` as ranges of bytes, sorted and merged. Returns `None` if it is absent or
/// damaged: the written ranges are then unknown.
///
/// # Errors
/// The error of the operating system.
pub fn read_ranges(path: &Path) -> Result<Option<Vec<Range<u64>>>> {
    let Some(bytes) = files::read(path)? else {
        return Ok(None);
    };
    let numbers = match scan(&bytes) {
        Ok((numbers, _)) => numbers,
        Err(_) if bytes.starts_with(UNKNOWN.as_bytes()) => return Ok(None),
        Err(at) => {
            tracing::error!(
                "{} is damaged at byte {at}: the whole volume counts as written without the cache",
                path.display()
            );
            return Ok(None);
        }
    };
    let mut numbers: Vec<_> = numbers.into_iter().collect();
    numbers.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        let start = number.saturating_mul(RANGE_BYTES);
        let end = start.saturating_add(RANGE_BYTES);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    Ok(Some(ranges))
}

/// Starts a log that marks everything as written, in one atomic step: an empty log would mean the
/// opposite.
fn begin_unknown(path: &Path) -> Result<Vec<u8>> {
    let begun = path.with_extension("ranges-begun");
    files::replace(path, &begun, UNKNOWN.as_bytes())?;
    Ok(UNKNOWN.into())
}

/// Change of a log of ranges at an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// The log stays as it is.
    Unchanged,
    /// The log becomes empty: nothing was written without the cache.
    Emptied,
    /// The log is removed: any range may have been written without the cache.
    Removed,
}

impl LogChange {
    /// Changes the log at `path`, durably. A crash leaves the former log, none, or the new one. So
    /// a log that counts is never emptied.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn carry_out(self, path: &Path) -> Result<()> {
        if self == Self::Unchanged {
            return Ok(());
        }
        files::remove(path)?;
        match self {
            Self::Emptied => RangeLog::open(path, true).map(drop),
            _ => sync_directory(path.parent().unwrap_or(Path::new("."))),
        }
    }
}

/// The log, open for appending.
#[derive(Debug)]
pub struct RangeLog {
    path: PathBuf,
    file: File,
    len: u64,
    known: HashSet<u64>,
}

impl RangeLog {
    /// Opens the log at `path` for appending, or creates it. `fresh` states that nothing was
    /// written yet. Without it, a new log marks everything as written. On return the file and its
    /// name are durable.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(path: &Path, fresh: bool) -> Result<Self> {
        let what = || format!("log of ranges {}", path.display());
        let bytes = match files::read(path)? {
            Some(bytes) => bytes,
            None if fresh => Vec::new(),
            None => begin_unknown(path)?,
        };
        let (known, good) = scan(&bytes).unwrap_or_else(|_| {
            // Readers take everything as written; more lines change nothing.
            (HashSet::new(), bytes.len())
        });
        let mut options = OpenOptions::new();
        let opened = files::open(path, options.append(true).create(true));
        let file = files::in_context(opened, what)?;
        file.set_len(good as u64).context(what)?;
        file.sync_all().context(what)?;
        sync_directory(path.parent().unwrap_or(Path::new(".")))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len: good as u64,
            known,
        })
    }

    /// Returns the numbers of the ranges in the log.
    #[must_use]
    pub fn known(&self) -> HashSet<u64> {
        self.known.clone()
    }

    /// Appends the ranges with these distinct numbers. On return they are durable.
    ///
    /// # Errors
    /// The error of the operating system. The writes to these ranges must not be passed on then.
    pub fn add(&mut self, numbers: &[u64]) -> Result<()> {
        let mut text = String::new();
        let mut new = Vec::new();
        for number in numbers {
            if !self.known.contains(number) {
                text.push_str(&render(*number));
                new.push(*number);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let added = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(error) = added {
            // A partial line must not precede later ones.
            let cut = self.file.set_len(self.len);
            let what = format!("cannot write the log of ranges {}", self.path.display());
            let failed = cut.err().unwrap_or(error);
            return Err(with_help(&failed.into(), &what, WRITABLE));
        }
        self.len += text.len() as u64;
        self.known.extend(new);
        Ok(())
    }
}
