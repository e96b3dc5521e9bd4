//! Opening, creation, growth and snapshots.

use std::time::Instant;

use forebay_block::{BlockDevice as _, ErrorKind};

use super::*;
use crate::snapshots::{delete_snapshot, list_snapshots};
use crate::testing::MemoryStore;

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[test]
fn a_volume_is_created_only_where_it_is_served_with_a_size() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let looks = Options {
            access: Access::Look,
            ..sized(MIB)
        };
        let error = open(&store, looks.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.report().contains("it is created when it is served"));
        let without = Options::new(Access::Serve);
        assert_eq!(
            kind(open(&store, without.clone()).await),
            Some(ErrorKind::NotFound)
        );
        for size in [0, 512, MIB + 512, 1 << 62] {
            assert_eq!(
                kind(open(&store, sized(size)).await),
                Some(ErrorKind::InvalidInput)
            );
        }
        assert_eq!(
            kind(list_snapshots(&*store).await),
            Some(ErrorKind::NotFound)
        );
        assert!(store.list("log/").await.unwrap().is_empty());
        let volume = open(&store, sized(MIB)).await.unwrap();
        assert_eq!(volume.info().size_bytes, MIB);
        assert!(!volume.read_only() && volume.info().volatile_cache);
        volume.close().await.unwrap();
        let names: Vec<_> = store.list("").await.unwrap();
        assert!(names.iter().all(|it| !it.name.starts_with("probe/")));
        let reopened = open(&store, without).await.unwrap();
        assert_eq!(reopened.info().size_bytes, MIB);
        assert!(reopened.info().identity.is_same_as(volume.info().identity));
        let look = open(&store, looks).await.unwrap();
        assert!(look.read_only());
        let refused = look.write(0, filled(512, 1)).await;
        assert_eq!(kind(refused), Some(ErrorKind::ReadOnly));
        assert_eq!(kind(look.snapshot("a").await), Some(ErrorKind::ReadOnly));
        look.flush().await.unwrap();
        look.close().await.unwrap();
    });
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(MIB - 512, filled(512, 1)).await.unwrap();
        volume.close().await.unwrap();
        let volume = open(&store, sized(2 * MIB)).await.unwrap();
        volume
            .write_fua(2 * MIB - 512, filled(512, 2))
            .await
            .unwrap();
        drop(volume);
        let error = open(&store, sized(MIB)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(
            error.report().contains("cannot shrink"),
            "{}",
            error.report()
        );
        let volume = open(&store, Options::new(Access::Serve)).await.unwrap();
        assert_eq!(volume.info().size_bytes, 2 * MIB);
        let data = read(&volume, MIB - 512, 1024).await.unwrap();
        assert_eq!((&data[..512], &data[512..]), (&[1; 512][..], &[0; 512][..]));
        assert_eq!(read(&volume, 2 * MIB - 512, 512).await.unwrap(), [2; 512]);
    });
}

#[test]
fn a_huge_sparse_volume_opens_at_once() {
    run(async {
        let (store, size) = (Rc::new(MemoryStore::new()), 2 << 40);
        let volume = open(&store, sized(size)).await.unwrap();
        for at in 0..1000 {
            let offset = at * (size / 1000) / 4096 * 4096;
            volume.write(offset, filled(4096, at as u8)).await.unwrap();
        }
        volume.close().await.unwrap();
        let begin = Instant::now();
        let volume = open(&store, Options::new(Access::Serve)).await.unwrap();
        let taken = begin.elapsed();
        assert!(taken.as_millis() < 500, "{taken:?}");
        assert_eq!(volume.info().size_bytes, size);
        let last = 999 * (size / 1000) / 4096 * 4096;
        assert_eq!(
            read(&volume, last, 4096).await.unwrap(),
            [999_u64 as u8; 4096]
        );
        volume.discard(0, size).await.unwrap();
        assert_eq!(volume.usage().mapped_bytes, 0);
    });
}

#[test]
fn a_snapshot_is_constant() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(8192, 1)).await.unwrap();
        volume.snapshot("one").await.unwrap();
        volume.write(4096, filled(8192, 2)).await.unwrap();
        volume.snapshot("two").await.unwrap();
        volume.discard(0, MIB).await.unwrap();
        assert_eq!(kind(volume.snapshot("two").await), Some(ErrorKind::Busy));
        for name in ["", "Two", "a/b", "a.b", &"x".repeat(65)] {
            assert_eq!(
                kind(volume.snapshot(name).await),
                Some(ErrorKind::InvalidInput)
            );
        }
        volume.close().await.unwrap();
        // Another writer neither deletes nor changes them.
        let volume = open(&store, sized(2 * MIB)).await.unwrap();
        volume.write(0, filled(MIB, 3)).await.unwrap();
        volume.close().await.unwrap();
        let listed = list_snapshots(&*store).await.unwrap();
        let names: Vec<_> = listed.iter().map(|it| (&*it.name, it.size_bytes)).collect();
        assert_eq!(names, [("one", MIB), ("two", MIB)]);
        for (name, bytes) in [("one", [1, 1, 0]), ("two", [1, 2, 2])] {
            let look = open(&store, snapshot(name)).await.unwrap();
            assert!(look.read_only() && look.info().size_bytes == MIB);
            assert!(look.info().identity.differs_from(volume.info().identity));
            assert!(look.info().name.ends_with(&format!("@{name}")));
            for (at, byte) in bytes.into_iter().enumerate() {
                let data = read(&look, at as u64 * 4096, 4096).await.unwrap();
                assert_eq!(data, [byte; 4096], "{name} at {at}");
            }
        }
        delete_snapshot(&*store, "one").await.unwrap();
        assert_eq!(
            kind(delete_snapshot(&*store, "one").await),
            Some(ErrorKind::NotFound)
        );
        assert_eq!(
            kind(open(&store, snapshot("one")).await),
            Some(ErrorKind::NotFound)
        );
        let volume = open(&store, Options::new(Access::Serve)).await.unwrap();
        volume.delete_snapshot("two").await.unwrap();
        assert_eq!(
            kind(volume.delete_snapshot("two").await),
            Some(ErrorKind::NotFound)
        );
        volume.close().await.unwrap();
        // Only the last data are left.
        let volume = open(&store, Options::new(Access::Serve)).await.unwrap();
        volume.close().await.unwrap();
        assert_eq!(volume.usage().mapped_bytes, MIB);
        let data = store.list("log/").await.unwrap();
        let large = data.iter().filter(|it| it.bytes > 300).count();
        assert_eq!(large, 1, "{data:?}");
    });
}

#[test]
fn a_close_goes_on_without_its_caller() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        volume.write(0, filled(4096, 1)).await.unwrap();
        let close = volume.close();
        rt::at_most(std::time::Duration::ZERO, close).await;
        volume.close().await.unwrap();
        let volume = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(read(&volume, 0, 4096).await.unwrap(), [1; 4096]);
    });
}

#[test]
fn the_log_of_many_sessions_has_only_claims_and_data() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        for session in 0..20 {
            let volume = open(&store, sized(MIB)).await.unwrap();
            volume.write(0, filled(4096, session)).await.unwrap();
            volume.close().await.unwrap();
        }
        let log = store.list("log/").await.unwrap();
        // Claims of 20 sessions, one object of data, and what the last session will have deleted.
        assert!(log.len() <= 26, "{}", log.len());
        assert!(store.list("map/").await.unwrap().len() <= 2);
    });
}

fn prepares(size: Option<u64>) -> Options {
    Options {
        size_bytes: size,
        ..Options::new(Access::Prepare)
    }
}

#[test]
fn a_prepared_volume_leaves_the_writer_in_place_until_its_claim() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let new = open(&store, prepares(Some(MIB))).await.unwrap();
        assert!(new.is_new() && new.read_only());
        assert_eq!(new.info().size_bytes, MIB);
        assert_eq!(read(&new, 0, 512).await.unwrap(), vec![0; 512]);
        assert!(store.list("").await.unwrap().is_empty());
        assert_eq!(new.last_writer().await.unwrap(), None);
        new.claim([1; 16]).await.unwrap();
        assert!(!new.is_new() && !new.read_only());
        assert_eq!(
            kind(new.claim([1; 16]).await),
            Some(ErrorKind::InvalidInput)
        );
        new.write(0, filled(512, 1)).await.unwrap();
        new.flush().await.unwrap();

        let less = open(&store, prepares(Some(MIB / 2))).await;
        assert_eq!(kind(less), Some(ErrorKind::InvalidInput));
        let next = open(&store, prepares(Some(2 * MIB))).await.unwrap();
        assert_eq!(next.info().size_bytes, 2 * MIB);
        assert!(next.info().identity.is_same_as(new.info().identity));
        let last = next.last_writer().await.unwrap().expect("a claim");
        assert_eq!(last.id, [1; 16]);
        assert!(last.text.starts_with("process "));
        // The writer goes on, and the claim has what it wrote.
        new.write(0, filled(512, 2)).await.unwrap();
        new.flush().await.unwrap();
        next.claim([2; 16]).await.unwrap();
        assert_eq!(read(&next, 0, 512).await.unwrap(), vec![2; 512]);
        assert_eq!(read(&next, MIB, 512).await.unwrap(), vec![0; 512]);
        next.write(MIB, filled(512, 3)).await.unwrap();
        next.close().await.unwrap();
        new.write(0, filled(512, 4)).await.unwrap();
        assert_eq!(kind(new.flush().await), Some(ErrorKind::Busy));
    });
}

#[test]
fn a_checkpoint_between_the_look_and_the_claim_does_not_matter() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let old = open(&store, sized(MIB)).await.unwrap();
        old.write(0, filled(512, 1)).await.unwrap();
        let next = open(&store, prepares(None)).await.unwrap();
        old.write(512, filled(512, 2)).await.unwrap();
        // Writes a checkpoint, and deletes nothing that `next` knows.
        old.close().await.unwrap();
        next.claim([2; 16]).await.unwrap();
        assert_eq!(read(&next, 0, 1024).await.unwrap()[511..513], [1, 2]);
        next.write(0, filled(512, 3)).await.unwrap();
        next.close().await.unwrap();
        let last = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(read(&last, 0, 512).await.unwrap(), vec![3; 512]);
    });
}

#[test]
fn a_claim_after_that_of_another_writer_is_refused_and_changes_nothing() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let creators = [prepares(Some(MIB)), prepares(Some(MIB))];
        let [first, second] = creators.map(|options| open(&store, options));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        first.claim([1; 16]).await.unwrap();
        assert_eq!(kind(second.claim([2; 16]).await), Some(ErrorKind::Busy));
        let late = open(&store, prepares(None)).await.unwrap();
        let other = open(&store, prepares(None)).await.unwrap();
        other.claim([3; 16]).await.unwrap();
        let error = late.claim([4; 16]).await.unwrap_err();
        assert!(
            error.report().contains("took it over during this start"),
            "{error:?}"
        );
        assert_eq!(kind(read(&late, 0, 512).await), Some(ErrorKind::Busy));
        // The writer is not fenced.
        other.write(0, filled(512, 1)).await.unwrap();
        other.close().await.unwrap();
        let last = open(&store, Options::new(Access::Look)).await.unwrap();
        assert_eq!(
            last.last_writer().await.unwrap().map(|it| it.id),
            Some([3; 16])
        );
    });
}

/// Each object of the log is lost, in turn. The last one alone leaves no proof.
#[test]
fn a_hole_in_the_log_is_a_loss_and_deletes_nothing() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        for block in 0..3 {
            volume.write(block * 4096, filled(4096, 1)).await.unwrap();
            volume.flush().await.unwrap();
        }
        volume.snapshot("kept").await.unwrap();
        volume.write_fua(MIB / 2, filled(4096, 2)).await.unwrap();
        drop(volume);
        let all = store.list("").await.unwrap();
        let log: Vec<_> = all
            .iter()
            .filter(|it| it.name.starts_with("log/"))
            .collect();
        let (_, others) = log.split_last().unwrap();
        for lost in others {
            let content = store.get(&lost.name);
            store.set(&lost.name, None);
            for access in [Access::Look, Access::Serve] {
                let error = open(&store, Options::new(access)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Lost);
                let report = error.report();
                let said = format!("{} of memory is missing", lost.name);
                assert!(report.contains(&said), "{report}");
                assert!(report.contains("DATA IS LOST\n    help: "), "{report}");
            }
            assert_eq!(kind(list_snapshots(&*store).await), Some(ErrorKind::Lost));
            store.set(&lost.name, content);
            assert_eq!(store.list("").await.unwrap(), all);
        }
        // A snapshot proves that the log was longer, too.
        for object in &log {
            store.set(&object.name, None);
        }
        let error = open(&store, sized(MIB)).await.unwrap_err();
        assert!(
            error.report().contains("snapshots/kept."),
            "{}",
            error.report()
        );
    });
}
