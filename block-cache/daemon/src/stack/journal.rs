//! Where a cache's process journal lies, and whose it is.
//!
//! Its usual place is named after the cache. Where the configuration wants it elsewhere, a link in
//! the usual place leads there, so that `forebay format` and `forebay check`, which know the cache
//! alone, find what a dead daemon left.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_block::{Buf, Context as _, Error, ErrorKind, Result};
use forebay_cache::{Devices, check_relation, writes_at_stake};
use forebay_io::Stop;
use forebay_io::shm::{check_shared, look_shared, open_shared, open_shared_until};
use forebay_io::system::boot_id;
use forebay_metadata::Media;
use forebay_metadata::journal::{self, HEAD_BYTES, Head, Relation};
use forebay_metadata::superblock::{Service, Superblock};

use super::copies::{has_twin_at, place_of_path};
use crate::state::hex;
use crate::state::opening::clone_command;

/// Where journals lie that the configuration does not place.
const USUAL_DIRECTORY: &str = "/dev/shm";
/// Length of the magic that a journal begins with (docs/internals/format/process-journal.md),
/// bytes.
const MAGIC_BYTES: usize = 8;
/// The magic, and the cache's identity behind it, bytes.
const OWNER_BYTES: usize = 24;
/// No journal in use is smaller, bytes.
const SMALLEST_BYTES: u64 = 1 << 20;

/// The cache that a journal is looked for.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    pub(crate) uuid: [u8; 16],
    /// The devices that it lies on now.
    pub(crate) media: Media,
    /// Number of its last opening.
    pub(crate) generation: u64,
    /// Path or name of its device, for messages.
    pub(crate) place: String,
    /// The same of its data device, where that is another one; else empty.
    pub(crate) data_place: String,
    /// The writes that may be lost with its journal, as a remedy names them.
    pub(crate) stake: String,
    /// Path that its superblock notes, if another file or disk there has the cache as well.
    pub(crate) twin: Option<String>,
    /// Whether it was copied to its devices, which take the place of the former ones.
    pub(crate) moved: bool,
}

impl Whose {
    /// The cache that was found on these devices.
    pub(crate) fn of(found: &Superblock, devices: &Devices, place: String, moved: bool) -> Self {
        Self {
            uuid: found.uuid,
            media: Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref()),
            generation: found.service.generation,
            data_place: match devices.metadata {
                Some(_) => place_of_path(Path::new(&devices.data.info().name)),
                None => String::new(),
            },
            stake: writes_at_stake(found),
            twin: has_twin_at(&found.place, &found.uuid, &place).then(|| found.place.clone()),
            place,
            moved,
        }
    }

    /// Returns the path of another file or disk that has the cache, where the superblock or the
    /// journal with this head names one.
    fn twin_by(&self, head: &Head) -> Option<String> {
        let named = || has_twin_at(&head.place, &self.uuid, &self.place);
        match self.moved {
            true => None,
            false => (self.twin.clone()).or_else(|| named().then(|| head.place.clone())),
        }
    }

    /// The same cache, opened since.
    pub(crate) fn opened(&self, service: Service) -> Self {
        Self {
            media: service.media,
            generation: service.generation,
            ..self.clone()
        }
    }
}

/// What the journal at `path` says of itself; none where there is none. Of a named pipe it would
/// wait for a writer.
fn head(path: &Path) -> Option<Head> {
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut bytes = [0; HEAD_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.ok().and_then(|()| Head::read(&bytes))
}

/// Refuses the journal at `path` if it is that of another copy of the cache, or of another opening.
/// Such a one is never written to, nor removed.
///
/// # Errors
/// `Busy` for a copy's, `Lost` for another opening's; with the paths and the remedy.
fn refuse_foreign(path: &Path, whose: &Whose) -> Result<()> {
    let Some(head) = head(path).filter(|head| head.uuid == whose.uuid) else {
        return Ok(());
    };
    // No process of this boot needs it.
    if head.boot_id != boot_id()? {
        return Ok(());
    }
    if let Some(twin) = whose.twin_by(&head) {
        let (path, here) = (path.display(), &whose.place);
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{here} is a copy of the cache on {twin}, to which the process journal belongs\n    \
                 help: serve {twin}, which alone has what was acknowledged last (journal {path}); \
                 or make \
                 the copy a cache of its own with `{}`; or, if {here} takes \
                 the place of {twin}, start once with --moved-cache",
                clone_command(here, &whose.data_place)
            ),
        ));
    }
    let refused = check_relation(head.tie, whose.media, whose.generation, whose.moved);
    let Err(error) = refused else {
        return Ok(());
    };
    let original = match &*head.place {
        "" => "another device".to_owned(),
        place => place.to_owned(),
    };
    let (path, here) = (path.display(), &whose.place);
    let (own, last) = (head.tie.generation, whose.generation);
    let what = match head.tie.relation(whose.media, whose.generation) {
        Relation::Newer => format!(
            "{here}: the cache is older than its process journal: opening {last}, the journal's is \
             {own}\n    \
             help: put the newest state of the device back: the journal {path} belongs to it. If \
             that is \
             gone, make a new cache with `forebay format --force --discard-dirty`, and start once \
             with \
             --adopt VOLUME: what was not written back IS LOST THEN"
        ),
        Relation::Older => format!(
            "{here}: the process journal is of opening {own}, and the cache's last one was \
             {last}\n    \
             help: put the newest journal back at {path}; or move this one away, start once with \
             --accept-journal-loss, and check what the clients stored last{}",
            whose.stake
        ),
        relation => format!(
            "{here} is a copy of the cache on {original}, to which the process journal belongs\n    \
             help: serve {original}, which alone has what was acknowledged last (journal {path}); \
             or make \
             the copy a cache of its own with `{}`{}",
            clone_command(here, &whose.data_place),
            match relation {
                Relation::Copied =>
                    "; or, if the copy takes the place of the original, start once \
                                     with --moved-cache",
                _ => "",
            }
        ),
    };
    Err(Error::new(error.kind(), what))
}

fn usual_place(uuid: &[u8; 16]) -> PathBuf {
    format!("{USUAL_DIRECTORY}/forebay-{}.journal", hex(uuid)).into()
}

/// Where the process journal of a cache lies, if it has one, as far as the cache alone tells.
pub(crate) fn find(uuid: &[u8; 16]) -> PathBuf {
    let usual = usual_place(uuid);
    std::fs::read_link(&usual).unwrap_or(usual)
}

/// The cache that the journal at `path` belongs to; none where there is no file, or an empty one.
/// Anything else is somebody's, and not ours to write over or remove.
///
/// `ours` is the cache that asks, and `stake` names the writes that it may lose.
fn owner(path: &Path, ours: Option<&[u8; 16]>, stake: &str) -> Result<Option<[u8; 16]>> {
    let allowed = check_shared(path).context(|| format!("the process journal {}", path.display()));
    match allowed {
        // Of what is no journal, its mode is the least.
        Err(error) if error.kind() == ErrorKind::Permission => {
            named_owner(path, ours, stake)?;
            Err(error)
        }
        // Whoever opens a named pipe may wait for ever.
        Err(error) => Err(error),
        Ok(()) => named_owner(path, ours, stake),
    }
}

/// The owner that a file says it has.
fn named_owner(path: &Path, ours: Option<&[u8; 16]>, stake: &str) -> Result<Option<[u8; 16]>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
        opened => opened.context(|| {
            let path = path.display();
            format!("the process journal {path} cannot be read: start as the user whose it is, or set `journal` in [cache] to another path")
        })?,
    };
    let mut head = [0; OWNER_BYTES];
    let whole = match file.read_exact(&mut head) {
        Ok(()) => &head,
        Err(_) if file.metadata().is_ok_and(|found| found.len() == 0) => return Ok(None),
        Err(_) => &[0xff; OWNER_BYTES],
    };
    let (magic, uuid) = whole.split_at(MAGIC_BYTES);
    if journal::is_magic(magic) {
        return Ok(uuid.try_into().ok());
    }
    // One whose making was interrupted.
    let named = uuid
        .try_into()
        .is_ok_and(|uuid| path == usual_place(&uuid) || Some(&uuid) == ours);
    if magic == [0; MAGIC_BYTES] && (named || ours.is_some_and(|ours| path == usual_place(ours))) {
        return Ok(None);
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "{path} is not a process journal, or was overwritten where it says whose it is; it is \
             left alone. If it was this cache's, put a \
             sound copy of it back; if there is none, move it away and start once with \
             --accept-journal-loss, and check what the \
             clients stored last{stake}. If it is something else, set `journal` in [cache] to a \
             path where nothing is",
            path = path.display()
        ),
    ))
}

fn is_of(path: &Path, uuid: &[u8; 16]) -> bool {
    matches!(owner(path, Some(uuid), ""), Ok(Some(of)) if of == *uuid)
}

/// Whether the journal at `path` is that of the cache's last opening.
fn is_own(path: &Path, whose: &Whose) -> bool {
    let is_damaged = head(path).is_some_and(|head| head.tie.is_damaged);
    is_of(path, &whose.uuid) && !is_damaged && refuse_foreign(path, whose).is_ok()
}

/// Refuses a journal at `path` that is not this cache's, and one while the cache's own lies
/// elsewhere: nothing is lost, so nobody may give it up.
///
/// # Errors
/// `Busy` with both paths, or as [`refuse_foreign`].
fn refuse_unless_own(path: &Path, whose: &Whose) -> Result<()> {
    let uuid = &whose.uuid;
    let found = find(uuid);
    refuse_foreign(&found, whose)?;
    refuse_foreign(path, whose)?;
    if found == path || !is_of(&found, uuid) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "the process journal of this cache is {found}, and the configuration wants {path}: \
             move it there (`mv {found} {path}`), or start once with journal = \"{found}\"",
            found = found.display(),
            path = path.display()
        ),
    ))
}

/// Where the process journal of a cache is to be.
pub(crate) fn wanted(configured: Option<&Path>, uuid: &[u8; 16]) -> PathBuf {
    configured.map_or_else(|| usual_place(uuid), Path::to_path_buf)
}

/// Returns the size that the journal at `path` will have, where `len` bytes are asked for, and the
/// bytes that its file lacks.
pub(super) fn wanted_bytes(path: &Path, len: u64) -> (u64, u64) {
    let Ok(found) = std::fs::metadata(path) else {
        return (len, len);
    };
    let len = match found.len() >= SMALLEST_BYTES {
        true => found.len(),
        false => len,
    };
    (len, len.saturating_sub(found.blocks() * 512))
}

/// Maps the journal of the cache `uuid` at its configured path, or in its usual place. One that
/// exists keeps its size: what it holds may be all that there is of acknowledged writes, and
/// another size would begin it anew.
///
/// # Errors
/// `Busy` where a journal with acknowledged writes would be lost: one of another cache at this
/// path, or one of this cache elsewhere. `InvalidInput` for a file that is no journal.
pub(super) fn open(
    configured: Option<&Path>,
    mut len: usize,
    whose: &Whose,
    stop: &Stop,
) -> Result<Opened> {
    let uuid = &whose.uuid;
    let path = wanted(configured, uuid);
    refuse_unless_own(&path, whose)?;
    if configured.is_none() && path.is_symlink() {
        // Where it led, there is nothing that counts.
        std::fs::remove_file(&path).context(|| path.display().to_string())?;
    }
    let found = owner(&path, Some(uuid), &whose.stake)?;
    let other = found.filter(|owner| owner != uuid);
    // One whose making was interrupted holds nothing, and its size means nothing.
    let created = found.is_none();
    if created {
        // Where it fails, opening it says why.
        let _ = place(&path, len, uuid);
    }
    // One of this cache that was cut has the more in it the less is done to it.
    let smallest = match found {
        Some(of) if of == *uuid => journal::JOURNAL_MIN_BYTES as u64,
        _ => SMALLEST_BYTES,
    };
    if let Ok(metadata) = std::fs::metadata(&path)
        && metadata.len() >= smallest
    {
        let there = usize::try_from(metadata.len()).unwrap_or(len);
        if there != len && other.is_none() {
            tracing::warn!(
                "the process journal {} has {there} bytes and keeps that size; for journal_size = \
                 {len}, remove it after a clean shutdown",
                path.display()
            );
        }
        len = there;
    }
    let mapped = open_shared_until(&path, len, stop);
    if created && mapped.is_err() {
        // It would keep its size.
        remove_unused(&path, uuid);
    }
    let (memory, _) = mapped.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => error.context(
            "cannot open the process journal: set `journal` in [cache] to a path on tmpfs, or use \
             a smaller `journal_size`",
        ),
        _ => error.context(format!("the process journal {}", path.display())),
    })?;
    if let Some(other) = other {
        refuse_others(&memory, &other, &path)?;
    }
    if created {
        memory.copy_from(MAGIC_BYTES, uuid);
    }
    Ok(Opened {
        memory,
        path,
        created,
    })
}

/// Refuses the journal of another cache that has acknowledged writes in it.
fn refuse_others(memory: &Buf, other: &[u8; 16], path: &Path) -> Result<()> {
    let left = journal::Journal::recover(memory, other, &boot_id()?);
    if !left.is_some_and(|left| left.poisoned || !left.entries.is_empty()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "the process journal {} holds acknowledged writes of another cache, {}: serve that \
             one first, set `journal` in [cache] to another path, or remove the file if that \
             cache is gone",
            path.display(),
            hex(other)
        ),
    ))
}

/// Says what [`open`] will of the place of the journal; changes nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn foresee(configured: Option<&Path>, whose: &Whose) -> Result<()> {
    let uuid = &whose.uuid;
    let path = wanted(configured, uuid);
    refuse_unless_own(&path, whose)?;
    if configured.is_none() && path.is_symlink() {
        return Ok(());
    }
    let other = owner(&path, Some(uuid), &whose.stake)?.filter(|owner| owner != uuid);
    match (other, existing(&path)?) {
        (Some(other), Some(memory)) => refuse_others(&memory, &other, &path),
        _ => Ok(()),
    }
}

/// Puts a file there that can be seen to be this cache's from its first moment on, should this
/// process die before the journal in it is begun.
fn place(path: &Path, len: usize, uuid: &[u8; 16]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".forebay-new");
    let _ = std::fs::remove_file(&beside);
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.set_len(len as u64)?;
    file.write_all_at(uuid, MAGIC_BYTES as u64)?;
    std::fs::rename(&beside, path)
}

/// A mapped journal.
pub(super) struct Opened {
    pub(super) memory: Buf,
    /// Where it lies.
    pub(super) path: PathBuf,
    /// Whether it was not there before, or held nothing.
    pub(super) created: bool,
}

/// Removes a journal that was made for a cache which then did not open, unless the cache had begun
/// it.
pub(super) fn remove_unused(path: &Path, uuid: &[u8; 16]) {
    if matches!(owner(path, Some(uuid), ""), Ok(None)) {
        let _ = std::fs::remove_file(path);
        // What led to a journal that was there in an earlier life.
        let usual = usual_place(uuid);
        if std::fs::read_link(&usual).is_ok_and(|leads_to| leads_to == path) {
            let _ = std::fs::remove_file(&usual);
        }
    }
}

/// Removes links in the usual place of journals that lead nowhere: of caches that are gone with
/// their journals, a daemon having been killed. Links of other users are left alone.
pub(super) fn sweep() {
    let entries = std::fs::read_dir(USUAL_DIRECTORY).into_iter().flatten();
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let named = name
            .strip_prefix("forebay-")
            .and_then(|name| name.strip_suffix(".journal"));
        let dangling = || {
            let leads_to = std::fs::read_link(entry.path()).ok()?;
            let ours = entry.metadata().ok()?.uid() == user;
            let gone =
                matches!(std::fs::metadata(&leads_to), Err(e) if e.kind() == IoKind::NotFound);
            Some(ours && gone)
        };
        if named.is_some_and(|uuid| uuid.len() == 32) && dangling() == Some(true) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Lets the usual place lead to a journal that is in use elsewhere.
pub(super) fn point(uuid: &[u8; 16], path: &Path) {
    let usual = usual_place(uuid);
    if usual == path {
        return;
    }
    let _ = std::fs::remove_file(&usual);
    if let Err(error) = std::os::unix::fs::symlink(path, &usual) {
        tracing::debug!("no link {} to the journal: {error}", usual.display());
    }
}

/// A copy of the journal of a cache that is not open, if there is one. Nothing of the journal is
/// changed, or allocated.
///
/// # Errors
/// `Busy` when a daemon uses it, or what the system says.
fn existing(path: &Path) -> Result<Option<Buf>> {
    look_shared(path).context(|| format!("the process journal {}", path.display()))
}

/// Returns the journal at `path`, if it is that of the last opening of a cache that is not open, or
/// why it is not: a copy as of [`existing`], or the journal itself, to `mend` the cache from it.
///
/// # Errors
/// As [`existing`].
pub(crate) fn own(whose: &Whose, path: &Path, mend: bool) -> Result<Result<Option<Buf>>> {
    if !is_of(path, &whose.uuid) {
        return Ok(Ok(None));
    }
    match refuse_foreign(path, whose) {
        Ok(()) if mend => map(path).map(|journal| Ok(Some(journal))),
        Ok(()) => existing(path).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// Maps the journal at `path` with the size that it has, so that nothing of it changes.
fn map(path: &Path) -> Result<Buf> {
    let len = std::fs::metadata(path)
        .context(|| path.display().to_string())?
        .len();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let (journal, _) =
        open_shared(path, len).context(|| format!("the process journal {}", path.display()))?;
    Ok(journal)
}
/// Removes the journal of a cache whose every write is elsewhere, or given up, and the link to it.
/// One of another copy of the cache, or of another opening, stays.
pub(crate) fn remove(whose: &Whose, path: &Path) {
    let remove = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != IoKind::NotFound => {
            tracing::warn!(
                "cannot remove the process journal {}: {error}",
                path.display()
            );
        }
        _ => {}
    };
    let usual = usual_place(&whose.uuid);
    if is_own(path, whose) {
        remove(path);
    }
    // What leads to another copy's journal is that one's.
    if std::fs::read_link(&usual).is_ok_and(|leads_to| !leads_to.exists()) {
        remove(&usual);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_only_placed_is_this_caches() {
        let path = std::env::temp_dir().join(format!("forebay-placed-{}", std::process::id()));
        place(&path, 2 << 20, &[7; 16]).expect("placed");
        let found = std::fs::metadata(&path).expect("there");
        assert_eq!((found.len(), found.mode() & 0o777), (2 << 20, 0o600));
        assert_eq!(
            owner(&path, Some(&[7; 16]), "").expect("it may be taken"),
            None
        );
        owner(&path, Some(&[8; 16]), "").expect_err("another cache's");
        let whose = Whose {
            uuid: [7; 16],
            media: Media::default(),
            generation: 0,
            place: String::new(),
            data_place: String::new(),
            stake: String::new(),
            twin: None,
            moved: false,
        };
        let opened = open(Some(&path), 2 << 20, &whose, &Stop::default()).expect("opened");
        assert!(opened.created, "it holds nothing");
        drop(opened);
        // A start that was killed while it allocated: the configuration may ask for less now.
        place(&path, 8 << 20, &[7; 16]).expect("placed");
        let opened = open(Some(&path), 2 << 20, &whose, &Stop::default()).expect("opened");
        assert_eq!(opened.memory.len(), 2 << 20);
        std::fs::remove_file(&path).expect("ours");
    }
}
