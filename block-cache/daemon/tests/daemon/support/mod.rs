//! A directory with a configuration, and the program that runs there.

use std::ops::Deref;
use std::path::{Path, PathBuf};

pub(crate) use forebay_testkit::daemon::{Daemon, Process, nbd};
use forebay_testkit::daemon::{Scratch, ServeCommand, Site};
use nbd::Nbd;

/// Path of the program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

/// A site with a cache of 64 MiB and a volume `db` of 64 MiB.
pub(crate) struct Place(Site);

impl Place {
    /// Makes the files, writes the configuration and formats the cache.
    pub(crate) fn new(name: &str, mode: &str) -> Self {
        let scratch = Scratch::new(&format!("fb-{name}"));
        let place = Self(Site::new(Path::new(PROGRAM), scratch));
        place.create_file("db.img", 64 << 20);
        place.configure(mode, "");
        let cache = place.path("cache");
        let made = place.run(&["format", "--create", "64M", "--cache", text(&cache)]);
        assert!(made.status.success(), "{made:?}");
        place
    }

    /// Writes the configuration, with `more` at its end.
    ///
    /// The cleaner is off: dirty data stays dirty until a test writes it back, however slow the
    /// machine is.
    pub(crate) fn configure(&self, mode: &str, more: &str) {
        self.write_config(&format!(
            r#"
[[device]]
name = "ssd"
kind = "file"
path = "cache"

[[device]]
name = "disk"
kind = "file"
path = "db.img"

[cache]
data = "ssd"
journal = "journal"
cleaning = "nop"

[[volume]]
name = "db"
backing = "disk"
mode = "{mode}"

[[export]]
volume = "db"
nbd = "unix:nbd.sock"

[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
{more}
"#
        ));
    }

    /// Returns a command that starts the daemon, for changes.
    pub(crate) fn start(&self) -> ServeCommand {
        self.0.serve()
    }

    /// Starts the daemon with these arguments, and waits until it is ready.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Daemon {
        self.0.serve().arguments(arguments).start()
    }

    /// As [`Place::serve`], after a line of shell.
    pub(crate) fn serve_after(&self, line: &str, arguments: &[&str]) -> Daemon {
        self.0
            .serve()
            .after_shell(line)
            .arguments(arguments)
            .start()
    }

    /// Connects to the volume.
    pub(crate) fn connect(&self) -> Nbd {
        Nbd::connect(&self.path("nbd.sock"), "db").expect("the NBD server answers")
    }
}

impl Deref for Place {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failed test leaves slots, which a later file with the same inode number would meet.
        for slots in slots_noted_in(&self.path("state")) {
            let _ = std::fs::remove_file(slots);
        }
    }
}

/// Returns the files of slots that a state directory records as in use.
pub(crate) fn slots_noted_in(state: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(state) else {
        return Vec::new();
    };
    let slots = |name: &str| name.starts_with("forebay-") && name.ends_with(".transit");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_str().is_some_and(slots))
        .map(|name| Path::new("/dev/shm").join(name))
        .collect()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Returns the last error in the output of a command, with its help.
pub(crate) fn last_error(said: &str) -> &str {
    let at = said.rfind("forebay: ").expect("an error");
    said[at..].trim_end()
}
