//! A volume whose backing device is an export of an NBD server, which dies and returns.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::authority::{Authority, Use, client_folder, server_folder};

use super::support::{Place, text};
use super::{block, check_blocks, write_blocks};

/// Blocks of a test.
pub(super) const BLOCKS: u64 = 1024;

/// Gives the volume of `place` the export `uri` as backing device.
fn back_with(place: &Place, uri: &str, mode: &str) {
    place.configure(mode, "");
    let device = format!("[[device]]\nname = \"far\"\nkind = \"nbd\"\nuri = \"{uri}\"\n");
    place.edit_config(&[
        ("[cache]", &format!("{device}\n[cache]")),
        ("backing = \"disk\"", "backing = \"far\""),
    ]);
}

fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", text(socket))
}

/// Writes and flushes blocks at a client of its own, while `interrupt` ends the server and starts
/// it a second time. Returns its result.
pub(super) fn write_through<T>(place: &Place, interrupt: impl FnOnce() -> T) -> T {
    let mut nbd = place.connect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for number in 0..BLOCKS {
                write_blocks(&mut nbd, number..number + 1);
                if number % 16 == 15 {
                    assert_eq!(nbd.flush().expect("an answer"), 0, "after block {number}");
                }
            }
        });
        // In the middle of the writes.
        std::thread::sleep(Duration::from_millis(30));
        let result = interrupt();
        writer.join().expect("all writes and flushes succeed");
        result
    })
}

/// The blocks of the image, from byte zero.
pub(super) fn check_image(image: &Path) {
    let data = std::fs::read(image).expect("an image");
    for number in 0..BLOCKS {
        let from = usize::try_from(number * 4096).expect("small");
        assert!(
            data[from..from + 4096] == block(number),
            "block {number} is lost"
        );
    }
}

#[test]
fn a_server_that_is_killed_between_writes_loses_nothing_that_was_flushed() {
    for mode in ["wt", "wb"] {
        let far = Place::new(&format!("nbd-far-{mode}"), "wt");
        let near = Place::new(&format!("nbd-near-{mode}"), mode);
        back_with(&near, &uri(&far.path("nbd.sock"), "db"), mode);
        let config = near.path("forebay.toml");
        for command in ["check", "serve"] {
            let refused = near.refused(&[command, text(&config)]);
            assert!(refused.contains("start the server"), "{refused}");
        }
        let server = far.serve(&[]);
        near.ok(&["check", text(&config)]);
        let daemon = near.serve(&[]);
        near.wait_for_log("it is known by its URI and samples of its content");
        let server = write_through(&near, || {
            if mode == "wb" {
                // Writes reach the server as well.
                near.ok(&["flush", "db"]);
            }
            server.kill();
            std::thread::sleep(Duration::from_millis(200));
            far.serve(&[])
        });
        check_blocks(&mut near.connect(), 0..BLOCKS);
        near.ok(&["flush", "db"]);
        near.wait_for_log("is lost, and is reconnected");
        daemon.terminate();
        server.terminate();
        check_image(&far.path("db.img"));
    }
}

/// A server of another project; ended when dropped.
struct Foreign(Child);

impl Foreign {
    /// Starts a server that makes `socket`. Returns `None` if the program is not installed.
    fn start(socket: &Path, program: &str, arguments: &[&str]) -> Option<Self> {
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new(program);
        let Ok(child) = command.args(arguments).stderr(Stdio::null()).spawn() else {
            eprintln!("SKIPPED: {program} is not installed");
            return None;
        };
        let mut server = Self(child);
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no socket");
            assert!(server.0.try_wait().expect("a child").is_none(), "it ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn servers_of_other_projects_may_be_killed_too() {
    for program in ["qemu-nbd", "nbdkit"] {
        let place = Place::new(&format!("nbd-{program}"), "wt");
        place.create_file("far.img", 64 << 20);
        let (socket, image) = (place.path("far.sock"), place.path("far.img"));
        let start = || match program {
            "qemu-nbd" => {
                let options = ["--persistent", "--format", "raw", "--export-name", "far"];
                let own = ["--socket", text(&socket), text(&image)];
                Foreign::start(&socket, program, &[&options[..], &own].concat())
            }
            _ => {
                let own = ["-f", "-U", text(&socket), "file", text(&image)];
                Foreign::start(&socket, program, &own)
            }
        };
        let Some(server) = start() else { continue };
        back_with(&place, &uri(&socket, "far"), "wt");
        let daemon = place.serve(&[]);
        let server = write_through(&place, || {
            drop(server);
            start()
        });
        place.wait_for_log("is lost, and is reconnected");
        check_blocks(&mut place.connect(), 0..BLOCKS);
        daemon.terminate();
        drop(server);
        check_image(&image);
    }
}

/// Starts a server with TLS that wants the certificates of its clients.
fn start_secure(place: &Place, program: &str) -> Option<Foreign> {
    let (socket, image) = (place.path("far.sock"), place.path("far.img"));
    let folder = place.path("server");
    match program {
        "qemu-nbd" => {
            let tls = format!(
                "tls-creds-x509,id=tls0,endpoint=server,verify-peer=yes,dir={}",
                text(&folder)
            );
            let options = ["--persistent", "--shared=0", "--format", "raw"];
            let secure = ["--object", &tls, "--tls-creds", "tls0"];
            let own = ["--export-name", "far", "--socket", text(&socket)];
            let image = [text(&image)];
            let all = [&options[..], &secure, &own, &image].concat();
            Foreign::start(&socket, program, &all)
        }
        _ => {
            let certificates = format!("--tls-certificates={}", text(&folder));
            let secure = ["--tls=require", "--tls-verify-peer", &certificates];
            let own = ["-f", "-U", text(&socket), "file", text(&image)];
            Foreign::start(&socket, program, &[&secure[..], &own].concat())
        }
    }
}

#[test]
fn servers_with_tls_may_return_with_a_grown_export() {
    for program in ["qemu-nbd", "nbdkit"] {
        let place = Place::new(&format!("nbds-{program}"), "wt");
        place.create_file("far.img", 64 << 20);
        let authority = Authority::new("the authority");
        let (own, client) = (authority.sign(Use::Server), authority.sign(Use::Client));
        server_folder(&place.path("server"), &authority, &own);
        let folder = place.path("client");
        client_folder(&folder, &authority, Some(&client));
        let Some(server) = start_secure(&place, program) else {
            continue;
        };
        let plain = uri(&place.path("far.sock"), "far");
        back_with(&place, &plain, "wt");
        let config = place.path("forebay.toml");
        for command in ["check", "serve"] {
            let refused = place.refused(&[command, text(&config)]);
            assert!(refused.contains("TLS"), "{program}: {refused}");
        }
        let secure = plain.replace("nbd+unix", "nbds+unix");
        let secure = format!("{secure}&tls-certificates={}", text(&folder));
        place.edit_config(&[(
            &format!("uri = \"{plain}\"\n"),
            &format!("uri = \"{secure}\"\nconnections = 4\n"),
        )]);
        let daemon = place.serve(&[]);
        let grown = || {
            drop(server);
            let image = std::fs::OpenOptions::new()
                .write(true)
                .open(place.path("far.img"));
            image.expect("there").set_len(80 << 20).expect("grown");
            start_secure(&place, program)
        };
        let server = write_through(&place, grown);
        place.wait_for_log("is lost, and is reconnected");
        check_blocks(&mut place.connect(), 0..BLOCKS);
        let answer = place.ok(&["grow", "db"]);
        assert!(answer.contains("grew from 64 MiB to 80 MiB"), "{answer}");
        let mut nbd = place.connect();
        assert_eq!(nbd.size_bytes, 80 << 20);
        assert_eq!(nbd.write(72 << 20, &block(7)).expect("an answer"), 0);
        assert_eq!(nbd.read(72 << 20, 4096).expect("an answer"), Ok(block(7)));
        daemon.terminate();
        drop(server);
        check_image(&place.path("far.img"));
    }
}
