//! A backing device that is another one than before, another part of it, or another owner's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::checked::{LoopDevice, both_refuse};
use super::support::nbd::Nbd;
use super::support::{Place, text};
use super::{block, check_blocks, write_blocks};

const MIB: u64 = 1 << 20;

/// Sets the path of the volume's device in the configuration, and adds lines to its table.
fn let_name(place: &Place, path: &Path, more: &str) {
    place.configure("wb", "");
    let named = format!("path = \"{}\"{more}", text(path));
    place.edit_config(&[("path = \"db.img\"", &named)]);
}

fn is_zero(path: &Path, bytes: std::ops::Range<u64>) -> bool {
    let content = std::fs::read(path).expect("there");
    content[bytes.start as usize..bytes.end as usize]
        .iter()
        .all(|&byte| byte == 0)
}

/// Leaves dirty data in the cache for the device at `path`, without a daemon.
fn leave_dirty(place: &Place, path: &Path, more: &str) {
    let_name(place, path, more);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
}

/// Waits until the kernel has released an image. A loop device ends with the last process that has
/// it open.
fn wait_until_detached(image: &Path) {
    let begin = Instant::now();
    loop {
        let listed = Command::new("losetup").arg("-j").arg(image).output();
        if listed.expect("losetup runs").stdout.is_empty() {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn dirty_data_of_one_part_of_an_image_is_never_written_to_another() {
    let place = Place::new("parts", "wb");
    let image = place.path("db.img");
    let part = |at: &str| LoopDevice::new(&image, &["--offset", at, "--sizelimit", "16M"]);
    let Some(first) = part("0") else { return };
    leave_dirty(&place, &first.0, "");
    // Another offset, by a loop device of the file, and by one over another loop device.
    let second = part("16M").expect("as the first");
    let_name(&place, &second.0, "");
    both_refuse(
        &place,
        &[
            "another part of the same medium",
            "begins at 16777216 now",
            "--adopt db",
        ],
    );
    let over = LoopDevice::new(&second.0, &["--offset", "4M"]).expect("as the first");
    let_name(&place, &over.0, "");
    both_refuse(&place, &["begins at 20971520 now"]);
    // A shorter part with the same start does not contain the dirty data.
    let short = LoopDevice::new(&image, &["--sizelimit", "16K"]).expect("as the first");
    let_name(&place, &short.0, "");
    both_refuse(&place, &["shrank"]);
    assert!(is_zero(&image, 0..64 * MIB), "nothing was written");
    // A longer part with the same start has grown. The file itself has this start as well.
    drop((over, short, second));
    let long = LoopDevice::new(&image, &["--sizelimit", "32M"]).expect("as the first");
    let_name(&place, &long.0, "");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    drop((long, first));
    wait_until_detached(&image);
    let_name(&place, &image, "");
    let daemon = place.serve(&[]);
    place.ok(&["flush"]);
    daemon.terminate();
    assert!(!is_zero(&image, 0..4096) && is_zero(&image, 16 * MIB..64 * MIB));
}

#[test]
fn disjoint_parts_are_two_devices_and_overlapping_ones_are_none() {
    let place = Place::new("disjoint", "wb");
    let image = place.path("db.img");
    let part = |arguments: &[&str]| LoopDevice::new(&image, arguments);
    let Some(first) = part(&["--sizelimit", "16M"]) else {
        return;
    };
    let second = part(&["--offset", "16M"]).expect("as the first");
    let middle = part(&["--offset", "12M", "--sizelimit", "8M"]).expect("as the first");
    let whole = part(&[]).expect("as the first");
    let two = |one: &Path, other: &Path| {
        let_name(&place, one, "");
        let config = place.read_config();
        let more = format!(
            "[[device]]\nname = \"too\"\nkind = \"file\"\npath = \"{}\"\n[[volume]]\n\
             name = \"logs\"\n\
             backing = \"too\"\nmode = \"wb\"\n[[export]]\nvolume = \"logs\"\n\
             nbd = \"unix:logs.sock\"\n",
            text(other)
        );
        place.write_config(&(config + &more));
    };
    for (one, other) in [
        (&first, &middle),
        (&second, &middle),
        (&second, &whole),
        (&whole, &first),
    ] {
        two(&one.0, &other.0);
        both_refuse(
            &place,
            &["\"disk\"", "\"too\"", "overlap, as parts of one medium"],
        );
    }
    two(&first.0, &second.0);
    let config = place.path("forebay.toml");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    daemon.terminate();
    assert!(!is_zero(&image, 0..4096) && is_zero(&image, 16 * MIB..64 * MIB));
}

/// Three parts of one image, in one configuration.
#[test]
fn of_several_parts_each_overlap_is_named() {
    let place = Place::new("several-parts", "wb");
    let image = place.path("db.img");
    let part = |at: &str, len: &str| LoopDevice::new(&image, &["--offset", at, "--sizelimit", len]);
    let Some(first) = part("0", "16M") else {
        return;
    };
    let second = part("16M", "16M").expect("as the first");
    let third = part("32M", "16M").expect("as the first");
    let middle = part("12M", "8M").expect("as the first");
    let three = |paths: [&Path; 3]| {
        let_name(&place, paths[0], "");
        let mut config = std::fs::read_to_string(place.path("forebay.toml")).expect("there");
        for (name, path) in ["b", "c"].iter().zip(&paths[1..]) {
            config.push_str(&format!(
                "[[device]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{}\"\n\
                 [[volume]]\nname = \"{name}\"\nbacking = \"{name}\"\nmode = \"wb\"\n\
                 [[export]]\nvolume = \"{name}\"\nnbd = \"unix:nbd.sock\"\n",
                text(path)
            ));
        }
        std::fs::write(place.path("forebay.toml"), config).expect("written");
    };
    // The part between overlaps both others, wherever the configuration names it.
    for (paths, pairs) in [
        ([&first, &second, &middle], [("disk", "c"), ("b", "c")]),
        ([&first, &middle, &second], [("disk", "b"), ("b", "c")]),
        ([&middle, &second, &first], [("disk", "b"), ("disk", "c")]),
    ] {
        three(paths.map(|part| &*part.0));
        let named = pairs.map(|(one, other)| {
            format!("devices {one:?} and {other:?} overlap, as parts of one medium")
        });
        both_refuse(&place, &[&named[0], &named[1]]);
    }
    assert!(is_zero(&image, 0..64 * MIB), "nothing was written");
    // Disjoint parts are served together, and each has its own data.
    three([&first.0, &second.0, &third.0]);
    let daemon = place.serve(&[]);
    for (name, first) in [("db", 0), ("b", 100), ("c", 200)] {
        let mut nbd = Nbd::connect(&place.path("nbd.sock"), name).expect("an export");
        for number in 0..8 {
            let written = nbd.write(number * 4096, &block(first + number));
            assert_eq!(written.expect("an answer"), 0);
        }
    }
    place.ok(&["flush"]);
    daemon.terminate();
    let content = std::fs::read(&image).expect("there");
    for (at, first) in [(0, 0), (16 * MIB, 100), (32 * MIB, 200)] {
        for number in 0..8 {
            let at = (at + number * 4096) as usize;
            assert!(content[at..at + 4096] == block(first + number), "{at}");
        }
    }
}

/// Adds partition `number` of 16 MiB from this sector to the kernel's view of a disk. Returns its
/// device; `None` where the kernel refuses.
fn partition(disk: &Path, number: u32, sector: u64) -> Option<PathBuf> {
    let mut command = Command::new("addpart");
    let numbers = [number.to_string(), sector.to_string(), "32768".into()];
    let made = command.arg(disk).args(numbers).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no partition can be made of {}", disk.display());
        return None;
    }
    Some(format!("{}p{number}", text(disk)).into())
}

fn remove_partition(disk: &Path, number: u32) {
    let removed = Command::new("delpart")
        .arg(disk)
        .arg(number.to_string())
        .status();
    assert!(removed.expect("it is where addpart is").success());
}

#[test]
fn a_moved_partition_is_another_device_and_a_renumbered_one_is_not() {
    let place = Place::new("moved", "wb");
    let image = place.path("db.img");
    let Some(disk) = LoopDevice::new(&image, &[]) else {
        return;
    };
    let Some(part) = partition(&disk.0, 1, 2048) else {
        return;
    };
    let_name(&place, &part, "");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    remove_partition(&disk.0, 1);
    let moved = partition(&disk.0, 1, 40960).expect("as before");
    let_name(&place, &moved, "");
    both_refuse(&place, &["begins at 20971520 now"]);
    let_name(&place, &disk.0, "");
    both_refuse(&place, &["it began at byte 1048576, and begins at 0 now"]);
    assert!(is_zero(&image, 0..64 * MIB), "nothing was written");
    remove_partition(&disk.0, 1);
    let renumbered = partition(&disk.0, 5, 2048).expect("as before");
    let_name(&place, &renumbered, "");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    daemon.terminate();
    remove_partition(&disk.0, 5);
    assert!(!is_zero(&image, MIB..MIB + 4096) && is_zero(&image, 0..MIB));
}

/// A compressed memory disk of the kernel, without a serial number; removed when dropped.
struct Zram(PathBuf);

impl Zram {
    fn new() -> Option<Self> {
        let control = Path::new("/sys/class/zram-control/hot_add");
        let Ok(number) = std::fs::read_to_string(control) else {
            eprintln!("SKIPPED: this kernel makes no zram disk");
            return None;
        };
        let disk = Self(format!("/dev/zram{}", number.trim()).into());
        disk.set("disksize", "64M");
        Some(disk)
    }

    fn number(&self) -> &str {
        text(&self.0).trim_start_matches("/dev/zram")
    }

    fn set(&self, attribute: &str, value: &str) {
        let path = format!("/sys/block/zram{}/{attribute}", self.number());
        std::fs::write(path, value).expect("its owner may");
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let path = format!("/sys/block/zram{}/reset", self.number());
        let _ = std::fs::write(path, "1");
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", self.number());
    }
}

#[test]
fn a_disk_without_a_name_is_warned_of_and_known_by_its_place() {
    let place = Place::new("unnamed", "wb");
    let (Some(one), Some(other)) = (Zram::new(), Zram::new()) else {
        return;
    };
    let config = place.path("forebay.toml");
    let warned = |place: &Place| {
        let checked = place.run(&["check", text(&config)]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(
            said.contains("warning: ") && said.contains("no serial number"),
            "{said}"
        );
    };
    // Another disk may have its number after the next boot.
    let_name(&place, &one.0, "");
    both_refuse(&place, &["has no identity", "identity = \"path\""]);
    let vouched = "\nidentity = \"path\"";
    leave_dirty(&place, &one.0, vouched);
    assert!(place.log().contains("WARN") && place.log().contains("no serial number"));
    warned(&place);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    let_name(&place, &other.0, vouched);
    both_refuse(&place, &["another backing device", "--adopt db"]);
    let_name(&place, &one.0, "");
    both_refuse(&place, &["has no identity", "identity = \"path\""]);
    let_name(&place, &one.0, vouched);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    daemon.terminate();
    // The contents identify the device if all copies are clean.
    one.set("reset", "1");
    one.set("disksize", "64M");
    let said = place.refused(&["serve", text(&config)]);
    assert!(said.contains("differs at byte "), "{said}");
}

#[test]
fn a_restored_image_is_noticed_by_a_sample_of_clean_content() {
    let place = Place::new("restored", "wb");
    let (config, image) = (place.path("forebay.toml"), place.path("db.img"));
    let older = place.path("older");
    std::fs::copy(&image, &older).expect("copied");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    write_blocks(&mut place.connect(), 20..24);
    daemon.kill();
    let newest = std::fs::read(&image).expect("there");
    // Restored in place, so that file and inode stay.
    std::fs::write(&image, std::fs::read(&older).expect("there")).expect("restored");
    for _ in 0..2 {
        let said = place.refused(&["serve", text(&config)]);
        for part in [
            "volume \"db\"",
            "disk differs at byte",
            "--adopt db",
            "--without-cache db",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(is_zero(&image, 0..64 * MIB), "nothing was written");
    }
    // The restored device is served, and nothing is lost.
    std::fs::write(&image, newest).expect("put back");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    check_blocks(&mut place.connect(), 20..24);
    daemon.kill();
    // After --adopt the dirty data stays, and the older image provides the rest.
    std::fs::write(&image, std::fs::read(&older).expect("there")).expect("restored");
    place.refused(&["serve", text(&config)]);
    let daemon = place.serve(&["--adopt", "db"]);
    check_blocks(&mut place.connect(), 20..24);
    let data = place.connect().read(0, 4096).expect("an answer");
    assert_eq!(data, Ok(vec![0; 4096]));
    assert_ne!(data, Ok(block(0)));
    daemon.terminate();
}

/// A `qemu-nbd` that serves an image; ended when dropped.
struct QemuNbd(Child);

impl QemuNbd {
    fn new(place: &Place, image: &Path) -> Option<Self> {
        Self::with(place, image, &[])
    }

    fn with(place: &Place, image: &Path, options: &[&str]) -> Option<Self> {
        let socket = place.path("qemu.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--format", "raw", "--socket", text(&socket)]);
        command.args(options);
        let child = command.arg(image).stderr(Stdio::piped()).spawn();
        let Ok(child) = child else {
            eprintln!("SKIPPED: qemu-nbd is not installed");
            return None;
        };
        let begin = Instant::now();
        let mut found = Self(child);
        while !socket.exists() && found.0.try_wait().expect("a child").is_none() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "it does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(found)
    }

    /// Its output if it ends at once.
    fn refusal(mut self) -> String {
        use std::io::Read as _;
        let status = self.0.wait().expect("a child");
        assert!(!status.success(), "it had the image");
        let mut said = String::new();
        let read = self
            .0
            .stderr
            .take()
            .map(|mut pipe| pipe.read_to_string(&mut said));
        read.expect("piped").expect("text");
        said
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_that_qemu_has_open_is_refused_and_the_other_way_round() {
    let place = Place::new("qemu", "wb");
    let (config, image) = (place.path("forebay.toml"), place.path("db.img"));
    let cache = place.path("cache");
    for path in [&image, &cache] {
        for options in [&[][..], &["--read-only"]] {
            let Some(qemu) = QemuNbd::with(&place, path, options) else {
                return;
            };
            for command in ["check", "serve"] {
                let said = place.refused(&[command, text(&config)]);
                assert!(
                    said.contains("QEMU or qemu-nbd") && said.contains("forebay.toml:"),
                    "{command} {options:?}: {said}"
                );
            }
            drop(qemu);
            let _ = std::fs::remove_file(place.path("qemu.sock"));
        }
    }
    let daemon = place.serve(&[]);
    for path in [&image, &cache] {
        let qemu = QemuNbd::new(&place, path).expect("as before");
        let said = qemu.refusal();
        assert!(said.contains("lock"), "{said}");
    }
    daemon.terminate();
}
