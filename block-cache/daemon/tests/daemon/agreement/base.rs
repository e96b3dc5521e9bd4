//! The configurations and media that faults are planted in.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Outcome, message};
use crate::support::nbd::Nbd;
use crate::support::{slots_noted_in, text};
use crate::write_blocks;

/// Longest wait for the end of a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A file, without a cache.
    Plain,
    /// A file behind a cache on a file.
    Cached,
    /// A file behind a cache whose metadata is on byte-addressable media.
    Lines,
    /// A transit cache over a file.
    Transit,
    /// A file behind a cache on a block translation table.
    Table,
    /// A file behind a cache in memory.
    Memory,
}

/// What happened to the media before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Nothing.
    New,
    /// Written to, and stopped in order.
    Stopped,
    /// Written to, and killed.
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) shape: Shape,
    pub(crate) life: Life,
}

impl Base {
    const fn new(shape: Shape, life: Life) -> Self {
        Self { shape, life }
    }

    pub(crate) const ALL: [Self; 11] = [
        Self::new(Shape::Cached, Life::New),
        Self::new(Shape::Cached, Life::Stopped),
        Self::new(Shape::Cached, Life::Killed),
        Self::new(Shape::Plain, Life::New),
        Self::new(Shape::Plain, Life::Stopped),
        Self::new(Shape::Lines, Life::Stopped),
        Self::new(Shape::Lines, Life::Killed),
        Self::new(Shape::Transit, Life::New),
        Self::new(Shape::Transit, Life::Killed),
        Self::new(Shape::Table, Life::Stopped),
        Self::new(Shape::Memory, Life::New),
    ];

    pub(crate) fn has_cache_file(self) -> bool {
        matches!(self.shape, Shape::Cached | Shape::Lines | Shape::Table)
    }

    /// The file with the superblock, if the cache has one that is no table.
    pub(crate) fn superblock(self) -> Option<&'static str> {
        match self.shape {
            Shape::Cached => Some("cache"),
            Shape::Lines => Some("map"),
            _ => None,
        }
    }
}

/// A directory with a base in it, removed at the end.
pub(crate) struct Place {
    path: PathBuf,
    pub(crate) base: Base,
    /// The file of the slots that a daemon left.
    pub(crate) slots: Option<PathBuf>,
}

impl Place {
    pub(crate) fn new(name: &str, base: Base) -> Self {
        let path = std::env::temp_dir().join(format!("fb-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        let mut place = Self {
            path,
            base,
            slots: None,
        };
        place.make("db.img", 4 << 20);
        place.write_config(&place.config());
        match base.shape {
            Shape::Cached => {
                place.run(&[
                    "format",
                    "--create",
                    "8M",
                    "--cache",
                    text(&place.path("cache")),
                ]);
            }
            Shape::Lines => {
                place.make("cache", 8 << 20);
                place.make("map", 4 << 20);
                let (cache, map) = (place.path("cache"), place.path("map"));
                place.run(&[
                    "format",
                    "--cache",
                    text(&cache),
                    "--metadata",
                    text(&map),
                    "--pmem",
                ]);
            }
            Shape::Table => {
                place.make("medium", 16 << 20);
                place.run(&["format", "--btt", text(&place.path("medium"))]);
                place.run(&["format", "--cache", text(&place.path("medium"))]);
            }
            Shape::Plain | Shape::Transit | Shape::Memory => {}
        }
        place.live();
        place.slots = slots_noted_in(&place.path("state")).pop();
        place
    }

    fn make(&self, name: &str, bytes: u64) {
        let file = std::fs::File::create(self.path(name)).expect("made");
        file.set_len(bytes).expect("sparse");
    }

    fn live(&self) {
        if self.base.life == Life::New {
            return;
        }
        let mut child = self.start();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("http://") {
            assert_ne!(lines.read_line(&mut said).expect("text"), 0, "{said}");
        }
        let mut nbd = Nbd::connect(&self.path("nbd.sock"), "db").expect("it answers");
        write_blocks(&mut nbd, 512..520);
        if self.base.life == Life::Stopped {
            end(&child, libc::SIGTERM);
        } else {
            end(&child, libc::SIGKILL);
        }
        child.wait().expect("it ends");
        let _ = std::fs::remove_file(self.path("control.sock"));
        let _ = std::fs::remove_file(self.path("nbd.sock"));
    }

    fn config(&self) -> String {
        let file = |name: &str, path: &str| {
            format!("[[device]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{path}\"\n")
        };
        let disk = file("disk", "db.img");
        let cache = |keys: &str| {
            format!(
                "[cache]\n{keys}\njournal = \"journal\"\njournal_size = \"1M\"\ncleaning = \"nop\"\n"
            )
        };
        let (devices, cache, backing, mode) = match self.base.shape {
            Shape::Plain => (disk, String::new(), "disk", "wt"),
            Shape::Cached => (
                disk + &file("ssd", "cache"),
                cache("data = \"ssd\""),
                "disk",
                "wb",
            ),
            Shape::Lines => (
                disk + &file("ssd", "cache")
                    + "[[device]]\nname = \"map\"\nkind = \"pmem\"\npath = \"map\"\n",
                cache("data = \"ssd\"\nmetadata = \"map\""),
                "disk",
                "wb",
            ),
            Shape::Transit => (
                disk + "[[device]]\nname = \"fast\"\nkind = \"transit\"\non = \"disk\"\ncapacity = \"1M\"\n\
                        policy = \"lru\"\n",
                String::new(),
                "fast",
                "wt",
            ),
            Shape::Table => (
                disk + "[[device]]\nname = \"pm\"\nkind = \"pmem\"\npath = \"medium\"\n\
                        [[device]]\nname = \"table\"\nkind = \"btt\"\non = \"pm\"\n",
                cache("data = \"table\""),
                "disk",
                "wb",
            ),
            Shape::Memory => (
                disk + "[[device]]\nname = \"ram\"\nkind = \"mem\"\nsize = \"8M\"\n",
                "[cache]\ndata = \"ram\"\njournal_size = \"1M\"\ncleaning = \"nop\"\n".into(),
                "disk",
                "wt",
            ),
        };
        format!(
            "{devices}{cache}[[volume]]\nname = \"db\"\nbacking = \"{backing}\"\nmode = \"{mode}\"\n\
             [[export]]\nvolume = \"db\"\nnbd = \"unix:nbd.sock\"\n\
             [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
        )
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn write_config(&self, config: &str) {
        std::fs::write(self.path("forebay.toml"), config).expect("written");
    }

    /// Changes the configuration, where `from` must be.
    pub(crate) fn change(&self, from: &str, to: &str) {
        let path = self.path("forebay.toml");
        let config = std::fs::read_to_string(&path).expect("there");
        assert!(config.contains(from), "{from} in {config}");
        self.write_config(&config.replacen(from, to, 1));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).current_dir(&self.path);
        command
    }

    fn run(&self, arguments: &[&str]) {
        let output = self
            .command(arguments)
            .output()
            .expect("the program can be run");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    pub(crate) fn check(&self) -> Outcome {
        let config = self.path("forebay.toml");
        let mut command = self.command(&["check", text(&config)]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be run");
        watch(&mut child);
        let output = child.wait_with_output().expect("it ended");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Outcome::Good,
            Some(3) => Outcome::Damaged(
                format!("{told}{said}").replace(&self.path("").display().to_string(), "/"),
            ),
            Some(1) => Outcome::Refused(message(&said, self)),
            other => panic!("{other:?}: {said}"),
        }
    }

    fn start(&self) -> std::process::Child {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[&str]) -> std::process::Child {
        let log = std::fs::File::create(self.path("log")).expect("made");
        let config = self.path("forebay.toml");
        self.command(&["serve", text(&config)])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program can be run")
    }

    /// Has the volume written without its cache, which holds dirty data there, unless another fault keeps the daemon from it.
    pub(crate) fn write_without_cache(&self) {
        let mut child = self.start_with(&["--without-cache", "db"]);
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("http://") {
            if lines.read_line(&mut said).expect("text") == 0 {
                child.wait().expect("it ended");
                return;
            }
        }
        let mut nbd = Nbd::connect(&self.path("nbd.sock"), "db").expect("it answers");
        write_blocks(&mut nbd, 514..516);
        end(&child, libc::SIGTERM);
        child.wait().expect("it ends");
    }

    /// Starts another daemon, which has the control socket of this place. It is killed when the handle is dropped.
    pub(crate) fn start_another(&self) -> Another {
        let there = self.path("another");
        std::fs::create_dir_all(&there).expect("made");
        let image = std::fs::File::create(there.join("db.img")).expect("made");
        image.set_len(1 << 20).expect("sparse");
        let config = "device = [{ name = \"disk\", kind = \"file\", path = \"db.img\" }]\n\
             volume = [{ name = \"db\", backing = \"disk\", mode = \"wt\" }]\n\
             export = [{ volume = \"db\", nbd = \"unix:nbd.sock\" }]\n\
             server = { control = \"../control.sock\", metrics = \"127.0.0.1:0\", state = \"state\" }\n";
        std::fs::write(there.join("forebay.toml"), config).expect("written");
        let config = there.join("forebay.toml");
        let mut child = self
            .command(&["serve", text(&config)])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("http://") {
            assert_ne!(lines.read_line(&mut said).expect("text"), 0, "{said}");
        }
        Another(child)
    }

    /// Starts the daemon, and stops it if it serves.
    pub(crate) fn serve(&self) -> Outcome {
        let mut child = self.start();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut told = String::new();
        while !told.contains("http://") {
            if lines.read_line(&mut told).expect("text") == 0 {
                let status = child.wait().expect("it ended");
                let log = std::fs::read_to_string(self.path("log")).expect("there");
                assert_eq!(status.code(), Some(1), "{log}");
                return Outcome::Refused(message(&log, self));
            }
        }
        end(&child, libc::SIGTERM);
        let mut rest = Vec::new();
        lines.read_to_end(&mut rest).expect("it ends");
        watch(&mut child);
        child.wait().expect("it ended");
        Outcome::Good
    }
}

/// Another daemon.
pub(crate) struct Another(std::process::Child);

impl Drop for Another {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let noted = slots_noted_in(&self.path("state"));
        for slots in self.slots.iter().chain(&noted) {
            let _ = std::fs::remove_file(slots);
            let _ = std::fs::remove_dir(slots);
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Kills a child that does not end in time.
fn watch(child: &mut std::process::Child) {
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn end(child: &std::process::Child, signal: libc::c_int) {
    // SAFETY: no memory is involved; the child has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}
