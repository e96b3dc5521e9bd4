//! `kill -9` of nodes and of the directory while programs use two mounts. The test notes outside
//! what each page must hold, and compares all pages after each kill.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_testkit::rotation::{Lives, print_row};
use forebay_testkit::traces::Draw;

use super::{Place, Running, start};

const PAGE: usize = 4096;
const FILES: usize = 6;
/// Pages of a file.
const PAGES: usize = 64;
/// The first pages of a file, which are written only at the begin of a round.
const COLD: usize = 16;
/// Age at which a node writes back.
const EXPIRY: Duration = Duration::from_secs(1);
/// Time that a busy machine may need for it.
const SLACK: Duration = Duration::from_secs(4);
/// One round in so many lasts for longer than the expiry and the slack.
const LONG_EVERY: u64 = 4;
/// Time for which programs continue after a kill.
const CONTINUED: Duration = Duration::from_millis(200);
/// Pause between two operations of a program.
const PAUSE: Duration = Duration::from_micros(300);

/// Error of a sync that reports a loss.
const EIO: i32 = 5;

/// Phases of a round.
const LOAD: u8 = 0;
const KILL: u8 = 1;
const STOP: u8 = 2;

/// Fault of the load that the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The nodes do not write back by age. No program syncs.
    NoExpiry,
    /// No program syncs, and each believes that it does.
    NoSync,
}

/// Process that a round kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Node(usize),
    Directory,
}

/// History of a page. Its version is in each of its bytes.
#[derive(Clone, Debug, Default)]
struct History {
    /// Version of the last write that was begun.
    begun: u64,
    /// Versions whose writes have returned since the last comparison, with the time.
    written: Vec<(u64, Instant)>,
    /// Latest version that must survive each kill.
    durable: u64,
}

impl History {
    fn last_written(&self) -> u64 {
        self.written
            .last()
            .map_or(self.durable, |(version, _)| *version)
    }

    /// Returns the first version that a kill of `victim` at this time may leave.
    fn bound(&self, placement: &str, victim: Victim, killed: Instant) -> u64 {
        if victim == Victim::Directory || placement == "pool" {
            return self.last_written();
        }
        let is_old = |written: &Instant| *written + EXPIRY + SLACK < killed;
        let old = self
            .written
            .iter()
            .rev()
            .find(|(_, written)| is_old(written));
        old.map_or(self.durable, |(version, _)| *version.max(&self.durable))
    }
}

const fn offset(page: usize) -> u64 {
    (page * PAGE) as u64
}

/// Returns the contents of a page: no other file, page or version has them.
fn contents(file: usize, page: usize, version: u64) -> Vec<u8> {
    let mut word = (file as u64) << 56 ^ (page as u64) << 48 ^ version;
    // A mixture, so that each byte depends on all of these.
    for _ in 0..2 {
        word = (word ^ word >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    match version {
        0 => vec![0; PAGE],
        _ => word.to_le_bytes().repeat(PAGE / 8),
    }
}

/// Returns the version that a page holds, of those that it may hold.
///
/// A write that was interrupted may have left new bytes among old ones. Such a page has the version
/// of its old bytes.
fn version_of(
    bytes: &[u8],
    (file, page): (usize, usize),
    history: &History,
    bound: u64,
) -> Option<u64> {
    let holds = |version: &u64| bytes == contents(file, page, *version);
    let mut allowed = bound..=history.begun;
    if let Some(version) = allowed.clone().rev().find(holds) {
        return Some(version);
    }
    if history.begun == history.last_written() {
        return None;
    }
    let newer = contents(file, page, history.begun);
    allowed.find(|version| {
        let older = contents(file, page, *version);
        let both = older.iter().zip(&newer).zip(bytes);
        both.clone()
            .all(|((old, new), byte)| byte == old || byte == new)
    })
}

/// A source with its files, a pool, and processes.
struct Cluster {
    place: Place,
    placement: &'static str,
    fault: Fault,
    directory: Option<Running>,
    nodes: [Option<Running>; 2],
}

impl Cluster {
    fn new(name: &str, placement: &'static str, fault: Fault) -> Self {
        let mut cluster = Self {
            place: Place::new(name),
            placement,
            fault,
            directory: None,
            nodes: [None, None],
        };
        for file in 0..FILES {
            let image = File::create(cluster.place.source.join(file.to_string()));
            let size_bytes = (PAGES * PAGE) as u64;
            let sized = image.and_then(|image| image.set_len(size_bytes));
            sized.expect("made");
        }
        for process in [Victim::Directory, Victim::Node(0), Victim::Node(1)] {
            cluster.start(process);
        }
        cluster
    }

    /// Starts a process. If nodes do not write back by age, their memory has room for all files.
    fn start(&mut self, process: Victim) {
        let (memory, expiry) = match self.fault {
            Fault::NoExpiry => ("8M", "1h"),
            Fault::None | Fault::NoSync => ("1M", "1s"),
        };
        match process {
            Victim::Directory => {
                let mut command = self.place.directory("16M");
                command.args(["--placement", self.placement]);
                self.directory = Some(start(command).0);
            }
            Victim::Node(node) => {
                let id = (node + 1).to_string();
                let arguments = ["node", "--id", &id, "--memory", memory, "--dirty", memory];
                let mut command = self.place.command(&arguments);
                command.args(["--expiry", expiry, "--mount"]);
                command.arg(self.mountpoint(node));
                let mut node_process = start(command).0;
                let file = self.mountpoint(node).join("0");
                while !file.exists() {
                    let ended = node_process.0.try_wait();
                    assert!(ended.is_none(), "the node has ended: {ended:?}");
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.nodes[node] = Some(node_process);
            }
        }
    }

    fn kill(&mut self, victim: Victim) {
        let running = match victim {
            Victim::Node(node) => self.nodes[node].take(),
            Victim::Directory => self.directory.take(),
        };
        drop(running.expect("it was started"));
    }

    /// Fails if a process has ended by itself.
    fn check_alive(&mut self) {
        let all = self.nodes.iter_mut().chain([&mut self.directory]);
        for running in all.flatten() {
            let ended = running.0.try_wait();
            assert!(
                ended.is_none(),
                "a process that was not killed has ended: {ended:?}"
            );
        }
    }

    fn mountpoint(&self, node: usize) -> PathBuf {
        self.place.source.with_extension(format!("mount{node}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes = [None, None];
        self.directory = None;
        for mountpoint in [0, 1].map(|node| self.mountpoint(node)) {
            // It is not mounted if the test has failed early.
            let _ = Command::new("umount").arg("-l").arg(&mountpoint).status();
            let _ = std::fs::remove_dir(&mountpoint);
        }
    }
}

/// Programs of both mounts, and the histories of their files.
struct Programs {
    mountpoints: [PathBuf; 2],
    fault: Fault,
    histories: [Mutex<Vec<History>>; FILES],
    phase: AtomicU8,
}

impl Programs {
    fn open(&self, node: usize, file: usize) -> File {
        let path = self.mountpoints[node].join(file.to_string());
        let opened = File::options().read(true).write(true).open(&path);
        opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn history(&self, file: usize) -> MutexGuard<'_, Vec<History>> {
        self.histories[file].lock().expect("no panic")
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// Writes a file, and syncs it at times, until the round stops. Returns false if a sync has
    /// reported a loss of data. It ends at the first other error.
    fn write(&self, opened: &File, file: usize, mut draw: Draw) -> Result<bool, String> {
        let mut cold = 0..COLD;
        let mut synced = true;
        while self.phase() != STOP {
            std::thread::sleep(PAUSE);
            let syncs = synced && self.fault != Fault::NoExpiry;
            if syncs && draw.below(40) == 0 {
                synced = self.sync(opened, file)?;
                continue;
            }
            let hot = COLD + draw.below((PAGES - COLD) as u64) as usize;
            let page = cold.next().unwrap_or(hot);
            let begun = {
                let history = &mut self.history(file)[page];
                history.begun += 1;
                history.begun
            };
            let wrote = opened.write_all_at(&contents(file, page, begun), offset(page));
            wrote.map_err(|error| format!("write of file {file}, page {page}: {error}"))?;
            let written = (begun, Instant::now());
            self.history(file)[page].written.push(written);
        }
        Ok(synced)
    }

    /// Syncs a file. Returns false if that reports a loss of data.
    fn sync(&self, opened: &File, file: usize) -> Result<bool, String> {
        let written: Vec<u64> = {
            let histories = self.history(file);
            histories.iter().map(History::last_written).collect()
        };
        if self.fault != Fault::NoSync
            && let Err(error) = opened.sync_data()
        {
            return match error.raw_os_error() {
                Some(EIO) => Ok(false),
                _ => Err(format!("sync of file {file}: {error}")),
            };
        }
        for (history, version) in self.history(file).iter_mut().zip(written) {
            history.durable = version;
        }
        Ok(true)
    }

    /// Reads pages of all files until the round stops. Before the kill, none may be older than a
    /// completed write.
    fn read(&self, files: &[File], mut draw: Draw) -> Result<bool, String> {
        let mut bytes = vec![0; PAGE];
        while self.phase() != STOP {
            std::thread::sleep(PAUSE);
            let file = draw.below(FILES as u64) as usize;
            let page = draw.below(PAGES as u64) as usize;
            let bound = self.history(file)[page].last_written();
            let read = files[file].read_exact_at(&mut bytes, offset(page));
            read.map_err(|error| format!("read of file {file}, page {page}: {error}"))?;
            let history = self.history(file)[page].clone();
            let found = version_of(&bytes, (file, page), &history, bound);
            if found.is_none() && self.phase() == LOAD {
                return Err(format!("file {file}, page {page} is older than {bound}"));
            }
        }
        Ok(true)
    }

    /// Runs programs on both mounts, kills a process meanwhile, and restarts it. Returns the time
    /// of the kill.
    fn round(
        &self,
        cluster: &mut Cluster,
        (victim, long): (Victim, bool),
        draw: &mut Draw,
    ) -> Instant {
        let first = draw.below(2) as usize;
        let duration = Duration::from_millis(100 + draw.below(900));
        let duration = duration + if long { EXPIRY + SLACK } else { Duration::ZERO };
        let mut seed = || Draw::new(draw.below(u64::from(u32::MAX)));
        self.phase.store(LOAD, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let mut programs = Vec::new();
            for file in 0..FILES {
                let node = (first + file) % 2;
                let (opened, draw) = (self.open(node, file), seed());
                let program = scope.spawn(move || self.write(&opened, file, draw));
                programs.push((node, program));
            }
            for node in 0..2 {
                let files: Vec<File> = (0..FILES).map(|file| self.open(node, file)).collect();
                let draw = seed();
                programs.push((node, scope.spawn(move || self.read(&files, draw))));
            }
            std::thread::sleep(duration);
            self.phase.store(KILL, Ordering::Relaxed);
            let killed = Instant::now();
            cluster.kill(victim);
            cluster.start(victim);
            std::thread::sleep(CONTINUED);
            self.phase.store(STOP, Ordering::Relaxed);
            for (node, program) in programs {
                let outcome = program.join().expect("no panic");
                if victim == Victim::Node(node) {
                    continue;
                }
                let may_lose = cluster.placement == "node" && victim != Victim::Directory;
                match outcome {
                    Ok(synced) => assert!(synced || may_lose, "a sync has failed"),
                    Err(error) => panic!("on the mount of node {}: {error}", node + 1),
                }
            }
            killed
        })
    }

    /// Compares all pages with their histories, on both mounts. Then makes them durable.
    ///
    /// Returns the first page that is older than it may be.
    fn compare(&self, cluster: &Cluster, victim: Victim, killed: Instant) -> Result<(), String> {
        let mut bytes = vec![0; PAGE];
        for file in 0..FILES {
            let opened = [0, 1].map(|node| self.open(node, file));
            for page in 0..PAGES {
                let history = self.history(file)[page].clone();
                let bound = history.bound(cluster.placement, victim, killed);
                let mut found = [0; 2];
                for (opened, found) in opened.iter().zip(&mut found) {
                    let read = opened.read_exact_at(&mut bytes, offset(page));
                    read.unwrap_or_else(|error| panic!("file {file}, page {page}: {error}"));
                    let version = version_of(&bytes, (file, page), &history, bound);
                    *found = version.ok_or_else(|| {
                        format!("file {file}, page {page}: {bound} is lost: {history:?}")
                    })?;
                }
                assert_eq!(found[0], found[1], "file {file}, page {page}");
                // An interrupted write may have left a mixture.
                let version = history.begun + 1;
                let contents = contents(file, page, version);
                let rewritten = opened[page % 2].write_all_at(&contents, offset(page));
                rewritten.expect("rewritten");
                self.history(file)[page] = History {
                    begun: version,
                    written: Vec::new(),
                    durable: version,
                };
            }
            for opened in &opened {
                // It may report a loss once.
                if opened.sync_data().is_err() {
                    opened.sync_data().expect("no loss is reported twice");
                }
            }
        }
        Ok(())
    }
}

/// Returns the first loss in `kills` rounds.
fn run(
    name: &str,
    placement: &'static str,
    fault: Fault,
    kills: u64,
    seed: u64,
) -> Result<(), String> {
    let mut cluster = Cluster::new(name, placement, fault);
    let programs = Programs {
        mountpoints: [0, 1].map(|node| cluster.mountpoint(node)),
        fault,
        histories: std::array::from_fn(|_| Mutex::new(vec![History::default(); PAGES])),
        phase: AtomicU8::new(LOAD),
    };
    let mut draw = Draw::new(seed);
    for round in 0..kills {
        let long = round % LONG_EVERY == LONG_EVERY - 1;
        let victim = match draw.below(3) {
            // A long round is about the memory of a node.
            2 if !long => Victim::Directory,
            node => Victim::Node(node as usize % 2),
        };
        let killed = programs.round(&mut cluster, (victim, long), &mut draw);
        let compared = programs.compare(&cluster, victim, killed);
        cluster.check_alive();
        compared.map_err(|lost| format!("round {round}, {victim:?} killed: {lost}"))?;
    }
    Ok(())
}

/// Returns whether this process may mount, and says so if not.
pub(super) fn can_mount() -> bool {
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let can = is_root && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("SKIPPED: no FUSE mount: it needs root and /dev/fuse");
    }
    can
}

/// Kills with each placement: 100 in the nightly run.
fn survives(name: &str, placement: &'static str) {
    if !can_mount() {
        return;
    }
    // A life has so many kills.
    const KILLS: u64 = 5;
    let lives = Lives {
        pinned: &[],
        gate: 1,
        whole: 20,
        share: 1000,
    };
    for seed in lives.seeds() {
        eprintln!("seed {seed}");
        let lived = run(name, placement, Fault::None, KILLS, seed);
        lived.unwrap_or_else(|lost| panic!("FOREBAY_SEED={seed}: {lost}"));
        print_row("kills of the page cache", 1, KILLS);
    }
}

#[test]
fn kills_lose_nothing_synced_or_old() {
    survives("pagecache-kills", "node");
}

#[test]
fn kills_lose_nothing_written_in_the_pool() {
    survives("pagecache-kills-pool", "pool");
}

#[test]
fn planted_losses_by_kills_are_found() {
    if !can_mount() {
        return;
    }
    for fault in [Fault::NoExpiry, Fault::NoSync] {
        let found = run("pagecache-kills-planted", "node", fault, 2 * LONG_EVERY, 1);
        let lost = found.expect_err("a node was killed with dirty pages");
        eprintln!("{fault:?}: {lost}");
    }
}
