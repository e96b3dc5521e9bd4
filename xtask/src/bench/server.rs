//! Servers under test, and the directories of their files. Drop kills and removes them.
//!
//! The daemon runs in the harness of the tests, [`forebay_testkit::daemon`].

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::daemon::{self, Daemon, PATIENCE, Process, ServeCommand};
use serde_json::Value;

use super::{Outcome, json_of, run_for_output};

/// Last lines of a log in an error.
const TAIL_LINES: usize = 15;

/// A directory for one benchmark, in memory where /dev/shm exists.
pub(crate) struct Scratch(daemon::Scratch);

impl Scratch {
    /// Creates a directory. Removes those of this name that killed runs left.
    pub(crate) fn new(name: &str) -> Outcome<Self> {
        Ok(Self(daemon::Scratch::in_memory(&format!("forebay-{name}"))))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Creates a sparse file of zeroes, or overwrites one.
    pub(crate) fn file(&self, name: &str, size_bytes: u64) -> Outcome<PathBuf> {
        let path = self.path(name);
        let created = File::create(&path).and_then(|file| file.set_len(size_bytes));
        created.map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(path)
    }
}

/// Returns the wrapper of a server, which dies with this program, on processor `cpu` if given.
fn wrapper(cpu: Option<&str>) -> Vec<&str> {
    let mut words = vec!["setpriv", "--pdeathsig", "KILL", "--"];
    if let Some(cpu) = cpu {
        words.extend(["taskset", "--cpu-list", cpu]);
    }
    words
}

/// A server of another project that listens on a Unix socket or, without one, on a port of
/// loopback. It is killed on drop.
pub(crate) struct Server {
    process: Process,
    socket: PathBuf,
}

impl Server {
    /// Starts `command`, on processor `cpu` only if one is given, and waits until it listens.
    pub(crate) fn start(
        command: &Command,
        cpu: Option<&str>,
        socket: PathBuf,
        log: &Path,
    ) -> Outcome<Self> {
        let _ = std::fs::remove_file(&socket);
        let at = socket.clone();
        let listens = move || UnixStream::connect(&at).is_ok();
        Self::start_until(command, cpu, socket, log, listens)
    }

    /// As [`Server::start`], for a server on a port of loopback.
    pub(crate) fn start_tcp(
        command: &Command,
        cpu: Option<&str>,
        port: u16,
        log: &Path,
    ) -> Outcome<Self> {
        let listens = move || TcpStream::connect(("127.0.0.1", port)).is_ok();
        Self::start_until(command, cpu, PathBuf::new(), log, listens)
    }

    /// As [`Server::start`], for a server that is ready when `listens` returns true.
    pub(crate) fn start_until(
        command: &Command,
        cpu: Option<&str>,
        socket: PathBuf,
        log: &Path,
        listens: impl Fn() -> bool,
    ) -> Outcome<Self> {
        let shown = format!("{command:?}");
        let wrapper = wrapper(cpu);
        let mut wrapped = Command::new(wrapper[0]);
        wrapped.args(&wrapper[1..]);
        wrapped.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            wrapped.env(key, value.unwrap_or_default());
        }
        let log_file = File::options().create(true).append(true).open(log);
        let log_file = log_file.map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = log_file.try_clone().map_err(|error| error.to_string())?;
        wrapped.stdin(Stdio::null()).stdout(log_file).stderr(copy);
        let mut server = Self {
            process: Process::spawn(&mut wrapped),
            socket,
        };
        let begin = Instant::now();
        while !listens() {
            if server.process.try_wait().is_some() || begin.elapsed() > PATIENCE {
                return Err(format!("{shown} does not listen:\n{}", tail(log)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// Returns the end of a log.
fn tail(log: &Path) -> String {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Our daemon, running or stopped. It is killed on drop.
pub(crate) struct Served {
    daemon: Option<Daemon>,
    socket: PathBuf,
}

impl Served {
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").id()
    }

    /// Sends SIGTERM and waits for the end, or kills it after a time.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        let Some(daemon) = self.daemon.take() else {
            return Ok(());
        };
        match daemon.stop() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the daemon ended with {status}")),
            None => Err(format!("the daemon did not stop in {PATIENCE:?}")),
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
    }
}

/// Our daemon, with its program and its directory.
pub(crate) struct Forebay {
    binary: PathBuf,
    control: PathBuf,
    pub(crate) server: Served,
}

impl Forebay {
    /// Starts `forebay serve` in `scratch`. The configuration must have a volume called `v`. An
    /// export, sockets and paths are added here.
    pub(crate) fn start(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        cpu: Option<&str>,
        arguments: &[&str],
    ) -> Outcome<Self> {
        let export = "[[export]]\nvolume = \"v\"\nnbd = \"unix:forebay.sock\"";
        let config = format!("{config}\n\n{export}\n\n[server]\n");
        let socket = scratch.path("forebay.sock");
        let _ = std::fs::remove_file(&socket);
        let at = socket.clone();
        let listens = move || UnixStream::connect(&at).is_ok();
        Self::start_until(binary, scratch, &config, cpu, arguments, socket, listens)
    }

    /// As [`Forebay::start`], with a configuration that has its exports, one of them on this port
    /// of loopback, and ends in the section of the server.
    pub(crate) fn start_tcp(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        cpu: Option<&str>,
        port: u16,
    ) -> Outcome<Self> {
        let listens = move || TcpStream::connect(("127.0.0.1", port)).is_ok();
        Self::start_until(binary, scratch, config, cpu, &[], PathBuf::new(), listens)
    }

    fn start_until(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        cpu: Option<&str>,
        arguments: &[&str],
        socket: PathBuf,
        listens: impl Fn() -> bool,
    ) -> Outcome<Self> {
        let whole = format!(
            r#"{config}
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
"#
        );
        let path = scratch.path("forebay.toml");
        let written = std::fs::write(&path, whole);
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        let binary = std::path::absolute(binary);
        let binary = binary.map_err(|error| format!("the program's path: {error}"))?;
        let serve = ServeCommand::new(&binary, scratch.0.directory())
            .wrapped(&wrapper(cpu))
            .arguments(arguments)
            .append_log();
        let started = serve.try_start_until(|_| listens());
        let daemon = started.map_err(|status| {
            let log = tail(&scratch.path("log"));
            format!("{} ended with {status}:\n{log}", binary.display())
        })?;
        Ok(Self {
            binary,
            control: scratch.path("control.sock"),
            server: Served {
                daemon: Some(daemon),
                socket,
            },
        })
    }

    /// Runs a command of the program on the daemon. Returns its output.
    pub(crate) fn control(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new(&self.binary);
        command.arg("--control").arg(&self.control).args(arguments);
        run_for_output(command)
    }

    pub(crate) fn status(&self) -> Outcome<Value> {
        json_of(&self.control(&["status", "--json"])?)
    }
}

/// Returns an unused port of loopback.
pub(crate) fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

/// Returns a configuration of devices and a volume of `size_bytes`, all in memory: mode `wb`,
/// durability `flush`.
pub(crate) fn in_memory(size_bytes: u64) -> String {
    format!(
        r#"
[[device]]
name = "fast"
kind = "mem"
size = {}
volatile = true

[[device]]
name = "slow"
kind = "mem"
size = {size_bytes}
volatile = true

[cache]
data = "fast"
durability = "flush"

[[volume]]
name = "v"
backing = "slow"
mode = "wb"
"#,
        // Twice the set, so that the dirty limit of 60% has no effect.
        2 * size_bytes + (64 << 20)
    )
}

/// Returns a counter of `status` by its place, such as `/cache/dirty_blocks`.
pub(crate) fn counter(status: &Value, place: &str) -> Outcome<u64> {
    let value = status.pointer(place).and_then(Value::as_u64);
    value.ok_or_else(|| format!("the status has no {place}"))
}
