//! A source, a pool, and processes: this program started again as a directory or as a node with a mount.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_cluster::pool::Pool;
use forebay_cluster::server::{self, Server};
use forebay_cluster::status::{Status, ask};
use forebay_cluster::{Node, NodeId, Options};
use forebay_frontend::fuse::shared;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a node waits for a directory.
pub(crate) const WITHOUT_DIRECTORY: Duration = Duration::from_secs(2);
/// Pages of the cluster, and of each node.
const PAGES: u32 = 512;
const NODE_PAGES: u32 = 96;

/// Whether this process can mount FUSE file systems; says so if not.
pub(crate) fn can_mount() -> bool {
    let place = std::env::temp_dir().join("forebay-shared-looked");
    match forebay_frontend::fuse::may_mount(&place) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("SKIPPED: a test of shared mounts: {}", error.report());
            false
        }
    }
}

/// Whether a program can be run here; says so if not.
pub(crate) fn can_run(program: &str) -> bool {
    let mut command = Command::new(program);
    let run = command.arg("--version").stdout(Stdio::null()).status();
    let can = run.is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: a test of shared mounts: there is no {program}");
    }
    can
}

fn variable(name: &str) -> PathBuf {
    PathBuf::from(
        std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set by who starts this")),
    )
}

/// What this program does when a test has started it; for anybody else there is nothing to do.
pub(crate) fn role() {
    match std::env::var("FOREBAY_ROLE").as_deref() {
        Ok("directory") => {
            let (source, pool) = (variable("FOREBAY_SOURCE"), variable("FOREBAY_POOL"));
            let server = Server::open(server::Options::new(&source, &pool, PAGES));
            let server = server.expect("it opens");
            println!("\n@ ready");
            // It does not outlive the test.
            std::thread::spawn(|| {
                let ended = std::io::stdin().read_to_end(&mut Vec::new());
                std::process::exit(i32::from(ended.is_err()));
            });
            server.run().expect("it runs until it is killed");
        }
        Ok("node") => node(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
}

fn node() {
    let number = variable("FOREBAY_NODE");
    let number = number.to_str().and_then(|number| number.parse().ok());
    let id = number.and_then(NodeId::new).expect("a node");
    let mut options = Options::new(&variable("FOREBAY_POOL"), id, NODE_PAGES);
    options.patience = WITHOUT_DIRECTORY;
    let node = Node::join(options).expect("it joins");
    let names = node.names().expect("the source can be written to");
    let mount = shared::mount(names, &variable("FOREBAY_MOUNT")).expect("mounted");
    println!("\n@ ready");
    // Until its input ends.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
    mount.unmount().expect("unmounted");
    drop(node);
    println!("\n@ left");
}

/// A process that this test started; killed when it is dropped.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    fn start(role: &str, variables: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
        command.env("FOREBAY_ROLE", role);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be run");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("@ ") {
                    // The test may have heard enough.
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        let worker = Self {
            stdin: child.stdin.take(),
            child,
            lines,
        };
        assert_eq!(worker.hear(), "ready");
        worker
    }

    fn hear(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.expect("it says something")
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ended");
    }

    /// Closes its input, upon which it unmounts and leaves.
    pub(crate) fn end(mut self) {
        self.stdin = None;
        assert_eq!(self.hear(), "left");
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster whose directory is a process of its own.
pub(crate) struct Cluster {
    pool: PathBuf,
    top: PathBuf,
    directory: Option<Worker>,
    done: Arc<AtomicBool>,
}

impl Cluster {
    pub(crate) fn new(name: &str) -> Self {
        let id = std::process::id();
        let top = std::env::temp_dir().join(format!("forebay-shared-{name}-{id}"));
        let mut cluster = Self {
            pool: PathBuf::from(format!("/dev/shm/forebay-shared-{name}-{id}")),
            top,
            directory: None,
            done: Arc::default(),
        };
        std::fs::create_dir_all(cluster.source()).expect("made");
        cluster.start_directory();
        // A kernel that waits for a process of ours for ever would keep the test from ending.
        let (done, name) = (Arc::clone(&cluster.done), name.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(5 * PATIENCE);
            if !done.load(Ordering::Relaxed) {
                eprintln!("test {name} hangs");
                std::process::exit(1);
            }
        });
        cluster
    }

    /// Starts the directory, anew if it was killed.
    pub(crate) fn start_directory(&mut self) {
        self.directory = Some(Worker::start(
            "directory",
            &[
                ("FOREBAY_POOL", &self.pool),
                ("FOREBAY_SOURCE", &self.source()),
            ],
        ));
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.top.join("source")
    }

    pub(crate) fn mountpoint(&self, number: u8) -> PathBuf {
        self.top.join(format!("n{number}"))
    }

    /// A node with a mount.
    pub(crate) fn node(&self, number: u8) -> Worker {
        Worker::start(
            "node",
            &[
                ("FOREBAY_POOL", &self.pool),
                ("FOREBAY_MOUNT", &self.mountpoint(number)),
                ("FOREBAY_NODE", Path::new(&number.to_string())),
            ],
        )
    }

    pub(crate) fn kill_directory(&mut self) {
        self.directory.take().expect("it runs").kill();
    }

    pub(crate) fn status(&self) -> Status {
        ask(&Pool::new(&self.pool).expect("short")).expect("it answers")
    }

    pub(crate) fn wait(&self, until: impl Fn(&Status) -> bool) {
        let begin = Instant::now();
        while !until(&self.status()) {
            assert!(begin.elapsed() < PATIENCE, "never: {:?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.directory = None;
        for number in 0..4 {
            let mountpoint = self.mountpoint(number);
            if mountpoint
                .symlink_metadata()
                .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
            {
                // Of a node that was killed.
                let _ = Command::new("umount").arg("-l").arg(&mountpoint).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.pool);
        let _ = std::fs::remove_dir_all(&self.top);
    }
}
