use std::fs::File;
use std::os::fd::AsFd as _;

use super::*;
use crate::file::place::tests::folder;
use crate::testing::Scratch;

fn of(path: &Path) -> Identity {
    let file = File::open(path).expect("there");
    identity(file.as_fd(), &file.metadata().expect("open"), path, false)
}

/// The identity of a block device whose folder in a sysfs of the test's own has these files.
fn in_sysfs(root: &Path, name: &str, files: &[(&str, &str)]) -> Identity {
    let folder = folder(root, name, files);
    block_device(&Sysfs::at(root), &folder).expect("something is known")
}

#[test]
fn a_partition_is_a_part_of_its_disk_whatever_its_number() {
    let scratch = Scratch::new();
    let root = scratch.path("sys");
    for (disk, name) in [
        ("sda", ("device/wwid", "naa.5")),
        ("nvme0n1", ("wwid", "eui.7")),
        ("vda", ("serial", "x")),
        ("md0", ("md/uuid", "1:2")),
    ] {
        let whole = in_sysfs(&root, disk, &[name]);
        let part = |called: &str, number, start| {
            let files = [("partition", number), ("start", start)];
            in_sysfs(&root, &format!("{disk}/{called}"), &files)
        };
        let first = part("p1", "1", "2048");
        let renumbered = part("p5", "5", "2048");
        let moved = part("p1", "1", "4096");
        assert_eq!(whole.basis, Basis::Name);
        assert_eq!(
            (whole.start, first.start, moved.start),
            (Some(0), Some(1 << 20), Some(2 << 20))
        );
        assert!(first.is_same_as(renumbered), "{disk}: another number");
        assert!(first.differs_from(moved), "{disk}: another start");
        assert!(first.differs_from(whole));
        assert!(first.overlaps(1 << 20, whole, 64 << 20), "of the disk");
        assert!(!first.overlaps(1 << 20, moved, 1 << 20), "neighbours");
        // Earlier versions recorded no start.
        let recorded = |text: &str| Identity::of(hash(text));
        let former = format!("{} {} partition 1", name.0, name.1);
        assert!(recorded(&former).is_same_as(part("p1", "1", "2048")));
        assert!(recorded(&former).differs_from(part("p5", "5", "2048")));
        assert!(recorded(&format!("{} {}", name.0, name.1)).is_same_as(whole));
    }
}

#[test]
fn a_loop_device_is_a_part_of_its_backing_file() {
    let scratch = Scratch::new();
    let root = scratch.path("sys");
    let image = scratch.path("image");
    std::fs::write(&image, [0; 4096]).expect("a file");
    let file = of(&image);
    if !file.is_known() {
        eprintln!("SKIPPED: the file system has no number");
        return;
    }
    let path = image.to_str().expect("text");
    let on = |name: &str, offset| {
        let files = [("loop/backing_file", path), ("loop/offset", offset)];
        in_sysfs(&root, name, &files)
    };
    let (whole, second) = (on("loop0", "0"), on("loop1", "16777216"));
    assert!(whole.is_same_as(file), "the file from its first byte");
    assert!(whole.differs_from(second) && second.start == Some(16 << 20));
    assert!(!whole.overlaps(16 << 20, second, 16 << 20));
    assert!(whole.overlaps(16 << 20 | 512, second, 16 << 20));
    // Earlier versions recorded no start, and the loop device by another name.
    let (name, birth) = regular_file(
        File::open(&image).expect("there").as_raw_fd(),
        &std::fs::metadata(&image).expect("there"),
    )
    .expect("numbered");
    let recorded = Identity {
        birth,
        ..Identity::of(hash(&format!("loop of {name}")))
    };
    assert!(recorded.is_same_as(whole) && recorded.is_same_as(second));
    let parts = [("partition", "3"), ("start", "8")];
    let inner = in_sysfs(&root, "loop1/loop1p3", &parts);
    assert_eq!(inner.start, Some((16 << 20) + 8 * 512));
}

#[test]
fn a_disk_without_a_name_is_known_by_its_place() {
    let scratch = Scratch::new();
    let root = scratch.path("sys");
    let (one, other) = (
        in_sysfs(&root, "pci0/virtio2/block/vdc", &[("diskseq", "8")]),
        in_sysfs(&root, "pci0/virtio3/block/vdd", &[("diskseq", "9")]),
    );
    assert_eq!(one.basis, Basis::Place);
    assert!(one.differs_from(other), "another place");
    let same = in_sysfs(&root, "pci0/virtio2/block/vdc", &[("diskseq", "8")]);
    assert!(one.is_same_as(same));
    let attached_since = in_sysfs(&root, "pci0/virtio2/block/vdc", &[("diskseq", "11")]);
    assert!(
        one.differs_from(attached_since),
        "another disk of this boot"
    );
    // An empty serial number is none; the driver counts.
    let disk = "pci0/virtio1/block/vdb";
    let first = in_sysfs(&root, disk, &[("serial", ""), ("device/x", "")]);
    let drivers = folder(&root, "drivers/virtio_blk", &[("x", "")]);
    let device = root.join("devices").join(disk).join("device");
    std::os::unix::fs::symlink(drivers, device.join("driver")).expect("linked");
    let second = in_sysfs(&root, disk, &[]);
    assert!(first.basis == Basis::Place && first.differs_from(second));
    let part = in_sysfs(
        &root,
        &format!("{disk}/vdb1"),
        &[("partition", "1"), ("start", "8")],
    );
    assert_eq!((part.basis, part.start), (Basis::Place, Some(4096)));
    assert!(part.differs_from(second));
}

#[test]
fn a_number_of_the_kernel_is_no_place() {
    let scratch = Scratch::new();
    let root = scratch.path("sys");
    let found = |name: &str, files: &[(&str, &str)]| {
        let folder = folder(&root, name, files);
        block_device(&Sysfs::at(&root), &folder)
    };
    for name in [
        "virtual/block/nbd0",
        "virtual/block/zram0",
        "virtual/block/md0",
        "virtual/block/dm-7",
        "virtual/block/loop3",
        "virtual/ublk-char/ublkc0/block/ublkb0",
    ] {
        let numbered = found(name, &[("diskseq", "8"), ("size", "64"), ("pid", "12")]);
        assert_eq!(numbered, None, "{name}");
        let part = found(&format!("{name}/p1"), &[("partition", "1"), ("start", "8")]);
        assert_eq!(part, None, "a part of {name}");
        // The user may vouch for the path.
        let vouched = known_by_path(numbered, Path::new("/dev/x"), true);
        assert!(vouched.is_known() && vouched.basis == Basis::Path);
        assert!(!known_by_path(numbered, Path::new("/dev/x"), false).is_known());
    }
    // A device with a UUID is identified by that, whatever its number is.
    for (one, other, uuid) in [
        ("virtual/block/dm-0", "virtual/block/dm-1", "dm/uuid"),
        ("virtual/block/md1", "virtual/block/md127", "md/uuid"),
    ] {
        let first = found(one, &[(uuid, "a-b"), ("dm/name", "x")]).expect("named");
        let moved = found(other, &[(uuid, "a-b"), ("dm/name", "y")]).expect("named");
        let another = found(one, &[(uuid, "c-d"), ("dm/name", "x")]).expect("named");
        assert!(first.is_same_as(moved) && first.basis == Basis::Name);
        assert!(first.differs_from(another));
    }
}

#[test]
fn virtual_disks_that_swap_their_numbers_are_known_by_their_names() {
    let scratch = Scratch::new();
    let roots = [scratch.path("before"), scratch.path("after")];
    let found = |boot: usize, name: &str, files: &[(&str, &str)]| {
        in_sysfs(&roots[boot], &format!("virtual/block/{name}"), files)
    };
    // An empty UUID is none.
    let dm = |boot, number, name| found(boot, number, &[("dm/uuid", ""), ("dm/name", name)]);
    let (fast, slow) = (dm(0, "dm-0", "fast"), dm(0, "dm-1", "slow"));
    let (now_fast, now_slow) = (dm(1, "dm-1", "fast"), dm(1, "dm-0", "slow"));
    assert!(fast.is_same_as(now_fast) && slow.is_same_as(now_slow));
    assert!(fast.differs_from(now_slow) && slow.differs_from(now_fast));
    // Another medium may get the name, so that its size counts, and which one of this boot it is.
    assert_eq!(fast.basis, Basis::Place);
    assert!(Identity::of(fast.medium).is_replaced_by(512, now_fast, 1024));
    let made = |count| found(1, "dm-3", &[("dm/name", "x"), ("diskseq", count)]);
    assert!(made("8").is_same_as(made("8")) && made("8").differs_from(made("9")));
    let nbd = |boot, number, export, pid| found(boot, number, &[("backend", export), ("pid", pid)]);
    let one = nbd(0, "nbd0", "server/one", "7");
    assert!(
        one.is_same_as(nbd(1, "nbd1", "server/one", "9")),
        "reconnected"
    );
    assert!(one.differs_from(nbd(1, "nbd0", "server/two", "7")));
    assert_eq!(one.basis, Basis::Place);
}

#[test]
fn an_image_of_a_ceph_cluster_has_a_name() {
    let scratch = Scratch::new();
    let root = scratch.path("sys");
    let image = |number, pool, id| {
        let files = [
            ("device/cluster_fsid", "f"),
            ("device/pool_id", pool),
            ("device/image_id", id),
            ("device/snap_id", "-"),
        ];
        in_sysfs(&root, &format!("rbd{number}"), &files)
    };
    let first = image(0, "2", "1a");
    assert_eq!(first.basis, Basis::Name);
    assert!(first.is_same_as(image(1, "2", "1a")), "mapped elsewhere");
    assert!(first.differs_from(image(0, "3", "1a")) && first.differs_from(image(0, "2", "1b")));
}

#[test]
fn a_path_identifies_devices_that_the_user_vouches_for() {
    let place = Identity {
        basis: Basis::Place,
        instance: 1 << 32 | 5,
        ..Identity::of(7)
    };
    let (path, elsewhere) = (Path::new("/dev/nbd0"), Path::new("/dev/nbd1"));
    let plain = known_by_path(Some(place), path, false);
    let vouched = known_by_path(Some(place), path, true);
    assert_eq!(vouched.basis, Basis::Path);
    let as_recorded = |identity: Identity| Identity {
        alias: 0,
        ..identity
    };
    // The setting may change.
    assert!(as_recorded(plain).is_same_as(vouched) && as_recorded(vouched).is_same_as(plain));
    let other_place = Identity { medium: 8, ..place };
    let moved = known_by_path(Some(other_place), path, true);
    assert!(as_recorded(vouched).is_same_as(moved), "in another place");
    let renamed = known_by_path(Some(other_place), elsewhere, true);
    assert!(as_recorded(vouched).differs_from(renamed));
    let nothing = known_by_path(None, path, true);
    assert!(nothing.is_same_as(vouched) && nothing.basis == Basis::Path);
    assert!(!known_by_path(None, path, false).is_known());
    let named = Identity::of(9);
    assert_eq!(known_by_path(Some(named), path, true), named, "has a name");
}

#[test]
fn it_stays_with_the_file_and_not_with_its_name() {
    let scratch = Scratch::new();
    let (one, other, moved) = (
        scratch.path("one"),
        scratch.path("other"),
        scratch.path("moved"),
    );
    std::fs::write(&one, "1").expect("a file");
    std::fs::write(&other, "1").expect("a file");
    let first = of(&one);
    if !first.is_known() {
        eprintln!(
            "SKIPPED: the file system of {} has no number",
            one.display()
        );
        return;
    }
    assert_ne!(first, of(&other));
    std::fs::rename(&one, &moved).expect("same file system");
    assert_eq!(first, of(&moved));
}

#[test]
fn a_file_that_is_made_anew_with_the_number_of_the_old_one_is_another() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    std::fs::write(&path, "1").expect("a file");
    let first = of(&path);
    if first.birth == 0 {
        eprintln!(
            "SKIPPED: the file system of {} does not say when",
            path.display()
        );
        return;
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&path, "2").expect("the same file");
    assert_eq!(first, of(&path), "written to, and the same");
    std::fs::remove_file(&path).expect("there");
    std::fs::write(&path, "1").expect("a file");
    assert!(first.differs_from(of(&path)));
}
