//! Stores that fail, objects that are damaged, and writers that are fenced.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind};

use super::*;
use crate::store::{Answer, Creation, Listed};
use crate::testing::MemoryStore;

/// A store that fails, waits, or replaces objects.
#[derive(Default)]
struct Bad {
    memory: MemoryStore,
    is_down: Cell<bool>,
    is_silent: Cell<bool>,
    replaces: Cell<bool>,
}

impl Store for Bad {
    fn name(&self) -> String {
        "bad".to_owned()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        Box::pin(async move {
            self.pass().await?;
            if self.replaces.get() {
                self.memory.set(name, None);
            }
            self.memory.create(name, content).await
        })
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        Box::pin(async move {
            self.pass().await?;
            self.memory.read(name, bytes).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Listed>> {
        Box::pin(async move {
            self.pass().await?;
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

/// Has the store fail for longer than the patience. Nothing is lost.
fn outage(begin: fn(&Bad, bool)) {
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
        assert!(
            error
                .report()
                .contains("object store bad: no answer for 60 s")
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
    outage(|store, is_down| store.is_down.set(is_down));
}

#[test]
fn a_silent_store_fails_requests_and_loses_nothing() {
    outage(|store, is_silent| store.is_silent.set(is_silent));
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
    assert_eq!(error.kind(), ErrorKind::NotFound);
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
