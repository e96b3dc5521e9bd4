//! The owner of a process journal: a cache, on certain devices, in a certain opening.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};
use forebay_cache::{Devices, check_relation, writes_at_stake};
use forebay_io::shm::check_shared;
use forebay_io::system::boot_id;
use forebay_metadata::Media;
use forebay_metadata::journal::{self, HEAD_BYTES, Head, Relation};
use forebay_metadata::superblock::{Service, Superblock};

use super::{MAGIC_BYTES, USUAL_DIRECTORY};
use crate::stack::copies::{Places, has_twin_at};
use crate::state::hex;
use crate::state::opening::{MADE_AFTER, clone_command};

/// Length of the magic and the cache's identity after it, bytes.
const OWNER_BYTES: usize = 24;

/// The cache whose journal is located.
#[derive(Clone, Debug)]
pub(crate) struct JournalOwner {
    pub(crate) uuid: [u8; 16],
    /// Devices that hold it now.
    pub(crate) media: Media,
    /// Number of its last opening.
    pub(crate) generation: u64,
    /// Path or name of its device, for messages.
    pub(crate) place: String,
    /// The same for a separate data device; otherwise empty.
    pub(crate) data_place: String,
    /// Writes that may be lost with its journal, in the words of a remedy.
    pub(crate) stake: String,
    /// Path in its superblock, if another file or disk there has the cache as well.
    pub(crate) twin: Option<String>,
    /// Whether it was copied to its devices, which replace the former ones.
    pub(crate) moved: bool,
}

impl JournalOwner {
    /// Returns the cache that was found on these devices.
    pub(crate) fn of(found: &Superblock, devices: &Devices, places: &Places, moved: bool) -> Self {
        let place = &places.metadata;
        Self {
            uuid: found.uuid,
            media: Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref()),
            generation: found.service.generation,
            data_place: places.data.clone(),
            stake: writes_at_stake(found),
            twin: has_twin_at(&found.place, &found.uuid, place).then(|| found.place.clone()),
            place: place.clone(),
            moved,
        }
    }

    /// Returns the path of another file or disk that has the cache, if the superblock or the head
    /// of the journal names one.
    fn twin_by(&self, head: &Head) -> Option<String> {
        let named = || has_twin_at(&head.place, &self.uuid, &self.place);
        match self.moved {
            true => None,
            false => (self.twin.clone()).or_else(|| named().then(|| head.place.clone())),
        }
    }

    /// Returns the same cache after its opening.
    pub(crate) fn opened(&self, service: Service) -> Self {
        Self {
            media: service.media,
            generation: service.generation,
            ..self.clone()
        }
    }
}

/// Returns the head of the journal at `path`; `None` if there is no regular file. Opening a named
/// pipe would wait for a writer.
fn head(path: &Path) -> Option<Head> {
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut bytes = [0; HEAD_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.ok().and_then(|()| Head::read(&bytes))
}

/// Refuses the journal at `path` if it belongs to another copy of the cache, or to another opening.
/// Such a journal is never written or removed.
///
/// # Errors
/// `Busy` for a copy's journal, `Lost` for that of another opening; with the paths and the remedy.
pub(super) fn refuse_foreign(path: &Path, whose: &JournalOwner) -> Result<()> {
    let Some(head) = head(path).filter(|head| head.uuid == whose.uuid) else {
        return Ok(());
    };
    // The journal is of an earlier boot: no process needs it.
    if head.boot_id != boot_id()? {
        return Ok(());
    }
    if let Some(twin) = whose.twin_by(&head) {
        let (path, here) = (path.display(), &whose.place);
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{here} is a copy of the cache on {twin}, to which the process journal \
                 belongs\n\
                 help: serve {twin}, which alone has the last acknowledged writes (journal \
                 {path}). Or make the copy a cache of its own with `{}`. Or, if {here} takes the \
                 place of {twin}{MADE_AFTER}, start once with --moved-cache",
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
            "{here}: the cache is of opening {last}, and older than its process journal of opening \
             {own}\n    \
             help: put the newest state of the device back: the journal {path} belongs to it. If \
             that is gone, make a new cache with `forebay format --force --discard-dirty`, and \
             start once with --adopt VOLUME: what was not written back IS LOST THEN"
        ),
        Relation::Older => format!(
            "{here}: the process journal is of opening {own}, and the cache's last one was \
             {last}\n    \
             help: put the newest journal back at {path}; or move this one away, start once with \
             --accept-journal-loss, and check what the clients stored last{}",
            whose.stake
        ),
        relation if is_data_alone(&head, whose) => format!(
            "{} is a copy of the data of this cache: the process journal belongs to another data \
             device\n    \
             help: serve that device, which alone has the last acknowledged writes (journal \
             {path}){}",
            whose.data_place,
            help_for_moved(relation)
        ),
        relation if original == *here => format!(
            "{here} is a copy of the cache that was at this path, to which the process journal \
             belongs\n    \
             help: put the original back, which alone has the last acknowledged writes (journal \
             {path}). Or make the copy a cache of its own with `{}`{}",
            clone_command(here, &whose.data_place),
            help_for_moved(relation)
        ),
        relation => format!(
            "{here} is a copy of the cache on {original}, to which the process journal \
             belongs\n    \
             help: serve {original}, which alone has the last acknowledged writes (journal \
             {path}). Or make the copy a cache of its own with `{}`{}",
            clone_command(here, &whose.data_place),
            help_for_moved(relation)
        ),
    };
    Err(Error::new(error.kind(), what))
}

/// Returns whether only the separate data device is another one than that of the journal.
fn is_data_alone(head: &Head, whose: &JournalOwner) -> bool {
    let (of, now) = (head.tie.media, whose.media);
    !whose.data_place.is_empty()
        && of.data.differs_from(now.data)
        && !of.metadata.differs_from(now.metadata)
}

/// Returns the rest of the remedy for a copy that replaces its original.
fn help_for_moved(relation: Relation) -> String {
    match relation {
        Relation::Copied => format!(
            ". Or, if the copy takes the place of the original{MADE_AFTER}, start once with \
             --moved-cache"
        ),
        _ => String::new(),
    }
}

/// Returns the cache and path of a process journal of this boot whose cache was on a device at
/// `place`. The journal is at its configured path or in the default directory. With `medium`, only
/// one of that device counts: another one may have been at the place.
pub(crate) fn left_of(
    place: &str,
    configured: Option<&Path>,
    medium: Option<Identity>,
) -> Option<([u8; 16], PathBuf)> {
    let boot_id = boot_id().ok()?;
    let entries = std::fs::read_dir(USUAL_DIRECTORY)
        .into_iter()
        .flatten()
        .flatten();
    let is_journal = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("forebay-") && name.ends_with(".journal")
    };
    let usual = entries.map(|entry| entry.path()).filter(is_journal);
    let mut all = configured.map(Path::to_path_buf).into_iter().chain(usual);
    all.find_map(|path| {
        let head = head(&path).filter(|head| head.boot_id == boot_id && head.place == place)?;
        let is_other = |medium| head.tie.media.metadata.differs_from(medium);
        (!medium.is_some_and(is_other)).then_some((head.uuid, path))
    })
}

pub(super) fn default_path(uuid: &[u8; 16]) -> PathBuf {
    format!("{USUAL_DIRECTORY}/forebay-{}.journal", hex(uuid)).into()
}

/// Returns the cache that the journal at `path` belongs to; `None` if there is no file, or an empty
/// one. Any other file belongs to another user and must not be overwritten or removed.
///
/// `ours` is the cache that needs the journal, and `stake` names the writes that it may lose.
pub(super) fn owner(path: &Path, ours: Option<&[u8; 16]>, stake: &str) -> Result<Option<[u8; 16]>> {
    let allowed = check_shared(path).context(|| format!("the process journal {}", path.display()));
    match allowed {
        // A file that is not a journal has a worse problem than its mode.
        Err(error) if error.kind() == ErrorKind::Permission => {
            named_owner(path, ours, stake)?;
            Err(error)
        }
        // Opening a named pipe may wait for ever.
        Err(error) => Err(error),
        Ok(()) => named_owner(path, ours, stake),
    }
}

/// Returns whether a file has only zeroes behind the head of a journal.
fn has_no_entries(file: &mut File) -> std::io::Result<bool> {
    file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(true),
            count if part[..count].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Returns the owner that a file names.
fn named_owner(path: &Path, ours: Option<&[u8; 16]>, stake: &str) -> Result<Option<[u8; 16]>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
        opened => opened.context(|| {
            let path = path.display();
            format!(
                "the process journal {path} cannot be read\n\
                 help: start as the user that owns it, or set `journal` in [cache] to another path"
            )
        })?,
    };
    let mut head = [0; OWNER_BYTES];
    let bytes = file.metadata().map_or(0, |found| found.len());
    let whole = match file.read_exact(&mut head) {
        // To open it would give it another size, and so erase the rest.
        _ if (1..journal::JOURNAL_MIN_BYTES as u64).contains(&bytes) => &[0xff; OWNER_BYTES],
        Ok(()) => &head,
        Err(_) if bytes == 0 => return Ok(None),
        Err(_) => &[0xff; OWNER_BYTES],
    };
    let (magic, uuid) = whole.split_at(MAGIC_BYTES);
    if journal::is_magic(magic) {
        return Ok(uuid.try_into().ok());
    }
    // A journal whose creation was interrupted has no entries.
    let named = uuid
        .try_into()
        .is_ok_and(|uuid| path == default_path(&uuid) || Some(&uuid) == ours);
    let is_expected = named || ours.is_some_and(|ours| path == default_path(ours));
    if magic == [0; MAGIC_BYTES] && is_expected && has_no_entries(&mut file).unwrap_or(false) {
        return Ok(None);
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "{path} is not a process journal, or was overwritten or cut in its head; it is not \
             changed\n\
             help: if it was this cache's, put a sound copy of it back. If there is none, move it \
             away, start once with --accept-journal-loss, and check what the clients stored \
             last{stake}. If it is something else, set `journal` in [cache] to a path where \
             nothing is",
            path = path.display()
        ),
    ))
}

pub(super) fn is_of(path: &Path, uuid: &[u8; 16]) -> bool {
    matches!(owner(path, Some(uuid), ""), Ok(Some(of)) if of == *uuid)
}

/// Whether the journal at `path` belongs to the cache's last opening.
pub(super) fn is_own(path: &Path, whose: &JournalOwner) -> bool {
    let is_damaged = head(path).is_some_and(|head| head.tie.is_damaged);
    is_of(path, &whose.uuid) && !is_damaged && refuse_foreign(path, whose).is_ok()
}
