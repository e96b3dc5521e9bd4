//! Times at which written data is in the source: at a close, and at the end of a synchronous write.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cluster::{Cluster, Worker, can_mount, can_run};

/// Writes a file by a program that checks its closes, and returns its errors. The test itself does
/// not write: each process that another test starts also closes the files of this one.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let output = Command::new("cp").arg(from).arg(to).output();
    let output = output.expect("it runs");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A file outside the source, with this content.
fn input(cluster: &Cluster, content: &[u8]) -> PathBuf {
    let path = cluster.source().with_file_name("input");
    fs::write(&path, content).expect("written");
    path
}

#[test]
fn a_close_waits_for_the_write_back_if_the_node_does_so() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 20_000;
    let cluster = Cluster::new("close");
    let _nodes = [cluster.node_that_writes_back_at_close(1), cluster.node(2)];
    let input = input(&cluster, &[5; LEN]);
    for (number, expected) in [(1, 5), (2, 0)] {
        let name = format!("data-{number}");
        copy(&input, &cluster.mountpoint(number).join(&name)).expect("copied");
        let stored = fs::read(cluster.source().join(name)).expect("there");
        assert!(stored == [expected; LEN], "node {number}: {}", stored[0]);
    }
}

#[test]
fn a_close_reports_a_write_that_the_source_refuses() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 150 * 4096;
    let cluster = Cluster::new("close-refused");
    let _node = cluster.node_that_writes_back_at_close(1);
    // Some pages are in its memory, and it cannot find the file.
    let _other = cluster.node_here(2);
    let path = cluster.mountpoint(1).join("data");
    let file = File::create_new(&path).expect("made");
    let inode = file.metadata().expect("answers").ino().to_string();
    let second_name = cluster.source().join(".forebay/files").join(inode);
    fs::remove_file(&second_name).expect("its second name");
    let refused = copy(&input(&cluster, &[5; LEN]), &path).expect_err("refused");
    assert!(refused.contains("Input/output error"), "{refused}");
    fs::hard_link(cluster.source().join("data"), &second_name).expect("linked");
    file.sync_all().expect("the source takes it now");
    let stored = fs::read(cluster.source().join("data")).expect("there");
    assert!(stored == [5; LEN]);
}

/// Runs `body` while system calls of the node are traced, and returns the number of its syncs.
fn syncs_during(node: &Worker, body: impl FnOnce()) -> usize {
    let mut tracer = Command::new("strace");
    tracer.args([
        "-f",
        "-e",
        "trace=fsync,fdatasync",
        "-p",
        &node.pid().to_string(),
    ]);
    let tracer = tracer.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut tracer = tracer.expect("it runs");
    let mut lines = BufReader::new(tracer.stderr.take().expect("piped")).lines();
    let attached = lines.next().expect("a line").expect("text");
    assert!(attached.contains("attached"), "{attached}");
    body();
    let pid = tracer.id().to_string();
    let ended = Command::new("kill").args(["-INT", &pid]).status();
    assert!(ended.expect("it runs").success());
    let lines = lines.map_while(Result::ok);
    let syncs = lines.filter(|line| line.contains("fdatasync(") || line.contains("fsync("));
    let count = syncs.count();
    tracer.wait().expect("a child");
    count
}

#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    if !can_mount() || !can_run("strace") {
        return;
    }
    let cluster = Cluster::new("synchronous");
    let node = cluster.node(1);
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).custom_flags(flag);
        let file = options.open(cluster.mountpoint(1).join(name));
        let file = file.expect("made");
        for round in 1..4_u8 {
            let syncs = syncs_during(&node, || {
                file.write_all_at(&[round; 9000], 100).expect("written");
            });
            assert_eq!(syncs, 1, "{name}");
            let stored = fs::read(cluster.source().join(name)).expect("there");
            assert_eq!(stored[100..], [round; 9000], "{name}");
        }
    }
    let file = File::create_new(cluster.mountpoint(1).join("neither")).expect("made");
    let syncs = syncs_during(&node, || {
        file.write_all_at(&[7; 9000], 0).expect("written");
    });
    assert_eq!(syncs, 0);
}
