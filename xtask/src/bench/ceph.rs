//! A Ceph of one node, without replicas, with its objects in memory (`scripts/ceph-one-node.sh`).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::server::{Scratch, free_port};
use super::{Outcome, require, run_for_output};

const PROGRAMS: [&str; 7] = [
    "monmaptool",
    "ceph-mon",
    "ceph-mgr",
    "ceph-osd",
    "ceph",
    "rbd",
    "setpriv",
];

/// Returns an error with the reason why it cannot run here, if any.
pub(super) fn unavailable() -> Outcome<()> {
    let install = "apt-get install ceph-mon ceph-mgr ceph-osd ceph-common";
    require(&PROGRAMS).map_err(|missing| format!("{missing} ({install})"))
}

/// A cloud block store of one node. Drop ends its daemons.
pub(super) struct Ceph {
    child: Child,
    /// Configuration for clients.
    pub(super) conf: PathBuf,
}

impl Ceph {
    /// Starts it in `scratch`, on processor `cpu`, with an image `rbd/bench` of 1 GiB.
    pub(super) fn start(root: &Path, scratch: &Scratch, cpu: &str) -> Outcome<Self> {
        let script = root.join("scripts/ceph-one-node.sh");
        let folder = scratch.path("");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "taskset", "--cpu-list", cpu]);
        command.arg(&script).arg(&folder);
        command.env("CEPH_PORT", free_port()?.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", script.display()))?;
        let mut ceph = Self {
            child,
            conf: folder.join("ceph.conf"),
        };
        let said = ceph.child.stdout.take().map(BufReader::new);
        let mut first = String::new();
        if let Some(mut said) = said {
            let read = said.read_line(&mut first);
            read.map_err(|error| format!("{}: {error}", script.display()))?;
        }
        match first.starts_with("ready") {
            true => Ok(ceph),
            false => Err(format!("{} printed {first:?}, not ready", script.display())),
        }
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let mut terminate = Command::new("kill");
        terminate.args(["-TERM", &self.child.id().to_string()]);
        if run_for_output(terminate).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
