//! Paths on a file system that does not answer, and a daemon that does not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::nbd::Nbd;
use super::support::{Daemon, Place, text};
use super::{check_blocks, write_blocks};

/// Most time for what takes milliseconds on an idle machine.
const PROMPT: Duration = Duration::from_secs(30);

/// A mountpoint, unmounted at the end.
struct Mountpoint(PathBuf);

impl Drop for Mountpoint {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A stopped process, continued at the end.
struct Stopped<'a>(&'a Daemon);

impl<'a> Stopped<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        daemon.signal(libc::SIGSTOP);
        Self(daemon)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(libc::SIGCONT);
    }
}

/// A daemon that serves a file system of one file, `mnt/db`; none, visibly, where that is not
/// allowed.
fn serve_file_system(place: &Place) -> Option<Daemon> {
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no FUSE mount: it needs root and /dev/fuse");
        return None;
    }
    let mount = place.path("mnt");
    let export = format!("[[export]]\nvolume = \"db\"\nfuse = \"{}\"", text(&mount));
    place.configure("pt", &export);
    Some(place.serve(&[]))
}

#[test]
fn an_unmounted_export_is_reported_at_once() {
    let place = Place::new("unmounted", "pt");
    let mount = Mountpoint(place.path("mnt"));
    let Some(daemon) = serve_file_system(&place) else {
        return;
    };
    let unmounted = Command::new("umount").arg(&mount.0).status();
    assert!(unmounted.expect("umount runs").success());
    place.wait_for_log("was unmounted by another program");
    place.status();
    assert!(daemon.stop().is_some_and(|status| status.success()));
}

/// The server of the file system stops. It has a backing file, and the paths of the state directory
/// and of the process journal lead through it. Another volume goes on, and so do the control socket
/// and the watch on the other files.
#[test]
fn paths_that_do_not_answer_stall_neither_requests_nor_control() {
    let far = Place::new("hung-far", "pt");
    let mount = Mountpoint(far.path("mnt"));
    let Some(server) = serve_file_system(&far) else {
        return;
    };
    let place = Place::new("hung", "wb");
    let through = |name: &str| format!("{}/../../{}", text(&mount.0), name);
    let own = place.path("").file_name().expect("named").to_owned();
    let own = own.to_str().expect("text").to_owned();
    let (journal, state) = (format!("{own}/journal"), format!("{own}/state"));
    place.edit_config(&[
        (
            "journal = \"journal\"",
            &format!("journal = \"{}\"", through(&journal)),
        ),
        (
            "state = \"state\"",
            &format!("state = \"{}\"", through(&state)),
        ),
    ]);
    let config = place.read_config()
        + &format!(
            "\n[[device]]\nname = \"file\"\nkind = \"file\"\npath = \"{}/db\"\n\
             [[volume]]\nname = \"remote\"\nbacking = \"file\"\nmode = \"wt\"\n\
             [[export]]\nvolume = \"remote\"\nnbd = \"unix:nbd.sock\"\n",
            text(&mount.0)
        );
    place.write_config(&config);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    let mut remote = Nbd::connect(&place.path("nbd.sock"), "remote").expect("it answers");
    write_blocks(&mut nbd, 0..16);
    write_blocks(&mut remote, 0..16);
    let stopped = Stopped::new(&server);
    // Longer than the system keeps attributes.
    std::thread::sleep(Duration::from_secs(3));
    let waiting = std::thread::spawn(move || {
        let data = remote.read(32 << 20, 4096);
        (remote, data)
    });
    for round in 1..4 {
        let begin = Instant::now();
        write_blocks(&mut nbd, 0..64);
        assert_eq!(nbd.flush().expect("an answer"), 0);
        check_blocks(&mut nbd, 0..64);
        assert!(place.ok(&["status"]).contains("remote"));
        assert!(daemon.get("/metrics").contains("forebay_files_lost"));
        let took = begin.elapsed();
        assert!(took < PROMPT, "round {round}: {took:?}");
        std::thread::sleep(Duration::from_secs(2));
    }
    let (disk, aside) = (place.path("db.img"), place.path("aside"));
    std::fs::rename(&disk, &aside).expect("moved");
    place.wait_for_log(&format!("{} WAS MOVED OR REPLACED", text(&disk)));
    std::fs::rename(&aside, &disk).expect("moved back");
    assert!(!waiting.is_finished(), "the server is stopped");
    drop(stopped);
    let (mut remote, data) = waiting.join().expect("it ends");
    assert_eq!(data.expect("an answer"), Ok(vec![0; 4096]));
    check_blocks(&mut remote, 0..16);
    check_blocks(&mut nbd, 0..64);
    drop((remote, nbd));
    daemon.terminate();
    server.terminate();
}

/// The command has reported a failure, so the daemon does not carry it out when it runs again.
#[test]
fn a_command_that_failed_is_not_carried_out_later() {
    let place = Place::new("hung-late", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..16);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    let stopped = Stopped::new(&daemon);
    for command in [
        &["detach", "--abandon-dirty", "db"][..],
        &["mode", "db", "wt"],
    ] {
        let said = place.refused(&[&["--timeout", "300ms"], command].concat());
        assert!(said.contains("that it has begun may continue"), "{said}");
    }
    drop(stopped);
    for command in ["detach", "mode"] {
        place.wait_for_log(&format!(
            "{command:?} is not carried out: its client has left"
        ));
    }
    let status = place.ok(&["status", "--json"]);
    assert!(status.contains("\"mode\":\"wb\""), "{status}");
    check_blocks(&mut nbd, 0..16);
    assert!(place.ok(&["detach", "db"]).contains("64 KiB written back"));
    daemon.terminate();
}
