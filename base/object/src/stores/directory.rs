//! A directory of a mounted file system as an object store.
//!
//! An object is a file. It is written under a temporary name in `.incomplete`, flushed, and gets
//! its name by a rename that replaces nothing. Then the directory is flushed. So a killed process
//! or a power loss leaves no part of an object, and an acknowledged one is durable. A deletion is
//! flushed, too.
//!
//! All calls run on threads: a file system may hang.
//!
//! The directory must exist. A daemon would otherwise create it below a mount point whose file
//! system is missing, and serve an empty volume. It is held open, and all paths start there: a file
//! system that is mounted over it later changes nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind as IoErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::durable::{create, remove_abandoned, sync_directory};
use forebay_io::system;
use forebay_io::workers::Workers;

use super::{Use, check_name};
use crate::store::{Answer, Creation, Listed, Progress, Store};

/// Folder of the temporary files.
const INCOMPLETE: &str = ".incomplete";
/// Number of threads: four creations, and reads besides.
const THREADS: usize = 8;

/// An open directory.
#[derive(Debug)]
pub struct DirectoryStore {
    folder: Arc<Folder>,
    workers: Workers,
}

#[derive(Debug)]
struct Folder {
    /// Path for messages.
    path: PathBuf,
    /// Path by the descriptor below.
    base: PathBuf,
    _held: File,
    /// Begin of the names of this process's temporary files.
    own: String,
    next: AtomicU64,
    /// Directories of objects whose own entries are durable. Another process may have created one
    /// and ended before it flushed the entry.
    durable: Mutex<BTreeSet<String>>,
}

impl DirectoryStore {
    /// Opens the directory at `path`. To write, removes temporary files of ended processes.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; `InvalidInput` if it is no directory; otherwise the
    /// system's error.
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn open(path: &Path, purpose: Use) -> Result<Self> {
        let workers = Workers::new("object-dir", THREADS)?;
        let path = path.to_owned();
        let folder = workers.run(move || Folder::open(path, purpose)).await?;
        Ok(Self {
            folder: Arc::new(folder),
            workers,
        })
    }

    fn run<'a, T: Send + 'static>(
        &'a self,
        name: &str,
        action: &'static str,
        work: impl FnOnce(&Folder, &str) -> io::Result<T> + Send + 'static,
    ) -> Answer<'a, T> {
        let name = name.to_owned();
        Box::pin(async move {
            check_name(&name)?;
            let folder = Arc::clone(&self.folder);
            let work = move || {
                let done = work(&folder, &name);
                done.context(|| format!("{action} {name} in {}", folder.path.display()))
            };
            self.workers.run(work).await
        })
    }
}

impl Store for DirectoryStore {
    fn name(&self) -> String {
        self.folder.path.display().to_string()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        self.run(name, "creating", move |folder, name| {
            folder.create(name, &content)
        })
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        self.run(name, "reading", move |folder, name| {
            folder.read(name, bytes)
        })
    }

    fn list_with<'a>(&'a self, prefix: &'a str, progress: Progress) -> Answer<'a, Vec<Listed>> {
        self.run(prefix, "listing", move |folder, prefix| {
            folder.list(prefix, &progress)
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.run(name, "deleting", Folder::delete)
    }
}

impl Folder {
    fn open(path: PathBuf, purpose: Use) -> Result<Self> {
        let shown = path.display();
        let opened = File::open(&path).map_err(|error| match error.kind() {
            IoErrorKind::NotFound => {
                let what = format!(
                    "the directory {shown} does not exist\n\
                     help: mount its file system, or create it with `mkdir -p {shown}`"
                );
                Error::new(ErrorKind::NotFound, what)
            }
            _ => Error::from(error).context(format!("opening the directory {shown}")),
        })?;
        if !opened
            .metadata()
            .context(|| format!("looking at {shown}"))?
            .is_dir()
        {
            let what =
                format!("{shown} is not a directory\nhelp: name a directory for the objects");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let mut nonce = [0; 8];
        system::random(&mut nonce);
        let nonce = u64::from_le_bytes(nonce);
        let base = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let own = format!("{}-{nonce:016x}", std::process::id());
        if purpose == Use::Write {
            let incomplete = base.join(INCOMPLETE);
            match fs::create_dir(&incomplete) {
                Err(error) if error.kind() != IoErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
            .context(|| format!("creating {shown}/{INCOMPLETE}"))?;
            // Files that stay take space, and nothing else.
            if let Err(error) = remove_abandoned(&incomplete) {
                tracing::warn!("temporary files of {shown}/{INCOMPLETE} stay: {error}");
            }
        }
        Ok(Self {
            base,
            _held: opened,
            own,
            next: AtomicU64::new(0),
            durable: Mutex::default(),
            path,
        })
    }

    fn create(&self, name: &str, content: &[u8]) -> io::Result<Creation> {
        let path = self.base.join(name);
        let attempt = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let temporary = format!("{INCOMPLETE}/{}-{number}", self.own);
            create(&path, &self.base.join(temporary), content)
        };
        let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
        let durable = || self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        if !durable().contains(directory) {
            self.create_directories(directory)?;
            durable().insert(directory.to_owned());
        }
        let created = match attempt() {
            // The directory was removed. Or another start has taken the temporary file for
            // abandoned.
            Err(error)
                if matches!(
                    error.kind(),
                    IoErrorKind::NotFound | IoErrorKind::ResourceBusy
                ) =>
            {
                self.create_directories(directory)?;
                attempt()
            }
            other => other,
        };
        Ok(match created? {
            true => Creation::Created,
            false => Creation::Exists,
        })
    }

    /// Creates `directory` and those above it, durably. The folder itself must exist.
    fn create_directories(&self, directory: &str) -> io::Result<()> {
        let mut above = self.base.clone();
        for part in directory.split('/').filter(|part| !part.is_empty()) {
            let path = above.join(part);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != IoErrorKind::AlreadyExists => return Err(error),
                _ => sync_directory(&above)?,
            }
            above = path;
        }
        Ok(())
    }

    fn read(&self, name: &str, bytes: Range<u64>) -> io::Result<Bytes> {
        let file = File::open(self.base.join(name))?;
        let end = bytes.end.min(file.metadata()?.len());
        let len = usize::try_from(end.saturating_sub(bytes.start)).map_err(io::Error::other)?;
        let mut data = vec![0; len];
        file.read_exact_at(&mut data, bytes.start)?;
        Ok(data.into())
    }

    fn list(&self, prefix: &str, progress: &Progress) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut left = vec![prefix.trim_end_matches('/').to_owned()];
        while let Some(directory) = left.pop() {
            let entries = match fs::read_dir(self.base.join(&directory)) {
                Err(error) if error.kind() == IoErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                progress.step();
                let Ok(name) = entry.file_name().into_string() else {
                    continue; // Of another program.
                };
                let name = format!("{directory}/{name}");
                if check_name(&name).is_err() {
                    continue;
                }
                let about = match entry.metadata() {
                    // Deleted meanwhile.
                    Err(error) if error.kind() == IoErrorKind::NotFound => continue,
                    other => other?,
                };
                if about.is_dir() {
                    left.push(name);
                } else if about.is_file() {
                    found.push(Listed {
                        name,
                        bytes: about.len(),
                    });
                }
            }
        }
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let path = self.base.join(name);
        // An earlier attempt may have removed it without the flush.
        let is_missing = |error: &io::Error| error.kind() == IoErrorKind::NotFound;
        let removed = fs::remove_file(&path).or_else(|error| match is_missing(&error) {
            true => Ok(()),
            false => Err(error),
        });
        removed?;
        match sync_directory(path.parent().unwrap_or(&self.base)) {
            Err(error) if is_missing(&error) => Ok(()),
            other => other,
        }
    }
}
