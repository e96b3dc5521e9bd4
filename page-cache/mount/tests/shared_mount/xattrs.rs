//! Extended attributes, which are those of the source's file.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use forebay_io::xattr;

use super::cluster::{Cluster, MAPPED, can_mount};
use super::users::{ANN, by};
use super::{number, open};

fn get(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    xattr::get(path, name.as_ref())
}

fn set(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    xattr::set(path, name.as_ref(), value, flags)
}

fn list(path: &Path) -> Vec<String> {
    let names = xattr::list(path).expect("answers");
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).expect("text");
    let mut names: Vec<String> = names.map(text).collect();
    names.sort();
    names
}

/// Gets an attribute, or the list of their names, into `size` bytes.
fn get_into(path: &Path, name: Option<&str>, size: usize) -> io::Result<usize> {
    let text = |text: &str| CString::new(text).expect("text");
    let path = text(path.to_str().expect("text"));
    let mut bytes = vec![0_u8; size];
    let into = bytes.as_mut_ptr();
    let count = match name.map(text) {
        // SAFETY: two strings, and memory of the stated length, which live through the call.
        Some(name) => unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), into.cast(), size) },
        // SAFETY: a string, and memory of the stated length, which live through the call.
        None => unsafe { libc::listxattr(path.as_ptr(), into.cast(), size) },
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[test]
fn attributes_are_those_of_the_source_on_all_nodes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("xattrs");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    for below in ["", MAPPED] {
        fs::write(a.join(below).join("file"), "text").expect("written");
        fs::create_dir(a.join(below).join("dir")).expect("made");
        for name in ["file", "dir"].map(|name| Path::new(below).join(name)) {
            let (here, there) = (a.join(&name), b.join(&name));
            let all = ["security.note", "trusted.note", "user.note"];
            assert_eq!(number(get(&here, all[2])), Some(libc::ENODATA));
            for name in all {
                set(&here, name, name.as_bytes(), 0).expect("set");
                assert_eq!(get(&there, name).expect("there"), name.as_bytes());
            }
            assert_eq!(list(&there), all);
            assert_eq!(list(&cluster.source().join(&name)), all);
            let second = set(&there, all[2], b"", libc::XATTR_CREATE);
            assert_eq!(number(second), Some(libc::EEXIST));
            let missing = set(&there, "user.none", b"", libc::XATTR_REPLACE);
            assert_eq!(number(missing), Some(libc::ENODATA));
            set(&there, all[2], b"", libc::XATTR_REPLACE).expect("replaced");
            assert_eq!(get(&here, all[2]).expect("there"), b"");
            let long = vec![7; 2000];
            set(&here, all[2], &long, 0).expect("replaced");
            assert_eq!(get(&there, all[2]).expect("there"), long);
            // Sizes.
            assert_eq!(get_into(&there, Some(all[2]), 0).expect("a size"), 2000);
            assert_eq!(get_into(&there, Some(all[2]), 2000).expect("fits"), 2000);
            let small = get_into(&there, Some(all[2]), 1999);
            assert_eq!(number(small), Some(libc::ERANGE));
            let size: usize = all.iter().map(|name| name.len() + 1).sum();
            assert_eq!(get_into(&there, None, 0).expect("a size"), size);
            let small = get_into(&there, None, size - 1);
            assert_eq!(number(small), Some(libc::ERANGE));
            let long = set(&here, "user.long", &vec![0; (64 << 10) + 1], 0);
            assert_eq!(number(long), Some(libc::E2BIG));
            let gone = |path| xattr::remove(path, all[2].as_ref());
            gone(&there).expect("removed");
            assert_eq!(number(gone(&here)), Some(libc::ENODATA));
            assert_eq!(list(&here), all[..2]);
        }
    }
}

#[test]
fn an_attribute_is_of_the_open_file_whatever_its_name() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("xattr-names");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below));
        fs::write(a.join("one"), "one").expect("written");
        let held = open(&a.join("one"));
        let by_descriptor = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
        fs::rename(b.join("one"), b.join("two")).expect("renamed");
        fs::write(b.join("one"), "other").expect("written");
        set(&by_descriptor, "user.note", b"mine", 0).expect("set");
        assert_eq!(get(&b.join("two"), "user.note").expect("there"), b"mine");
        assert_eq!(list(&b.join("one")), [""; 0]);
        // Removed, and still open.
        fs::remove_file(b.join("two")).expect("removed");
        assert_eq!(get(&by_descriptor, "user.note").expect("there"), b"mine");
        // A symbolic link has its own, which only root may set.
        symlink("one", a.join("link")).expect("made");
        let link = CString::new(a.join("link").to_str().expect("text")).expect("text");
        let set_link = |name: &std::ffi::CStr| {
            // SAFETY: two strings and an empty value, which live through the call.
            let outcome =
                unsafe { libc::lsetxattr(link.as_ptr(), name.as_ptr(), [].as_ptr(), 0, 0) };
            match outcome {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        set_link(c"trusted.note").expect("set");
        assert_eq!(number(set_link(c"user.note")), Some(libc::EPERM));
        assert_eq!(list(&a.join("one")), [""; 0]);
        let path = CString::new(b.join("link").to_str().expect("text")).expect("text");
        let mut names = [0_u8; 64];
        // SAFETY: a string, and memory of the stated length, which live through the call.
        let count = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), 64) };
        assert_eq!(&names[..count as usize], b"trusted.note\0");
    }
}

#[test]
fn attributes_that_the_kernel_would_have_to_know_are_refused() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("xattr-refused");
    let _node = cluster.node_for_all_users(1);
    for path in ["file", "mapped/file"].map(|name| cluster.mountpoint(1).join(name)) {
        fs::write(&path, "text").expect("written");
        let name = path.strip_prefix(cluster.mountpoint(1)).expect("below");
        let source = cluster.source().join(name);
        // Owner, group and others may read: an ACL that is equal to a mode, as the kernel has it.
        let entry = |tag: u8| [tag, 0, 4, 0, 0xff, 0xff, 0xff, 0xff];
        let acl = [vec![2, 0, 0, 0], [1, 4, 0x20].map(entry).concat()].concat();
        // One more user, so that the source stores it.
        let named = [
            vec![2, 0, 0, 0],
            entry(1).to_vec(),
            vec![2, 0, 4, 0, 0xa1, 0xf, 0, 0],
            [4, 0x10, 0x20].map(entry).concat(),
        ];
        let access = "system.posix_acl_access";
        set(&source, access, &named.concat(), 0).expect("the source has ACLs");
        assert_eq!(number(get(&path, access)), Some(libc::EOPNOTSUPP));
        let refused = set(&path, access, &acl, 0);
        assert_eq!(number(refused), Some(libc::EOPNOTSUPP));
        let removed = xattr::remove(&path, access.as_ref());
        assert_eq!(number(removed), Some(libc::EOPNOTSUPP));
        let other = set(&path, "system.other", b"", 0);
        assert_eq!(number(other), Some(libc::EOPNOTSUPP));
        assert_eq!(list(&path), [""; 0]);
        assert_eq!(list(&source), [access]);
        // Capabilities of a program: CAP_CHOWN.
        let capability = "security.capability";
        let mut chown = [0; 20];
        (chown[3], chown[4]) = (2, 1);
        let refused = set(&path, capability, &chown, 0);
        assert_eq!(number(refused), Some(libc::EOPNOTSUPP));
        set(&source, capability, &chown, 0).expect("set");
        assert_eq!(get(&path, capability).expect("there"), chown);
        let file = open(&path);
        std::os::unix::fs::FileExt::write_all_at(&file, b"T", 0).expect("written");
        file.sync_all().expect("durable");
        assert_eq!(number(get(&path, capability)), Some(libc::ENODATA));
        set(&source, capability, &chown, 0).expect("set");
        xattr::remove(&path, capability.as_ref()).expect("removed");
        assert_eq!(number(get(&source, capability)), Some(libc::ENODATA));
    }
}

#[test]
fn attributes_for_root_are_hidden_from_other_users() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("xattr-users");
    let _node = cluster.node_for_all_users(1);
    for path in ["file", "mapped/file"].map(|name| cluster.mountpoint(1).join(name)) {
        fs::write(&path, "text").expect("written");
        set(&path, "trusted.note", b"root", 0).expect("set");
        set(&path, "user.note", b"all", 0).expect("set");
        by(ANN, &[], || {
            assert_eq!(list(&path), ["user.note"]);
            assert_eq!(get(&path, "user.note").expect("readable"), b"all");
            assert_eq!(number(get(&path, "trusted.note")), Some(libc::ENODATA));
            let set = |name| number(set(&path, name, b"", 0));
            assert_eq!(set("trusted.note"), Some(libc::EPERM));
            assert_eq!(set("user.note"), Some(libc::EACCES));
            File::open(&path).expect("readable");
        });
    }
}
