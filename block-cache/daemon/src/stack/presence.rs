//! Compares open files of the daemon with the files at their paths.
//!
//! A removed or moved file stays usable for this process. But the next start opens whichever file
//! is at the path. So the problem is reported while the file can still be copied.

use std::fs::Metadata;
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_block::Result;

use super::offload::offload;
use crate::state::StateDirectory;

/// Longest time that anything waits for looks at paths. A look that takes longer continues.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The paths of all open files, and of the state directory.
pub(crate) struct Paths {
    pub(super) files: Vec<Presence>,
    pub(super) state: Arc<StateDirectory>,
}

impl Paths {
    /// Looks at all paths, on a thread of its own, except those at which a look still waits for a
    /// file system. So a path that does not answer keeps one thread, and delays no other for more
    /// than one call.
    ///
    /// # Errors
    /// The error of the operating system, if no thread could be started.
    pub(crate) async fn look(self) -> Result<()> {
        offload(move || {
            self.state.compare_with_path();
            self.files.iter().for_each(Presence::look);
            Ok(())
        })
        .await
    }
}

/// An open regular file and its path.
///
/// Looking at a path may wait for its file system, so a reactor only reads the last finding.
#[derive(Clone, Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    /// Device and inode.
    number: (u64, u64),
    /// Finding of the last look.
    last: Arc<Mutex<Option<Absence>>>,
    /// Whether a look is in progress.
    is_looking: Arc<AtomicBool>,
}

/// An open file that is not at its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absence {
    /// Path by which it was opened.
    pub(super) path: PathBuf,
    /// Path from which it can be copied while the daemon has it open.
    pub(super) copy_from: PathBuf,
    /// Whether it has no name any more and is deleted when the daemon ends.
    pub(super) is_removed: bool,
}

fn number(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl Presence {
    /// Returns the presence of the regular file at `path`, which the daemon has just opened.
    /// Returns `None` for other files, and on file systems without link counts.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        (found.is_file() && found.nlink() > 0).then(|| Self {
            path: path.to_path_buf(),
            number: number(&found),
            last: Arc::default(),
            is_looking: Arc::default(),
        })
    }

    /// Looks at the path, unless another look still waits for its file system.
    fn look(&self) {
        if self.is_looking.swap(true, Ordering::Acquire) {
            return;
        }
        let found = self.absence();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = found;
        self.is_looking.store(false, Ordering::Release);
    }

    /// Returns the location of the file if it was not at its path at the last look.
    pub(super) fn known_absence(&self) -> Option<Absence> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Describes the absence of the file `what` from its path, with the remedy; `None` if it is
    /// present. The file holds acknowledged writes until a stop sends them to `goal`.
    pub(super) fn danger(&self, what: &str, goal: &str) -> Option<String> {
        let absence = self.known_absence()?;
        let back = match absence.is_removed {
            true => "",
            false => "move the file back, or ",
        };
        Some(format!(
            "{}: if it dies now, acknowledged writes are LOST\n    \
             help: {back}stop the daemon with SIGTERM and start it again: at a stop, all of them \
             reach {goal}, unless a file of the cache was removed as well: copy that one first",
            absence.in_words(what)
        ))
    }

    /// Returns the location of the file if it is not at its path; `None` if it is, or if that is
    /// unknown.
    pub(super) fn absence(&self) -> Option<Absence> {
        match std::fs::metadata(&self.path) {
            Ok(found) if number(&found) == self.number => return None,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory) => {}
            Err(_) => return None,
        }
        let own = Path::new("/proc")
            .join(std::process::id().to_string())
            .join("fd");
        // Usually the descriptor of the last finding still has it.
        let known = self.known_absence().map(|absence| absence.copy_from);
        let all = std::fs::read_dir(&own).ok()?.flatten();
        let descriptors = known.into_iter().chain(all.map(|entry| entry.path()));
        descriptors.into_iter().find_map(|copy_from| {
            let held = std::fs::metadata(&copy_from).ok()?;
            (number(&held) == self.number).then(|| Absence {
                path: self.path.clone(),
                copy_from,
                is_removed: held.nlink() == 0,
            })
        })
    }
}

impl Absence {
    /// Describes the fate of the file `what`.
    pub(super) fn in_words(&self, what: &str) -> String {
        let path = self.path.display();
        match self.is_removed {
            true => format!("{what}: {path} WAS REMOVED while the daemon uses it"),
            false => format!("{what}: {path} WAS MOVED OR REPLACED while the daemon uses it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("forebay-presence-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).expect("made");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_is_not_at_its_path_is_found_where_it_is() {
        let scratch = Scratch::new("moved");
        let (path, other) = (scratch.0.join("file"), scratch.0.join("other"));
        std::fs::write(&path, "ours").expect("written");
        let file = std::fs::File::open(&path).expect("there");
        let presence = Presence::of(&path).expect("a file");
        assert_eq!(presence.absence(), None);
        let absence = |is_removed: bool| {
            let absence = presence.absence().expect("it is not there");
            assert_eq!(absence.is_removed, is_removed);
            let copy = std::fs::read_to_string(&absence.copy_from);
            assert_eq!(copy.expect("it is open"), "ours");
            absence.in_words("device \"ssd\"")
        };
        // Moved, and back; replaced while it has another name; removed; replaced by another file.
        std::fs::rename(&path, &other).expect("moved");
        assert!(absence(false).contains("MOVED OR REPLACED"));
        std::fs::rename(&other, &path).expect("moved back");
        assert_eq!(presence.absence(), None);
        std::fs::rename(&path, &other).expect("moved");
        std::fs::write(&path, "another's").expect("written");
        assert!(absence(false).contains("MOVED OR REPLACED"));
        std::fs::remove_file(&other).expect("removed");
        assert!(absence(true).contains("REMOVED"));
        std::fs::remove_dir_all(&scratch.0).expect("removed");
        assert!(absence(true).contains("REMOVED"));
        drop(file);
        assert_eq!(presence.absence(), None, "nobody uses it");
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_a_file_that_is_not_there() {
        let scratch = Scratch::new("link");
        let [path, first, second] = ["link", "first", "second"].map(|it| scratch.0.join(it));
        std::fs::write(&first, "ours").expect("written");
        std::fs::write(&second, "another's").expect("written");
        std::os::unix::fs::symlink(&first, &path).expect("made");
        let _file = std::fs::File::open(&path).expect("there");
        let presence = Presence::of(&path).expect("a file");
        assert_eq!(presence.absence(), None);
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&second, &path).expect("made");
        assert!(presence.absence().is_some_and(|it| !it.is_removed));
    }

    #[test]
    fn only_regular_files_have_a_presence() {
        for path in ["/dev/null", "/", "/forebay/nowhere"] {
            assert!(Presence::of(Path::new(path)).is_none(), "{path}");
        }
    }
}
