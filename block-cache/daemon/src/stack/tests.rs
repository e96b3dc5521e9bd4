//! Stacks in this process: caches in memory, two volumes, a metadata device of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_block::{BlockDeviceExt as _, Buf};
use forebay_cache::FormatOptions;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::{Engine, Reactor, rt};

use super::*;

mod checksums;
mod disk;
mod forget;
mod lines;
mod online_open;
mod remote;
mod table;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fb-stack-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    fn config(&self, text: &str) -> Config {
        Config::parse(&self.0.join("f.toml"), text).expect("right")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn on_reactor<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F) {
    let reactor = Reactor::new(Engine::Threads).expect("threads work everywhere");
    reactor.run(test());
}

const MEMORY: &str = r#"
server.state = "state"
device = [
    { name = "fast", kind = "mem", size = "32M", volatile = VOLATILE },
    { name = "disk", kind = "mem", size = "32M" },
    { name = "other", kind = "mem", size = "16M" },
]
cache = { data = "fast", cleaning = "nop" }
volume = [
    { name = "db", backing = "disk", mode = "MODE" },
    { name = "logs", backing = "other", mode = "wt", read_only = true },
]
"#;

fn memory(volatile: &str, mode: &str) -> String {
    MEMORY.replace("VOLATILE", volatile).replace("MODE", mode)
}

#[test]
fn volumes_are_apart_and_known_by_name() {
    let scratch = Scratch::new("names");
    let config = scratch.config(&memory("false", "wt"));
    on_reactor(|| async move {
        let stack = Stack::open(&config, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        let logs = stack.volume("logs").expect("there").open();
        assert_eq!(db.info().size_bytes, 32 << 20);
        db.write(4096, Buf::copied(&[1; 4096]))
            .await
            .expect("written");
        let refused = logs
            .write(4096, Buf::zeroed(4096))
            .await
            .expect_err("read-only");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        let back = Buf::scratch(4096);
        logs.read(4096, back.clone()).await.expect("read");
        assert!(back.is_zero());
        let unknown = stack.volume("dc").expect_err("unknown");
        assert!(unknown.report().contains("db, logs"), "{unknown:?}");
        // A mode that would lose data is refused at run time, too.
        let refused = stack
            .set_mode("db", Mode::WriteBack)
            .await
            .expect_err("loses data");
        assert!(refused.report().contains("volatile = true"), "{refused:?}");
        let done = stack.set_mode("db", Mode::PassThrough).await.expect("safe");
        assert!(done.contains("now in mode pt"), "{done}");
        stack.close().await.expect("closed");
        let late = db.read(0, back).await.expect_err("closed");
        assert_eq!(late.kind(), ErrorKind::ShuttingDown);
    });
}

#[test]
fn limits_in_the_configuration_hold() {
    let scratch = Scratch::new("limits");
    let limited = "mode = \"wt\", iops_limit = 100, burst = \"1ms\" }";
    let text = memory("false", "wt").replacen("mode = \"wt\" }", limited, 1);
    let config = scratch.config(&text);
    on_reactor(|| async move {
        let stack = Stack::open(&config, &Wishes::default())
            .await
            .expect("opens");
        for (name, limited) in [("db", true), ("logs", false)] {
            let handle = stack.volume(name).expect("there");
            let volume = handle.open();
            let begin = rt::now();
            for _ in 0..31 {
                volume.read(0, Buf::scratch(4096)).await.expect("read");
            }
            let (took, stats) = (rt::now() - begin, handle.stats());
            assert_eq!(stats.limited > 0, limited, "{name}: {stats:?}");
            assert!(!limited || took.as_millis() >= 290, "{name}: {took:?}");
        }
        stack.close().await.expect("closed");
    });
}

#[test]
fn a_volatile_cache_that_died_is_reported_and_not_in_the_way() {
    let scratch = Scratch::new("volatile");
    let config = scratch.config(&memory("true", "wb"));
    let state = config.server.state.clone();
    let same = config.clone();
    on_reactor(|| async move {
        let stack = Stack::open(&config, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        db.write(0, Buf::copied(&[1; 4096])).await.expect("written");
        // Dropped, as if the process had died.
    });
    let record = StateDirectory::open(&state)
        .expect("free")
        .load("db")
        .expect("whole");
    assert!(record.is_some_and(|record| record.may_be_dirty));
    on_reactor(|| async move {
        let stack = Stack::open(&same, &Wishes::default())
            .await
            .expect("opens again");
        stack.close().await.expect("closed");
    });
}

#[test]
fn a_wish_for_an_unknown_volume_is_refused() {
    let scratch = Scratch::new("wish");
    let config = scratch.config(&memory("false", "wt"));
    let wishes = Wishes {
        adopt: vec!["dc".into()],
        ..Wishes::default()
    };
    assert_eq!(
        wishes.check(&config).expect_err("unknown").kind(),
        ErrorKind::NotFound
    );
}

fn file(path: &Path, size_bytes: u64) -> Rc<dyn BlockDevice> {
    let options = FileDeviceOptions {
        create_bytes: Some(size_bytes),
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, options).expect("made")
}

const FILES: &str = concat!(
    r#"
server.state = "state"
device = [
    { name = "fast", kind = "file", path = "cache" },
    { name = "map", kind = "file", path = "map" },
    { name = "disk", kind = "file", path = "disk" },
]
cache = { data = "fast", metadata = "map", journal = "journal", "#,
    r#"journal_size = "2M", cleaning = "nop" }
volume = [{ name = "db", backing = "disk", mode = "wb" }]
"#
);

/// Formats the files that [`FILES`] names.
async fn make_files(base: &std::path::Path) {
    make_files_of(base, [9; 16]).await;
}

/// As [`make_files`], with this identity: tests that run concurrently share the directory of links
/// to journals.
async fn make_files_of(base: &std::path::Path, uuid: [u8; 16]) {
    file(&base.join("disk"), 16 << 20);
    let devices = forebay_cache::Devices {
        data: file(&base.join("cache"), 32 << 20),
        metadata: Some(file(&base.join("map"), 8 << 20)),
    };
    let options = FormatOptions::new(16 << 10, uuid);
    forebay_cache::format(&devices, &options)
        .await
        .expect("formatted");
}

#[test]
fn dirty_tracking_of_the_configuration_is_that_of_the_cache() {
    let scratch = Scratch::new("tracking");
    let with = |tracking: &str| {
        let more = format!("\"journal\", dirty_tracking = {tracking:?},");
        scratch.config(&FILES.replace("\"journal\",", &more))
    };
    let (right, wrong) = (with("abt"), with("exact"));
    let base = scratch.0.clone();
    on_reactor(|| async move {
        file(&base.join("disk"), 16 << 20);
        let devices = forebay_cache::Devices {
            data: file(&base.join("cache"), 32 << 20),
            metadata: Some(file(&base.join("map"), 8 << 20)),
        };
        let options = FormatOptions {
            dirty_tracking: forebay_cache::DirtyTracking::Abt,
            ..FormatOptions::new(16 << 10, [13; 16])
        };
        forebay_cache::format(&devices, &options)
            .await
            .expect("formatted");
    });
    on_reactor(|| async move {
        let Err(error) = Stack::open(&wrong, &Wishes::default()).await else {
            panic!("another way of tracking is refused");
        };
        let report = error.report();
        assert!(
            report.contains("formatted with dirty tracking abt, not exact"),
            "{report}"
        );
        assert!(report.contains("--dirty-tracking exact"), "{report}");
    });
    on_reactor(|| async move {
        let stack = Stack::open(&right, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        // Cached and clean, then overwritten: the tree is written before the data.
        for byte in 1..3 {
            let written = db.write(0, Buf::copied(&[byte; 4096])).await;
            written.expect("written");
            (stack.write_back(None).await).expect("written back");
        }
        let cache = stack.status().cache.expect("there is one");
        assert_eq!(cache.dirty_tracking, "abt");
        assert!(cache.tree_persists > 0, "{cache:?}");
        assert!(cache.tree_memory_bytes > 0, "{cache:?}");
        assert_eq!(cache.recovering_blocks, 0);
        stack.close().await.expect("closes");
    });
}

#[test]
fn the_sizes_of_the_configuration_are_those_of_the_cache() {
    let scratch = Scratch::new("sizes");
    let with = |sizes: &str| {
        let more = format!("\"journal\", block_sizes = {sizes},");
        scratch.config(&FILES.replace("\"journal\",", &more))
    };
    let (right, wrong) = (with(r#"["16K", "32K", "64K"]"#), with(r#"["16K", "64K"]"#));
    let base = scratch.0.clone();
    on_reactor(|| async move {
        file(&base.join("disk"), 16 << 20);
        let devices = forebay_cache::Devices {
            data: file(&base.join("cache"), 32 << 20),
            metadata: Some(file(&base.join("map"), 8 << 20)),
        };
        let options = FormatOptions::sizes(&[16 << 10, 32 << 10, 64 << 10], [12; 16]);
        forebay_cache::format(&devices, &options)
            .await
            .expect("formatted");
    });
    on_reactor(|| async move {
        let Err(error) = Stack::open(&wrong, &Wishes::default()).await else {
            panic!("other sizes are refused");
        };
        let report = error.report();
        assert!(
            report.contains("blocks of 16K..64K, not 16K,64K"),
            "{report}"
        );
        assert!(report.contains("--block-size 16K,64K"), "{report}");
    });
    on_reactor(|| async move {
        let stack = Stack::open(&right, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        let write = |offset: u64, len: usize| db.write(offset, Buf::copied(&vec![3; len]));
        write(0, 112 << 10).await.expect("written");
        write(1 << 20, 4096).await.expect("written");
        let status = stack.status();
        let cache = status.cache.expect("there is one");
        assert_eq!(cache.block_sizes, "16K..64K");
        // 64K, 32K and 16K for the first, 16K for the second.
        assert_eq!(cache.used_bytes, 128 << 10);
        assert_eq!(cache.dirty_blocks, 4);
        let read = Buf::zeroed(112 << 10);
        db.read(0, read.clone()).await.expect("reads");
        assert!(read.to_vec().iter().all(|byte| *byte == 3));
        stack.close().await.expect("closes");
    });
}

#[test]
fn metadata_on_a_device_of_its_own_and_a_journal_that_keeps_its_size() {
    let scratch = Scratch::new("metadata");
    let config = scratch.config(FILES);
    let other_size = scratch.config(&FILES.replace("2M", "4M"));
    let base = scratch.0.clone();
    let (first, journal) = (config.clone(), scratch.0.join("journal"));
    on_reactor(|| async move {
        make_files(&base).await;
        let stack = Stack::open(&first, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        db.write(8192, Buf::copied(&[3; 4096]))
            .await
            .expect("written");
        let status = stack.status();
        let roles: Vec<_> = status.devices.iter().map(|device| &*device.role).collect();
        assert_eq!(roles, ["cache", "metadata", "backing"]);
        assert!(status.devices[1].write_bytes > 0, "{:?}", status.devices[1]);
        assert_eq!(
            status.cache.expect("there is one").block_size_bytes,
            16 << 10
        );
        // Dropped, as if the process had died: the journal stays.
    });
    assert_eq!(std::fs::metadata(&journal).expect("there").len(), 2 << 20);
    on_reactor(|| async move {
        let stack = Stack::open(&other_size, &Wishes::default())
            .await
            .expect("recovers");
        assert_eq!(std::fs::metadata(&journal).expect("there").len(), 2 << 20);
        let db = stack.volume("db").expect("there").open();
        let back = Buf::scratch(4096);
        db.read(8192, back.clone()).await.expect("read");
        assert_eq!(back.to_vec(), [3; 4096]);
        stack.close().await.expect("closed");
        assert!(!journal.exists(), "nothing is in it that the cache has not");
    });
    on_reactor(|| async move {
        let without = Wishes {
            without_cache: vec!["db".into()],
            ..Wishes::default()
        };
        let stack = Stack::open(&config, &without).await.expect("opens");
        assert!(stack.set_mode("db", Mode::WriteThrough).await.is_err());
        assert!(
            stack
                .write_back(Some("db"))
                .await
                .expect("flushed")
                .contains("no cache")
        );
        assert!(stack.status().cache.is_none());
        stack.close().await.expect("closed");
    });
}

/// The backing device of a volume with dirty data is served under another name, through another
/// cache. Data written there is newer than that of the first cache.
#[test]
fn a_backing_device_cannot_be_written_behind_its_cache_under_another_name() {
    let scratch = Scratch::new("renamed");
    let one = scratch.config(&FILES.replace("\"journal\"", "\"journal-1\""));
    let other = FILES
        .replace("\"cache\"", "\"cache-2\"")
        .replace("\"map\" }", "\"map-2\" }")
        .replace("\"journal\"", "\"journal-2\"")
        .replace("\"db\"", "\"dbx\"");
    let other = scratch.config(&other);
    let base = scratch.0.clone();
    on_reactor(|| async move {
        file(&base.join("disk"), 16 << 20);
        for (cache, map, uuid) in [("cache", "map", 21), ("cache-2", "map-2", 22)] {
            let devices = forebay_cache::Devices {
                data: file(&base.join(cache), 32 << 20),
                metadata: Some(file(&base.join(map), 8 << 20)),
            };
            let options = FormatOptions::new(16 << 10, [uuid; 16]);
            forebay_cache::format(&devices, &options)
                .await
                .expect("formatted");
        }
    });
    let first = one.clone();
    on_reactor(|| async move {
        let stack = Stack::open(&first, &Wishes::default()).await;
        let stack = stack.expect("opens");
        let db = stack.volume("db").expect("there").open();
        let written = db.write(8192, Buf::copied(&[3; 4096])).await;
        written.expect("written");
        // Dropped, as if the process had died.
    });
    let second = other.clone();
    on_reactor(|| async move {
        let Err(error) = Stack::open(&second, &Wishes::default()).await else {
            panic!("the first cache has dirty data of it");
        };
        let report = error.report();
        assert!(report.contains("last served as volume \"db\""), "{report}");
    });
    on_reactor(|| async move {
        let adopt = Wishes {
            adopt: vec!["dbx".into()],
            ..Wishes::default()
        };
        let stack = Stack::open(&other, &adopt).await.expect("adopted");
        let dbx = stack.volume("dbx").expect("there").open();
        let written = dbx.write(8192, Buf::copied(&[4; 4096])).await;
        written.expect("written");
        stack.detach("dbx").await.expect("detached");
        stack.close().await.expect("closes");
    });
    on_reactor(|| async move {
        let Err(error) = Stack::open(&one, &Wishes::default()).await else {
            panic!("its dirty data is older than what the device has");
        };
        let report = error.report();
        assert!(report.contains("--discard-stale-dirty db"), "{report}");
    });
}

/// A file that a configuration names as journal by mistake is not touched, whatever it holds.
#[test]
fn a_journal_is_never_made_of_something_else() {
    let scratch = Scratch::new("foreign");
    let base = scratch.0.clone();
    let image: Vec<u8> = [vec![0; 1 << 20], vec![7; 1 << 20]].concat();
    std::fs::write(base.join("image"), &image).expect("written");
    let owned = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(base.join("image"), owned).expect("ours alone");
    let foreign = scratch.config(&FILES.replace("\"journal\"", "\"image\""));
    let device = scratch.config(&FILES.replace("\"journal\"", "\"disk\""));
    on_reactor(|| async move {
        make_files(&base).await;
        let opened = Stack::open(&foreign, &Wishes::default()).await;
        let error = opened.map(drop).expect_err("refused").report();
        assert!(error.contains("image is not a process journal"), "{error}");
        assert!(std::fs::read(base.join("image")).expect("there") == image);
        let error = device.check_media(true).expect_err("refused").report();
        assert!(error.contains("is device \"disk\""), "{error}");
    });
}
