//! Several users on mounts for all users.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink,
};
use std::path::Path;
use std::time::SystemTime;

use super::cluster::{Cluster, MAPPED, can_mount};
use super::{number, open, text};

pub(super) const ANN: u32 = 4001;
const BEN: u32 = 4002;
/// Group of neither, to which Ben belongs too.
pub(super) const TEAM: u32 = 4100;

/// Runs `body` on a thread of this user, of the group with the same number, and of `groups`.
pub(super) fn by<T: Send>(user: u32, groups: &[u32], body: impl FnOnce() -> T + Send) -> T {
    let as_user = || {
        let same = |id: u32| [id; 3];
        let ([a, b, c], count) = (same(user), groups.len());
        // Unlike those of the C library, these calls are for this thread only.
        // SAFETY: system calls with integers, and a list that lives through its call.
        let outcomes = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, count, groups.as_ptr()),
                libc::syscall(libc::SYS_setresgid, a, b, c),
                libc::syscall(libc::SYS_setresuid, a, b, c),
            ]
        };
        assert_eq!(outcomes, [0; 3], "{}", io::Error::last_os_error());
        body()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join().expect("no panic"))
}

pub(super) fn owner(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path);
    let found = found.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

pub(super) fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
}

/// A cluster with mounts for all users, whose top is writable for all.
pub(super) fn cluster_for_all(name: &str) -> Cluster {
    let cluster = Cluster::new(name);
    mode(&cluster.source(), 0o1777);
    mode(&cluster.source().join(MAPPED), 0o1777);
    cluster
}

#[test]
fn files_directories_and_links_belong_to_their_creator() {
    if !can_mount() {
        return;
    }
    let cluster = cluster_for_all("owners");
    let _nodes = [1, 2].map(|number| cluster.node_for_all_users(number));
    for place in [cluster.mountpoint(1), cluster.mountpoint(1).join(MAPPED)] {
        let at = |name: &str| place.join(name);
        by(ANN, &[], || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true);
            options.clone().mode(0o666).open(at("file")).expect("made");
            options.mode(0o4751).open(at("suid")).expect("made");
            fs::create_dir(at("dir")).expect("made");
            symlink("file", at("link")).expect("made");
        });
        // The test has the umask 022, as the programs of each user.
        assert_eq!(owner(&at("file")), (ANN, ANN, 0o644));
        assert_eq!(owner(&at("suid")), (ANN, ANN, 0o4751));
        assert_eq!(owner(&at("dir")), (ANN, ANN, 0o755));
        assert_eq!(owner(&at("link")), (ANN, ANN, 0o777));
        // Root's files next, on the same threads of the node.
        for number in 0..40 {
            File::create_new(at(&format!("root{number}"))).expect("made");
            assert_eq!(owner(&at(&format!("root{number}"))), (0, 0, 0o644));
        }
        // A set-group-ID directory gives its group, and a new directory its bit.
        fs::create_dir(at("team")).expect("made");
        chown(at("team"), None, Some(TEAM)).expect("set");
        mode(&at("team"), 0o2775);
        by(BEN, &[TEAM], || {
            File::create_new(at("team/file")).expect("made");
            fs::DirBuilder::new()
                .mode(0o770)
                .create(at("team/dir"))
                .expect("made");
        });
        assert_eq!(owner(&at("team/file")), (BEN, TEAM, 0o644));
        assert_eq!(owner(&at("team/dir")), (BEN, TEAM, 0o2750));
        // Owners and times of a link are its own.
        lchown(at("link"), Some(BEN), None).expect("set");
        assert_eq!(owner(&at("link")), (BEN, ANN, 0o777));
        assert_eq!(owner(&at("file")), (ANN, ANN, 0o644));
    }
    assert_eq!(owner(&cluster.source().join("file")), (ANN, ANN, 0o644));
    let second = cluster.mountpoint(2).join("team/dir");
    assert_eq!(owner(&second), (BEN, TEAM, 0o2750));
}

#[test]
fn the_kernel_checks_owners_modes_and_groups() {
    if !can_mount() {
        return;
    }
    let cluster = cluster_for_all("modes");
    let _nodes = [1, 2].map(|number| cluster.node_for_all_users(number));
    for (a, b) in [(1, 2), (2, 1)].map(|pair| {
        let at = |number| cluster.mountpoint(number).join(format!("by{}", pair.0));
        (at(pair.0), at(pair.1))
    }) {
        let write = |path: &Path| OpenOptions::new().append(true).open(path);
        by(ANN, &[], || {
            fs::create_dir(&a).expect("made");
            fs::write(a.join("private"), "ann").expect("written");
            fs::write(a.join("team"), "ann").expect("written");
        });
        mode(&a.join("private"), 0o600);
        mode(&a.join("team"), 0o660);
        chown(a.join("team"), None, Some(TEAM)).expect("set");
        // The other node checks the same, at once.
        by(BEN, &[], || {
            assert_eq!(number(File::open(b.join("private"))), Some(libc::EACCES));
            assert_eq!(number(File::open(b.join("team"))), Some(libc::EACCES));
            let denied = [
                number(fs::write(b.join("new"), "")),
                number(fs::create_dir(b.join("new"))),
                number(symlink("x", b.join("new"))),
                number(fs::remove_file(b.join("private"))),
                number(fs::rename(b.join("private"), b.join("new"))),
            ];
            assert_eq!(denied, [Some(libc::EACCES); 5]);
            let other = Permissions::from_mode(0o666);
            let now = SystemTime::now();
            let refused = [
                number(fs::set_permissions(b.join("private"), other)),
                number(chown(b.join("private"), Some(BEN), None)),
            ];
            assert_eq!(refused, [Some(libc::EPERM); 2]);
            // An open file of one's own gives no right to set another's times.
            let shared = b.with_file_name(format!("shared-{BEN}"));
            let _ = fs::remove_file(&shared);
            fs::write(&shared, "").expect("made");
            File::open(&shared)
                .expect("his")
                .set_modified(now)
                .expect("his");
        });
        by(ANN, &[], || {
            let shared = b.with_file_name(format!("shared-{BEN}"));
            let file = File::open(&shared).expect("for all");
            let time = SystemTime::UNIX_EPOCH;
            assert_eq!(number(file.set_modified(time)), Some(libc::EPERM));
            // A sticky directory: only the owner removes a file.
            assert_eq!(number(fs::remove_file(&shared)), Some(libc::EPERM));
            // An owner gives a file only to his own groups.
            let given = chown(b.join("private"), None, Some(TEAM));
            assert_eq!(number(given), Some(libc::EPERM));
        });
        by(BEN, &[TEAM], || {
            write(&b.join("team")).expect("his group may");
        });
        mode(&b.join("private"), 0o644);
        by(BEN, &[], || {
            assert_eq!(text(&a.join("private")), "ann");
            assert_eq!(number(write(&a.join("private"))), Some(libc::EACCES));
        });
    }
}

#[test]
fn writers_and_new_owners_clear_the_set_id_bits() {
    if !can_mount() {
        return;
    }
    let cluster = cluster_for_all("suid");
    let _nodes = [1, 2].map(|number| cluster.node_for_all_users(number));
    // The last is the source's own file system, which is the model.
    let places = [
        cluster.mountpoint(1),
        cluster.mountpoint(1).join(MAPPED),
        cluster.source(),
    ];
    let results = places.map(|place| {
        let path = place.join("program");
        let mut seen = Vec::new();
        for bits in [0o6777, 0o2777, 0o4766] {
            fs::write(&path, "text").expect("written");
            let mut check = |change: &dyn Fn()| {
                mode(&path, bits);
                assert_eq!(owner(&path).2, bits);
                change();
                seen.push(owner(&path).2);
            };
            check(&|| by(BEN, &[], || open(&path).write_all_at(b"T", 0).expect("may")));
            check(&|| open(&path).write_all_at(b"T", 0).expect("may"));
            check(&|| by(BEN, &[], || open(&path).set_len(2).expect("may")));
            check(&|| by(BEN, &[], || drop(File::create(&path).expect("may"))));
            check(&|| chown(&path, Some(ANN), Some(TEAM)).expect("set"));
            check(&|| by(ANN, &[BEN], || chown(&path, None, Some(BEN)).expect("his")));
            fs::remove_file(&path).expect("removed");
        }
        seen
    });
    assert_eq!(results[0], results[2], "by the cache");
    assert_eq!(results[1], results[2], "mapped");
    assert_eq!(results[2][0], 0o777);
    // The documented difference: the group may not execute the file.
    let path = cluster.mountpoint(1).join("data");
    fs::write(&path, "text").expect("written");
    mode(&path, 0o2766);
    by(BEN, &[], || open(&path).write_all_at(b"T", 0).expect("may"));
    assert_eq!(owner(&path).2, 0o2766);
}

#[test]
fn other_users_are_refused_by_default() {
    if !can_mount() {
        return;
    }
    let cluster = cluster_for_all("one-user");
    let _node = cluster.node(1);
    let path = cluster.mountpoint(1).join("file");
    fs::write(&path, "text").expect("written");
    let refused = by(ANN, &[], || number(File::open(&path)));
    assert_eq!(refused, Some(libc::EACCES));
}
