//! Remains of nodes that have ended: programs with open or mapped files of a mapped directory
//! continue.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::cluster::{Cluster, MAPPED, Worker, can_mount, can_run, clear};
use super::locks::{lock as lock_of, soon};
use super::mapped::Map;
use super::{number, open, text};

#[test]
fn a_lock_outlives_a_killed_node_while_its_program_can_store() {
    a_lock_outlives_its_node("fenced", |mut node| node.kill());
}

#[test]
fn a_lock_outlives_a_node_that_leaves_while_its_program_can_store() {
    a_lock_outlives_its_node("left", Worker::end);
}

fn a_lock_outlives_its_node(name: &str, end: impl FnOnce(Worker)) {
    if !can_mount() || !can_run("python3") {
        return;
    }
    let cluster = Cluster::new(name);
    let (one, _two) = (cluster.node(1), cluster.node(2));
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("data"));
    fs::write(&paths[0], "data").expect("written");
    let script = "import fcntl, mmap, sys\n\
        file = open(sys.argv[1], 'r+')\n\
        map = mmap.mmap(file.fileno(), 4)\n\
        fcntl.lockf(file, fcntl.LOCK_EX)\n\
        print(flush=True)\n\
        sys.stdin.readline()\n\
        map[0:4] = b'DATA'\n\
        print(flush=True)\n\
        sys.stdin.readline()\n";
    let mut holder = Command::new("python3");
    let holder = holder.arg("-c").arg(script).arg(&paths[0]);
    let holder = holder.stdin(std::process::Stdio::piped());
    let mut holder = holder
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = std::io::BufReader::new(holder.stdout.take().expect("piped"));
    let mut receive = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).expect("it says so");
        assert_eq!(line, "\n");
    };
    receive();
    let other = open(&paths[1]);
    let lock = || lock_of(&other, libc::F_WRLCK, 0, 0);
    assert_eq!(number(lock()), Some(libc::EAGAIN));
    end(one);
    cluster.wait(|status| status.nodes.len() == 1);
    assert_eq!(number(lock()), Some(libc::EAGAIN));
    // It can still store.
    let mut input = holder.stdin.take().expect("piped");
    writeln!(input).expect("told");
    receive();
    assert_eq!(text(&paths[1]), "DATA");
    assert_eq!(number(lock()), Some(libc::EAGAIN));
    // The node returns to its mountpoint: the old mount is gone after its last program.
    let _one = cluster.node(1);
    assert_eq!(number(lock()), Some(libc::EAGAIN));
    holder.kill().expect("ours");
    holder.wait().expect("ended");
    soon("nobody can store any more", || lock().is_ok());
}

#[test]
fn files_that_a_dead_mounts_programs_store_into_are_not_cached() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new("unmapped");
    let (mut one, two) = (cluster.node(1), cluster.node(2));
    let path = |number| cluster.mountpoint(number).join(MAPPED).join("data");
    let paths = [path(1), path(2)];
    fs::write(&paths[0], "data").expect("written");
    let file = open(&paths[0]);
    let map = Map::new(&file, 4, false).expect("mapped");
    one.kill();
    // They continue, without the node's operations.
    file.write_all_at(b"D", 0).expect("the kernel writes");
    assert_eq!(number(file.sync_all()), Some(libc::ENOTCONN));
    assert_eq!(text(&paths[1]), "Data");
    two.end();
    // No node runs, so that other directories may be mapped from now on.
    cluster.kill_directory();
    cluster.map_nothing();
    cluster.start_directory();
    let _two = cluster.node(2);
    assert_eq!(number(File::open(&paths[1])), Some(libc::EBUSY));
    map.store(0, b"d");
    drop((map, file));
    clear(&cluster.mountpoint(1));
    soon("no client has it open", || File::open(&paths[1]).is_ok());
    assert_eq!(text(&paths[1]), "data");
    let refused = Map::new(&open(&paths[1]), 4, false).err();
    assert_eq!(
        refused.and_then(|error| error.raw_os_error()),
        Some(libc::ENODEV)
    );
}
