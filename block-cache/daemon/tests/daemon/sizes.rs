//! Sizes of backing and cache devices, of which `check` and `serve` say the same.

use super::checked::{LoopDevice, both_refuse, set_len};
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// A loop device over a file without a sector has no medium, like a detached one.
#[test]
fn block_devices_without_a_block_are_refused_in_every_role_and_mode() {
    let place = Place::new("no-medium", "wt");
    let config = place.path("forebay.toml");
    let device_of = |bytes: u64| {
        let file = place.path(&format!("of-{bytes}"));
        std::fs::File::create(&file)
            .expect("made")
            .set_len(bytes)
            .expect("sparse");
        LoopDevice::new(&file, &[])
    };
    let (Some(empty), Some(tiny)) = (device_of(0), device_of(100)) else {
        return;
    };
    for device in [&empty, &tiny] {
        for (file, mode) in [
            ("db.img", "wt"),
            ("db.img", "wb"),
            ("db.img", "pt"),
            ("cache", "wb"),
        ] {
            place.configure(mode, "");
            let original = std::fs::read_to_string(&config).expect("there");
            let from = format!("path = \"{file}\"");
            assert!(original.contains(&from), "{original}");
            let path = text(&device.0);
            let changed = original.replace(&from, &format!("path = \"{path}\""));
            std::fs::write(&config, changed).expect("written");
            let remedy = format!("`losetup {path} FILE`");
            let what = format!("{path} has 0 bytes, less than a block");
            both_refuse(&place, &["forebay.toml:", &what, &remedy]);
        }
    }
    place.configure("wt", "");
    place.serve(&[]).terminate();
}

#[test]
fn check_warns_of_a_smaller_backing_file_like_serve() {
    for (bytes, mode) in [(32 << 20, "wb"), (30 << 20, "wt"), (8 << 20, "wa")] {
        let place = Place::new(&format!("warned-{mode}"), mode);
        let config = place.path("forebay.toml");
        let check = || {
            let output = place.run(&["check", text(&config)]);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
        assert!(!check().contains("has shrunk"));
        set_len(&place.path("db.img"), bytes);
        let message = format!("the backing device has shrunk from 67108864 to {bytes} bytes");
        let said = check();
        let line = said.lines().find(|line| line.contains(&message));
        let is_whole = |line: &str| line.starts_with("warning: ") && line.contains("forebay.toml:");
        assert!(line.is_some_and(is_whole), "{said}");
        let daemon = place.serve(&[]);
        assert!(place.log().contains(&message), "{}", place.log());
        check_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
        assert!(!check().contains("has shrunk"), "the new size is known");
    }
}

#[test]
fn check_warns_of_another_backing_file_like_serve() {
    let place = Place::new("warned-other", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    daemon.terminate();
    place.create_file("other.img", 32 << 20);
    let original = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&config, original.replace("db.img", "other.img")).expect("written");
    let message = "another backing device than before: clean cached data of the former one";
    let output = place.run(&["check", text(&config)]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(message), "{said}");
    place.serve(&[]).terminate();
    assert!(place.log().contains(message), "{}", place.log());
    for said in [&*said, &*place.log()] {
        assert!(!said.contains("has shrunk"), "{said}");
    }
}

/// The metadata of a cache must not be replaced by those of a new cache.
#[test]
fn a_missing_metadata_file_is_to_be_put_back() {
    let place = Place::new("metadata-missing", "wb");
    super::gone::in_two_files(&place);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    let (map, away) = (place.path("map"), place.path("away"));
    std::fs::rename(&map, &away).expect("there");
    let put_back = format!("put {} back", map.display());
    let config = place.path("forebay.toml");
    for command in ["check", "serve"] {
        let said = place.refused(&[command, text(&config)]);
        assert!(said.contains("does not exist"), "{said}");
        assert!(said.contains(&put_back), "{said}");
        assert!(!said.contains("forebay format"), "{said}");
    }
    std::fs::File::create_new(&map).expect("made");
    let said = place.refused(&["check", text(&config)]);
    assert!(said.contains("has 0 bytes"), "{said}");
    assert!(said.contains(&put_back), "{said}");
    std::fs::rename(&away, &map).expect("there");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

#[test]
fn large_sectors_over_a_cache_device_with_small_ones_are_refused() {
    let place = Place::new("sectors", "wb");
    let backing = LoopDevice::new(&place.path("db.img"), &["--sector-size", "4096"]);
    let cache = LoopDevice::new(&place.path("cache"), &["--sector-size", "512"]);
    let (Some(backing), Some(cache)) = (backing, cache) else {
        return;
    };
    for (file, device) in [("db.img", &backing), ("cache", &cache)] {
        let key = |path: &str| format!("path = \"{path}\"");
        place.edit_config(&[(&key(file), &key(text(&device.0)))]);
    }
    both_refuse(
        &place,
        &["a power loss could tear its blocks of 4096 bytes"],
    );
}
