//! Test fixtures, each with a guard that removes it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::{BlockDevice, Completion, DeviceInfo, Op, Request};
use forebay_io::rt::Executor;
use forebay_volume::{Volume, VolumeHandle};

/// Returns whether this process can mount FUSE file systems, and prints a reason if not.
pub(in crate::fuse) fn can_mount() -> bool {
    let reason = if forebay_fuse::owner().0 != 0 {
        "it needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else {
        return true;
    };
    eprintln!("SKIPPED: a FUSE test: {reason}");
    false
}

pub(in crate::fuse) fn can_loop(programs: &[&str]) -> bool {
    if !can_mount() {
        return false;
    }
    if !Path::new("/dev/loop-control").exists() {
        eprintln!("SKIPPED: a loop device test: /dev/loop-control is missing");
        return false;
    }
    programs.iter().all(|program| {
        let found = std::env::split_paths("/usr/sbin:/usr/bin:/sbin:/bin")
            .any(|directory| directory.join(program).exists());
        if !found {
            eprintln!("SKIPPED: a loop device test: {program} is not installed");
        }
        found
    })
}

pub(in crate::fuse) struct TempDir(pub(in crate::fuse) PathBuf);

impl TempDir {
    pub(in crate::fuse) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("forebay-fuse-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a fresh directory");
        Self(dir.canonicalize().expect("just made"))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A failed test may have left mounts on it or in it.
        for path in [self.0.join("tree"), self.0.join("export"), self.0.clone()] {
            let _ = forebay_fuse::unmount(&path);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A volume on an engine thread of its own, until dropped.
pub(in crate::fuse) struct Served {
    pub(in crate::fuse) handle: VolumeHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub(in crate::fuse) fn serve(
    name: &str,
    read_only: bool,
    device: impl FnOnce() -> Rc<dyn BlockDevice> + Send + 'static,
) -> Served {
    let (send, receive) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (name, stopped) = (name.to_owned(), Arc::clone(&stop));
    let thread = std::thread::spawn(move || {
        let me = std::thread::current();
        let executor = Executor::new(move || me.unpark());
        let _entered = executor.enter();
        let volume = Volume::new(name, device(), read_only);
        send.send(volume.handle()).expect("the test waits");
        while !stopped.load(Ordering::Acquire) {
            if executor.collect() {
                executor.run_ready(64);
                continue;
            }
            let timer = executor
                .next_timer()
                .map(|at| at.saturating_sub(executor.now()));
            std::thread::park_timeout(timer.unwrap_or(Duration::from_millis(20)));
        }
        drop(volume);
        executor.clear();
    });
    Served {
        handle: receive.recv().expect("the thread runs"),
        stop,
        thread: Some(thread),
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Counts of the requests that reach the device.
#[derive(Default)]
pub(in crate::fuse) struct Seen {
    pub(in crate::fuse) writes: AtomicU64,
    pub(in crate::fuse) fua_writes: AtomicU64,
    pub(in crate::fuse) flushes: AtomicU64,
    pub(in crate::fuse) unmapped_bytes: AtomicU64,
    pub(in crate::fuse) zeroed_bytes: AtomicU64,
}

pub(in crate::fuse) struct Spy(
    pub(in crate::fuse) Rc<dyn BlockDevice>,
    pub(in crate::fuse) Arc<Seen>,
);

impl BlockDevice for Spy {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let (counter, by) = match request.op {
            Op::Write { fua: false } => (&self.1.writes, 1),
            Op::Write { fua: true } => (&self.1.fua_writes, 1),
            Op::Flush => (&self.1.flushes, 1),
            Op::WriteZeroes { unmap: true, .. } => (&self.1.unmapped_bytes, request.len),
            Op::WriteZeroes { unmap: false, .. } => (&self.1.zeroed_bytes, request.len),
            Op::Read => (&self.1.writes, 0),
            Op::Discard => panic!("a hole must read as zeroes, and a discard promises nothing"),
        };
        counter.fetch_add(by, Ordering::Relaxed);
        self.0.submit(request, done);
    }
}

pub(in crate::fuse) fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .expect("opened")
}

/// Programs are looked for here: tests may run without a login shell.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Mounts a device. Another test may have made a mount namespace meanwhile, which holds a copy of
/// an earlier mount until it ends. So this tries for a minute while the device is busy.
///
/// # Panics
/// If `mount` fails.
#[track_caller]
pub(in crate::fuse) fn mount_device(options: &str, device: &str, place: &str) {
    let begin = Instant::now();
    let mount = || {
        let mut mount = Command::new("mount");
        mount.args(["-o", options, device, place]).env("PATH", PATH);
        mount.output().expect("it starts")
    };
    let mut output = mount();
    while !output.status.success()
        && String::from_utf8_lossy(&output.stderr).contains("busy")
        && begin.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(50));
        output = mount();
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "mount -o {options} {device}: {stderr}"
    );
}

/// Runs a program. Panics with its output if it fails.
#[track_caller]
pub(in crate::fuse) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("PATH", PATH)
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// A loop device, detached when dropped.
pub(in crate::fuse) struct Loop(pub(in crate::fuse) String);

impl Loop {
    #[track_caller]
    pub(in crate::fuse) fn attach(file: &Path, sector_bytes: u32) -> Self {
        let file = file.to_str().expect("a plain path");
        let sector = sector_bytes.to_string();
        let device = run(
            "losetup",
            &[
                "--find",
                "--show",
                "--direct-io=on",
                "--sector-size",
                &sector,
                file,
            ],
        );
        Self(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("/usr/sbin/losetup")
            .args(["-d", &self.0])
            .status();
    }
}

/// A mounted file system, unmounted when dropped.
pub(in crate::fuse) struct Mounted(pub(in crate::fuse) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = forebay_fuse::unmount(&self.0);
    }
}
