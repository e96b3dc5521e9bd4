//! Storage of the programs.
//!
//! Its layers are, from below:
//!
//! - a file in memory with the declared latency
//! - a table
//! - a policy
//! - the daemon's FUSE export
//! - a loop device with direct I/O
//! - ext4

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::results::Transit;
use crate::bench::loops::Loop;
use crate::bench::server::{Forebay, Scratch};
use crate::bench::{Outcome, run_for_output};

/// Of the medium, which the table leaves nearly all of.
pub(super) const MEDIUM_BYTES: u64 = 1 << 30;
/// Of a transit cache.
pub(super) const CACHE_BYTES: u64 = 64 << 20;
/// Limit of dirty data in the page cache, in bytes. Cells are short, and data that stays in the
/// page cache reaches no policy.
pub(super) const DIRTY_BYTES: u64 = 16 << 20;
/// Longest wait for the daemon's file.
const PATIENCE: Duration = Duration::from_secs(20);

/// A mounted file system, with all that is under it. It is taken apart when dropped.
pub(super) struct Stack {
    daemon: Forebay,
    device: Option<Loop>,
    fuse: PathBuf,
    folder: PathBuf,
    mounted: bool,
    _scratch: Scratch,
}

impl Stack {
    /// Makes the media anew and mounts them.
    pub(super) fn new(binary: &Path, system: &str) -> Outcome<Self> {
        let scratch = Scratch::new("applications")?;
        let medium = scratch.file("medium", MEDIUM_BYTES)?;
        command(binary, &["format", "--btt"], &[&medium])?;
        let (fuse, folder) = (scratch.path("fuse"), scratch.path("ext4"));
        for path in [&fuse, &folder] {
            std::fs::create_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let config = config(system, &medium, &fuse);
        let daemon = Forebay::start(binary, &scratch, &config, None, &[])?;
        let mut stack = Self {
            daemon,
            device: None,
            fuse,
            folder,
            mounted: false,
            _scratch: scratch,
        };
        let file = stack.fuse.join("v");
        let begin = Instant::now();
        // Its sockets may be there a moment before the mount is.
        while !file.exists() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("{} is not there", file.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let device = Loop::attach(&file, 4096)?;
        device.limit_dirty(DIRTY_BYTES)?;
        // Nothing is left to be done behind the programs' backs.
        let whole = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        command(
            Path::new("mkfs.ext4"),
            &["-q", "-E", whole],
            &[&device.path],
        )?;
        stack.device = Some(device);
        stack.mount()?;
        Ok(stack)
    }

    /// Where the file system is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn mount(&mut self) -> Outcome<()> {
        let device = self.device.as_ref().ok_or("no device is attached")?;
        command(
            Path::new("mount"),
            &["-t", "ext4", "-o", "noatime"],
            &[&device.path, &self.folder],
        )?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Outcome<()> {
        if std::mem::take(&mut self.mounted) {
            command(Path::new("umount"), &[], &[&self.folder])?;
        }
        Ok(())
    }

    /// Everything is written, and nothing is in the page cache any more.
    pub(super) fn cool(&mut self) -> Outcome<()> {
        self.unmount()?;
        self.mount()
    }

    /// Returns the counters of the transit cache, or zeros without one.
    pub(super) fn transit(&self) -> Outcome<Transit> {
        let status = self.daemon.status()?;
        let counters = status.pointer("/transits/0").cloned();
        let counters = counters.unwrap_or(Value::Object(serde_json::Map::new()));
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        Ok(Transit {
            written: count("written"),
            bypassed: count("bypassed"),
            waited: count("waited"),
            evicted: count("evicted"),
            read_hits: count("read_hits"),
            read_misses: count("read_misses"),
        })
    }

    /// Takes it apart; fails where the daemon does not end well.
    pub(super) fn end(mut self) -> Outcome<()> {
        self.unmount()?;
        drop(self.device.take());
        self.daemon.server.stop()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The stack was not ended, or not completely. Errors are ignored.
        if self.mounted {
            let _ = command(Path::new("umount"), &["-l"], &[&self.folder]);
        }
        drop(self.device.take());
        let _ = self.daemon.server.stop();
        let _ = command(Path::new("umount"), &["-l"], &[&self.fuse]);
    }
}

/// Runs a program with words and paths.
fn command(program: &Path, words: &[&str], paths: &[&Path]) -> Outcome<()> {
    let mut command = Command::new(program);
    command.args(words).args(paths);
    run_for_output(command).map(drop)
}

/// The daemon's, but for what is added to every one.
fn config(system: &str, medium: &Path, fuse: &Path) -> String {
    let (table, transit) = match system {
        "btt" => ("top", String::new()),
        policy => (
            "table",
            format!(
                "[[device]]\nname = \"top\"\nkind = \"transit\"\non = \"table\"\n\
                 capacity = {CACHE_BYTES}\npolicy = \"{policy}\"\n"
            ),
        ),
    };
    format!(
        r#"
[[device]]
name = "memory"
kind = "pmem"
path = "{}"

[[device]]
name = "slow"
kind = "emulate"
on = "memory"
profile = "optane-dimm"

[[device]]
name = "{table}"
kind = "btt"
on = "slow"

{transit}
[[volume]]
name = "v"
backing = "top"

[[export]]
volume = "v"
fuse = "{}"
"#,
        medium.display(),
        fuse.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_served_alone_or_lies_under_a_transit_cache() {
        let paths = [Path::new("m"), Path::new("f")];
        let alone = config("btt", paths[0], paths[1]);
        assert!(alone.contains("name = \"top\"\nkind = \"btt\"") && !alone.contains("transit"));
        let lru = config("lru", paths[0], paths[1]);
        assert!(lru.contains("name = \"table\"\nkind = \"btt\""));
        assert!(
            lru.contains(
                "kind = \"transit\"\non = \"table\"\ncapacity = 67108864\npolicy = \"lru\""
            )
        );
    }
}
