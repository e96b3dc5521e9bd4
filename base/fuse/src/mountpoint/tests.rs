use super::*;

/// Returns whether this process can mount FUSE file systems, and prints a reason if not.
fn can_mount() -> bool {
    let reason = if owner().0 != 0 {
        "it needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else {
        return true;
    };
    eprintln!("SKIPPED: a FUSE test: {reason}");
    false
}

/// A directory, removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("forebay-mount-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a fresh directory");
        Self(dir.canonicalize().expect("just made"))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A failed test has left it mounted.
        let _ = unmount(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TABLE: &[u8] = b"22 1 0:20 / /proc rw shared:5 - proc proc rw\n\
    30 1 0:40 / /run/a\\040b rw,nosuid - ext4 /dev/sda rw\n\
    31 1 0:41 / /run/a\\040b rw,nosuid master:1 shared:2 - fuse.forebay forebay:db rw\n\
    32 1 0:42 / /run/c rw - fuse.sshfs host: rw\n\
    broken line\n";

#[test]
fn the_mount_table_is_read_from_the_top() {
    let found = |path: &str| topmost(TABLE, Path::new(path)).map(|it| (it.device, it.kind));
    let line = |device: &str, kind: &str| Some((device.to_owned(), kind.to_owned()));
    assert_eq!(found("/run/a b"), line("0:41", FS_TYPE));
    assert_eq!(found("/run/c"), line("0:42", "fuse.sshfs"));
    assert_eq!(found("/run"), None);
    assert_eq!(unescape(b"a\\134b\\04"), Path::new("a\\b\\04"));
}

#[test]
fn a_file_is_no_mountpoint_and_a_missing_directory_is_made() {
    let error = prepare(Path::new("/proc/self/mountinfo")).expect_err("a file");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.report().contains("/proc/self/mountinfo"));
    assert_eq!(
        check(Path::new("/proc/self/mountinfo"))
            .expect_err("a file")
            .report(),
        error.report()
    );
    let dir = TempDir::new("made");
    let wanted = dir.0.join("a/b");
    check(&wanted).expect("nothing in the way");
    assert!(!dir.0.join("a").exists(), "and nothing made");
    drop(prepare(&wanted).expect("made"));
    assert!(!dir.0.join("a").exists(), "a refused mount leaves nothing");
    let (made, directories) = prepare(&wanted).expect("made");
    directories.keep();
    assert_eq!(made, wanted);
    assert!(wanted.is_dir());
    check(&wanted).expect("empty");
    std::fs::write(wanted.join("notes"), "mine").expect("written");
    for refused in [check(&wanted), prepare(&wanted).map(drop)] {
        let report = refused.expect_err("it would be hidden").report();
        assert!(report.contains("name an empty directory"), "{report}");
    }
}

/// Kill -9 leaves a mount whose other end is closed.
#[test]
fn a_dead_mount_is_cleared_only_if_it_is_ours() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("dead mounts");
    let dead = |fs_type: &str| {
        drop(mount_as(fs_type, &dir.0, "forebay:db", Access::default()).expect("mounted"));
        let error = std::fs::metadata(&dir.0).expect_err("dead");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    };
    dead(FS_TYPE);
    check(&dir.0).expect("it would be cleared");
    dead(FS_TYPE);
    assert_eq!(prepare(&dir.0).expect("both cleared").0, dir.0);
    assert_eq!(mounted_type(&dir.0).expect("a table"), None);
    dead("fuse.other");
    let error = prepare(&dir.0).expect_err("not ours");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.report().contains("another file system"),
        "{}",
        error.report()
    );
    assert!(unmount(&dir.0).expect("unmounted"));
    assert!(unmount(&dir.0).expect("nothing to do"));
}

#[test]
fn a_mount_of_another_program_on_the_same_path_stays() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("foreign mounts");
    let path = &dir.0;
    let mount = || {
        let connection = mount_as(FS_TYPE, path, "forebay:db", Access::default());
        OwnMount::new(path, connection.expect("mounted")).expect("it is there")
    };
    let (first, second) = {
        let first = mount();
        umount(path, 0).expect("by hand");
        (first, mount())
    };
    assert!(!first.is_mounted() && second.is_mounted());
    assert!(first.unmount(path).expect("nothing to do"));
    assert!(second.is_mounted(), "the other one's");
    // A mount over it.
    let third = mount();
    assert!(!second.unmount(path).expect("nothing is done"));
    assert!(third.is_mounted());
    assert!(third.unmount(path).expect("unmounted") && !third.is_mounted());
    assert!(second.unmount(path).expect("unmounted") && !second.is_mounted());
    assert_eq!(mounted_type(path).expect("a table"), None);
}
