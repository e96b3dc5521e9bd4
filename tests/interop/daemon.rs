//! Real clients against the `forebay` program, with a write-back cache smaller than their data.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use forebay_testkit::daemon::{self, Scratch, Site};

use crate::clients::{noise, text};
use crate::programs::{requires, requires_fio, run};

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

/// The program, running or not, with its directory.
pub(crate) struct Daemon {
    /// Dropped first: the daemon uses the directory.
    running: Option<daemon::Daemon>,
    site: Site,
}

impl Daemon {
    pub(crate) fn new(name: &str) -> Self {
        let mut daemon = Self::prepared(name, CONFIG);
        daemon.start();
        daemon
    }

    /// Creates the files, writes the configuration and formats the cache. Does not start the
    /// daemon.
    pub(crate) fn prepared(name: &str, config: &str) -> Self {
        let scratch = Scratch::new(&format!("forebay-interop-{name}")).keep_on_panic();
        let site = Site::new(forebay_tests::program(), scratch);
        site.create_file("cache", CACHE_BYTES);
        site.create_file("backing", VOLUME_BYTES);
        site.write_config(config);
        let format = site.local_command(&["format", "--cache", "cache"]).output();
        assert!(format.expect("it runs").status.success());
        Self {
            site,
            running: None,
        }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.site.local_command(arguments)
    }

    pub(crate) fn start(&mut self) {
        self.running = Some(self.site.serve().start());
    }

    /// Sends SIGTERM, which must end it cleanly.
    pub(crate) fn stop(&mut self) {
        self.running.take().expect("it runs").terminate();
    }

    /// Returns everything that the daemon printed: its addresses, then its log.
    pub(crate) fn log(&self) -> String {
        let addresses = std::fs::read_to_string(self.path("stdout"));
        addresses.unwrap_or_default() + &self.site.log()
    }

    pub(crate) fn uri(&self) -> String {
        let socket = self.path("nbd.sock");
        format!("nbd+unix:///disk?socket={}", text(&socket))
    }
}

impl Deref for Daemon {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

fn same(path: &Path, data: &[u8]) -> bool {
    std::fs::read(path).expect("a file") == data
}

#[test]
fn nbdcopy_and_qemu_img_read_written_data_from_the_daemon() {
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
    let aux = format!("--aux-path={}", text(daemon.directory()));
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
