//! Real clients against the `forebay` program: a write-back cache smaller than what they write.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients::{noise, text};
use crate::programs::{requires, requires_fio, run};

/// A start or a stop that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const CACHE_BYTES: u64 = 48 << 20;
pub(crate) const VOLUME_BYTES: u64 = 96 << 20;

pub(crate) const CONFIG: &str = r#"
[[device]]
name = "fast"
kind = "file"
path = "cache"

[[device]]
name = "slow"
kind = "file"
path = "backing"

[cache]
data = "fast"
journal = "journal"

[[volume]]
name = "disk"
backing = "slow"
mode = "wb"

[[export]]
volume = "disk"
nbd = "unix:nbd.sock"

[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
"#;

pub(crate) struct Daemon {
    program: PathBuf,
    folder: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    pub(crate) fn new(name: &str) -> Self {
        let mut daemon = Self::prepared(name, CONFIG);
        daemon.start();
        daemon
    }

    /// All but started.
    pub(crate) fn prepared(name: &str, config: &str) -> Self {
        let unique = format!("forebay-interop-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir(&folder).expect("a folder of our own");
        for (name, size) in [("cache", CACHE_BYTES), ("backing", VOLUME_BYTES)] {
            let file = File::create_new(folder.join(name)).expect("a new file");
            file.set_len(size).expect("a sparse file");
        }
        std::fs::write(folder.join("forebay.toml"), config).expect("a configuration");
        let daemon = Self {
            program: forebay_tests::program().to_path_buf(),
            folder,
            child: None,
        };
        let format = daemon.command(&["format", "--cache", "cache"]).output();
        assert!(format.expect("it runs").status.success());
        daemon
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self) {
        let log = File::create(self.folder.join("log")).expect("a log");
        let child = self
            .command(&["serve", "forebay.toml"])
            .stdout(log.try_clone().expect("one log for both"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("the program starts"));
        let begin = Instant::now();
        // Said once all of it listens.
        while !self.log().contains("control on ") {
            assert!(begin.elapsed() < PATIENCE, "not up: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, which must end it in order.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        run("kill", &["-TERM", &child.id().to_string()]);
        let begin = Instant::now();
        while child.try_wait().expect("it can be waited for").is_none() {
            if begin.elapsed() > PATIENCE {
                child.kill().expect("the signal is sent");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = child.wait().expect("it has ended");
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn wait_for_log(&self, words: &str) {
        let begin = Instant::now();
        while !self.log().contains(words) {
            assert!(begin.elapsed() < PATIENCE, "{words} in {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn uri(&self) -> String {
        let socket = self.path("nbd.sock");
        format!("nbd+unix:///disk?socket={}", text(&socket))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn same(path: &Path, data: &[u8]) -> bool {
    std::fs::read(path).expect("a file") == data
}

#[test]
fn the_program_brings_back_what_clients_wrote() {
    if !requires("nbdcopy", "libnbd-bin") || !requires("qemu-img", "qemu-utils") {
        return;
    }
    let mut daemon = Daemon::new("copy");
    let (source, back) = (daemon.path("source"), daemon.path("back"));
    let data = noise(&source, usize::try_from(VOLUME_BYTES).expect("small"));
    let uri = daemon.uri();
    run("nbdcopy", &["--flush", text(&source), &uri]);
    run("nbdcopy", &[&uri, text(&back)]);
    assert!(same(&back, &data), "with nbdcopy, larger than the cache");
    daemon.stop();
    daemon.start();
    run(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", &uri, text(&back)],
    );
    assert!(same(&back, &data), "with qemu-img, after a restart");
    daemon.stop();
}

#[test]
fn fio_verifies_the_program() {
    if !requires_fio() {
        return;
    }
    let mut daemon = Daemon::new("fio");
    let uri = format!("--uri={}", daemon.uri());
    let aux = format!("--aux-path={}", text(&daemon.folder));
    let mut arguments = vec!["--name=verify", "--ioengine=nbd", "--rw=randrw"];
    arguments.extend([
        "--bsrange=4k-64k",
        "--iodepth=32",
        "--size=96M",
        "--fsync=32",
    ]);
    arguments.extend([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--output-format=terse",
    ]);
    arguments.extend([&*uri, &*aux]);
    run("fio", &arguments);
    daemon.stop();
}
