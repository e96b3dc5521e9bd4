//! A pool, a source and a directory process; nodes in this process and in others.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::status::Status;
use forebay_cluster::{Node, NodeId, Options, PAGE_BYTES};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Lease for tests that wait for its end. A heartbeat may be late by more than a second.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);

pub(crate) fn node_id(number: u8) -> NodeId {
    NodeId::new(number).expect("below 32")
}

/// A cluster whose directory is a separate process.
pub(crate) struct Cluster {
    pool: PathBuf,
    source: PathBuf,
    pages: u32,
    lease: Duration,
    placement: &'static str,
    /// Time for which the source may refuse a page that outlived its node.
    rescue: Duration,
    /// Time for which a node's process continues after the node has left.
    pub(crate) linger: Duration,
    directory: Option<Worker>,
}

/// A process of the test, killed on drop.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Lines that it prints for the test.
    pub(crate) lines: Receiver<String>,
}

impl Worker {
    fn start(role: &str, variables: &[(&str, String)]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["role::role", "--exact", "--nocapture", "--test-threads=1"]);
        command.env("FOREBAY_ROLE", role);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be run");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("@ ") {
                    // The test may have stopped reading.
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            lines,
        }
    }

    pub(crate) fn receive(&self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .expect("it says something")
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status();
        assert!(sent.expect("it runs").success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ended");
    }

    /// Closes its input, which ends it.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }

    /// Closes its input and waits until it has ended.
    pub(crate) fn end(&mut self) -> bool {
        self.close();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    pub(crate) fn new(name: &str, pages: u32, lease: Duration) -> Self {
        Self::placed(name, pages, lease, "node")
    }

    pub(crate) fn placed(name: &str, pages: u32, lease: Duration, placement: &'static str) -> Self {
        Self::rescuing(name, pages, lease, placement, Duration::from_secs(60))
    }

    pub(crate) fn rescuing(
        name: &str,
        pages: u32,
        lease: Duration,
        placement: &'static str,
        rescue: Duration,
    ) -> Self {
        let id = std::process::id();
        let mut cluster = Self {
            pool: PathBuf::from(format!("/dev/shm/forebay-test-{name}-{id}")),
            source: std::env::temp_dir().join(format!("forebay-cluster-{name}-{id}")),
            pages,
            lease,
            placement,
            rescue,
            linger: Duration::ZERO,
            directory: None,
        };
        std::fs::create_dir_all(&cluster.source).expect("made");
        cluster.start_directory();
        cluster
    }

    pub(crate) fn pool(&self) -> &Path {
        &self.pool
    }

    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("FOREBAY_POOL", self.pool.display().to_string()),
            ("FOREBAY_SOURCE", self.source.display().to_string()),
            ("FOREBAY_LEASE_MS", self.lease.as_millis().to_string()),
            ("FOREBAY_PLACEMENT", self.placement.to_owned()),
            ("FOREBAY_RESCUE_MS", self.rescue.as_millis().to_string()),
        ]
    }

    pub(crate) fn start_directory(&mut self) {
        let mut variables = self.variables();
        variables.push(("FOREBAY_PAGES", self.pages.to_string()));
        let worker = Worker::start("directory", &variables);
        assert_eq!(worker.receive(), "ready");
        self.directory = Some(worker);
    }

    pub(crate) fn kill_directory(&mut self) {
        self.directory.take().expect("it runs").kill();
    }

    /// Another pool, which may use the same source.
    pub(crate) fn other_pool(&self) -> PathBuf {
        self.pool.with_extension("other")
    }

    pub(crate) fn signal_directory(&self, name: &str) {
        self.directory.as_ref().expect("it runs").signal(name);
    }

    /// Waits for the directory to end by itself.
    pub(crate) fn wait_for_the_directorys_end(&mut self) {
        let worker = self.directory.take().expect("it ran");
        let ended = worker.lines.recv_timeout(PATIENCE);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
    }

    /// A node in this process. It has no limit of dirty pages, so that tests have unflushed ones.
    pub(crate) fn join(&self, number: u8, pages: u32) -> Node {
        let mut options = Options::new(&self.pool, node_id(number), pages);
        options.dirty_pages = self.pages as usize;
        Node::join(options).expect("it joins")
    }

    /// Starts a node that reads and writes in its own process; see `role`.
    pub(crate) fn worker(&self, number: u8, pages: u32) -> Worker {
        let mut variables = self.variables();
        variables.push(("FOREBAY_LINGER_MS", self.linger.as_millis().to_string()));
        variables.push(("FOREBAY_NODE", number.to_string()));
        variables.push(("FOREBAY_PAGES", pages.to_string()));
        Worker::start("node", &variables)
    }

    /// Creates a file of this number of pages of zeroes.
    pub(crate) fn fill(&self, name: &str, pages: usize) {
        std::fs::write(self.source.join(name), vec![0; pages * PAGE_BYTES]).expect("written");
    }

    pub(crate) fn status(&self) -> Status {
        command::status(&Pool::new(&self.pool).expect("short")).expect("it answers")
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
        self.directory = None;
        let _ = std::fs::remove_dir_all(&self.pool);
        let _ = std::fs::remove_dir_all(self.other_pool());
        let _ = std::fs::remove_dir_all(&self.source);
    }
}
