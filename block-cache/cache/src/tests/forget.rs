//! Volumes that are not attached: their state in the cache, and how it forgets them.

use super::*;

async fn attach_named(cache: &Cache, disks: &[SimDisk], name: &str) -> Rc<dyn BlockDevice> {
    let backing = Rc::new(disks[1].clone());
    let options = VolumeOptions::new(Mode::WriteBack);
    cache
        .attach(name, backing, options)
        .await
        .expect("attaches")
}

/// A cache that knows volume `clean`, of which a block is clean, and volume `dirty`, of which two
/// are dirty, and serves neither.
async fn with_two_idle(disks: &[SimDisk]) -> Cache {
    make(disks, 4096).await;
    for name in ["clean", "dirty"] {
        let (cache, _) = open(disks, Durability::Flush).await;
        cache.set_cleaning(Cleaning::Nop);
        let volume = attach_named(&cache, disks, name).await;
        for at in [0, 65536] {
            let data = Buf::copied(&[3; 4096]);
            volume.write(at, data).await.expect("writes");
        }
        if name == "clean" {
            cache.write_back(None).await.expect("writes back");
        }
        cache.close().await.expect("closes");
    }
    open(disks, Durability::Flush).await.0
}

fn names(cache: &Cache) -> Vec<String> {
    let idle = cache.idle_volumes().into_iter();
    idle.map(|idle| idle.name).collect()
}

#[test]
fn a_clean_volume_is_forgotten_without_its_backing_device_and_a_dirty_one_by_name() {
    run(&world(3, 2 << 20, 512), async |disks| {
        let cache = with_two_idle(&disks).await;
        assert_eq!(names(&cache), ["clean", "dirty"]);
        let idle = cache.idle_volumes();
        assert!(idle[0].is_expendable() && idle[0].cached_bytes == 8192);
        assert!(!idle[1].is_expendable() && idle[1].dirty_bytes == 8192);
        let unknown = cache.forget("other", true).await.expect_err("unknown");
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        assert!(unknown.report().contains("clean, dirty"), "{unknown:?}");
        assert!(
            cache
                .forget("clean", false)
                .await
                .expect("forgets")
                .is_empty()
        );
        let refused = cache.forget("dirty", false).await.expect_err("dirty");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let report = refused.report();
        assert!(
            report.contains("8192 bytes") && report.contains("65536+4096"),
            "{report}"
        );
        let lost = cache.forget("dirty", true).await.expect("forgets");
        assert_eq!(lost, [0..4096, 65536..69632]);
        let stats = cache.stats();
        assert_eq!((stats.cached_blocks, stats.dirty_blocks), (0, 0));
        // Neither volume reappears, and a new volume of that name starts empty.
        cache.close().await.expect("closes");
        let (cache, _) = open(&disks, Durability::Flush).await;
        assert!(names(&cache).is_empty());
        let volume = attach_named(&cache, &disks, "dirty").await;
        let served = cache.forget("dirty", true).await.expect_err("served");
        assert_eq!(served.kind(), ErrorKind::Busy);
        volume.write(0, Buf::zeroed(4096)).await.expect("writes");
        cache.close().await.expect("closes");
    });
}

#[test]
fn a_full_cache_names_volumes_that_could_make_room() {
    run(&world(4, 2 << 20, 512), async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        for number in 0..Cache::MAX_VOLUMES {
            assert!(cache.free_volumes() > 0);
            attach_named(&cache, &disks, &format!("v{number}")).await;
        }
        assert_eq!(cache.free_volumes(), 0);
        cache.close().await.expect("closes");
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Rc::new(disks[1].clone());
        let refused = cache.attach("new", backing, VolumeOptions::new(Mode::WriteBack));
        let refused = refused.await.map(drop).expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert!(
            refused.report().contains("v0 (0 bytes dirty)"),
            "{refused:?}"
        );
        cache.close().await.expect("closes");
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let found = inspect(&devices, None, &[9; 16]).await.expect("inspects");
        let known: Vec<String> = (0..Cache::MAX_VOLUMES).map(|n| format!("v{n}")).collect();
        let mut names: Vec<&str> = known.iter().map(|name| &**name).collect();
        found.check_room(&names).expect("all are known");
        found.check_room(&["new"]).expect("others can be forgotten");
        names.push("new");
        let refused = found.check_room(&names).expect_err("one too many");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let said = refused.report();
        assert!(said.contains("has 65 volumes"), "{said}");
    });
}

#[test]
fn the_most_dirty_volumes_are_named_first() {
    let idle = |name: &str, dirty_bytes| IdleVolume {
        name: name.to_owned(),
        size_bytes: 1 << 20,
        epoch: 1,
        cached_bytes: 0,
        dirty_bytes,
        owes_report: false,
    };
    let report = no_room(&[idle("a", 0), idle("b", 1), idle("c", 9)]).report();
    assert!(
        report.contains("NAME`): c (9 bytes dirty), b (1 bytes dirty)"),
        "{report}"
    );
}
