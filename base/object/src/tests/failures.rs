//! Stores that fail, objects that are damaged, and writers that are fenced.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind};

use super::*;
use crate::link::Link;
use crate::options::Times;
use crate::snapshots::list_snapshots;
use crate::store::{Answer, Creation, Listed, Progress};
use crate::testing::MemoryStore;

/// A store that fails, waits, or replaces objects.
#[derive(Default)]
struct Bad {
    memory: MemoryStore,
    is_down: Cell<bool>,
    is_silent: Cell<bool>,
    replaces: Cell<bool>,
    /// Further pages of a list, and the time of each.
    pages: Cell<u32>,
    page_time: Cell<Duration>,
    /// Rate of creations and reads, bytes a second, if they are slow.
    rate: Cell<Option<u64>>,
    /// Length from which on a checkpoint is too long.
    longest: Cell<Option<usize>>,
    /// Beginning of the names whose creation fails.
    refuses: Cell<Option<&'static str>>,
    /// Number of creations.
    creations: Cell<u32>,
}

impl Store for Bad {
    fn name(&self) -> String {
        "bad".to_owned()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        Box::pin(async move {
            self.creations.set(self.creations.get() + 1);
            self.pass().await?;
            self.transfer(content.len()).await;
            if name.starts_with("map/") && self.longest.get().is_some_and(|it| content.len() > it) {
                return Err(Error::new(ErrorKind::Unsupported, "413 Too Large"));
            }
            if self.refuses.get().is_some_and(|it| name.starts_with(it)) {
                return Err(Error::new(ErrorKind::Io, "503 Slow Down"));
            }
            if self.replaces.get() {
                self.memory.set(name, None);
            }
            self.memory.create(name, content).await
        })
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        Box::pin(async move {
            self.pass().await?;
            let content = self.memory.read(name, bytes).await?;
            self.transfer(content.len()).await;
            Ok(content)
        })
    }

    fn list_with<'a>(&'a self, prefix: &'a str, progress: Progress) -> Answer<'a, Vec<Listed>> {
        Box::pin(async move {
            for _ in 0..=self.pages.get() {
                self.pass().await?;
                rt::sleep(self.page_time.get()).await;
                progress.step();
            }
            self.memory.list(prefix).await
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.pass().await?;
            self.memory.delete(name).await
        })
    }
}

impl Bad {
    async fn transfer(&self, len: usize) {
        if let Some(rate) = self.rate.get() {
            rt::sleep(Duration::from_millis(len as u64 * 1000 / rate)).await;
        }
    }

    async fn pass(&self) -> Result<()> {
        rt::sleep(Duration::from_millis(1)).await;
        if self.is_silent.get() {
            rt::sleep(Duration::from_secs(1 << 30)).await;
        }
        match self.is_down.get() {
            true => Err(Error::new(ErrorKind::Io, "503 Slow Down")),
            false => Ok(()),
        }
    }
}

#[test]
fn a_store_that_replaces_objects_is_refused() {
    run(async {
        let store = Rc::new(Bad::default());
        store.replaces.set(true);
        let error = open(&store, sized(MIB)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.report().contains("cannot be fenced"),
            "{}",
            error.report()
        );
        assert!(store.memory.list("").await.unwrap().is_empty());
    });
}

/// Has the store fail for longer than the patience. Nothing is lost. The error begins with `says`.
fn outage(begin: fn(&Bad, bool), says: &str) {
    let says = says.to_owned();
    run(async move {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        volume.flush().await.unwrap();
        begin(&store, true);
        // Writes go to memory, as far as there is room.
        volume.write(4096, filled(4096, 2)).await.unwrap();
        let begun = rt::now();
        let error = volume.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let report = error.report();
        assert!(
            report.starts_with(&format!("object store bad: {says}")),
            "{report}"
        );
        assert!((60..70).contains(&(rt::now() - begun).as_secs()));
        let refused = volume.write(8192, filled(4096, 3)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(
            read(&volume, 4096, 4096).await.unwrap(),
            [2; 4096],
            "from memory"
        );
        let error = read(&volume, 0, 4096).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        begin(&store, false);
        rt::sleep(Duration::from_secs(300)).await;
        volume.write(12288, filled(4096, 4)).await.unwrap();
        volume.flush().await.unwrap();
        drop(volume);
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        let found = read(&volume, 0, 16384).await.unwrap();
        let found = [found[0], found[4096], found[8192], found[12288]];
        assert_eq!(found, [1, 2, 0, 4]);
    });
}

#[test]
fn an_outage_fails_requests_and_loses_nothing() {
    let says = "all attempts of 60 s have failed";
    outage(|store, is_down| store.is_down.set(is_down), says);
}

#[test]
fn a_silent_store_fails_requests_and_loses_nothing() {
    let says = "no answer for 60 s";
    outage(|store, is_silent| store.is_silent.set(is_silent), says);
}

#[test]
fn writes_beyond_the_memory_wait_for_the_store() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(256 * MIB)).await.unwrap();
        store.is_down.set(true);
        let mut acknowledged = 0;
        for at in 0..256 {
            let write = volume.write(at * MIB, filled(MIB, 1));
            match rt::at_most(Duration::from_secs(1), write).await {
                Some(outcome) => outcome.unwrap(),
                None => break,
            }
            acknowledged += 1;
        }
        // Four batches in flight, and one that is open.
        assert_eq!(acknowledged, 40);
        store.is_down.set(false);
        volume.flush().await.unwrap();
    });
}

/// Damages the objects whose names begin with `chosen`. Returns the error of opening or reading.
fn damaged(chosen: &'static str, change: fn(&[u8]) -> Option<Vec<u8>>) -> Error {
    run(async move {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, noise(65536, 1)).await.unwrap();
        volume.close().await.unwrap();
        for listed in store.list("").await.unwrap() {
            if listed.name.starts_with(chosen) {
                let content = store.get(&listed.name).unwrap();
                store.set(&listed.name, change(&content).map(Bytes::from));
            }
        }
        match open(&store, Options::new(Access::Serve)).await {
            Ok(volume) => read(&volume, 0, 65536).await.unwrap_err(),
            Err(error) => error,
        }
    })
}

#[test]
fn damage_is_named() {
    let flip = |content: &[u8]| {
        let mut content = content.to_vec();
        let last = content.len() - 1;
        content[last] ^= 1;
        Some(content)
    };
    let cut = |content: &[u8]| Some(content[..content.len() - 9].to_vec());
    for name in ["volume", "map/", "log/0000000000000005"] {
        for change in [flip, cut] {
            let error = damaged(name, change);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
            assert!(error.report().contains(name), "{}", error.report());
            assert!(error.report().contains("help: restore the object"));
        }
    }
    let error = damaged("log/0000000000000005", |_| None);
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(
        error.report().contains("DATA IS LOST"),
        "{}",
        error.report()
    );
    let error = damaged("volume", |_| None);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "there is a log");
}

#[test]
fn a_fenced_writer_names_its_successor() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let stale = open(&store, sized(MIB)).await.unwrap();
        stale.write(0, filled(4096, 1)).await.unwrap();
        stale.flush().await.unwrap();
        let volume = open(&store, sized(MIB)).await.unwrap();
        stale.write(0, filled(4096, 2)).await.unwrap();
        let error = stale.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let process = format!("process {}", std::process::id());
        assert!(error.report().contains(&process), "{}", error.report());
        assert!(error.report().contains("help: stop one of the two"));
        let refused = read(&stale, 0, 4096).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy, "for good");
        assert_eq!(stale.close().await.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(read(&volume, 0, 4096).await.unwrap(), [1; 4096]);
        volume.write(0, filled(4096, 3)).await.unwrap();
        volume.close().await.unwrap();
    });
}

#[test]
fn a_long_checkpoint_may_take_as_long_as_a_slow_line_needs() {
    run(async {
        let store = Rc::new(Bad::default());
        let checkpoint = noise(40 << 20, 1);
        store.rate.set(Some(80_000));
        let link = Link::new(Rc::clone(&store) as Rc<dyn Store>, Times::default());
        let content = Bytes::from(checkpoint.to_vec());
        // Nine minutes.
        let created = link.create("map/a", &content).await.unwrap();
        assert_eq!((created, store.creations.get()), (Creation::Created, 1));
        assert!(link.read_whole("map/a").await.unwrap() == content);
    });
}

#[test]
fn a_list_of_many_pages_has_time_for_each() {
    run(async {
        let store = Rc::new(Bad::default());
        let link = Link::new(Rc::clone(&store) as Rc<dyn Store>, Times::default());
        store.pages.set(30);
        store.page_time.set(Duration::from_secs(20));
        link.list("log/").await.unwrap();
        store.is_silent.set(true);
        let begin = rt::now();
        let error = link.list("log/").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(
            (rt::now() - begin).as_secs() < 130,
            "{:?}",
            rt::now() - begin
        );
    });
}

#[test]
fn a_checkpoint_that_is_too_long_for_the_store_is_not_tried_without_end() {
    run(async {
        let store = Rc::new(Bad::default());
        let limits = Limits {
            checkpoint_objects: 4,
            ..Limits::default()
        };
        let volume = open_limited(&store, sized(MIB), limits).await.unwrap();
        store.longest.set(Some(100));
        for at in 0..6 {
            volume.write(at * 4096, filled(4096, 1)).await.unwrap();
            volume.flush().await.unwrap();
        }
        rt::sleep(Duration::from_secs(10)).await;
        let before = store.creations.get();
        rt::sleep(Duration::from_secs(3600)).await;
        assert_eq!(store.creations.get(), before);
        // All data is durable.
        volume.close().await.unwrap();
        // The log has everything.
        let look = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(read(&look, 0, 6 * 4096).await.unwrap(), [1; 6 * 4096]);
    });
}

#[test]
fn a_close_waits_for_a_store_that_answers_in_time() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(MIB)).await.unwrap();
        store.is_down.set(true);
        volume.write(0, filled(4096, 1)).await.unwrap();
        let repaired = Rc::clone(&store);
        rt::spawn(async move {
            rt::sleep(Duration::from_secs(100)).await;
            repaired.is_down.set(false);
        });
        volume.close().await.unwrap();
        let look = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(read(&look, 0, 4096).await.unwrap(), [1; 4096]);
    });
}

#[test]
fn a_close_ends_after_two_minutes_and_names_the_loss() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        volume.flush().await.unwrap();
        store.is_silent.set(true);
        volume.write(4096, filled(8192, 2)).await.unwrap();
        let begin = rt::now();
        let error = volume.close().await.unwrap_err();
        assert_eq!((rt::now() - begin).as_secs(), 120);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let report = error.report();
        assert!(
            report.contains("8192 unflushed bytes, and discards, ARE LOST"),
            "{report}"
        );
        let refused = read(&volume, 0, 4096).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
    });
}

#[test]
fn a_snapshot_whose_creation_failed_is_not_listed_and_can_be_deleted() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        volume.snapshot("whole").await.unwrap();
        // The store takes the object of the snapshot, and not its record in the log.
        store.refuses.set(Some("log/"));
        volume.flush().await.unwrap();
        let error = volume.snapshot("part").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let listed = store.list("snapshots/").await.unwrap();
        assert_eq!(listed.len(), 2, "{listed:?}");
        let names = async || {
            let listed = list_snapshots(&*store).await.unwrap();
            let names = listed.into_iter().map(|it| it.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names().await, ["whole"]);
        let error = open(&store, snapshot("part")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.report().contains("not complete"),
            "{}",
            error.report()
        );
        open(&store, snapshot("whole")).await.unwrap();
        volume.delete_snapshot("part").await.unwrap();
        store.refuses.set(None);
        rt::sleep(Duration::from_secs(60)).await;
        volume.snapshot("part").await.unwrap();
        assert_eq!(names().await, ["part", "whole"]);
        // Nothing is pinned any more.
        volume.delete_snapshot("part").await.unwrap();
        volume.delete_snapshot("whole").await.unwrap();
        volume.discard(0, MIB).await.unwrap();
        volume.close().await.unwrap();
        assert_eq!(volume.usage().stored_bytes, 0);
    });
}

#[test]
fn a_snapshot_whose_object_was_never_created_leaves_no_pins() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        volume.flush().await.unwrap();
        store.refuses.set(Some("snapshots/"));
        let error = volume.snapshot("lost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        store.refuses.set(None);
        assert!(store.list("snapshots/").await.unwrap().is_empty());
        volume.delete_snapshot("lost").await.unwrap();
        let twice = volume.delete_snapshot("lost").await.unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::NotFound);
        volume.discard(0, MIB).await.unwrap();
        volume.close().await.unwrap();
        assert_eq!(volume.usage().stored_bytes, 0);
    });
}

#[test]
fn a_close_without_a_checkpoint_loses_nothing_and_is_no_failure() {
    run(async {
        let store = Rc::new(Bad::default());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        store.refuses.set(Some("map/"));
        volume.close().await.unwrap();
        assert!(store.list("map/").await.unwrap().is_empty());
        assert!(volume.failure().is_none());
        let look = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(read(&look, 0, 4096).await.unwrap(), [1; 4096]);
    });
}
