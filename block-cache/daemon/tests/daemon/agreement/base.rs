//! Configurations and media in which faults are planted.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use forebay_testkit::daemon::{Scratch, ServeCommand, Site, check_refusal, unwrapped};

use super::{Outcome, message};
use crate::support::nbd::Nbd;
use crate::support::{Daemon, PROGRAM, Process, slots_noted_in, text};
use crate::write_blocks;

/// Device under a volume.
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

/// History of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Unused.
    New,
    /// Written, then stopped cleanly.
    Stopped,
    /// Written, then killed.
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

    /// Returns the file with the superblock, if the cache has one outside of a table.
    pub(crate) fn superblock(self) -> Option<&'static str> {
        match self.shape {
            Shape::Cached => Some("cache"),
            Shape::Lines => Some("map"),
            _ => None,
        }
    }
}

/// Directory with a base in it; removed when dropped.
pub(crate) struct Place {
    site: Site,
    pub(crate) base: Base,
    /// Returns the file of the slots of a former daemon.
    pub(crate) slots: Option<PathBuf>,
}

impl Place {
    pub(crate) fn new(name: &str, base: Base) -> Self {
        let scratch = Scratch::new(&format!("fb-{name}"));
        let mut place = Self {
            site: Site::new(Path::new(PROGRAM), scratch),
            base,
            slots: None,
        };
        place.create_file("db.img", 4 << 20);
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
                place.create_file("cache", 8 << 20);
                place.create_file("map", 4 << 20);
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
                place.create_file("medium", 16 << 20);
                place.run(&["format", "--btt", text(&place.path("medium"))]);
                place.run(&["format", "--cache", text(&place.path("medium"))]);
            }
            Shape::Plain | Shape::Transit | Shape::Memory => {}
        }
        place.live();
        place.slots = slots_noted_in(&place.path("state")).pop();
        place
    }

    fn live(&self) {
        if self.base.life == Life::New {
            return;
        }
        let daemon = self.site.serve().start();
        self.write(512..520);
        daemon.signal(match self.base.life {
            Life::Stopped => libc::SIGTERM,
            Life::New | Life::Killed => libc::SIGKILL,
        });
        daemon.wait();
        let _ = std::fs::remove_file(self.path("control.sock"));
        let _ = std::fs::remove_file(self.path("nbd.sock"));
    }

    /// Writes these blocks over NBD. Omits blocks beyond the end of the volume: another fault may
    /// have cut the backing file.
    fn write(&self, blocks: std::ops::Range<u64>) {
        let mut nbd = Nbd::connect(&self.path("nbd.sock"), "db").expect("it answers");
        let end = blocks.end.min(nbd.size_bytes / 4096);
        write_blocks(&mut nbd, blocks.start..end);
    }

    fn config(&self) -> String {
        let file = |name: &str, path: &str| {
            format!("[[device]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{path}\"\n")
        };
        let disk = file("disk", "db.img");
        let cache = |keys: &str| {
            format!(
                "[cache]\n{keys}\njournal = \"journal\"\njournal_size = \"1M\"\n\
                 cleaning = \"nop\"\n"
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
                disk + "[[device]]\nname = \"fast\"\nkind = \"transit\"\non = \"disk\"\n\
                    capacity = \"1M\"\n\
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
            "{devices}{cache}[[volume]]\nname = \"db\"\nbacking = \"{backing}\"\n\
             mode = \"{mode}\"\n\
             [[export]]\nvolume = \"db\"\nnbd = \"unix:nbd.sock\"\n\
             [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
        )
    }

    pub(crate) fn change(&self, from: &str, to: &str) {
        let path = self.path("forebay.toml");
        let config = std::fs::read_to_string(&path).expect("there");
        assert!(config.contains(from), "{from} in {config}");
        self.write_config(&config.replacen(from, to, 1));
    }

    fn run(&self, arguments: &[&str]) {
        let output = self.local_command(arguments).output();
        let output = output.expect("the program can be run");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    /// Returns a text with paths relative to the place.
    pub(crate) fn relative(&self, text: &str) -> String {
        text.replace(&self.path("").display().to_string(), "/")
    }

    pub(crate) fn check(&self) -> Outcome {
        let config = self.path("forebay.toml");
        let mut command = self.local_command(&["check", text(&config)]);
        let output = Process::spawn_piped(&mut command).output();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Outcome::Good,
            Some(3) => {
                let report = unwrapped(&format!("{printed}{said}"));
                Outcome::Damaged(self.relative(&report))
            }
            Some(1) => {
                check_refusal(&said);
                Outcome::Refused(message(&said, self))
            }
            other => panic!("{other:?}: {said}"),
        }
    }

    /// Serves and writes once more, and restores the cache as it was before. Another fault may
    /// prevent this.
    pub(crate) fn restore_cache_after_a_life(&self) {
        let before = std::fs::read(self.path("cache")).expect("there");
        if let Ok(daemon) = self.site.serve().try_start() {
            self.write(514..516);
            daemon.signal(libc::SIGTERM);
            daemon.wait();
        }
        std::fs::write(self.path("cache"), before).expect("written");
    }

    /// Writes the volume without its cache, which holds dirty data. Another fault may prevent this.
    pub(crate) fn write_without_cache(&self) {
        let serve = self.site.serve().arguments(&["--without-cache", "db"]);
        if let Ok(daemon) = serve.try_start() {
            self.write(514..516);
            daemon.signal(libc::SIGTERM);
            daemon.wait();
        }
    }

    /// Starts another daemon that holds the control socket of this place. Dropping the handle kills
    /// it.
    pub(crate) fn start_another(&self) -> Daemon {
        let there = self.path("another");
        std::fs::create_dir_all(&there).expect("made");
        let image = std::fs::File::create(there.join("db.img")).expect("made");
        image.set_len(1 << 20).expect("sparse");
        let config = "device = [{ name = \"disk\", kind = \"file\", path = \"db.img\" }]\n\
             volume = [{ name = \"db\", backing = \"disk\", mode = \"wt\" }]\n\
             export = [{ volume = \"db\", nbd = \"unix:nbd.sock\" }]\n\
             server = { control = \"../control.sock\", metrics = \"127.0.0.1:0\", \
             state = \"state\" }\n";
        std::fs::write(there.join("forebay.toml"), config).expect("written");
        ServeCommand::new(Path::new(PROGRAM), &there).start()
    }

    /// Starts the daemon, and stops it if it serves.
    pub(crate) fn serve(&self) -> Outcome {
        match self.site.serve().try_start() {
            Ok(daemon) => {
                daemon.signal(libc::SIGTERM);
                daemon.wait();
                Outcome::Good
            }
            Err(status) => {
                assert_eq!(status.code(), Some(1), "{}", self.log());
                check_refusal(&self.raw_log());
                Outcome::Refused(message(&self.log(), self))
            }
        }
    }
}

impl Deref for Place {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let noted = slots_noted_in(&self.path("state"));
        for slots in self.slots.iter().chain(&noted) {
            let _ = std::fs::remove_file(slots);
            let _ = std::fs::remove_dir(slots);
        }
    }
}
