//! A volume whose backing device is an image of a real Ceph cluster, whose OSD dies and returns.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::daemon::Scratch;

use super::nbd_backing::{BLOCKS, check_image, write_through};
use super::support::{Place, text};
use super::{block, check_blocks, write_blocks};

/// Programs that a cluster of one node needs.
const PROGRAMS: [&str; 5] = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd"];

/// A cluster of one node with the image `rbd/db` of 1 GiB. Its daemons end when it is dropped.
struct Ceph {
    child: Child,
    scratch: Scratch,
}

impl Ceph {
    /// Starts a cluster. Returns `None` if Ceph is not installed.
    fn start(name: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there =
            |program: &&str| std::env::split_paths(&path).any(|at| at.join(program).is_file());
        if let Some(missing) = PROGRAMS.iter().find(|program| !is_there(program)) {
            eprintln!(
                "SKIPPED: {missing} is not installed (apt-get install --no-install-recommends \
                 ceph-mon ceph-mgr ceph-osd ceph-common)"
            );
            return None;
        }
        let scratch = Scratch::new(name);
        let port = {
            let any = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            any.local_addr().expect("its number").port()
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph-one-node.sh");
        let child = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "TERM",
                "--",
                text(&script),
                text(scratch.directory()),
            ])
            .env("CEPH_PORT", port.to_string())
            .env("CEPH_STORE", "bluestore")
            .env("CEPH_IMAGE", "db")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut this = Self {
            child: child.expect("the script starts"),
            scratch,
        };
        let mut line = String::new();
        let said = this.child.stdout.take().expect("it is piped");
        BufReader::new(said)
            .read_line(&mut line)
            .expect("its output");
        let log = || std::fs::read_to_string(this.scratch.path("said")).unwrap_or_default();
        assert!(line.starts_with("ready"), "{line}{}", log());
        Some(this)
    }

    fn conf(&self) -> PathBuf {
        self.scratch.path("ceph.conf")
    }

    /// Runs a program of Ceph, and returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("timeout")
            .arg("60")
            .args(arguments)
            .env("CEPH_CONF", self.conf())
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Kills the OSD, which is started a second time.
    fn kill_osd(&self) {
        let id = std::fs::read_to_string(self.scratch.path("osd.pid")).expect("its process");
        let killed = Command::new("kill").args(["-KILL", id.trim()]).status();
        assert!(killed.expect("it runs").success());
    }

    /// Gives the volume of `place` the image as backing device.
    fn back(&self, place: &Place, mode: &str) {
        place.configure(mode, "");
        let device = format!(
            "[[device]]\nname = \"far\"\nkind = \"rbd\"\npool = \"rbd\"\nimage = \"db\"\n\
             conf = {:?}\n",
            self.conf()
        );
        place.edit_config(&[
            ("[cache]", &format!("{device}\n[cache]")),
            ("backing = \"disk\"", "backing = \"far\""),
        ]);
    }

    /// Writes the image to a file, without Forebay.
    fn export(&self, name: &str) -> PathBuf {
        let path = self.scratch.path(name);
        self.run(&["rbd", "export", "--no-progress", "db", text(&path)]);
        path
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.child.wait();
    }
}

#[test]
fn an_image_survives_kills_of_the_daemon_and_of_its_osd() {
    const EARLIER: std::ops::Range<u64> = 2048..2560;
    let Some(ceph) = Ceph::start("fb-rbd-ceph") else {
        return;
    };
    let place = Place::new("rbd-wb", "wb");
    ceph.back(&place, "wb");
    let config = place.path("forebay.toml");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, EARLIER);
    daemon.kill();
    let begin = Instant::now();
    let daemon = place.serve(&[]);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "the lock of the killed process was waited for"
    );
    place.wait_for_log("the lock is broken");
    check_blocks(&mut place.connect(), EARLIER);
    place.ok(&["flush", "db"]);
    place.ok(&["mode", "db", "wt"]);
    write_through(&place, || ceph.kill_osd());
    check_blocks(&mut place.connect(), 0..BLOCKS);
    ceph.kill_osd();
    place.ok(&["detach", "db"]);
    // The image holds all data by itself, and its lock is free.
    let image = ceph.export("exported");
    check_image(&image);
    let data = std::fs::read(&image).expect("exported");
    for number in EARLIER {
        let from = usize::try_from(number * 4096).expect("small");
        assert!(data[from..from + 4096] == block(number), "block {number}");
    }
    let begin = Instant::now();
    while !ceph.run(&["rbd", "lock", "ls", "db"]).trim().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is locked");
        std::thread::sleep(Duration::from_millis(100));
    }
    let metadata = ceph.run(&["rbd", "image-meta", "ls", "db"]);
    assert!(!metadata.contains("forebay_holder"), "{metadata}");
    daemon.terminate();
    ceph.run(&["rbd", "snap", "create", "--no-progress", "db@before"]);
    place.edit_config(&[
        ("image = \"db\"", "image = \"db\"\nsnapshot = \"before\""),
        ("mode = \"wb\"", "mode = \"wt\"\nread_only = true"),
    ]);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    check_blocks(&mut nbd, 0..BLOCKS);
    let written = nbd.write(0, &block(7)).expect("an answer");
    assert_ne!(written, 0, "a snapshot takes no writes");
    daemon.terminate();
}

#[test]
fn one_daemon_writes_to_an_image_and_a_paused_one_is_fenced() {
    let Some(ceph) = Ceph::start("fb-rbd-two") else {
        return;
    };
    let first = Place::new("rbd-first", "wt");
    let second = Place::new("rbd-second", "wt");
    for place in [&first, &second] {
        ceph.back(place, "wt");
    }
    let stale = first.serve(&[]);
    let mut nbd = first.connect();
    write_blocks(&mut nbd, 0..16);
    let config = second.path("forebay.toml");
    let refused = second.refused(&["serve", text(&config)]);
    let holder = format!("(forebay, process {} of ", stale.id());
    assert!(refused.contains("its lock is held by client."), "{refused}");
    assert!(refused.contains(&holder), "{refused}");
    // It cannot answer the cluster any more.
    stale.signal(libc::SIGSTOP);
    let daemon = second.serve(&[]);
    let mut successor = second.connect();
    for number in 0..16 {
        let data = block(number + 100);
        assert_eq!(successor.write(number * 4096, &data).expect("an answer"), 0);
    }
    stale.signal(libc::SIGCONT);
    for number in 0..16 {
        let error = nbd.write(number * 4096, &block(number + 200));
        assert_ne!(error.expect("an answer"), 0, "block {number} is fenced");
    }
    first.wait_for_log("its exclusive lock was taken from this client; client.");
    first.wait_for_log(&format!("(forebay, process {} of ", daemon.id()));
    stale.kill();
    daemon.terminate();
    let data = std::fs::read(ceph.export("exported")).expect("exported");
    for number in 0..16 {
        let from = usize::try_from(number * 4096).expect("small");
        let successors = data[from..from + 4096] == block(number + 100);
        assert!(successors, "block {number} is the successor's");
    }
}
