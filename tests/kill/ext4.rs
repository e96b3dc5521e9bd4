//! ext4 on a loop device on the FUSE export, killed while files are written. All synced files are
//! there, and the file system is clean after the replay of its journal.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_tests::stamp::mix;
use serde_json::json;

use crate::daemon::{Daemon, Devices, Setup, VOLUME};
use crate::{kills, row, say};

const VOLUME_BYTES: u64 = 256 << 20;
const CACHE_BYTES: u64 = 64 << 20;
/// Files that must be synced in a round. Fewer prove little.
pub(crate) const LEAST_SYNCED: usize = 8;
/// Timeout for that on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A synced file: its path below the mount point and the seed of its content.
#[derive(Debug)]
pub(crate) struct Synced {
    name: String,
    seed: u64,
}

/// Returns the content of a file. Its length and every byte follow from its seed.
fn content(seed: u64) -> Vec<u8> {
    let words = 64 + mix(seed) % 8192;
    let mut state = seed;
    let mut bytes = Vec::with_capacity(words as usize * 8);
    for _ in 0..words {
        state = mix(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Returns the names of the files of `synced` that differ in `folder`.
pub(crate) fn wrong_files(folder: &Path, synced: &[Synced]) -> Vec<String> {
    let differs = |file: &&Synced| {
        fs::read(folder.join(&file.name)).ok().as_deref() != Some(content(file.seed).as_slice())
    };
    let wrong = synced.iter().filter(differs);
    wrong.map(|file| file.name.clone()).collect()
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

pub(crate) fn must(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{errors}"
    );
    text.trim().to_owned()
}

/// The volume as a mounted file system: FUSE file, loop device, ext4. Drop unmounts it.
#[derive(Debug)]
pub(crate) struct Mounted {
    fuse: PathBuf,
    pub(crate) mount: PathBuf,
    device: Option<String>,
    mounted: bool,
}

impl Mounted {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        let mount = daemon.site.path("ext4");
        fs::create_dir_all(&mount).expect("a mount point");
        let fuse = daemon.site.path("mnt");
        let file = fuse.join(VOLUME);
        // NBD may answer a moment before the mount appears.
        let begin = Instant::now();
        while !file.exists() {
            let waited = begin.elapsed();
            assert!(waited.as_secs() < 20, "{} is not there", file.display());
            thread::sleep(Duration::from_millis(5));
        }
        let file = file.to_str().expect("a path in UTF-8");
        let device = must("losetup", &["--find", "--show", "--direct-io=on", file]);
        Self {
            fuse,
            mount,
            device: Some(device),
            mounted: false,
        }
    }

    /// Recovers from a kill. The loop device is lost with the daemon, as the disk is in a power
    /// cut. Starts the daemon and mounts the volume, which replays the file system's journal.
    pub(crate) fn after_kill(self, daemon: &mut Daemon) -> Self {
        let fuse = self.fuse.clone();
        drop(self);
        run("umount", &["-l", &fuse.to_string_lossy()]);
        daemon.start();
        let mut mounted = Self::new(daemon);
        mounted.mount();
        mounted
    }

    fn device(&self) -> &str {
        self.device.as_deref().expect("attached")
    }

    pub(crate) fn make(&self) {
        must("mkfs.ext4", &["-q", "-E", "nodiscard", self.device()]);
    }

    pub(crate) fn mount(&mut self) {
        let folder = self.mount.to_str().expect("a path in UTF-8").to_owned();
        must("mount", &["-t", "ext4", self.device(), &folder]);
        self.mounted = true;
    }

    pub(crate) fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            let folder = self.mount.to_str().expect("a path in UTF-8");
            must("umount", &[folder]);
        }
    }

    /// Removes all files that can be removed.
    pub(crate) fn empty(&self) {
        for entry in fs::read_dir(&self.mount).expect("mounted").flatten() {
            let path = entry.path();
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }

    /// Aborts every request to the daemon, and so ends all waits.
    pub(crate) fn abort(&self) {
        run("umount", &["-f", "-l", &self.fuse.to_string_lossy()]);
    }

    /// Runs `e2fsck -fn`, which writes nothing and must find nothing.
    pub(crate) fn check(&self) {
        must("e2fsck", &["-fn", self.device()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a kill these may fail. The mount is then removed lazily.
        if self.mounted {
            run("umount", &["-l", &self.mount.to_string_lossy()]);
        }
        if let Some(device) = self.device.take() {
            run("losetup", &["--detach", &device]);
        }
        if thread::panicking() {
            self.abort();
        }
    }
}

/// Writes and syncs files until the first error, and sends each synced file.
pub(crate) fn write_files(folder: &Path, round: u64, writer: u64, synced: &mpsc::Sender<Synced>) {
    for number in 0_u64.. {
        let seed = mix((round << 48) ^ (writer << 40) ^ number);
        let name = format!("r{round}-w{writer}-{number}");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(folder.join(&name))?;
            file.write_all(&content(seed))?;
            // The kernel writes back every other file later, so that the kill finds dirty pages.
            if number % 2 == 0 {
                file.sync_all()?;
                File::open(folder)?.sync_all()?;
                let _ = synced.send(Synced { name, seed });
            }
            // Makes room for the next ones.
            if number >= 64 && number % 2 == 1 {
                fs::remove_file(folder.join(format!("r{round}-w{writer}-{}", number - 64)))?;
            }
            Ok(())
        };
        if write().is_err() {
            return;
        }
    }
}

/// Waits for [`LEAST_SYNCED`] synced files, for a limited time. Returns the synced files.
pub(crate) fn wait_for_synced(receiver: &mpsc::Receiver<Synced>) -> Vec<Synced> {
    let begin = Instant::now();
    let mut synced = Vec::new();
    while synced.len() < LEAST_SYNCED {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        match receiver.recv_timeout(left) {
            Ok(file) => synced.push(file),
            Err(_) => break,
        }
    }
    synced
}

/// Returns the reason why this machine cannot run the test, if any.
pub(crate) fn obstacle() -> Option<String> {
    let root = run("id", &["-u"]).stdout.trim_ascii() == b"0";
    if !root {
        return Some("only root may attach loop devices and mount".into());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(path).exists() {
            return Some(format!("{path} does not exist here"));
        }
    }
    for (program, package) in [("mkfs.ext4", "e2fsprogs"), ("losetup", "util-linux")] {
        if Command::new(program).arg("-V").output().is_err() {
            return Some(format!("{program} is missing: install {package}"));
        }
    }
    None
}

fn killed_while_files_are_written(durability: &'static str) {
    if let Some(reason) = obstacle() {
        say(&format!(
            "SKIPPED ext4 killed with durability {durability}: {reason}"
        ));
        return;
    }
    let setup = Setup {
        durability,
        cache_bytes: CACHE_BYTES,
        volume_bytes: VOLUME_BYTES,
        fuse: true,
        devices: Devices::Files,
        dirty_tracking: "exact",
    };
    let mut daemon = Daemon::new(&format!("ext4-{durability}"), &setup);
    daemon.start();
    let mut mounted = Mounted::new(&daemon);
    mounted.make();
    mounted.mount();
    for round in 1..=kills() {
        let (sender, receiver) = mpsc::channel();
        let mut synced = thread::scope(|scope| {
            for writer in 0..2 {
                let (folder, sender) = (mounted.mount.clone(), sender.clone());
                scope.spawn(move || write_files(&folder, round, writer, &sender));
            }
            thread::sleep(Duration::from_millis(500 + mix(round) % 1000));
            let synced = wait_for_synced(&receiver);
            daemon.kill();
            synced
        });
        drop(sender);
        synced.extend(receiver.iter());
        assert!(
            synced.len() >= LEAST_SYNCED,
            "only {} synced files prove nothing",
            synced.len()
        );

        mounted = mounted.after_kill(&mut daemon);
        let wrong = wrong_files(&mounted.mount, &synced);
        mounted.unmount();
        mounted.check();
        say(&format!(
            "ext4, durability {durability}: kill {round}: {} synced files, {} wrong, e2fsck clean",
            synced.len(),
            wrong.len()
        ));
        row(&json!({
            "check": "ext4",
            "durability": durability,
            "kill": round,
            "acknowledged": synced.len(),
            "wrong": wrong.len(),
        }));
        assert!(
            wrong.is_empty(),
            "after kill {round} these files differ: {wrong:?}"
        );
        mounted.mount();
        mounted.empty();
    }
    mounted.unmount();
    drop(mounted);
    daemon.stop();
}

#[test]
fn ext4_survives_with_durability_sync() {
    killed_while_files_are_written("sync");
}

#[test]
fn ext4_survives_with_durability_flush() {
    killed_while_files_are_written("flush");
}

#[test]
fn a_file_that_differs_is_found() {
    let scratch = crate::daemon::scratch("planted");
    let name = "file".to_owned();
    let synced = [Synced { name, seed: 7 }];
    fs::write(scratch.path("file"), content(7)).expect("written");
    assert!(wrong_files(scratch.directory(), &synced).is_empty());
    fs::write(scratch.path("file"), &content(7)[1..]).expect("written");
    assert_eq!(wrong_files(scratch.directory(), &synced), ["file"]);
    fs::remove_file(scratch.path("file")).expect("removed");
    assert_eq!(wrong_files(scratch.directory(), &synced), ["file"]);
}
