//! The program under test: configured in its own folder, started, killed, stopped.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_testkit::daemon::{self, Scratch, ServeCommand, Site};
use forebay_tests::client::Client;
use forebay_tests::program;

/// The volume's name in the configuration.
pub(crate) const VOLUME: &str = "v";

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

/// The backing file's transit cache keeps its data until it has no room, so that there is data to
/// lose.
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

/// The devices below the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Devices {
    /// A cache over a backing device, both files.
    Files,
    /// The same, with transit caches over both and a block translation table below that of the
    /// cache.
    Transit,
    /// No cache: a block translation table on emulated memory, alone or under a transit cache of
    /// this policy.
    Table(Option<&'static str>),
}

impl Devices {
    /// Whether there is a cache, or devices alone.
    fn has_cache(self) -> bool {
        !matches!(self, Self::Table(_))
    }

    /// Returns the configuration of the devices.
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

/// Returns the configuration of a table of this name on emulated memory.
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

/// Configuration of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) durability: &'static str,
    pub(crate) cache_bytes: u64,
    pub(crate) volume_bytes: u64,
    /// Whether the volume is also mounted with FUSE.
    pub(crate) fuse: bool,
    pub(crate) devices: Devices,
    /// Value of `dirty_tracking`.
    pub(crate) dirty_tracking: &'static str,
}

/// The program, running or not, with its directory.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Dropped first: the daemon uses the directory.
    running: Option<daemon::Daemon>,
    pub(crate) site: Site,
    /// Control group to run in, by its directory, if not that of the test.
    pub(crate) group: Option<PathBuf>,
}

impl Daemon {
    /// Creates the files, formats the cache and writes the configuration. Does not start the
    /// daemon.
    pub(crate) fn new(name: &str, setup: &Setup) -> Self {
        let site = Site::new(program(), scratch(name));
        let (free, needed) = (free_bytes(site.directory()), setup.cache_bytes);
        assert!(
            free > needed,
            "{free} bytes are free in {}, and the cache may take {needed}: set TMPDIR to a folder \
             with more room",
            std::env::temp_dir().display()
        );
        site.create_file("backing", setup.volume_bytes);
        if setup.devices.has_cache() {
            site.create_file("cache", setup.cache_bytes);
        }
        let fuse = if setup.fuse {
            fs::create_dir(site.path("mnt")).expect("a mount point");
            format!("[[export]]\nvolume = \"{VOLUME}\"\nfuse = \"mnt\"\n")
        } else {
            String::new()
        };
        let durability = setup.durability;
        let devices = setup.devices.config();
        let (cache, mode) = match setup.devices.has_cache() {
            true => (
                format!(
                    "[cache]\ndata = \"cache\"\ndurability = \"{durability}\"\njournal = \
                     \"journal\""
                ),
                "mode = \"wb\"",
            ),
            false => (String::new(), ""),
        };
        site.write_config(&format!(
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
        ));
        let daemon = Self {
            site,
            group: None,
            running: None,
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

    /// Sets the number of reactors of the next start.
    pub(crate) fn set_reactors(&self, count: usize) {
        let config = fs::read_to_string(self.site.path("forebay.toml"));
        let config = config.expect("the configuration");
        let (before, _) = config.split_once("[server]").expect("our own text");
        let (_, after) = config.split_once("control =").expect("our own text");
        let config = format!("{before}[server]\nreactors = {count}\ncontrol ={after}");
        self.site.write_config(&config);
    }

    /// Runs another of the program's commands, which must succeed. Returns its output.
    pub(crate) fn command(&self, name: &str, arguments: &[&str]) -> String {
        let mut command = self.site.local_command(&[name]);
        let output = command.args(arguments).output().expect("the program runs");
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
        self.site.path("nbd.sock")
    }

    /// Starts the daemon and waits for the answer to the first read. Returns the time that takes.
    pub(crate) fn start(&mut self) -> Duration {
        assert!(self.running.is_none(), "started once");
        let begin = Instant::now();
        let socket = self.socket();
        let answers = |_: &daemon::Daemon| {
            let client = Client::connect(&socket, VOLUME);
            client.and_then(|mut client| client.read(0, 4096)).is_ok()
        };
        self.running = Some(self.serve().start_until(answers));
        begin.elapsed()
    }

    fn serve(&self) -> ServeCommand {
        let serve = self.site.serve().append_log();
        match &self.group {
            Some(group) => serve.in_group(group),
            None => serve,
        }
    }

    /// Starts the daemon, which must refuse to serve. Returns the end of its log.
    pub(crate) fn start_refused(&self) -> String {
        self.serve().refused()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").id()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let running = self.running.take().expect("it runs");
        running.signal(9);
        let status = running.wait();
        let by_itself = || format!("it ended by itself: {status}\n{}", self.site.log());
        assert_eq!(status.signal(), Some(9), "{}", by_itself());
    }

    /// SIGTERM: a clean shutdown.
    pub(crate) fn stop(&mut self) {
        self.running.take().expect("it runs").terminate();
    }
}

/// Creates a directory that stays if the test fails.
pub(crate) fn scratch(name: &str) -> Scratch {
    Scratch::new(&format!("forebay-{name}")).keep_on_panic()
}

/// Returns the free bytes in the file system of `folder`.
fn free_bytes(folder: &Path) -> u64 {
    let mut df = Command::new("df");
    df.args(["--block-size=1", "--output=avail"]).arg(folder);
    let output = df.output().expect("df runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().expect("a heading and a number");
    last.trim().parse().expect("a number")
}
