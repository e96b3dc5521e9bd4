//! Clones of whole file systems, in which a file has the identity of the original.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::checked::LoopDevice;
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// Runs a program of the system. Returns whether it succeeded; prints a failure.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(program).args(arguments).output();
    let done = ran.as_ref().is_ok_and(|output| output.status.success());
    if !done {
        eprintln!("SKIPPED: {program} {arguments:?}: {ran:?}");
    }
    done
}

/// A mounted image of a file system; unmounted and detached when dropped.
struct Mounted {
    at: PathBuf,
    _device: LoopDevice,
}

impl Mounted {
    /// Mounts `image`. Returns `None`, with a visible message, where that is not allowed.
    fn new(image: &Path, at: PathBuf) -> Option<Self> {
        let device = LoopDevice::new(image, &[])?;
        std::fs::create_dir_all(&at).expect("made");
        succeeds("mount", &[text(&device.0), text(&at)]).then_some(Self {
            at,
            _device: device,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Mounts a new file system of `name` in the place.
fn made(place: &Place, name: &str) -> Option<Mounted> {
    let image = place.path(&format!("{name}.ext4"));
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(160 << 20).expect("sparse");
    if !succeeds("mkfs.ext4", &["-q", text(&image)]) {
        return None;
    }
    Mounted::new(&image, place.path(name))
}

/// Mounts a copy of the image of file system `from` as `to`.
fn cloned(place: &Place, from: &Mounted, to: &str) -> Mounted {
    let name = from.at.file_name().expect("named").to_str().expect("text");
    let (image, copy) = (
        place.path(&format!("{name}.ext4")),
        place.path(&format!("{to}.ext4")),
    );
    assert!(succeeds("sync", &["-f", text(&from.at)]));
    std::fs::copy(image, &copy).expect("copied");
    Mounted::new(&copy, place.path(to)).expect("mounted, as the original")
}

/// Sets the file of the cache, the state directory and the journal in the configuration.
fn configure(place: &Place, cache: &str, state: &str, usual_journal: bool) {
    place.configure("wb", "");
    let config = place.path("forebay.toml");
    let mut written = std::fs::read_to_string(&config).expect("there");
    written = written
        .replace("path = \"cache\"", &format!("path = \"{cache}\""))
        .replace("state = \"state\"", &format!("state = \"{state}\""));
    if usual_journal {
        written = written.replace("journal = \"journal\"\n", "");
    }
    std::fs::write(&config, written).expect("written");
}

#[test]
fn a_cache_in_a_clone_of_its_file_system_never_harms_the_original() {
    for usual in [false, true] {
        let place = Place::new(&format!("clone-{usual}"), "wb");
        let Some(original) = made(&place, "a") else {
            return;
        };
        let cache = original.at.join("cache");
        place.ok(&["format", "--create", "64M", "--cache", text(&cache)]);
        configure(&place, "a/cache", "state", usual);
        place.serve(&[]).terminate();
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..100);
        daemon.kill();
        let (clone, other) = (
            cloned(&place, &original, "b"),
            cloned(&place, &original, "c"),
        );
        let said = place.run(&["check", "--json", "--cache", text(&cache)]);
        let found: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
        let uuid = found["uuid"].as_str().expect("it has one").to_owned();
        let journal = match usual {
            true => format!("/dev/shm/forebay-{uuid}.journal").into(),
            false => place.path("journal"),
        };
        let (before, had) = (
            std::fs::read(&journal).expect("there"),
            std::fs::read(&cache).expect("there"),
        );
        let is_whole = |what: &str| {
            let now = std::fs::read(&journal).unwrap_or_default();
            assert!(now == before, "{what}: the original's journal was changed");
            let now = std::fs::read(&cache).unwrap_or_default();
            assert!(now == had, "{what}: the original was changed");
        };
        let copy = clone.at.join("cache");
        let names_both = |said: &str| {
            for part in [text(&copy), text(&cache), "clone-id", "help: "] {
                assert!(said.contains(part), "{part}: {said}");
            }
        };
        let config = place.path("forebay.toml");
        // The state directory need not know the cache.
        for state in ["state", "another"] {
            configure(&place, "b/cache", state, usual);
            for more in [&[][..], &["--accept-journal-loss"], &["--adopt", "db"]] {
                let arguments = [&["serve", text(&config)][..], more].concat();
                names_both(&place.refused(&arguments));
                is_whole("serve");
            }
            names_both(&place.refused(&["check", text(&config)]));
            names_both(&place.refused(&["check", "--repair", text(&config)]));
            names_both(&place.refused(&["forget", "db", "--discard-dirty", text(&config)]));
            is_whole("check and forget with a configuration");
        }
        let on = ["--cache", text(&copy)];
        let checked = place.run(&[&["check"][..], &on].concat());
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(!checked.status.success(), "{said}");
        names_both(&said);
        let repaired = place.refused(&[&["check", "--repair"][..], &on].concat());
        names_both(&repaired);
        is_whole("check --repair");
        let forget = [&["forget", "db", "--discard-dirty"][..], &on].concat();
        names_both(&place.refused(&forget));
        is_whole("forget");
        let said = place.ok(&[&["clone-id"][..], &on].concat());
        assert!(said.contains("which was a copy of"), "{said}");
        is_whole("clone-id");
        let formatted = other.at.join("cache");
        let format = ["format", "--force", "--cache", text(&formatted)];
        assert!(place.refused(&format).contains("--discard-dirty"));
        place.ok(&[&format[..], &["--discard-dirty"]].concat());
        is_whole("format");
        // Neither is a copy any more, and the original has all acknowledged writes.
        configure(&place, "a/cache", "state", usual);
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..100);
        daemon.terminate();
        assert!(!journal.exists(), "a clean end removes it");
    }
}

#[test]
fn one_file_at_two_paths_is_no_clone_and_a_clone_may_take_the_place_of_the_original() {
    let place = Place::new("clone-moved", "wb");
    let Some(original) = made(&place, "a") else {
        return;
    };
    let cache = original.at.join("cache");
    place.ok(&["format", "--create", "64M", "--cache", text(&cache)]);
    configure(&place, "a/cache", "state", false);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..50);
    daemon.kill();
    // A link, another name of the file, and the moved file.
    std::os::unix::fs::symlink(&cache, place.path("link")).expect("linked");
    std::fs::hard_link(&cache, original.at.join("second")).expect("linked");
    for name in ["link", "a/second"] {
        configure(&place, name, "state", false);
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..50);
        write_blocks(&mut place.connect(), 50..60);
        daemon.kill();
    }
    std::fs::remove_file(&cache).expect("there");
    std::fs::rename(original.at.join("second"), original.at.join("third")).expect("moved");
    configure(&place, "a/third", "state", false);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..60);
    daemon.kill();
    let clone = cloned(&place, &original, "b");
    configure(&place, "b/third", "state", false);
    let refused = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(refused.contains("--moved-cache"), "{refused}");
    let daemon = place.serve(&["--moved-cache"]);
    check_blocks(&mut place.connect(), 0..60);
    daemon.terminate();
    // The last place is known now, and the former place is the copy.
    place.serve(&[]).terminate();
    configure(&place, "a/third", "state", false);
    let refused = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(refused.contains(text(&clone.at.join("third"))), "{refused}");
}

#[test]
fn an_original_and_its_clone_are_no_two_devices_until_the_clone_has_a_uuid() {
    let place = Place::new("clone-backing", "wb");
    let Some(original) = made(&place, "a") else {
        return;
    };
    let image = std::fs::File::create(original.at.join("disk")).expect("made");
    image.set_len(8 << 20).expect("sparse");
    image.sync_all().expect("synced");
    let clone = cloned(&place, &original, "b");
    let device = |name: &str, path: &str| {
        format!("[[device]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{path}\"\n")
    };
    let volume = |name: &str, on: &str| {
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"{on}\"\nmode = \"wb\"\n")
    };
    let more = [
        device("one", "a/disk"),
        device("two", "b/disk"),
        volume("v1", "one"),
        volume("v2", "two"),
    ];
    place.configure("wb", &more.concat());
    let config = place.path("forebay.toml");
    for command in ["serve", "check"] {
        let said = place.refused(&[command, text(&config)]);
        for part in [
            "\"one\" and \"two\"",
            "clone",
            text(&original.at.join("disk")),
            text(&clone.at.join("disk")),
            "tune2fs -U random",
        ] {
            assert!(said.contains(part), "{command}: {part}: {said}");
        }
    }
    drop(clone);
    let copy = place.path("b.ext4");
    let _ = Command::new("e2fsck").args(["-fy", text(&copy)]).output();
    assert!(succeeds("tune2fs", &["-U", "random", text(&copy)]));
    let _clone = Mounted::new(&copy, place.path("b")).expect("mounted");
    place.ok(&["check", text(&config)]);
    place.serve(&[]).terminate();
}
