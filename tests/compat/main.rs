//! Caches of all earlier versions open, with all their dirty data.
//!
//! Each folder below images/ comes from one version (image.rs). life.rs wrote its contents.

mod life;

use std::path::{Path, PathBuf};

use forebay_block::{BlockDeviceExt, Buf};
use forebay_cache::{Cache, CacheOptions, inspect};
use forebay_io::rt;
use forebay_io::sim::{Keep, World};

use life::{CACHE_BYTES, KINDS, Kind, VOLUME_BYTES, attach, devices, expected, live, run, world};

/// Loads the devices of an image.
fn loaded(folder: &Path, kind: Kind) -> World {
    let image = |name: &str| {
        let file = folder.join(format!("{}.{name}.zst", kind.name));
        let packed =
            std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        zstd::decode_all(&packed[..]).expect("an image")
    };
    let world = world();
    let images = ["cache", "backing"].map(image);
    run(&world, async move |disks| {
        for (disk, image) in disks.iter().zip(images) {
            disk.write(0, Buf::copied(&image)).await.expect("writes");
            disk.flush().await.expect("flushes");
        }
    });
    world
}

/// Opens a cache. Returns whether all written data can be read, and is written back.
fn is_whole(world: &World, kind: Kind, version: &str) -> bool {
    let version = version.to_owned();
    run(world, async move |disks| {
        let found = inspect(&devices(&disks), None, &[8; 16]).await;
        let found = found.expect("there is a cache");
        assert_eq!(found.problems, Vec::<String>::new(), "{version}, {kind:?}");
        let options = CacheOptions::new([8; 16]);
        let opened = Cache::open(devices(&disks), options).await;
        let (cache, report) =
            opened.unwrap_or_else(|error| panic!("{version}, {kind:?}: {}", error.report()));
        assert_eq!(report.clean_shutdown, kind.closed, "{version}, {kind:?}");
        assert!(report.dirty_blocks > 0, "{version}, {kind:?}");
        let volume = attach(&cache, &disks).await;
        let read = Buf::zeroed(VOLUME_BYTES as usize);
        volume.read(0, read.clone()).await.expect("reads");
        while cache.stats().dirty_blocks > 0 {
            rt::sleep(std::time::Duration::from_millis(100)).await;
        }
        cache.close().await.expect("closes");
        read.to_vec() == expected() && disks[1].peek(0, VOLUME_BYTES as usize) == expected()
    })
}

fn folders() -> Vec<PathBuf> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat/images");
    let folders = std::fs::read_dir(&images).expect("there are images");
    let folders: Vec<_> = folders
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert!(!folders.is_empty());
    folders
}

#[test]
fn caches_of_earlier_versions_open_with_all_that_is_dirty() {
    for folder in folders() {
        for kind in KINDS {
            let version = folder.file_name().expect("a name").to_string_lossy();
            let whole = is_whole(&loaded(&folder, kind), kind, &version);
            assert!(whole, "{version}, {kind:?}");
        }
    }
}

#[test]
fn those_of_this_version_do_too() {
    for kind in KINDS {
        let world = world();
        run(&world, async move |disks| live(&disks, kind).await);
        if !kind.closed {
            world.crash_power(Keep::None);
        }
        assert!(is_whole(&world, kind, "this version"), "{kind:?}");
    }
}

#[test]
fn rot_of_the_cache_device_is_noticed() {
    let exact = KINDS[0];
    let world = loaded(&folders()[0], exact);
    world.disks()[0].rot(CACHE_BYTES - (1 << 20), 1 << 20, 10_000);
    assert!(!is_whole(&world, exact, "rotten"), "it has no checksums");
}
