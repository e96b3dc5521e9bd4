//! Databases and files on ext4 over a block translation table, alone and under each policy of
//! transit, killed while all of them are written. All synced data is there, and the file system is
//! clean after the replay of its journal.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use forebay_tests::stamp::mix;
use serde_json::json;

use crate::daemon::{Daemon, Devices, Setup, scratch};
use crate::ext4::{LEAST_SYNCED, Mounted, obstacle, wait_for_synced, write_files, wrong_files};
use crate::{number, row, say};

/// The table alone, and under each policy.
const SYSTEMS: [Option<&str>; 8] = [
    None,
    Some("caiti"),
    Some("lru"),
    Some("pmbd"),
    Some("pmbd-70"),
    Some("co-active"),
    Some("caiti-without-eviction"),
    Some("caiti-without-bypass"),
];
const STORES: [&str; 2] = ["rocksdb", "sqlite"];
const VOLUME_BYTES: u64 = 256 << 20;
/// Changes that a store must acknowledge in a round. Fewer prove little.
const LEAST_ACKNOWLEDGED: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(30);
/// More operations than a round can do.
const ENDLESS: u64 = 1 << 40;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_applications"))
}

/// Returns the number of keys of a store with wrong values.
fn wrong_keys(store: &str, folder: &Path, seed: u64, acknowledged: u64) -> u64 {
    let mut check = program();
    check.args(["check", store]).arg(folder);
    let output = check
        .args([seed, acknowledged].map(|n| n.to_string()))
        .output();
    let output = output.expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "check of {store}: {errors}");
    said.trim().parse().expect("a number")
}

/// Returns the stores whose libraries this machine has. `asks` distinguishes tests that run at
/// once.
fn stores(asks: &str) -> Vec<&'static str> {
    let scratch = scratch(&format!("stores-{asks}"));
    let here = |store: &&str| {
        let mut keep = program();
        keep.args(["keep", store])
            .arg(scratch.path(store))
            .args(["0", "0"]);
        let output = keep.output().expect("the program runs");
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            say(&format!(
                "SKIPPED {store} killed over transit: {}",
                why.trim()
            ));
        }
        output.status.success()
    };
    STORES.into_iter().filter(here).collect()
}

/// A store under load, and the number of acknowledged changes.
struct Keeper {
    store: &'static str,
    seed: u64,
    child: Child,
    acknowledged: Arc<AtomicU64>,
    reader: thread::JoinHandle<()>,
}

impl Keeper {
    fn start(store: &'static str, folder: &Path, seed: u64, operations: u64) -> Self {
        let mut keep = program();
        keep.args(["keep", store]).arg(folder);
        keep.args([seed, operations].map(|n| n.to_string()));
        keep.stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = keep.spawn().expect("the program runs");
        let output = child.stdout.take().expect("a pipe");
        let acknowledged = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&acknowledged);
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let operation: u64 = line.parse().expect("a number a line");
                count.store(operation + 1, Ordering::Relaxed);
            }
        });
        Self {
            store,
            seed,
            child,
            acknowledged,
            reader,
        }
    }

    /// Waits for its end, which follows the end of its device. Returns the number of acknowledged
    /// changes.
    fn end(mut self) -> u64 {
        let begin = Instant::now();
        while self.child.try_wait().expect("ours").is_none() {
            if begin.elapsed() > PATIENCE {
                self.child.kill().expect("the signal is sent");
            }
            sleep(Duration::from_millis(5));
        }
        self.reader.join().expect("it reads");
        self.acknowledged.load(Ordering::Relaxed)
    }
}

/// Kills once under load. Returns the number of acknowledged changes and files, and how many of
/// them are wrong.
fn kill_once(
    daemon: &mut Daemon,
    mounted: &mut Option<Mounted>,
    stores: &[&'static str],
    round: u64,
) -> (u64, u64) {
    let (sender, receiver) = mpsc::channel();
    let mut keepers = Vec::new();
    let mut synced = thread::scope(|scope| {
        let folder = mounted.as_ref().expect("mounted").mount.clone();
        for store in stores {
            let seed = mix(round ^ store.len() as u64);
            keepers.push(Keeper::start(store, &folder.join(store), seed, ENDLESS));
        }
        let files = folder.join("files");
        fs::create_dir(&files).expect("mounted");
        scope.spawn(move || write_files(&files, round, 0, &sender));
        sleep(Duration::from_millis(700 + mix(round) % 1000));
        let begin = Instant::now();
        let few =
            |keeper: &Keeper| keeper.acknowledged.load(Ordering::Relaxed) < LEAST_ACKNOWLEDGED;
        while keepers.iter().any(few) && begin.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20));
        }
        let synced = wait_for_synced(&receiver);
        daemon.kill();
        synced
    });
    synced.extend(receiver.iter());
    assert!(
        synced.len() >= LEAST_SYNCED,
        "only {} synced files",
        synced.len()
    );
    let ended: Vec<_> = keepers
        .into_iter()
        .map(|keeper| (keeper.store, keeper.seed, keeper.end()))
        .collect();
    let remounted = mounted.take().expect("mounted").after_kill(daemon);
    let mut acknowledged = synced.len() as u64;
    let mut wrong = wrong_files(&remounted.mount.join("files"), &synced).len() as u64;
    for (store, seed, count) in ended {
        assert!(count >= LEAST_ACKNOWLEDGED, "{store}: only {count} changes");
        acknowledged += count;
        wrong += wrong_keys(store, &remounted.mount.join(store), seed, count);
    }
    *mounted = Some(remounted);
    (acknowledged, wrong)
}

#[test]
fn databases_and_files_survive_over_the_table_and_each_policy() {
    if let Some(reason) = obstacle() {
        say(&format!("SKIPPED databases killed over transit: {reason}"));
        return;
    }
    let stores = stores("killed");
    for policy in SYSTEMS {
        let setup = Setup {
            durability: "flush",
            cache_bytes: 0,
            volume_bytes: VOLUME_BYTES,
            fuse: true,
            devices: Devices::Table(policy),
            dirty_tracking: "exact",
        };
        let system = policy.unwrap_or("btt");
        let mut daemon = Daemon::new(&format!("applications-{system}"), &setup);
        daemon.start();
        let mut mounted = Some(Mounted::new(&daemon));
        if let Some(mounted) = &mut mounted {
            mounted.make();
            mounted.mount();
        }
        for round in 1..=number("FOREBAY_KILLS", || 1) {
            let (acknowledged, wrong) = kill_once(&mut daemon, &mut mounted, &stores, round);
            let mounted = mounted.as_mut().expect("mounted");
            mounted.unmount();
            mounted.check();
            say(&format!(
                "{system}, {stores:?} and files: kill {round}: {acknowledged} acknowledged, \
                 {wrong} wrong, e2fsck clean"
            ));
            row(&json!({
                "check": "applications",
                "system": system,
                "stores": stores.len(),
                "kill": round,
                "acknowledged": acknowledged,
                "wrong": wrong,
            }));
            assert_eq!(wrong, 0, "{system}, kill {round}");
            mounted.mount();
            mounted.empty();
        }
        if let Some(mounted) = &mut mounted {
            mounted.unmount();
        }
        drop(mounted);
        daemon.stop();
    }
}

/// Returns the largest file in a folder.
fn largest(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).expect("there").flatten();
    let files = entries.map(|entry| {
        let length = entry.metadata().expect("there").len();
        (length, entry.path())
    });
    files.max().expect("a file").1
}

#[test]
fn a_database_that_is_changed_behind_its_back_is_found() {
    use std::os::unix::fs::FileExt as _;
    for store in stores("planted") {
        let scratch = scratch(&format!("planted-{store}"));
        let keeper = Keeper::start(store, &scratch.path("database"), 7, 300);
        let count = keeper.end();
        assert_eq!(count, 300, "{store}");
        let wrong = |acknowledged| wrong_keys(store, &scratch.path("database"), 7, acknowledged);
        assert_eq!(wrong(count), 0, "{store}, as it was written");
        // A change that never happened counts as lost.
        assert_eq!(
            wrong(count + 3),
            3,
            "{store}, with three acknowledged changes that never happened"
        );
        let path = largest(&scratch.path("database"));
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("it opens");
        let middle = file.metadata().expect("there").len() / 2;
        let mut bytes = [0; 64];
        file.read_exact_at(&mut bytes, middle).expect("it reads");
        file.write_all_at(&bytes.map(|byte| !byte), middle)
            .expect("it writes");
        let found = wrong(count);
        assert!(
            found > 0,
            "{store}: {} was changed, and the check does not see it",
            path.display()
        );
        say(&format!("{store}: 64 bytes changed, {found} keys wrong"));
    }
}
