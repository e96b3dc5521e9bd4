//! Locks between programs of two nodes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, can_mount, can_run};
use super::{number, open};

/// Longest wait for an immediate event, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

pub(super) fn described(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

pub(super) fn control(file: &File, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the description lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets a lock of the open file.
pub(crate) fn lock(file: &File, kind: i32, start: i64, len: i64) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, &mut described(kind, start, len))
}

/// Sets a lock of this process.
fn lock_ours(file: &File, kind: i32, start: i64, len: i64) -> io::Result<()> {
    control(file, libc::F_SETLK, &mut described(kind, start, len))
}

pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < SOON, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranges_are_locked_against_programs_of_all_nodes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("ranges");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    fs::write(a.join("data"), "data").expect("written");
    let (at_a, also_at_a, at_b) = (
        open(&a.join("data")),
        open(&a.join("data")),
        open(&b.join("data")),
    );
    let (shared, alone, none) = (libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK);
    lock(&at_a, alone, 0, 10).expect("free");
    for other in [&at_b, &also_at_a] {
        assert_eq!(number(lock(other, shared, 9, 1)), Some(libc::EAGAIN));
        assert_eq!(number(lock_ours(other, alone, 0, 0)), Some(libc::EAGAIN));
        lock(other, shared, 10, 10).expect("free for all who share");
    }
    assert_eq!(number(lock(&at_a, alone, 10, 1)), Some(libc::EAGAIN));
    let mut found = described(shared, 3, 20);
    control(&at_b, libc::F_OFD_GETLK, &mut found).expect("answers");
    assert_eq!((found.l_start, found.l_len), (0, 10));
    assert_eq!(i32::from(found.l_type), alone);
    // A part, and the rest on both sides.
    lock(&at_a, none, 4, 2).expect("unlocked");
    lock(&at_b, alone, 4, 2).expect("free");
    assert_eq!(number(lock(&at_b, alone, 3, 2)), Some(libc::EAGAIN));
    assert_eq!(number(lock(&at_b, alone, 6, 1)), Some(libc::EAGAIN));
    // To the end, wherever that is.
    lock(&at_b, alone, 1 << 40, 0).expect("free");
    let mut found = described(alone, 1 << 41, 1);
    control(&at_a, libc::F_GETLK, &mut found).expect("answers");
    assert_eq!((found.l_start, found.l_len), (1 << 40, 0));
    // The locks of an open file end with it.
    drop(at_a);
    soon("a closed file's locks are free", || {
        lock(&at_b, alone, 0, 10).is_ok()
    });
    lock(&at_b, none, 0, 0).expect("unlocked");
    lock(&also_at_a, none, 0, 0).expect("unlocked");
    // The locks of a process end when it closes the file through any open file.
    lock_ours(&also_at_a, alone, 0, 0).expect("free");
    assert_eq!(number(lock(&at_b, shared, 0, 1)), Some(libc::EAGAIN));
    drop(open(&a.join("data")));
    lock(&at_b, shared, 0, 1).expect("free");
    lock(&at_b, none, 0, 0).expect("unlocked");
    let flock = |file: &File, how| {
        // SAFETY: a plain system call on an open file.
        match unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    flock(&also_at_a, libc::LOCK_SH).expect("free");
    flock(&at_b, libc::LOCK_SH).expect("free");
    assert_eq!(number(flock(&at_b, libc::LOCK_EX)), Some(libc::EAGAIN));
    flock(&also_at_a, libc::LOCK_UN).expect("unlocked");
    flock(&at_b, libc::LOCK_EX).expect("free");
    assert_eq!(number(flock(&also_at_a, libc::LOCK_SH)), Some(libc::EAGAIN));
    drop(at_b);
    soon("a closed file's lock is free", || {
        flock(&also_at_a, libc::LOCK_EX).is_ok()
    });
}

/// Starts a process that waits for a lock, and creates a file when it has it.
fn waiting_process(cluster: &Cluster, node: u8, then: &str) -> Child {
    let script = "import fcntl, os, sys, time\n\
        file = open(sys.argv[1], 'r+')\n\
        fcntl.lockf(file, fcntl.LOCK_EX)\n\
        open(sys.argv[2], 'w')\n\
        time.sleep(1000)\n";
    let mount = cluster.mountpoint(node);
    let mut command = Command::new("python3");
    command.arg("-c").arg(script);
    command.arg(mount.join("data")).arg(mount.join(then));
    command.spawn().expect("it runs")
}

fn end(mut child: Child, signal: i32) {
    let id = i32::try_from(child.id()).expect("a small number");
    // SAFETY: a plain system call; the process is a child that was not waited for yet.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    soon("it ends", || child.try_wait().expect("ours").is_some());
}

#[test]
fn a_waiting_lock_is_granted_or_interrupted() {
    if !can_mount() || !can_run("python3") {
        return;
    }
    let cluster = Cluster::new("waits");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    fs::write(a.join("data"), "data").expect("written");
    let at_a = open(&a.join("data"));
    lock(&at_a, libc::F_WRLCK, 0, 1).expect("free");
    // More waits than the mount has threads; other requests are served meanwhile.
    let (sender, got) = channel();
    let waiting: Vec<_> = (0..12)
        .map(|_| {
            let (sender, file) = (sender.clone(), open(&b.join("data")));
            std::thread::spawn(move || {
                let mut wanted = described(libc::F_WRLCK, 0, 0);
                control(&file, libc::F_OFD_SETLKW, &mut wanted).expect("it comes");
                sender.send(()).expect("received");
            })
        })
        .collect();
    let killed = waiting_process(&cluster, 2, "killed");
    let ended = waiting_process(&cluster, 2, "ended");
    // A process that handles a signal and stops waiting.
    let script = "import fcntl, signal, sys\n\
        class Late(Exception): pass\n\
        def late(*_): raise Late\n\
        signal.signal(signal.SIGALRM, late)\n\
        try:\n    signal.alarm(1)\n    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX)\n\
        except Late: sys.exit(7)\n";
    let mut late = Command::new("python3");
    let mut late = late.arg("-c").arg(script).arg(b.join("data")).spawn();
    let late = late.as_mut().expect("it runs");
    soon("the alarm arrives", || {
        let status = late.try_wait().expect("ours");
        status
            .inspect(|status| assert_eq!(status.code(), Some(7)))
            .is_some()
    });
    assert_eq!(fs::read(b.join("data")).expect("read"), b"data");
    end(killed, libc::SIGKILL);
    end(ended, libc::SIGTERM);
    assert!(got.try_recv().is_err(), "the lock is held");
    lock(&at_a, libc::F_UNLCK, 0, 1).expect("unlocked");
    for thread in waiting {
        got.recv_timeout(SOON).expect("each in its turn");
        thread.join().expect("done");
    }
    soon("nobody has it", || lock(&at_a, libc::F_WRLCK, 0, 0).is_ok());
    assert!(!b.join("killed").exists() && !b.join("ended").exists());
}

#[test]
fn a_killed_node_has_no_locks_and_a_killed_directory_changes_none() {
    if !can_mount() || !can_run("python3") {
        return;
    }
    let mut cluster = Cluster::new("lockers");
    let (mut one, _two) = (cluster.node(1), cluster.node(2));
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    fs::write(a.join("data"), "data").expect("written");
    let mut holder = waiting_process(&cluster, 1, "held");
    soon("it has the lock", || b.join("held").exists());
    let at_b = open(&b.join("data"));
    let try_it = || lock(&at_b, libc::F_WRLCK, 0, 0);
    assert_eq!(number(try_it()), Some(libc::EAGAIN));
    cluster.kill_directory();
    assert_eq!(number(try_it()), Some(libc::EAGAIN));
    cluster.start_directory();
    cluster.wait(|status| status.nodes.len() == 2);
    assert_eq!(number(try_it()), Some(libc::EAGAIN));
    // The holder lives on, but cannot access the file any more.
    one.kill();
    soon("it is free", || try_it().is_ok());
    let new = OpenOptions::new().write(true).open(a.join("data"));
    assert_eq!(number(new), Some(libc::ENOTCONN));
    holder.kill().expect("ours");
    holder.wait().expect("ended");
}
