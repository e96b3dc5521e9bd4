//! FIFOs, sockets, devices, and files that are created without being opened.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::cluster::{Cluster, MAPPED, can_mount};
use super::users::{ANN, TEAM, by, cluster_for_all, mode, owner};
use super::{names, number, text};

/// Creates a file of any type.
fn node(path: &Path, mode: u32, device: u64) -> io::Result<()> {
    let path = CString::new(path.to_str().expect("text")).expect("text");
    // SAFETY: a string that lives through the call.
    match unsafe { libc::mknod(path.as_ptr(), mode, device) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a FIFO without waiting for the other side.
fn fifo(path: &Path, writes: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(!writes).write(writes);
    options.custom_flags(libc::O_NONBLOCK).open(path)
}

#[test]
fn a_fifo_connects_programs_of_one_mount() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("fifo");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below));
        node(&a.join("pipe"), libc::S_IFIFO | 0o640, 0).expect("made");
        let seen = fs::metadata(b.join("pipe")).expect("there");
        assert!(seen.file_type().is_fifo() && seen.mode() & 0o7777 == 0o640);
        let second = node(&b.join("pipe"), libc::S_IFIFO, 0);
        assert_eq!(number(second), Some(libc::EEXIST));
        // One program waits for the other.
        let path = a.join("pipe");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| text(&path));
            let mut writer = OpenOptions::new().write(true).open(&path).expect("read");
            writer.write_all(b"through the kernel").expect("read");
            drop(writer);
            assert_eq!(reader.join().expect("it ends"), "through the kernel");
        });
        // On the other node, it is another FIFO.
        let mut reader = fifo(&a.join("pipe"), false).expect("opened");
        for elsewhere in [b.join("pipe"), cluster.source().join(below).join("pipe")] {
            assert_eq!(number(fifo(&elsewhere, true)), Some(libc::ENXIO));
        }
        // A rename on the other node changes nothing for its users.
        fs::rename(b.join("pipe"), b.join("moved")).expect("renamed");
        let mut writer = fifo(&a.join("moved"), true).expect("it is read");
        writer.write_all(b"more").expect("written");
        let mut out = [0; 4];
        reader.read_exact(&mut out).expect("read");
        assert_eq!(&out, b"more");
        fs::remove_file(b.join("moved")).expect("removed");
        writer.write_all(b"last").expect("written");
        reader.read_exact(&mut out).expect("read");
        assert_eq!(&out, b"last");
    }
}

#[test]
fn a_socket_connects_programs_of_one_mount() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("socket");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below));
        let listener = UnixListener::bind(a.join("socket")).expect("bound");
        let seen = fs::metadata(b.join("socket")).expect("there");
        assert!(seen.file_type().is_socket());
        let mut client = UnixStream::connect(a.join("socket")).expect("connected");
        client.write_all(b"text").expect("written");
        let mut out = [0; 4];
        let (mut server, _) = listener.accept().expect("accepted");
        server.read_exact(&mut out).expect("read");
        assert_eq!(&out, b"text");
        for elsewhere in [
            b.join("socket"),
            cluster.source().join(below).join("socket"),
        ] {
            let refused = UnixStream::connect(&elsewhere);
            assert_eq!(number(refused), Some(libc::ECONNREFUSED));
        }
        let taken = UnixListener::bind(b.join("socket"));
        assert_eq!(number(taken), Some(libc::EADDRINUSE));
        fs::remove_file(b.join("socket")).expect("removed");
    }
}

#[test]
fn devices_and_nameless_files_are_refused() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("devices");
    let _node = cluster.node(1);
    for place in [cluster.mountpoint(1), cluster.mountpoint(1).join(MAPPED)] {
        let before = names(&place);
        // The null device, a loop device, and the whiteout of an overlay.
        let kinds = [
            (libc::S_IFCHR, libc::makedev(1, 3)),
            (libc::S_IFBLK, libc::makedev(7, 0)),
            (libc::S_IFCHR, 0),
        ];
        for (kind, device) in kinds {
            let refused = node(&place.join("device"), kind | 0o600, device);
            assert_eq!(number(refused), Some(libc::EPERM));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let nameless = options.custom_flags(libc::O_TMPFILE).open(&place);
        assert_eq!(number(nameless), Some(libc::EOPNOTSUPP));
        assert_eq!(names(&place), before);
    }
}

#[test]
fn new_nodes_belong_to_their_creator() {
    if !can_mount() {
        return;
    }
    let cluster = cluster_for_all("nodes");
    let _nodes = [1, 2].map(|number| cluster.node_for_all_users(number));
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below));
        fs::create_dir(a.join("team")).expect("made");
        fs::set_permissions(a.join("team"), fs::Permissions::from_mode(0o2777)).expect("set");
        std::os::unix::fs::chown(a.join("team"), None, Some(TEAM)).expect("set");
        mode(&a.join("team"), 0o2777);
        let kinds = [libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];
        for (kind, name) in kinds.into_iter().zip(["regular", "fifo", "socket"]) {
            by(ANN, &[], || {
                node(&a.join(name), kind | 0o666, 0).expect("made");
                node(&a.join("team").join(name), kind | 0o660, 0).expect("made");
                let root = node(&a.join("device"), libc::S_IFCHR | 0o666, 0x103);
                assert_eq!(number(root), Some(libc::EPERM));
            });
            // The test has the umask 022.
            assert_eq!(owner(&b.join(name)), (ANN, ANN, 0o644));
            assert_eq!(owner(&b.join("team").join(name)), (ANN, TEAM, 0o640));
            let kind_seen = fs::symlink_metadata(b.join(name)).expect("there").mode();
            assert_eq!(kind_seen & libc::S_IFMT, kind);
        }
        // It is a file like others.
        by(ANN, &[], || {
            fs::write(b.join("regular"), "text").expect("his")
        });
        assert_eq!(text(&a.join("regular")), "text");
        // A change of nothing leaves a directory as it is.
        std::os::unix::fs::chown(a.join("team"), None, None).expect("nothing");
        assert_eq!(owner(&b.join("team")), (0, TEAM, 0o2777));
    }
}
