//! Differences from a local file system that no other file of this suite tests: those in the table
//! of `docs/operate/page-cache-mount.md`.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::cluster::{Cluster, MAPPED, can_mount, can_run};
use super::locks::{control, described, lock, soon};
use super::sources::{made, plain};
use super::{names, number, open};

#[test]
fn a_deadlock_of_locks_is_not_detected() {
    if !can_mount() || !can_run("python3") {
        return;
    }
    let cluster = Cluster::new("deadlock");
    let _node = cluster.node(1);
    let mount = cluster.mountpoint(1);
    // Each has a byte and waits for that of the other. The second one waits for a second only.
    let script = "import fcntl, os, signal, sys, time\n\
        class Late(Exception): pass\n\
        def late(*_): raise Late\n\
        first = sys.argv[1] == 'first'\n\
        os.chdir(sys.argv[2])\n\
        file = open('data', 'r+')\n\
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0 if first else 1)\n\
        open('first' if first else 'second', 'w')\n\
        while not os.path.exists('second'): time.sleep(0.01)\n\
        if not first:\n    time.sleep(1)\n    signal.signal(signal.SIGALRM, late)\n    \
            signal.alarm(1)\n\
        try: fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 if first else 0)\n\
        except Late: sys.exit(7)\n\
        except OSError as error: sys.exit(error.errno)\n";
    let outcome = |place: &Path| {
        fs::write(place.join("data"), "data").expect("written");
        let start = |who: &str| {
            let mut command = Command::new("python3");
            let command = command.args(["-c", script, who, plain(place)]);
            command.stderr(Stdio::null()).spawn().expect("it runs")
        };
        let mut first = start("first");
        soon("it has a lock", || place.join("first").exists());
        let mut second = start("second");
        let code = second.wait().expect("ours").code();
        // The end of the second one has released its lock.
        assert_eq!(first.wait().expect("ours").code(), Some(0));
        code
    };
    assert_eq!(outcome(&mount), Some(7), "interrupted");
    let local = cluster.source().with_file_name("local");
    fs::create_dir(&local).expect("made");
    assert_eq!(outcome(&local), Some(libc::EDEADLK), "the test makes one");
}

#[test]
fn locks_have_no_process_and_end_before_the_last_bytes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("lock-ends");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below).join("data"));
        fs::write(&a, "data").expect("written");
        let (at_a, at_b) = (open(&a), open(&b));
        let mut ours = described(libc::F_WRLCK, 0, 1);
        control(&at_a, libc::F_SETLK, &mut ours).expect("free");
        let mut found = described(libc::F_WRLCK, 0, 1);
        found.l_pid = 1;
        control(&at_b, libc::F_GETLK, &mut found).expect("answers");
        assert_eq!((i32::from(found.l_type), found.l_pid), (libc::F_WRLCK, 0));
        for back in 0..4 {
            let last = lock(&at_b, libc::F_WRLCK, i64::MAX - back, 1);
            assert_eq!(number(last), Some(libc::EINVAL), "{back}");
        }
        lock(&at_b, libc::F_WRLCK, i64::MAX - 4, 1).expect("free");
    }
}

#[test]
fn a_lock_of_a_directory_holds_on_its_mount_only() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("dir-lock");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let flock = |file: &File| {
        // SAFETY: a plain system call on an open file.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let dir = |number| File::open(cluster.mountpoint(number)).expect("there");
    let (held, same, other) = (dir(1), dir(1), dir(2));
    flock(&held).expect("free");
    assert_eq!(number(flock(&same)), Some(libc::EAGAIN));
    flock(&other).expect("another lock");
}

#[test]
fn file_systems_in_the_source_are_refused() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::on("inner", |source| {
        let inner = source.join("inner");
        fs::create_dir(&inner).expect("made");
        made("mount", &["-t", "tmpfs", "tmpfs", plain(&inner)]);
        vec![inner]
    });
    let _node = cluster.node(1);
    let a = cluster.mountpoint(1);
    assert_eq!(names(&a), ["inner", MAPPED]);
    assert_eq!(number(fs::metadata(a.join("inner"))), Some(libc::EXDEV));
    let inside = fs::write(a.join("inner/file"), "text");
    assert_eq!(number(inside), Some(libc::EXDEV));
}

#[test]
fn flags_of_files_are_refused() {
    if !can_mount() {
        return;
    }
    // FS_IOC_GETFLAGS of linux/fs.h, and an unknown command.
    const GET_FLAGS: libc::c_ulong = 0x8008_6601;
    const UNKNOWN: libc::c_ulong = 0x8008_66f0;
    let cluster = Cluster::new("ioctl");
    let _node = cluster.node(1);
    for path in ["data", "mapped/data"].map(|name| cluster.mountpoint(1).join(name)) {
        fs::write(&path, "data").expect("written");
        let file = open(&path);
        for command in [GET_FLAGS, UNKNOWN] {
            let mut flags = [0_u8; 8];
            // SAFETY: an open file, and memory for the answer that lives through the call.
            let outcome = unsafe { libc::ioctl(file.as_raw_fd(), command, flags.as_mut_ptr()) };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((outcome, error), (-1, Some(libc::ENOTTY)), "{command:x}");
        }
    }
}
