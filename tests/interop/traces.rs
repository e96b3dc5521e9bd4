//! Recordings of real clients, and replays on NBD servers of other projects.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::daemon::{PATIENCE, Process};

use crate::clients::text;
use crate::daemon::Daemon;
use crate::programs::{requires, run, run_any};

fn forebay(arguments: &[&str]) -> String {
    run(text(forebay_tests::program()), arguments)
}

#[test]
fn requests_of_qemu_io_are_recorded() {
    if !requires("qemu-io", "qemu-utils") {
        return;
    }
    let mut daemon = Daemon::new("record");
    let (out, control) = (daemon.path("out.fbt"), daemon.path("control.sock"));
    let mut recorder = Command::new(forebay_tests::program());
    recorder.args(["trace", "record", text(&out), "--control", text(&control)]);
    let mut recorder = Process::spawn(recorder.stdout(Stdio::null()));
    daemon.wait_for_log("recording disk");
    let mut arguments = vec!["-f", "raw"];
    for command in [
        "write -P 7 64k 12k",
        "read -P 7 68k 4k",
        "write -f 1M 512",
        "discard 2M 64k",
        "write -z 4M 1M",
        "flush",
    ] {
        arguments.extend(["-c", command]);
    }
    let uri = daemon.uri();
    arguments.push(&uri);
    run("qemu-io", &arguments);
    // The daemon's end completes the recording.
    daemon.stop();
    assert!(recorder.wait().is_some_and(|status| status.success()));
    // As fio's iolog, which is readable: action, offset, length.
    let log = daemon.path("out.log");
    forebay(&["trace", "convert", text(&out), text(&log), "--to", "fio"]);
    let log = std::fs::read_to_string(log).expect("text");
    let words = log
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let asked: Vec<_> = words
        .filter(|words| words.len() == 5)
        .map(|words| format!("{} {} {}", words[2], words[3], words[4]))
        .collect();
    for expected in [
        "write 65536 12288",
        "read 69632 4096",
        "write 1048576 512",
        "trim 2097152 65536",
        "trim 4194304 1048576",
    ] {
        let times = asked.iter().filter(|line| *line == expected).count();
        assert_eq!(times, 1, "{expected} in {log}");
    }
    assert!(log.lines().any(|line| line.contains("sync")), "{log}");
}

/// Replays on a server of another project, on a file of 64 MiB.
fn replay_on(name: &str, start: impl FnOnce(&PathBuf, &PathBuf) -> Command) {
    let unique = format!("forebay-interop-replay-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(unique);
    std::fs::create_dir(&folder).expect("a folder of our own");
    let (image, socket, trace) = (
        folder.join("image"),
        folder.join("socket"),
        folder.join("trace"),
    );
    File::create_new(&image)
        .and_then(|file| file.set_len(64 << 20))
        .expect("a sparse file");
    let mut server = start(&image, &socket);
    let server = Process::spawn(server.stdin(Stdio::null()).stdout(Stdio::null()));
    let begin = Instant::now();
    // A socket that is bound and does not listen yet refuses.
    while UnixStream::connect(&socket).is_err() {
        assert!(begin.elapsed() < PATIENCE, "{name} does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let load = "--requests 3000 --reads 40 --sizes 4K:60,64K:30,1M:10 --working-set 48M";
    let mut generate = vec!["trace", "generate", text(&trace)];
    generate.extend(load.split_whitespace());
    forebay(&generate);
    let uri = format!("nbd+unix:///?socket={}", text(&socket));
    let replay = [
        "replay",
        text(&trace),
        "--on",
        &uri,
        "--destroy-data",
        "--verify",
    ];
    let said = forebay(&replay);
    assert!(
        said.contains("3000 requests") && said.contains("verified: the"),
        "{said}"
    );
    drop(server);
    // Without the server, nothing hangs, and the error names it.
    let output = run_any(text(forebay_tests::program()), &replay);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&uri), "{said}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_trace_is_replayed_on_nbdkit() {
    if !requires("nbdkit", "nbdkit") {
        return;
    }
    replay_on("nbdkit", |image, socket| {
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args(["--foreground", "--exit-with-parent", "--unix", text(socket)]);
        nbdkit.args(["file", text(image)]);
        nbdkit
    });
}

#[test]
fn a_trace_is_replayed_on_qemu() {
    if !requires("qemu-nbd", "qemu-utils") {
        return;
    }
    replay_on("qemu", |image, socket| {
        let mut qemu = Command::new("qemu-nbd");
        qemu.args(["--format=raw", "--persistent", "--discard=unmap"]);
        qemu.arg(format!("--socket={}", text(socket))).arg(image);
        qemu
    });
}
