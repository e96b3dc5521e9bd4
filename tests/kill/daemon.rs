//! The program under test: configured in a folder of its own, started, killed, stopped.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_tests::client::Client;
use forebay_tests::program;

/// The volume's name in the configuration.
pub(crate) const VOLUME: &str = "v";
/// A start or a stop that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

const FILES: &str = r#"
[[device]]
name = "cache"
kind = "file"
path = "cache"

[[device]]
name = "backing"
kind = "file"
path = "backing"
"#;

/// The backing file's keeps what it has until there is no room, so that there is something to lose.
const TRANSIT: &str = r#"
[[device]]
name = "memory"
kind = "pmem"
path = "cache"

[[device]]
name = "table"
kind = "btt"
on = "memory"

[[device]]
name = "cache"
kind = "transit"
on = "table"
capacity = "4M"

[[device]]
name = "file"
kind = "file"
path = "backing"

[[device]]
name = "backing"
kind = "transit"
on = "file"
capacity = "4M"
policy = "lru"
"#;

/// What lies under the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Devices {
    /// A cache over a backing device, both files.
    Files,
    /// The same, with transit caches over both and a block translation table under that of the cache.
    Transit,
    /// No cache: a block translation table on emulated memory, alone or under a transit cache of this policy.
    Table(Option<&'static str>),
}

impl Devices {
    /// A cache with its devices, or devices alone.
    fn has_cache(self) -> bool {
        !matches!(self, Self::Table(_))
    }

    /// In the words of the configuration.
    fn config(self) -> String {
        match self {
            Self::Files => FILES.to_owned(),
            Self::Transit => TRANSIT.to_owned(),
            Self::Table(None) => table("backing"),
            Self::Table(Some(policy)) => format!(
                "{}\n[[device]]\nname = \"backing\"\nkind = \"transit\"\non = \"table\"\n\
                 capacity = \"16M\"\npolicy = \"{policy}\"\n",
                table("table")
            ),
        }
    }
}

/// A table of this name on emulated memory.
fn table(name: &str) -> String {
    format!(
        r#"
[[device]]
name = "memory"
kind = "pmem"
path = "backing"

[[device]]
name = "slow"
kind = "emulate"
on = "memory"
profile = "optane-dimm"

[[device]]
name = "{name}"
kind = "btt"
on = "slow"
"#
    )
}

/// A folder that is removed at the end.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let unique = format!("forebay-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).expect("a folder of our own");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        } else {
            eprintln!("what was there is kept in {}", self.0.display());
        }
    }
}

/// What to serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) durability: &'static str,
    pub(crate) cache_bytes: u64,
    pub(crate) volume_bytes: u64,
    /// Whether the volume is also mounted with FUSE.
    pub(crate) fuse: bool,
    pub(crate) devices: Devices,
    /// How the cache is to know what was overwritten in place.
    pub(crate) dirty_tracking: &'static str,
}

/// The program, running or not, with its folder.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) folder: Folder,
    /// The control group to run in, by its folder, if not the test's own.
    pub(crate) group: Option<PathBuf>,
    child: Option<Child>,
}

impl Daemon {
    /// Makes the files, formats the cache and writes the configuration. Does not start yet.
    pub(crate) fn new(name: &str, setup: &Setup) -> Self {
        let folder = Folder::new(name);
        let (free, needed) = (free_bytes(folder.path()), setup.cache_bytes);
        assert!(
            free > needed,
            "{free} bytes are free in {}, and the cache may take {needed}: set TMPDIR to a folder with more room",
            std::env::temp_dir().display()
        );
        let sizes = [
            ("backing", setup.volume_bytes),
            ("cache", setup.cache_bytes),
        ];
        let files = if setup.devices.has_cache() { 2 } else { 1 };
        for (file, size) in &sizes[..files] {
            let file = File::create_new(folder.join(file)).expect("a new file");
            file.set_len(*size).expect("a sparse file");
        }
        let fuse = if setup.fuse {
            fs::create_dir(folder.join("mnt")).expect("a mount point");
            format!("[[export]]\nvolume = \"{VOLUME}\"\nfuse = \"mnt\"\n")
        } else {
            String::new()
        };
        let durability = setup.durability;
        let devices = setup.devices.config();
        let (cache, mode) = match setup.devices.has_cache() {
            true => (
                format!(
                    "[cache]\ndata = \"cache\"\ndurability = \"{durability}\"\njournal = \"journal\""
                ),
                "mode = \"wb\"",
            ),
            false => (String::new(), ""),
        };
        let config = format!(
            r#"
{devices}
{cache}

[[volume]]
name = "{VOLUME}"
backing = "backing"
{mode}

[[export]]
volume = "{VOLUME}"
nbd = "unix:nbd.sock"

{fuse}
[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
"#
        );
        let mut file = File::create_new(folder.join("forebay.toml")).expect("a new file");
        file.write_all(config.as_bytes())
            .expect("the configuration");
        let daemon = Self {
            folder,
            group: None,
            child: None,
        };
        match setup.devices {
            Devices::Files => {}
            Devices::Transit => drop(daemon.command("format", &["--btt", "cache"])),
            Devices::Table(_) => drop(daemon.command("format", &["--btt", "backing"])),
        }
        if setup.devices.has_cache() {
            let tracking = setup.dirty_tracking;
            let arguments = ["--cache", "cache", "--dirty-tracking", tracking];
            daemon.command("format", &arguments);
        }
        daemon
    }

    /// Says how many reactors the next start is to have.
    pub(crate) fn set_reactors(&self, count: usize) {
        let path = self.folder.join("forebay.toml");
        let config = fs::read_to_string(&path).expect("the configuration");
        let (before, _) = config.split_once("[server]").expect("our own text");
        let (_, after) = config.split_once("control =").expect("our own text");
        let config = format!("{before}[server]\nreactors = {count}\ncontrol ={after}");
        fs::write(&path, config).expect("the configuration");
    }

    /// Runs another of the program's commands, which must succeed. Returns what it printed.
    pub(crate) fn command(&self, name: &str, arguments: &[&str]) -> String {
        let output = Command::new(program())
            .arg(name)
            .args(arguments)
            .current_dir(&self.folder.0)
            .stdin(Stdio::null())
            .output()
            .expect("the program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "forebay {name}: {text}{errors}");
        text
    }

    /// As [`Self::command`], for commands that talk to the running daemon.
    pub(crate) fn control(&self, name: &str, arguments: &[&str]) -> String {
        self.command(name, &[&["--control", "control.sock"], arguments].concat())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }

    /// Starts the daemon and waits for the first read to be answered. Returns how long that took.
    pub(crate) fn start(&mut self) -> Duration {
        assert!(self.child.is_none(), "started once");
        let begin = Instant::now();
        self.child = Some(self.spawn());
        loop {
            let answer = Client::connect(&self.socket(), VOLUME).and_then(|mut c| c.read(0, 4096));
            let Err(error) = answer else {
                return begin.elapsed();
            };
            let over = self
                .child
                .as_mut()
                .and_then(|c| c.try_wait().ok().flatten());
            assert!(
                over.is_none(),
                "the daemon ended: {over:?}\n{}",
                self.log_tail()
            );
            let waited = begin.elapsed();
            assert!(waited < PATIENCE, "no answer: {error}\n{}", self.log_tail());
            sleep(Duration::from_millis(5));
        }
    }

    fn spawn(&self) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log");
        let mut command = match &self.group {
            Some(group) => in_group(group, program()),
            None => Command::new(program()),
        };
        command
            .args(["serve", "forebay.toml"])
            .current_dir(&self.folder.0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one log for both"))
            .stderr(log)
            .spawn()
            .expect("the program starts")
    }

    /// Starts the daemon, which must refuse to serve. Returns the end of what it said.
    pub(crate) fn start_refused(&self) -> String {
        let mut child = self.spawn();
        let status = wait(&mut child);
        let said = self.log_tail();
        let refused = status.code().is_some_and(|code| code != 0);
        assert!(refused, "it serves ({status}): {said}");
        said
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("the signal is sent");
        let status = child.wait().expect("it ends");
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(
            signal,
            Some(9),
            "it ended by itself: {status}\n{}",
            self.log_tail()
        );
    }

    /// SIGTERM: a clean shutdown.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "kill -TERM {pid}"
        );
        let status = wait(&mut child);
        assert!(status.success(), "SIGTERM: {status}\n{}", self.log_tail());
    }

    /// The end of what the daemon said.
    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// What a file in `folder` may still take, bytes.
fn free_bytes(folder: &Path) -> u64 {
    let mut df = Command::new("df");
    df.args(["--block-size=1", "--output=avail"]).arg(folder);
    let output = df.output().expect("df runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().expect("a heading and a number");
    last.trim().parse().expect("a number")
}

/// Runs `program` in a control group from its first instruction.
pub(crate) fn in_group(group: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    let enter = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
    command.args(["-c", enter]).arg(group).arg(program);
    command
}

/// Waits for the end; after [`PATIENCE`] there is no more waiting.
fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().expect("the signal is sent");
        }
        sleep(Duration::from_millis(5));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
