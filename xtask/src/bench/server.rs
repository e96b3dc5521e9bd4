//! Servers under test, and directories for what they need. Both go when their value is dropped.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Outcome, json_of, run_for_output};

/// Longest wait for a server to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of its own.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in memory where /dev/shm exists, else among the temporary files.
    pub(crate) fn new(name: &str) -> Outcome<Self> {
        let shm = Path::new("/dev/shm");
        let parent = match shm.is_dir() {
            true => shm.to_owned(),
            false => std::env::temp_dir(),
        };
        clear_left_over(&parent, &format!("forebay-{name}-"));
        let path = parent.join(format!("forebay-{name}-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path);
        made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a sparse file of zeroes.
    pub(crate) fn file(&self, name: &str, size_bytes: u64) -> Outcome<PathBuf> {
        let path = self.path(name);
        let made = File::create(&path).and_then(|file| file.set_len(size_bytes));
        made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes what runs that were killed left behind.
fn clear_left_over(parent: &Path, prefix: &str) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A server that listens on a Unix socket, or (without one) on a port of loopback.
pub(crate) struct Server {
    child: Child,
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

    /// The same for one that listens on a port of loopback.
    pub(crate) fn start_tcp(
        command: &Command,
        cpu: Option<&str>,
        port: u16,
        log: &Path,
    ) -> Outcome<Self> {
        let listens = move || TcpStream::connect(("127.0.0.1", port)).is_ok();
        Self::start_until(command, cpu, PathBuf::new(), log, listens)
    }

    fn start_until(
        command: &Command,
        cpu: Option<&str>,
        socket: PathBuf,
        log: &Path,
        listens: impl Fn() -> bool,
    ) -> Outcome<Self> {
        let shown = format!("{command:?}");
        // It goes with this program, however that ends.
        let mut pinned = Command::new("setpriv");
        pinned.args(["--pdeathsig", "KILL", "--"]);
        if let Some(cpu) = cpu {
            pinned.args(["taskset", "--cpu-list", cpu]);
        }
        pinned.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            pinned.env(key, value.unwrap_or_default());
        }
        let log_file = File::options().create(true).append(true).open(log);
        let log_file = log_file.map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = log_file.try_clone().map_err(|error| error.to_string())?;
        pinned.stdin(Stdio::null()).stdout(log_file).stderr(copy);
        let child = pinned.spawn();
        let child = child.map_err(|error| format!("cannot start {shown}: {error}"))?;
        let mut server = Self { child, socket };
        let begin = Instant::now();
        while !listens() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<_> = log.lines().rev().take(15).collect();
                let tail: Vec<_> = tail.into_iter().rev().collect();
                return Err(format!("{shown} does not listen:\n{}", tail.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM, and waits for the end, for a time; then `kill -9`.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        let mut terminate = Command::new("kill");
        terminate.args(["-TERM", &self.pid().to_string()]);
        run_for_output(terminate)?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            match ended {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended with {status}")),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        self.kill();
        Err(format!("the server did not stop in {PATIENCE:?}"))
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Our daemon.
pub(crate) struct Forebay {
    binary: PathBuf,
    control: PathBuf,
    pub(crate) server: Server,
}

impl Forebay {
    /// Starts `forebay serve` in `scratch`, with a configuration that has a volume called `v`, of which an export, sockets
    /// and paths are added here.
    pub(crate) fn start(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        cpu: Option<&str>,
        arguments: &[&str],
    ) -> Outcome<Self> {
        let export = "[[export]]\nvolume = \"v\"\nnbd = \"unix:forebay.sock\"";
        let config = format!("{config}\n\n{export}\n\n[server]\n");
        let command = Self::command(binary, scratch, &config, arguments)?;
        let socket = scratch.path("forebay.sock");
        let server = Server::start(&command, cpu, socket, &scratch.path("forebay.log"))?;
        Ok(Self::of(binary, scratch, server))
    }

    /// The same with a configuration that has its exports, one of them on this port of loopback, and ends in the
    /// section of the server.
    pub(crate) fn start_tcp(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        cpu: Option<&str>,
        port: u16,
    ) -> Outcome<Self> {
        let command = Self::command(binary, scratch, config, &[])?;
        let server = Server::start_tcp(&command, cpu, port, &scratch.path("forebay.log"))?;
        Ok(Self::of(binary, scratch, server))
    }

    /// Writes a configuration that ends in the section of the server; what serves it.
    fn command(
        binary: &Path,
        scratch: &Scratch,
        config: &str,
        arguments: &[&str],
    ) -> Outcome<Command> {
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
        let mut command = Command::new(binary);
        command.arg("serve").args(arguments).arg(&path);
        Ok(command)
    }

    fn of(binary: &Path, scratch: &Scratch, server: Server) -> Self {
        Self {
            binary: binary.to_owned(),
            control: scratch.path("control.sock"),
            server,
        }
    }

    /// Runs `forebay COMMAND` on it.
    pub(crate) fn control(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new(&self.binary);
        command.arg("--control").arg(&self.control).args(arguments);
        run_for_output(command)
    }

    pub(crate) fn status(&self) -> Outcome<Value> {
        json_of(&self.control(&["status", "--json"])?)
    }
}

/// A port of loopback that nobody has.
pub(crate) fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

/// Devices and a volume of so many bytes, all in memory; mode `wb`, durability `flush`.
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
        // Twice the set, so that the dirty limit of 60% is out of the way.
        2 * size_bytes + (64 << 20)
    )
}

/// A counter of `status`, by its place as in `/cache/dirty_blocks`.
pub(crate) fn counter(status: &Value, place: &str) -> Outcome<u64> {
    let value = status.pointer(place).and_then(Value::as_u64);
    value.ok_or_else(|| format!("the status says nothing about {place}"))
}
