//! Faults of a configuration, or of the media that it names.

mod cache;
mod machine;
mod state;
mod text;

use std::any::Any;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::base::{Base, Life, Place, Shape};

/// Objects that must live while the commands run.
type Planted = Option<Box<dyn Any>>;

/// A part of the configuration, or of the media. The two faults of a case concern different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Server,
    Export,
    Volume,
    CacheKeys,
    Backing,
    Cache,
    Journal,
    State,
    Slots,
}

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) part: Part,
    /// Second part that the fault changes, if it changes one.
    also: Option<Part>,
    /// Bases that can have the fault.
    pub(crate) on: fn(Base) -> bool,
    plant: fn(&Place) -> Planted,
    /// Words of messages that report the fault. One of them suffices.
    pub(crate) says: &'static [&'static str],
    /// Reason why a daemon serves although `check` reports damage, in the words of
    /// docs/operate/starting.md.
    pub(crate) served: Option<&'static str>,
    /// Whether the test of left-out checks uses the fault.
    pub(crate) sample: bool,
}

impl Fault {
    pub(crate) fn plant(&self, place: &Place) -> Planted {
        (self.plant)(place)
    }

    const fn new(
        name: &'static str,
        part: Part,
        on: fn(Base) -> bool,
        plant: fn(&Place) -> Planted,
        says: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            part,
            also: None,
            on,
            plant,
            says,
            served: None,
            sample: false,
        }
    }

    /// Returns whether a case may have both faults. Neither may remove the text or the file that
    /// the other changes.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        self.parts()
            .all(|part| other.parts().all(|of_other| part != of_other))
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        std::iter::once(self.part).chain(self.also)
    }

    const fn also(mut self, part: Part) -> Self {
        self.also = Some(part);
        self
    }

    const fn sample(mut self) -> Self {
        self.sample = true;
        self
    }

    const fn served(mut self, why: &'static str) -> Self {
        self.served = Some(why);
        self
    }
}

fn any(_: Base) -> bool {
    true
}

fn cached(base: Base) -> bool {
    base.has_cache_file()
}

fn with_keys(base: Base) -> bool {
    base.has_cache_file() || base.shape == Shape::Memory
}

fn superblock(base: Base) -> bool {
    base.superblock().is_some()
}

fn on_a_file(base: Base) -> bool {
    base.shape == Shape::Cached
}

fn killed(base: Base) -> bool {
    base.has_cache_file() && base.life == Life::Killed
}

fn lived(base: Base) -> bool {
    base.has_cache_file() && base.life != Life::New
}

fn slots(base: Base) -> bool {
    base.shape == Shape::Transit && base.life == Life::Killed
}

fn table(base: Base) -> bool {
    base.shape == Shape::Table
}

fn lines(base: Base) -> bool {
    base.shape == Shape::Lines
}

fn memory(base: Base) -> bool {
    base.shape == Shape::Memory
}

/// Inserts a line into a table of the configuration.
fn add(place: &Place, table: &str, line: &str) -> Planted {
    place.change(table, &format!("{table}\n{line}"));
    None
}

fn change(place: &Place, from: &str, to: &str) -> Planted {
    place.change(from, to);
    None
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_dir_all(path);
}

fn put_directory(path: &Path) -> Planted {
    remove(path);
    std::fs::create_dir(path).expect("made");
    None
}

fn put_pipe(path: &Path) -> Planted {
    remove(path);
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
    None
}

fn put_file(path: &Path, mode: u32) -> Planted {
    remove(path);
    std::fs::write(path, "notes").expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
    None
}

fn put_link(path: &Path, to: &str) -> Planted {
    remove(path);
    symlink(to, path).expect("linked");
    None
}

fn set_len(path: &Path, bytes: u64) -> Planted {
    let file = File::options().write(true).open(path).expect("there");
    file.set_len(bytes).expect("set");
    None
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).expect("there");
    file.write_all_at(bytes, at).expect("written");
}

/// Locks a file as another program does.
fn hold(path: &Path) -> Planted {
    let file = File::open(path).expect("there");
    file.lock().expect("free");
    Some(Box::new(file))
}

/// Replaces a file with another one of the same name and length.
fn replace(path: &Path) -> Planted {
    let len = std::fs::metadata(path).expect("there").len();
    let beside = path.with_extension("new");
    std::fs::copy(path, &beside).expect("copied");
    set_len(&beside, len);
    std::fs::rename(&beside, path).expect("moved");
    None
}

fn of_superblock(place: &Place, copies: &[u64]) -> Planted {
    let path = place.path(place.base.superblock().expect("there is one"));
    for copy in copies {
        overwrite(&path, copy * 65536 + 600, b"damage");
    }
    None
}

/// Damages a record of the log: the first written unit after the superblock.
fn of_log(place: &Place) -> Planted {
    let path = place.path(place.base.superblock().expect("there is one"));
    let bytes = std::fs::read(&path).expect("there");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    // Start of the log (docs/internals/format).
    let log = usize::try_from(word(88)).expect("an offset");
    let used = (log..bytes.len())
        .find(|at| bytes[*at] != 0)
        .expect("a record");
    overwrite(&path, used as u64, &[0x5a; 48]);
    None
}

fn journal(place: &Place) -> std::path::PathBuf {
    place.path("journal")
}

fn backing(place: &Place) -> std::path::PathBuf {
    place.path("db.img")
}

fn slots_of(place: &Place) -> std::path::PathBuf {
    place.slots.clone().expect("a daemon was killed")
}

/// All faults.
pub(crate) fn all() -> Vec<&'static Fault> {
    let parts = [text::FAULTS, machine::FAULTS, cache::FAULTS, state::FAULTS];
    parts.into_iter().flatten().collect()
}
