//! A signal while a start waits: for a target that does not answer, for a device, or for the cache
//! to be opened.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use super::support::{Daemon, Place};
use super::{check_blocks, online_open, write_blocks};

/// Most time for the end of a stopped start, which takes about two seconds on an idle machine.
const PROMPT: Duration = Duration::from_secs(12);
/// Time that a start gets to reach its wait, besides the events that a test sees.
const REACHES: Duration = Duration::from_millis(700);

/// Replaces the backing device of the volume.
fn configure(place: &Place, device: &str, mode: &str) {
    place.configure(mode, "");
    place.edit_config(&[
        ("[cache]", &format!("{device}\n[cache]")),
        ("backing = \"disk\"", "backing = \"far\""),
    ]);
}

fn target(name: &str, address: SocketAddr) -> String {
    format!(
        "[[device]]\nname = \"{name}\"\nkind = \"nvme-tcp\"\n\
         uri = \"nvme-tcp://{address}/nqn.2026-11.io.forebay:far\"\n"
    )
}

/// Sends a signal to a start that waits, and checks that it ends soon and says so. Returns the log.
fn stop(place: &Place, daemon: Daemon, signal: libc::c_int, waits_for: &str) -> String {
    let begin = Instant::now();
    daemon.signal(signal);
    let status = daemon.wait();
    let took = begin.elapsed();
    let log = place.log();
    assert!(took < PROMPT, "{took:?}: {log}");
    assert_eq!(status.code(), Some(0), "{log}");
    let says = format!("the start was stopped while it waited for {waits_for}");
    assert!(log.contains(&says), "{says} in {log}");
    assert!(!place.path("control.sock").exists(), "{log}");
    log
}

/// Checks that the stopped start left nothing, and that the volume is served as before.
fn nothing_is_left(place: &Place, log: &str) {
    assert!(log.contains("nothing of it is left"), "{log}");
    assert!(!place.path("journal").exists(), "{log}");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

/// Returns a place whose volume has data, in the cache alone.
fn with_data(name: &str) -> Place {
    let place = Place::new(name, "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    place
}

/// Returns a start that has a handler for signals.
fn begin(place: &Place) -> Daemon {
    let daemon = place.start().spawn();
    daemon.wait_until_caught(libc::SIGTERM);
    daemon
}

#[test]
fn a_start_that_waits_for_a_silent_target_heeds_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let says = format!("NVMe/TCP target nvme-tcp://{address}/");
    for (number, signal) in [libc::SIGTERM, libc::SIGINT].into_iter().enumerate() {
        let place = with_data(&format!("silent-{number}"));
        configure(&place, &target("far", address), "wb");
        let daemon = begin(&place);
        let (connection, _) = listener.accept().expect("a connection");
        let log = stop(&place, daemon, signal, &says);
        drop(connection);
        nothing_is_left(&place, &log);
    }
}

#[test]
fn a_start_that_waits_for_an_answer_of_a_target_heeds_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let place = with_data("half-silent");
    // The transit cache makes the start look at the target before it opens anything.
    let over = target("target", address)
        + "[[device]]\nname = \"far\"\nkind = \"transit\"\non = \"target\"\ncapacity = \"1M\"\n";
    for device in [target("far", address), over] {
        configure(&place, &device, "wt");
        let daemon = begin(&place);
        let (mut connection, _) = listener.accept().expect("a connection");
        // The request for a connection, and its answer without digests.
        connection.read_exact(&mut [0; 128]).expect("a request");
        let mut answer = [0; 128];
        (answer[0], answer[2], answer[4]) = (1, 128, 128);
        answer[12..16].copy_from_slice(&(64_u32 << 10).to_le_bytes());
        connection.write_all(&answer).expect("sent");
        // The Connect command, without an answer.
        connection.read_exact(&mut [0; 72]).expect("a command");
        let says = format!("NVMe/TCP target nvme-tcp://{address}/");
        let log = stop(&place, daemon, libc::SIGTERM, &says);
        assert!(log.contains("nothing of it is left"), "{log}");
    }
    nothing_is_left(&place, &place.log());
}

#[test]
fn a_start_that_waits_for_a_target_that_accepts_nothing_heeds_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    // SAFETY: the descriptor is open; no memory is involved.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    // One connection fills the queue. The kernel ignores the requests of all others.
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        queue.push(stream);
        assert!(queue.len() < 64, "the queue is endless");
    }
    let place = with_data("deaf");
    configure(&place, &target("far", address), "wb");
    let daemon = begin(&place);
    std::thread::sleep(REACHES);
    let says = format!("NVMe/TCP target nvme-tcp://{address}/");
    let log = stop(&place, daemon, libc::SIGTERM, &says);
    nothing_is_left(&place, &log);
}

#[test]
fn a_start_that_waits_for_the_cache_device_heeds_a_signal() {
    let place = with_data("hung-cache");
    let hung = "[[device]]\nname = \"hung\"\nkind = \"emulate\"\non = \"ssd\"\n\
        read_latency = \"1h\"\n\n[cache]";
    place.edit_config(&[("[cache]", hung), ("data = \"ssd\"", "data = \"hung\"")]);
    let daemon = begin(&place);
    std::thread::sleep(REACHES);
    let says = "the superblock on device \"hung\"";
    let log = stop(&place, daemon, libc::SIGTERM, says);
    nothing_is_left(&place, &log);
}

/// The opening reads the log, one second for each read. It goes on behind a daemon that is ready.
#[test]
fn a_start_that_opens_the_cache_heeds_a_signal_and_the_next_one_recovers() {
    let place = online_open::killed("stopped-opening", "3s");
    let daemon = place.start().spawn();
    place.wait_for_log(" ready");
    let log = stop(&place, daemon, libc::SIGTERM, "the cache to be opened");
    assert!(log.contains("it ends as after a kill"), "{log}");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
}

/// The signal comes when the exports are open, and the daemon waits a moment before it is ready.
#[test]
fn a_start_that_waits_for_a_fast_opening_heeds_a_signal() {
    let place = online_open::killed("stopped-early", "3s");
    // The killed daemon left it.
    std::fs::remove_file(place.path("nbd.sock")).expect("there");
    let daemon = place.start().spawn();
    daemon.wait_until_caught(libc::SIGTERM);
    while !place.path("nbd.sock").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = stop(&place, daemon, libc::SIGTERM, "the cache to be opened");
    assert!(!log.contains(" ready"), "{log}");
    assert!(!log.contains("nothing of it is left"), "{log}");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
}
