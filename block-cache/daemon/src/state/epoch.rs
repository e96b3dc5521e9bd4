//! `NAME.epoch`: a few lines of text with a check value, replaced atomically and durably.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};

use super::digits::{hex, unhex};
use super::files;
use super::writers::Writers;

/// Cache that a volume was last attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheId {
    /// No cache, or one that has forgotten the volume since.
    None,
    /// A cache in the memory of a process, which ends with the process.
    Memory,
    /// The cache with this identity.
    Uuid([u8; 16]),
}

/// Record of a volume in the state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Highest epoch that the cache may have, or that of the last start without it.
    pub epoch: u64,
    /// Epoch of the last attach that is known to have succeeded; zero for none. The cache has this
    /// epoch or a higher one, unless it was restored from an old copy.
    pub attached: u64,
    /// Cache of the last attach.
    pub cache: CacheId,
    /// Whether that cache may hold data that the backing device lacks.
    pub may_be_dirty: bool,
    /// Highest epoch that the cache may have from before the volume was served without it; `None`
    /// if the volume was not. The log of ranges has all writes after that epoch. [`ANY_EPOCH`] for
    /// a log that has all writes.
    pub logged_since: Option<u64>,
    /// Whether `NAME.dirty` lists all ranges that were dirty in the cache then. None of them was
    /// overwritten since, the cache holds no other valid data, and there is no log of ranges.
    pub dirty_listed: bool,
    /// Identity of the backing device at the last attach.
    pub backing: Identity,
    /// Size of the backing device at the last attach, bytes. Zero in records of earlier versions.
    pub backing_bytes: u64,
    /// Writers of the backing device, if that is in object storage.
    pub writers: Writers,
}

/// [`Record::logged_since`] for a log that has all writes, whichever cache has data of the volume.
pub(super) const ANY_EPOCH: u64 = u64::MAX;

impl Record {
    /// Whether the log of ranges has all writes since the state directory knows the volume, which
    /// was served through no cache since.
    #[must_use]
    pub fn logs_every_write(&self) -> bool {
        self.cache == CacheId::None && self.logged_since == Some(ANY_EPOCH)
    }

    /// Returns the record of a volume whose cache holds no dirty data.
    #[must_use]
    pub const fn clean(self) -> Self {
        Self {
            may_be_dirty: false,
            ..self
        }
    }

    /// Returns the record of a volume that its cache has forgotten.
    #[must_use]
    pub const fn forgotten(self) -> Self {
        Self {
            cache: CacheId::None,
            attached: 0,
            may_be_dirty: false,
            logged_since: None,
            dirty_listed: false,
            ..self
        }
    }
}

const HEAD: &str = "forebay volume state 1";

fn path(directory: &Path, volume: &str) -> PathBuf {
    directory.join(format!("{volume}.epoch"))
}

/// Returns the FNV-1a hash, which distinguishes a whole file from a damaged one.
pub(super) fn check(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Memory => f.write_str("memory"),
            Self::Uuid(uuid) => f.write_str(&hex(uuid)),
        }
    }
}

fn parse_cache(text: &str) -> Option<CacheId> {
    match text {
        "none" => Some(CacheId::None),
        "memory" => Some(CacheId::Memory),
        _ => unhex(text).map(CacheId::Uuid),
    }
}

fn render(volume: &str, record: &Record) -> String {
    let since = record
        .logged_since
        .map_or_else(|| "no".into(), |epoch| epoch.to_string());
    let start = record.backing.start;
    let start = start.map_or_else(|| "unknown".into(), |start| start.to_string());
    let writers = match record.writers.is_known() {
        true => format!("writers {}\n", record.writers),
        false => String::new(),
    };
    let body = format!(
        "{HEAD}\nvolume {volume}\nepoch {}\nattached {}\ncache {}\nmay-be-dirty {}\nlogged-since \
         {since}\nbacking {:016x}\nborn {}\n\
         start {start}\nbytes {}\ninstance {:016x}\ndirty-listed {}\n{writers}",
        record.epoch,
        record.attached,
        record.cache,
        record.may_be_dirty,
        record.backing.medium,
        record.backing.birth,
        record.backing_bytes,
        record.backing.instance,
        record.dirty_listed,
    );
    let check = check(&body);
    format!("{body}check {check:016x}\n")
}

fn parse(volume: &str, text: &str) -> Option<Record> {
    let body_len = text.trim_end_matches('\n').rfind('\n')? + 1;
    let (body, last) = text.split_at(body_len);
    let expected = last.strip_suffix('\n')?.strip_prefix("check ")?;
    if u64::from_str_radix(expected, 16).ok()? != check(body) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != HEAD || lines.next()?.strip_prefix("volume ")? != volume {
        return None;
    }
    let mut record = Record {
        epoch: lines.next()?.strip_prefix("epoch ")?.parse().ok()?,
        attached: lines.next()?.strip_prefix("attached ")?.parse().ok()?,
        cache: parse_cache(lines.next()?.strip_prefix("cache ")?)?,
        may_be_dirty: lines.next()?.strip_prefix("may-be-dirty ")?.parse().ok()?,
        logged_since: match lines.next()?.strip_prefix("logged-since ")? {
            "no" => None,
            epoch => Some(epoch.parse().ok()?),
        },
        // Earlier versions wrote none of the following lines, or only the first.
        backing: Identity {
            medium: match lines.next() {
                Some(line) => u64::from_str_radix(line.strip_prefix("backing ")?, 16).ok()?,
                None => 0,
            },
            birth: number(lines.next(), "born ")?,
            start: match lines.next().map(|line| line.strip_prefix("start ")) {
                None | Some(Some("unknown")) => None,
                Some(start) => Some(start?.parse().ok()?),
            },
            ..Identity::default()
        },
        backing_bytes: number(lines.next(), "bytes ")?,
        dirty_listed: false,
        writers: Writers::default(),
    };
    if let Some(line) = lines.next() {
        record.backing.instance = u64::from_str_radix(line.strip_prefix("instance ")?, 16).ok()?;
    }
    if let Some(line) = lines.next() {
        record.dirty_listed = line.strip_prefix("dirty-listed ")?.parse().ok()?;
    }
    // Only volumes in object storage have this line.
    if let Some(line) = lines.next() {
        record.writers = Writers::parse(line.strip_prefix("writers ")?)?;
    }
    Some(record)
}

/// Returns the number after `key`, or zero if the file ends before this line. Returns `None` if the
/// line has another key or no number.
fn number(line: Option<&str>, key: &str) -> Option<u64> {
    line.map_or(Some(0), |line| line.strip_prefix(key)?.parse().ok())
}

/// Returns the records of volumes other than `volume` that were served from this backing device, a
/// part of it, or a medium that contains it. `backing_bytes` is the size of the device.
pub(super) fn others(
    directory: &Path,
    volume: &str,
    backing: Identity,
    backing_bytes: u64,
) -> Result<Vec<(String, Record)>> {
    let overlaps =
        |record: &Record| (record.backing).overlaps(record.backing_bytes, backing, backing_bytes);
    let found = all(directory)?.into_iter();
    let mut found: Vec<_> = found
        .filter(|(other, record)| other != volume && overlaps(record))
        .collect();
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// Returns whether an attach of a volume to this cache has ended.
pub(super) fn any_attached(directory: &Path, cache: CacheId) -> Result<bool> {
    let mut records = all(directory)?.into_iter();
    Ok(records.any(|(_, record)| record.cache == cache && record.attached > 0))
}

/// Returns the volumes whose last attach was to this cache, with their records, in the order of
/// their names. The directory may belong to another process, or not exist.
pub(crate) fn of_cache(directory: &Path, cache: CacheId) -> Vec<(String, Record)> {
    let mut found = all(directory).unwrap_or_default();
    found.retain(|(_, record)| record.cache == cache);
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Returns the volumes with their records. A damaged file is reported when its own volume is
/// served.
fn all(directory: &Path) -> Result<Vec<(String, Record)>> {
    let what = || format!("state directory {}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).context(what)? {
        let name = entry.context(what)?.file_name();
        let name = name.to_string_lossy();
        if let Some(volume) = name.strip_suffix(".epoch")
            && let Ok(Some(record)) = load(directory, volume)
        {
            found.push((volume.to_owned(), record));
        }
    }
    Ok(found)
}

pub(super) fn load(directory: &Path, volume: &str) -> Result<Option<Record>> {
    let path = path(directory, volume);
    let Some(bytes) = files::read(&path)? else {
        return Ok(None);
    };
    // Bytes that are not UTF-8 fail the check like other damage.
    match parse(volume, &String::from_utf8_lossy(&bytes)) {
        Some(record) => Ok(Some(record)),
        None => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} is damaged: writes without the cache are unknown\n\
                 help: restore the file. Or remove it and start with --adopt {volume}, if nothing \
                 wrote to the backing device without this cache, or {volume}.ranges has all such \
                 writes",
                path.display()
            ),
        )),
    }
}

pub(super) fn store(directory: &Path, volume: &str, record: &Record) -> Result<()> {
    let path = path(directory, volume);
    let new = directory.join(format!("{volume}.epoch.new"));
    files::replace(&path, &new, render(volume, record).as_bytes())
}
