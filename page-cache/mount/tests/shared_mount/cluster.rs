//! A source, a pool, and processes: this program starts itself as a directory or as a node with a
//! mount.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::server::{self, Server};
use forebay_cluster::status::Status;
use forebay_cluster::{Consistency, Node, NodeId, Options, Replicas, WriteBack};
use forebay_mount::Users;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for which a node waits for a directory.
pub(crate) const WITHOUT_DIRECTORY: Duration = Duration::from_secs(2);
/// Directory whose files programs may map shared.
pub(crate) const MAPPED: &str = "mapped";
/// Pages of the cluster, and of each node.
const PAGES: u32 = 512;
const NODE_PAGES: u32 = 96;

/// Returns whether this process can mount FUSE file systems, and prints a reason if not.
pub(crate) fn can_mount() -> bool {
    let place = std::env::temp_dir().join(format!("forebay-shared-looked-{}", std::process::id()));
    match forebay_fuse::check_mount(&place, "run as root") {
        Ok(()) => true,
        Err(error) => {
            skipped(&error.report());
            false
        }
    }
}

/// Prints why a test is skipped, even if the output of passing tests is hidden.
pub(crate) fn skipped(why: &str) {
    let said = writeln!(std::io::stderr(), "SKIPPED: a test of shared mounts: {why}");
    said.expect("there is a standard error");
}

/// Returns whether a program can be run here, and prints a reason if not.
pub(crate) fn can_run(program: &str) -> bool {
    can_run_with(program, "--version")
}

/// Like [`can_run`], for a program with this argument for its version.
pub(crate) fn can_run_with(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    let run = command.arg(version).stdout(Stdio::null()).status();
    let can = run.is_ok_and(|status| status.success());
    if !can {
        skipped(&format!(
            "there is no {program} (scripts/setup.sh installs it)"
        ));
    }
    can
}

fn variable(name: &str) -> PathBuf {
    PathBuf::from(
        std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set by who starts this")),
    )
}

/// Behaviour of this program when a test has started it; otherwise it does nothing.
pub(crate) fn role() {
    match std::env::var("FOREBAY_ROLE").as_deref() {
        Ok("directory") => {
            let (source, pool) = (variable("FOREBAY_SOURCE"), variable("FOREBAY_POOL"));
            let mut options = server::Options::new(&source, &pool, PAGES);
            options.mapped = std::env::var_os("FOREBAY_MAPPED")
                .into_iter()
                .map(PathBuf::from)
                .collect();
            let server = Server::open(options);
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
    if std::env::var_os("FOREBAY_WRITE_BACK").is_some() {
        options.write_back = WriteBack::Close;
        // Nothing else writes back.
        options.dirty_pages = PAGES as usize;
    }
    if std::env::var_os("FOREBAY_RELAXED").is_some() {
        options.consistency = Consistency::Relaxed;
    }
    if std::env::var_os("FOREBAY_REPLICAS").is_some() {
        options.replicas = Replicas::Idle;
    }
    let node = Node::join(options).expect("it joins");
    let names = node.names().expect("the source can be written to");
    let users = match std::env::var_os("FOREBAY_ALL_USERS") {
        Some(_) => Users::All,
        None => Users::Mounter,
    };
    let place = variable("FOREBAY_MOUNT");
    let mount = forebay_mount::mount(names, &place, users).expect("mounted");
    println!("\n@ ready");
    // Until its input ends.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
    mount.unmount().expect("unmounted");
    drop(node);
    println!("\n@ left");
}

/// Starts this program in a role, optionally by another program.
fn in_role(by: &[&str], role: &str, variables: &[(&str, &Path)]) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = match by {
        [] => Command::new(program),
        [by, arguments @ ..] => {
            let mut command = Command::new(by);
            command.args(arguments).arg(program);
            command
        }
    };
    command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
    command.env("FOREBAY_ROLE", role);
    command.envs(variables.iter().copied());
    command
}

/// A process of the test, killed on drop.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    fn start(role: &str, variables: &[(&str, &Path)]) -> Self {
        let mut command = in_role(&[], role, variables);
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
        let worker = Self {
            stdin: child.stdin.take(),
            child,
            lines,
        };
        assert_eq!(worker.receive(), "ready");
        worker
    }

    fn receive(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.expect("it says something")
    }

    /// Files that it has open.
    pub(crate) fn open_files(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.expect("it runs").count()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ended");
    }

    /// Closes its input: it then unmounts and leaves.
    pub(crate) fn end(mut self) {
        self.stdin = None;
        assert_eq!(self.receive(), "left");
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

/// A cluster whose directory is a separate process.
pub(crate) struct Cluster {
    pool: PathBuf,
    top: PathBuf,
    directory: Option<Worker>,
    /// Whether directories map [`MAPPED`].
    maps: bool,
    /// Mounts of the source.
    mounted: Vec<PathBuf>,
    done: Arc<AtomicBool>,
}

impl Cluster {
    pub(crate) fn new(name: &str) -> Self {
        Self::on(name, |_| Vec::new())
    }

    /// Creates a cluster whose source is mounted by `mount`.
    pub(crate) fn on(name: &str, mount: impl FnOnce(&Path) -> Vec<PathBuf>) -> Self {
        let id = std::process::id();
        let top = std::env::temp_dir().join(format!("forebay-shared-{name}-{id}"));
        let mut cluster = Self {
            pool: PathBuf::from(format!("/dev/shm/forebay-shared-{name}-{id}")),
            top,
            directory: None,
            maps: true,
            mounted: Vec::new(),
            done: Arc::default(),
        };
        std::fs::create_dir_all(cluster.source()).expect("made");
        cluster.mounted = mount(&cluster.source());
        std::fs::create_dir_all(cluster.source().join(MAPPED)).expect("made");
        cluster.start_directory();
        // A kernel that waits for a process of the test would keep the test from ending.
        let (done, name) = (Arc::clone(&cluster.done), name.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(10 * PATIENCE);
            if !done.load(Ordering::Relaxed) {
                eprintln!("test {name} hangs");
                std::process::exit(1);
            }
        });
        cluster
    }

    /// Starts the directory, or restarts it after a kill.
    pub(crate) fn start_directory(&mut self) {
        let source = self.source();
        let mut variables = vec![
            ("FOREBAY_POOL", self.pool.as_path()),
            ("FOREBAY_SOURCE", &source),
        ];
        if self.maps {
            variables.push(("FOREBAY_MAPPED", Path::new(MAPPED)));
        }
        self.directory = Some(Worker::start("directory", &variables));
    }

    /// Takes effect at the next start of the directory.
    pub(crate) const fn map_nothing(&mut self) {
        self.maps = false;
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.top.join("source")
    }

    pub(crate) fn mountpoint(&self, number: u8) -> PathBuf {
        self.top.join(format!("n{number}"))
    }

    /// Starts a node with a mount.
    pub(crate) fn node(&self, number: u8) -> Worker {
        let (id, mountpoint) = (number.to_string(), self.mountpoint(number));
        Worker::start("node", &self.of_node(&id, &mountpoint))
    }

    /// Starts a node with a mount for all users.
    pub(crate) fn node_for_all_users(&self, number: u8) -> Worker {
        self.node_with(number, "FOREBAY_ALL_USERS")
    }

    /// Starts a node with a mount of relaxed consistency.
    pub(crate) fn relaxed_node(&self, number: u8) -> Worker {
        self.node_with(number, "FOREBAY_RELAXED")
    }

    /// Starts a node with a mount, at which a close waits for the write-back.
    pub(crate) fn node_that_writes_back_at_close(&self, number: u8) -> Worker {
        self.node_with(number, "FOREBAY_WRITE_BACK")
    }

    /// Starts a node with a mount and replicas.
    pub(crate) fn node_with_replicas(&self, number: u8) -> Worker {
        self.node_with(number, "FOREBAY_REPLICAS")
    }

    fn node_with(&self, number: u8, option: &str) -> Worker {
        let (id, mountpoint) = (number.to_string(), self.mountpoint(number));
        let mut variables = self.of_node(&id, &mountpoint).to_vec();
        variables.push((option, Path::new("set")));
        Worker::start("node", &variables)
    }

    /// Starts a node by another program, without input: it ends as soon as it is mounted, or prints
    /// an error.
    pub(crate) fn node_by(&self, by: &[&str], number: u8) -> Output {
        let (id, mountpoint) = (number.to_string(), self.mountpoint(number));
        let mut command = in_role(by, "node", &self.of_node(&id, &mountpoint));
        command.stdin(Stdio::null()).output().expect("it runs")
    }

    fn of_node<'a>(&'a self, id: &'a str, mountpoint: &'a Path) -> [(&'a str, &'a Path); 3] {
        [
            ("FOREBAY_NODE", Path::new(id)),
            ("FOREBAY_POOL", &self.pool),
            ("FOREBAY_MOUNT", mountpoint),
        ]
    }

    /// Joins a node in this process, without a mount.
    pub(crate) fn node_here(&self, number: u8) -> Node {
        let id = NodeId::new(number).expect("a node");
        Node::join(Options::new(&self.pool, id, NODE_PAGES)).expect("it joins")
    }

    pub(crate) fn kill_directory(&mut self) {
        self.directory.take().expect("it runs").kill();
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

/// Unmounts a mountpoint lazily.
pub(crate) fn clear(mountpoint: &Path) {
    // There may be nothing.
    let _ = Command::new("umount").arg("-l").arg(mountpoint).status();
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
                // The mount of a killed node.
                clear(&mountpoint);
            }
        }
        for path in self.mounted.iter().rev() {
            clear(path);
        }
        let _ = std::fs::remove_dir_all(&self.pool);
        let _ = std::fs::remove_dir_all(&self.top);
    }
}
