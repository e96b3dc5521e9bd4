//! Verification of all objects.

use forebay_block::ErrorKind;

use super::*;
use crate::testing::MemoryStore;

fn look() -> Options {
    Options {
        access: Access::Look,
        ..sized(64 * MIB)
    }
}

#[test]
fn each_damaged_or_missing_object_is_found() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        for number in 0..4 {
            let data = noise(MIB, number);
            volume.write_fua(number * MIB, data).await.unwrap();
        }
        // One object is dead now, and a small one is added.
        volume.discard(0, MIB).await.unwrap();
        volume.write_fua(0, filled(512, 9)).await.unwrap();
        volume.close().await.unwrap();
        let looked = open(&store, look()).await.unwrap();
        let intact = looked.verify().await.unwrap();
        assert_eq!((intact.objects, intact.damage.len()), (4, 0), "{intact:?}");
        assert!(intact.bytes > 0);
        let mut found = 0;
        for listed in store.list("log/").await.unwrap() {
            let content = store.get(&listed.name).unwrap();
            let mut flipped = content.to_vec();
            *flipped.last_mut().unwrap() ^= 1;
            for (damage, says) in [(Some(flipped.into()), "differ"), (None, "is missing")] {
                store.set(&listed.name, damage);
                // Damage to an object that the opening reads is found by the opening.
                let Ok(opened) = open(&store, look()).await else {
                    continue;
                };
                let result = opened.verify().await.unwrap();
                for error in &result.damage {
                    let report = error.report();
                    assert!(
                        report.contains(&listed.name) && report.contains(says),
                        "{report}"
                    );
                }
                assert_eq!(result.objects + result.damage.len() as u64, 4);
                found += result.damage.len();
            }
            store.set(&listed.name, Some(content));
        }
        assert_eq!(found, 2 * 4, "each object with data, in both ways");
    });
}

#[test]
fn objects_that_only_snapshots_need_are_verified() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        volume.write_fua(0, noise(MIB, 1)).await.unwrap();
        volume.snapshot("monday").await.unwrap();
        volume.write_fua(0, noise(MIB, 2)).await.unwrap();
        volume.close().await.unwrap();
        let intact = open(&store, look()).await.unwrap().verify().await.unwrap();
        assert_eq!((intact.objects, intact.damage.len()), (2, 0), "{intact:?}");
        let mut removed = 0;
        for listed in store.list("log/").await.unwrap() {
            if listed.bytes < MIB {
                continue;
            }
            let content = store.get(&listed.name);
            store.set(&listed.name, None);
            let result = open(&store, look()).await.unwrap().verify().await.unwrap();
            assert_eq!((result.objects, result.damage.len()), (1, 1), "{result:?}");
            store.set(&listed.name, content);
            removed += 1;
        }
        assert_eq!(removed, 2, "one object per write");
    });
}

#[test]
fn objects_that_a_writer_deletes_meanwhile_are_no_damage() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        volume.write_fua(0, noise(MIB, 1)).await.unwrap();
        volume.snapshot("monday").await.unwrap();
        volume.write_fua(0, noise(MIB, 2)).await.unwrap();
        volume.close().await.unwrap();
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        let refused = async |looked: Rc<ObjectVolume>| {
            let error = looked.verify().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        };
        let of_snapshot = open(&store, snapshot("monday")).await.unwrap();
        volume.delete_snapshot("monday").await.unwrap();
        refused(of_snapshot).await;
        let looked = open(&store, look()).await.unwrap();
        volume.write_fua(0, noise(MIB, 3)).await.unwrap();
        volume.close().await.unwrap();
        refused(looked).await;
    });
}
