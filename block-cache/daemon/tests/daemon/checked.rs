//! Reports of `check` before a start. Reports of bad input name the thing, the place and the
//! remedy.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{PROGRAM, Place, last_error, text};
use super::{check_blocks, write_blocks};

pub(crate) fn set_len(path: &Path, bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("there").set_len(bytes).expect("set");
}

/// Checks that `check` and `serve` refuse alike.
pub(crate) fn both_refuse(place: &Place, parts: &[&str]) {
    let config = place.path("forebay.toml");
    let said = place.refused(&["serve", text(&config)]);
    for part in parts {
        assert!(said.contains(part), "{part} in {said}");
    }
    // `serve` logs before this error.
    let checked = place.refused(&["check", text(&config)]);
    assert_eq!(last_error(&checked), last_error(&said));
}

#[test]
fn check_and_serve_refuse_the_same_places() {
    let place = Place::new("alike", "wb");
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    assert!(!place.path("state").exists(), "nothing was made");
    assert!(!place.path("control.sock").exists());
    for (name, parts) in [
        (
            "nbd.sock",
            ["forebay.toml:23: ", "exists there that is not a socket"],
        ),
        (
            "control.sock",
            ["control socket", "exists there that is not a socket"],
        ),
        ("state", ["forebay.toml:29: ", "is not a directory"]),
    ] {
        std::fs::write(place.path(name), "notes").expect("written");
        both_refuse(&place, &parts);
        assert_eq!(std::fs::read(place.path(name)).expect("kept"), b"notes");
        std::fs::remove_file(place.path(name)).expect("there");
    }
    place.serve(&[]).terminate();
}

#[test]
fn check_leaves_a_running_daemon_its_own() {
    let place = Place::new("own", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    let output = place.run(&["check", text(&config)]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("the configuration is in order (2 devices, 1 volume, 1 export)"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let process = format!("a daemon (process {}) answers", daemon.id());
    assert!(
        said.contains("is in use, and was not checked") && said.contains(&process),
        "{said}"
    );
    // Places of other processes prevent a restart.
    let other = std::os::unix::net::UnixListener::bind(place.path("other.sock")).expect("bound");
    place.configure(
        "wb",
        "[[export]]\nvolume = \"db\"\nnbd = \"unix:other.sock\"\n",
    );
    let said = place.refused(&["check", text(&config)]);
    assert!(
        said.contains("other.sock, where volume \"db\" is exported, is in use"),
        "{said}"
    );
    assert!(!said.contains("nbd.sock"), "{said}");
    drop(other);
    daemon.terminate();
    place.ok(&["check", text(&config)]);
}

#[test]
fn a_place_in_the_configuration_is_named_once() {
    let place = Place::new("once", "wb");
    let config = place.path("forebay.toml");
    std::fs::write(place.path("cache"), vec![0; 1 << 20]).expect("written");
    let expected = format!(
        "forebay: {}:13: there is no cache on device \"ssd\" (not found)\n    help: if there never \
         was one, make one with `forebay format --cache {}`, which discards what the device has. ",
        config.display(),
        place.path("cache").display()
    );
    let said = place.refused(&["serve", text(&config)]);
    assert!(last_error(&said).starts_with(&expected), "{said}");
    let said = place.refused(&["check", text(&config)]);
    assert_eq!(said.matches("no cache").count(), 1, "{said}");
    let begin = format!("forebay: {}:13: ", config.display());
    assert!(last_error(&said).starts_with(&begin), "{said}");
    // Another process holds it when the volume is attached.
    let place = Place::new("held", "wb");
    let held = std::fs::File::open(place.path("db.img")).expect("there");
    held.lock().expect("free");
    let said = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    let last = last_error(&said);
    assert!(last.contains("forebay.toml:8: device \"disk\": "), "{said}");
    assert_eq!(last.matches("forebay.toml:").count(), 1, "{said}");
}

/// Overwrites a part of one copy of the superblock (docs/internals/format/superblock.md: at 0 and
/// at 64 KiB).
fn damage(path: &Path, copy: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let written = file
        .expect("there")
        .write_all_at(b"damage", copy * 65536 + 600);
    written.expect("written");
}

#[test]
fn one_damaged_superblock_is_reported_and_mended_and_two_are_the_end() {
    let place = Place::new("copies", "wb");
    let (config, cache) = (place.path("forebay.toml"), place.path("cache"));
    let check = ["check", text(&config)];
    place.serve(&[]).terminate();
    for copy in [0, 1] {
        damage(&cache, copy);
        let checked = place.run(&check);
        assert_eq!(checked.status.code(), Some(3), "{checked:?}");
        let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            printed.contains("one of the two copies of the superblock"),
            "{printed}"
        );
        assert!(
            printed.contains("nothing is lost") && !printed.contains("anew and"),
            "{printed}"
        );
        assert!(!printed.contains("detach"), "one remedy: {printed}");
        let daemon = place.serve(&[]);
        let log = place.log();
        let warned = log
            .lines()
            .find(|line| line.contains("two copies of the superblock"));
        assert!(warned.is_some_and(|line| line.contains("WARN")), "{log}");
        write_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
        // The start has repaired it.
        assert!(place.ok(&check).contains("In order.\n"));
    }
    damage(&cache, 0);
    damage(&cache, 1);
    let checked = place.run(&check);
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    let asked = place.run(&["check", text(&config), "--json"]).stdout;
    let object: serde_json::Value = serde_json::from_slice(&asked).expect("an object");
    assert_eq!(object["error"]["kind"], "corrupt", "{object}");
    let serve = place.refused(&["serve", text(&config)]);
    for said in [String::from_utf8_lossy(&checked.stderr).into_owned(), serve] {
        for part in [
            "both copies of the superblock are damaged",
            "put the device back",
            "IS LOST",
            "--adopt VOLUME",
            "forebay.toml:13: ",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let (_, remedy) = said.split_once("`forebay ").expect("a command");
        let (command, _) = remedy.split_once('`').expect("its end");
        assert_eq!(
            command,
            format!("format --force --discard-dirty --cache {}", text(&cache))
        );
    }
    let refused = place.refused(&["format", "--force", "--cache", text(&cache)]);
    assert!(
        refused.contains("--discard-dirty") && !refused.contains("serve it and"),
        "{refused}"
    );
    // The remedy works.
    place.ok(&[
        "format",
        "--force",
        "--discard-dirty",
        "--cache",
        text(&cache),
    ]);
    place.serve(&["--adopt", "db"]).terminate();
}

#[test]
fn check_foresees_dirty_data_of_another_backing_file_and_under_another_name() {
    let place = Place::new("foreseen", "wb");
    let (config, backing) = (place.path("forebay.toml"), place.path("db.img"));
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    place.ok(&["check", text(&config)]);
    let other = place.path("other.img");
    std::fs::copy(&backing, &other).expect("copied");
    let original = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&config, original.replace("db.img", "other.img")).expect("written");
    both_refuse(&place, &["forebay.toml:", "another backing device"]);
    std::fs::write(&config, original.replace("\"db\"", "\"base\"")).expect("written");
    both_refuse(&place, &["forebay.toml:", "detach db"]);
    std::fs::write(&config, original).expect("written");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

/// Removes a file and creates it with zeroes and the former inode. Returns false if the file system
/// does not reuse inodes.
fn recreated(path: &Path, bytes: u64) -> bool {
    let inode = std::fs::metadata(path).expect("there").ino();
    std::fs::remove_file(path).expect("removed");
    // Lower numbers may be free as well.
    let tried = |number: u32| path.with_extension(format!("{number}"));
    let mut found = false;
    let mut made = 0;
    while !found && made < 4096 {
        let file = std::fs::File::create_new(tried(made)).expect("made");
        file.set_len(bytes).expect("sparse");
        found = file.metadata().expect("open").ino() == inode;
        made += 1;
    }
    std::fs::rename(tried(made - 1), path).expect("renamed");
    (0..made - 1).for_each(|number| std::fs::remove_file(tried(number)).expect("removed"));
    if found {
        return true;
    }
    eprintln!(
        "SKIPPED: the file system of {} gives a removed file's number to no other",
        path.display()
    );
    false
}

#[test]
fn a_backing_file_made_anew_with_the_old_ones_inode_is_another_device() {
    let place = Place::new("anew", "wb");
    let (config, backing) = (place.path("forebay.toml"), place.path("db.img"));
    let bytes = std::fs::metadata(&backing).expect("there").len();
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    if !recreated(&backing, bytes) {
        return;
    }
    both_refuse(&place, &["forebay.toml:", "another backing device"]);
    let daemon = place.serve(&["--adopt", "db"]);
    check_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    daemon.terminate();
    // Clean data is dropped, and never read as that of the new file.
    if recreated(&backing, bytes) {
        place.ok(&["check", text(&config)]);
        let daemon = place.serve(&[]);
        assert_eq!(
            place.connect().read(0, 4096).expect("served"),
            Ok(vec![0; 4096])
        );
        daemon.terminate();
    }
}

#[test]
fn a_backing_file_that_was_larger_is_reported_and_dirty_data_beyond_refuses() {
    let place = Place::new("smaller", "wb");
    let backing = place.path("db.img");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    set_len(&backing, 32 << 20);
    let daemon = place.serve(&[]);
    let message = "the backing device has shrunk from 67108864 to 33554432 bytes";
    let log = place.log();
    let line = log.lines().find(|line| line.contains(message));
    assert!(line.is_some_and(|line| line.contains("WARN")), "{log}");
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let daemon = place.serve(&[]);
    assert!(
        !place.log().contains("has shrunk"),
        "said once: {}",
        place.log()
    );
    write_blocks(&mut place.connect(), 4096..4100);
    daemon.kill();
    set_len(&backing, 8 << 20);
    let refused = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(refused.contains("dirty data lies beyond"), "{refused}");
    let last = last_error(&refused);
    assert_eq!(last.matches("forebay.toml:").count(), 1, "{refused}");
    set_len(&backing, 32 << 20);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 4096..4100);
    daemon.terminate();
}

#[test]
fn format_names_the_cause_of_a_refusal() {
    let place = Place::new("format", "wb");
    let format = |arguments: &[&str]| place.refused(&[&["format"], arguments].concat());
    let (cache, new) = (place.path("cache"), place.path("new"));
    let (cache, new) = (text(&cache), text(&new));
    let said = format(&["--force", "--cache", cache, "--create", "32M"]);
    assert!(said.contains("67108864 bytes, not 33554432"), "{said}");
    assert!(said.contains("leave --create out"), "{said}");
    place.ok(&["format", "--force", "--cache", cache, "--create", "64M"]);
    // Too small. The size in the message works, and nothing is left of the failed attempt.
    let said = format(&["--cache", new, "--create", "64K"]);
    assert!(!Path::new(new).exists(), "it was made for this alone");
    let least = said.split_once("at least ").expect("a size").1;
    let least = least.split(' ').next().expect("a number").to_owned();
    place.ok(&["format", "--cache", new, "--create", &least]);
    std::fs::rename(new, cache).expect("moved");
    let daemon = place.serve(&["--adopt", "db"]);
    write_blocks(&mut place.connect(), 0..64);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
    // An existing file stays, whatever happens.
    std::fs::write(new, []).expect("made");
    format(&["--cache", new, "--create", "64K"]);
    assert!(Path::new(new).exists());
    let said = format(&["--cache", new, "--create", "64"]);
    assert!(
        said.contains("64 bytes: a number without a unit means bytes"),
        "{said}"
    );
    let said = format(&["--cache", text(&place.path("no/where")), "--create", "64M"]);
    assert!(said.contains("make that first"), "{said}");
    let said = format(&["--cache", "/dev/null", "--create", "64M"]);
    assert!(said.contains("is no file"), "{said}");
}

#[test]
fn one_device_is_not_formatted_in_two_roles() {
    let place = Place::new("roles", "wb");
    let cache = place.path("cache");
    std::fs::hard_link(&cache, place.path("hard")).expect("linked");
    std::os::unix::fs::symlink("cache", place.path("soft")).expect("linked");
    for name in ["cache", "hard", "soft", "./cache"] {
        let other = place.path(name);
        let roles = [
            "format",
            "--force",
            "--cache",
            text(&cache),
            "--metadata",
            text(&other),
        ];
        let said = place.refused(&roles);
        assert!(said.contains("are one and the same"), "{name}: {said}");
        assert!(
            said.contains(text(&cache)) && said.contains(text(&other)),
            "{said}"
        );
    }
    let new = place.path("new");
    let arguments = [
        "format",
        "--create",
        "64M",
        "--cache",
        text(&new),
        "--metadata",
        text(&new),
    ];
    assert!(place.refused(&arguments).contains("are one and the same"));
    assert!(!new.exists());
    place.ok(&["check", "--cache", text(&cache)]);
}

/// A loop device; detached when dropped.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    pub(crate) fn new(file: &Path, arguments: &[&str]) -> Option<Self> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).args(arguments).arg(file);
        let output = losetup.output().ok()?;
        if !output.status.success() {
            eprintln!(
                "SKIPPED: no loop device: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Self(String::from_utf8_lossy(&output.stdout).trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_device_that_takes_no_writes_is_refused_in_every_mode() {
    let place = Place::new("readonly", "wb");
    let Some(device) = LoopDevice::new(&place.path("db.img"), &["--read-only"]) else {
        return;
    };
    let path = text(&device.0);
    for mode in ["wb", "wt", "wa", "wi", "wo", "pt"] {
        place.configure(mode, "");
        place.edit_config(&[("path = \"db.img\"", &format!("path = \"{path}\""))]);
        let remedy = format!("`blockdev --setrw {path}`");
        both_refuse(&place, &["forebay.toml:8: ", "is read-only", &remedy]);
    }
    let said = place.refused(&["format", "--force", "--cache", path]);
    assert!(
        said.contains("is read-only") && said.contains("--setrw"),
        "{said}"
    );
}

#[test]
fn a_loop_device_and_the_file_under_it_are_one() {
    let place = Place::new("loop", "wb");
    let Some(device) = LoopDevice::new(&place.path("db.img"), &[]) else {
        return;
    };
    let path = text(&device.0);
    let under = format!("is the file under {path}");
    both_refuse(&place, &["forebay.toml:8: ", &under, "losetup -d"]);
    // Both at a time, as two devices.
    place.edit_config(&[("path = \"cache\"", &format!("path = \"{path}\""))]);
    both_refuse(&place, &[&under]);
    let file = place.path("db.img");
    let said = place.refused(&[
        "format",
        "--force",
        "--discard-dirty",
        "--cache",
        text(&file),
    ]);
    assert!(said.contains(&under), "{said}");
}

#[test]
fn a_control_socket_without_permission_differs_from_a_missing_one() {
    use std::os::unix::process::CommandExt as _;
    let place = Place::new("nobody", "wb");
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can ask as somebody else");
        return;
    }
    // Other users may have no access to the program's own place.
    let program = place.path("forebay");
    std::fs::copy(PROGRAM, &program).expect("copied");
    let daemon = place.serve(&[]);
    let mut status = Command::new(&program);
    status.arg("--control").arg(place.path("control.sock"));
    let status = status.arg("status").uid(65534).gid(65534).output();
    let said = String::from_utf8_lossy(&status.expect("it runs").stderr).into_owned();
    assert!(
        said.contains("you may not open the control socket"),
        "{said}"
    );
    assert!(
        said.contains("sudo") && !said.contains("no daemon"),
        "{said}"
    );
    daemon.terminate();
}

#[test]
fn links_to_journals_that_are_gone_do_not_stay() {
    let place = Place::new("links", "wb");
    let daemon = place.serve(&[]);
    let uuid = |place: &Place| {
        let status = place.status();
        status["cache"]["uuid"].as_str().expect("text").to_owned()
    };
    let link = PathBuf::from(format!("/dev/shm/forebay-{}.journal", uuid(&place)));
    daemon.kill();
    assert!(link.is_symlink());
    // A cache that is not served any more.
    std::fs::remove_file(place.path("journal")).expect("there");
    let other = Place::new("links-other", "wb");
    let daemon = other.serve(&[]);
    assert!(!link.is_symlink(), "it led nowhere");
    let own = PathBuf::from(format!("/dev/shm/forebay-{}.journal", uuid(&other)));
    assert!(own.is_symlink() && own.exists());
    daemon.terminate();
}
