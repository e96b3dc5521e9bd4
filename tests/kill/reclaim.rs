//! The daemon serves a file system whose dirty pages the kernel must write to reclaim memory, for
//! the daemon as well. A writer dirties twice the memory of both, and no thread waits for ever.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::daemon::in_group;
use forebay_tests::stamp::mix;
use serde_json::json;

use crate::daemon::{Daemon, Devices, Setup};
use crate::ext4::{Mounted, obstacle};
use crate::{row, say};

const LIMIT_BYTES: u64 = 512 << 20;
/// Twice the limit.
const FILES: u64 = 64;
const FILE_BYTES: u64 = 16 << 20;
const VOLUME_BYTES: u64 = 1536 << 20;
const CACHE_BYTES: u64 = 256 << 20;
/// Limit for one step of the writer: 16 MiB written, or 16 MiB synced.
const BAR: Duration = Duration::from_secs(30);

/// A control group that limits memory, removed at the end.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    peak: &'static str,
}

impl Group {
    /// Creates a group, in version 1 or 2. Returns the reason if that is impossible.
    fn new() -> Result<Self, String> {
        let name = format!("forebay-reclaim-{}", std::process::id());
        let top = Path::new("/sys/fs/cgroup");
        let (folder, limit, peak) = if top.join("memory/cgroup.procs").exists() {
            let files = ("memory.limit_in_bytes", "memory.max_usage_in_bytes");
            (top.join("memory").join(name), files.0, files.1)
        } else {
            // In version 2 the parent must enable the controller for its children.
            let _ = fs::write(top.join("cgroup.subtree_control"), "+memory");
            (top.join(name), "memory.max", "memory.peak")
        };
        let refused = |error| format!("no control group {}: {error}", folder.display());
        fs::create_dir(&folder).map_err(refused)?;
        let group = Self {
            folder,
            limit,
            peak,
        };
        let path = group.folder.join(group.limit);
        fs::write(&path, LIMIT_BYTES.to_string())
            .map_err(|error| format!("no memory limit in {}: {error}", path.display()))?;
        Ok(group)
    }

    /// Returns the peak memory use, bytes. `None` where the kernel does not report it.
    fn peak_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(self.peak)).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Unused pages keep a group of version 1 for a moment.
        let _ = fs::write(self.folder.join("memory.force_empty"), "0");
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        say(&format!("{} could not be removed", self.folder.display()));
    }
}

/// Whether the kernel makes a process of the group wait for write-back when it reclaims memory.
/// Version 1 does so, without CAP_SYS_RESOURCE, which the kernel takes as a sign that the process
/// does the write-back.
fn may_wait_for_itself(pid: u32) -> bool {
    let version_1 = Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(held.expect("it has some").trim(), 16).expect("a number");
    version_1 && held >> 24 & 1 == 0
}

fn pattern() -> Vec<u8> {
    let mut state = 1;
    let mut bytes = Vec::with_capacity(FILE_BYTES as usize);
    while bytes.len() < FILE_BYTES as usize {
        state = mix(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Writes the files, then syncs them one by one, and prints a line for each step.
const WRITER: &str = r#"
set -e
for i in $(seq "$1"); do dd if="$0" of="$2/$i" bs=1M status=none; echo "wrote $i"; done
for i in $(seq "$1"); do sync "$2/$i"; echo "synced $i"; done
"#;

/// Returns the wait states of a process's threads.
fn waits(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{}{}\n", read("comm"), read("stack"))
    });
    threads.collect()
}

/// Runs the writer. Returns its time and its longest step.
fn write(daemon: &Daemon, group: &Group, source: &Path, mounted: &Mounted) -> (Duration, Duration) {
    let mut child = in_group(&group.folder, Path::new("sh"))
        .args(["-c", WRITER])
        .arg(source)
        .arg(FILES.to_string())
        .arg(&mounted.mount)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let output = child.stdout.take().expect("a pipe");
    let (sender, steps) = mpsc::channel();
    // Reads until the writer has ended, even if the test stops waiting before.
    let reader = thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let begin = Instant::now();
    let (mut last, mut longest, mut count) = (begin, Duration::ZERO, 0);
    loop {
        match steps.recv_timeout(2 * BAR) {
            Ok(_) => {
                count += 1;
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let daemon_waits = waits(daemon.pid());
                let writer_waits = waits(child.id());
                // Otherwise neither of them could be killed.
                mounted.abort();
                panic!(
                    "the writer is stuck after {count} of {} steps; the daemon's threads \
                     wait:\n\
                     {daemon_waits}the writer:\n{writer_waits}",
                    2 * FILES,
                );
            }
        }
    }
    reader.join().expect("it reads");
    let status = child.wait().expect("it ends");
    assert!(
        status.success() && count == 2 * FILES,
        "{status} after {count} steps"
    );
    (begin.elapsed(), longest)
}

#[test]
fn memory_is_reclaimed_through_the_volume_without_a_deadlock() {
    let group = match obstacle().map_or_else(Group::new, Err) {
        Ok(group) => group,
        Err(reason) => {
            say(&format!("SKIPPED reclaim through the volume: {reason}"));
            return;
        }
    };
    let setup = Setup {
        durability: "flush",
        cache_bytes: CACHE_BYTES,
        volume_bytes: VOLUME_BYTES,
        fuse: true,
        devices: Devices::Files,
        dirty_tracking: "exact",
    };
    let mut daemon = Daemon::new("reclaim", &setup);
    daemon.group = Some(group.folder.clone());
    daemon.start();
    let status = daemon.control("status", &["--json"]);
    assert!(
        !may_wait_for_itself(daemon.pid()) || !status.contains(r#""io_uring""#),
        "io_uring starts kernel threads in the middle of requests, for memory that these may be \
         needed to free"
    );
    let source = daemon.site.path("pattern");
    let mut file = fs::File::create_new(&source).expect("a new file");
    file.write_all(&pattern()).expect("written");
    let mut mounted = Mounted::new(&daemon);
    mounted.make();
    mounted.mount();

    let (took, longest) = write(&daemon, &group, &source, &mounted);
    let peak = group.peak_bytes();
    mounted.unmount();
    mounted.check();
    mounted.mount();
    let expected = pattern();
    let wrong: Vec<_> = (1..=FILES)
        .filter(|number| {
            let found = fs::read(mounted.mount.join(number.to_string()));
            found.ok().as_ref() != Some(&expected)
        })
        .collect();
    mounted.unmount();
    drop(mounted);
    daemon.stop();

    let (took_s, longest_s) = (took.as_secs_f64(), longest.as_secs_f64());
    let peak_mib = peak.map_or(0, |bytes| bytes >> 20);
    say(&format!(
        "reclaim: {} MiB dirtied and synced under a limit of {} MiB (at most {peak_mib} MiB in \
         use) in {took_s:.1} s, the longest step of 16 MiB took {longest_s:.2} s, {} of {FILES} \
         files wrong",
        (FILES * FILE_BYTES) >> 20,
        LIMIT_BYTES >> 20,
        wrong.len()
    ));
    let rounded = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
    row(&json!({
        "check": "reclaim",
        "dirtied_mib": (FILES * FILE_BYTES) >> 20,
        "limit_mib": LIMIT_BYTES >> 20,
        "peak_mib": peak_mib,
        "took_s": rounded(took_s),
        "longest_step_s": rounded(longest_s),
        "wrong_files": wrong.len(),
    }));
    assert!(wrong.is_empty(), "these files differ: {wrong:?}");
    assert!(longest <= BAR, "a step took {longest:?}");
    if let Some(peak) = peak {
        assert!(
            peak > LIMIT_BYTES / 10 * 9,
            "only {peak} bytes were in use: nothing was reclaimed, so nothing is proved"
        );
    }
}
