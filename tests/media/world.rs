//! A machine's media as files: the cache device, the backing devices, the process journal and the
//! state directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Config;
use forebay_io::sim::Rng;

/// Number of volumes.
pub(crate) const VOLUMES: usize = 2;
/// Bytes of a block, the unit of the model.
pub(crate) const BLOCK: u64 = 4096;
/// Blocks of a volume.
pub(crate) const BLOCKS: u64 = 128;
/// Size of the file that holds the cache, bytes.
pub(crate) const CACHE_BYTES: u64 = 4 << 20;
/// Size of the file that holds the metadata, where that is another one, bytes.
const METADATA_BYTES: u64 = 2 << 20;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The configuration of one life.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Cache mode of each volume.
    pub(crate) modes: [&'static str; VOLUMES],
    /// `flush` or `sync`.
    pub(crate) durability: &'static str,
    /// Cleaning policy. `nop` keeps dirty data dirty. The others write back by the clock, so a
    /// replay may differ in its dirty data.
    pub(crate) cleaning: &'static str,
    /// Size of cache blocks, bytes.
    pub(crate) block_bytes: u64,
    pub(crate) checksums: bool,
    /// Whether the configuration names the path of the process journal.
    pub(crate) names_journal: bool,
    /// Whether the metadata lies on a device of its own.
    pub(crate) has_metadata_device: bool,
}

impl Setup {
    /// Returns a configuration with a process journal in the machine's own directory.
    pub(crate) const fn named_journal() -> Self {
        Self {
            modes: ["wb", "wb"],
            durability: "flush",
            cleaning: "nop",
            block_bytes: 4 << 10,
            checksums: false,
            names_journal: true,
            has_metadata_device: false,
        }
    }

    pub(crate) fn draw(rng: &Rng) -> Self {
        let mode = || ["wb", "wb", "wb", "wo", "wt", "wa"][rng.index(6)];
        Self {
            modes: [mode(), mode()],
            durability: ["flush", "flush", "sync"][rng.index(3)],
            cleaning: ["nop", "nop", "alru", "acp"][rng.index(4)],
            block_bytes: [4 << 10, 16 << 10][rng.index(2)],
            checksums: rng.chance(1, 3),
            names_journal: rng.chance(1, 2),
            has_metadata_device: rng.chance(1, 3),
        }
    }
}

/// The directory of one life, removed at its end.
pub(crate) struct Machine {
    folder: PathBuf,
    pub(crate) setup: Setup,
    /// Identifies the cache.
    pub(crate) uuid: [u8; 16],
}

/// The contents of all media at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// Contents by name of the medium; `None` for a medium that did not exist.
    files: BTreeMap<&'static str, Option<Vec<u8>>>,
    /// Files of the state directory.
    state: BTreeMap<PathBuf, Vec<u8>>,
}

/// The media that are files.
pub(crate) const CACHE: &str = "cache";
pub(crate) const METADATA: &str = "metadata";
pub(crate) const DISKS: [&str; VOLUMES] = ["disk0", "disk1"];
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const STATE: &str = "state";
pub(crate) const MEDIA: [&str; 6] = [CACHE, METADATA, DISKS[0], DISKS[1], JOURNAL, STATE];

impl Machine {
    pub(crate) fn new(rng: &Rng, setup: Setup) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_path_buf(),
            false => std::env::temp_dir(),
        };
        let folder = parent.join(format!("fb-media-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch directory");
        for disk in DISKS {
            let file = File::create(folder.join(disk)).expect("a backing file");
            file.set_len(BLOCKS * BLOCK).expect("room");
        }
        let file = File::create(folder.join(CACHE)).expect("a cache file");
        file.set_len(CACHE_BYTES).expect("room");
        if setup.has_metadata_device {
            let file = File::create(folder.join(METADATA)).expect("a metadata file");
            file.set_len(METADATA_BYTES).expect("room");
        }
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&rng.draw().to_le_bytes());
        uuid[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        uuid[12..].copy_from_slice(&(number as u32).to_le_bytes());
        Self {
            folder,
            setup,
            uuid,
        }
    }

    /// Returns the configuration. `disks` names the backing file of each volume.
    pub(crate) fn config(&self, disks: [&str; VOLUMES]) -> Config {
        let Setup {
            modes,
            durability,
            cleaning,
            names_journal,
            has_metadata_device,
            ..
        } = &self.setup;
        let (device, metadata) = match has_metadata_device {
            true => (
                r#"{ name = "map", kind = "file", path = "metadata" },"#,
                r#"cache.metadata = "map""#,
            ),
            false => ("", ""),
        };
        let journal = match names_journal {
            true => "cache.journal = \"journal\"",
            false => "",
        };
        let text = format!(
            r#"
            server = {{ state = "state", control = "ctl", metrics = "127.0.0.1:0" }}
            device = [
                {{ name = "fast", kind = "file", path = "cache" }},
                {device}
                {{ name = "a", kind = "file", path = "{}" }},
                {{ name = "b", kind = "file", path = "{}" }},
            ]
            cache.data = "fast"
            {metadata}
            {journal}
            cache.journal_size = "1M"
            cache.cleaning = "{cleaning}"
            cache.durability = "{durability}"
            volume = [
                {{ name = "v0", backing = "a", mode = "{}" }},
                {{ name = "v1", backing = "b", mode = "{}" }},
            ]
            "#,
            disks[0], disks[1], modes[0], modes[1]
        );
        let path = self.folder.join("forebay.toml");
        fs::write(&path, &text).expect("the configuration is written");
        Config::parse(&path, &text).expect("a valid configuration")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the media of the cache: one, or its data and its metadata.
    pub(crate) fn cache_media(&self) -> &'static [&'static str] {
        match self.setup.has_metadata_device {
            true => &[CACHE, METADATA],
            false => &[CACHE],
        }
    }

    /// Returns the medium that the log of the cache is on.
    pub(crate) fn log_medium(&self) -> &'static str {
        self.cache_media().last().expect("at least one")
    }

    /// Returns the path of a medium.
    pub(crate) fn path(&self, medium: &str) -> PathBuf {
        if medium == JOURNAL && !self.setup.names_journal {
            let uuid: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            return format!("/dev/shm/forebay-{uuid}.journal").into();
        }
        self.folder.join(medium)
    }

    /// Copies the contents of all media.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for medium in [CACHE, METADATA, DISKS[0], DISKS[1], JOURNAL] {
            snapshot
                .files
                .insert(medium, fs::read(self.path(medium)).ok());
        }
        for entry in fs::read_dir(self.path(STATE)).into_iter().flatten() {
            let path = entry.expect("a readable state directory").path();
            let name = path.file_name().expect("a name").into();
            let bytes = fs::read(&path).expect("a readable file");
            snapshot.state.insert(name, bytes);
        }
        snapshot
    }

    /// Restores the former contents of a medium. The file stays the same one.
    pub(crate) fn restore(&self, snapshot: &Snapshot, medium: &str) {
        if medium == STATE {
            return self.restore_state(snapshot);
        }
        let path = self.path(medium);
        match &snapshot.files[medium] {
            Some(bytes) => self.overwrite(medium, bytes),
            None => remove(&path),
        }
    }

    /// Overwrites all contents of a medium. The file stays the same one.
    pub(crate) fn overwrite(&self, medium: &str, bytes: &[u8]) {
        let path = self.path(medium);
        let options = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = options.expect("the medium opens");
        file.set_len(bytes.len() as u64).expect("room");
        file.write_all_at(bytes, 0)
            .expect("the medium takes writes");
        private(&path);
    }

    fn restore_state(&self, snapshot: &Snapshot) {
        let folder = self.path(STATE);
        let _ = fs::remove_dir_all(&folder);
        if snapshot.state.is_empty() {
            return;
        }
        fs::create_dir(&folder).expect("a state directory");
        for (name, bytes) in &snapshot.state {
            fs::write(folder.join(name), bytes).expect("a file of the state directory");
        }
    }

    /// Puts a copy of the contents in the place of a medium. The medium moves aside as
    /// `NAME.aside`.
    pub(crate) fn replace(&self, medium: &str, bytes: &[u8]) {
        let path = self.path(medium);
        fs::rename(&path, aside(&path)).expect("the medium moves");
        fs::write(&path, bytes).expect("a copy");
        private(&path);
    }

    /// Undoes [`Machine::replace`].
    pub(crate) fn put_back(&self, medium: &str) {
        let path = self.path(medium);
        fs::rename(aside(&path), &path).expect("the medium moves back");
    }
}

impl Snapshot {
    pub(crate) fn of(&self, medium: &str) -> Option<&[u8]> {
        self.files[medium].as_deref()
    }

    /// Whether a medium holds the same in both.
    pub(crate) fn is_same(&self, other: &Self, medium: &str) -> bool {
        match medium {
            STATE => self.state == other.state,
            _ => self.files[medium] == other.files[medium],
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove(&self.path(JOURNAL));
        if std::env::var_os("FOREBAY_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".aside");
    name.into()
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    }
}

/// Forebay refuses a journal that others may read.
fn private(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).expect("our own file");
}
