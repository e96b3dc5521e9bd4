//! A million cached blocks and a kill: the blocks are still cached. The test prints the time to the
//! first answer. docs/results/cold.md has the engine's part of it.

use std::time::{Duration, Instant};

use forebay_tests::client::Client;
use forebay_wire::nbd::transmission::command;

use super::daemon::{Daemon, Devices, Setup, VOLUME};
use super::say;

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 1_000_000;
const READ_BYTES: u64 = 1 << 20;
const SAMPLE: u64 = 1000;

/// Returns a number in the status of the volume.
fn counter(daemon: &Daemon, name: &str) -> u64 {
    let status = daemon.control("status", &["--json"]);
    let at = status
        .find(&format!("\"{name}\""))
        .unwrap_or_else(|| panic!("no {name} in {status}"));
    let digits: String = status[at + name.len() + 2..]
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect("a number")
}

/// Reads the first million blocks of the volume, so that they are cached.
fn fill(daemon: &Daemon) {
    let mut client = Client::connect(&daemon.socket(), VOLUME).expect("the daemon answers");
    let mut offset = 0;
    while offset < BLOCKS * BLOCK_BYTES || client.in_flight() > 0 {
        while offset < BLOCKS * BLOCK_BYTES && client.in_flight() < 8 {
            client
                .send(command::READ, 0, offset, READ_BYTES as u32, &[])
                .expect("a request");
            offset += READ_BYTES;
        }
        client.receive().expect("a reply");
    }
}

#[test]
fn a_million_cached_blocks_are_cached_after_a_kill() {
    let volume_bytes = (BLOCKS * BLOCK_BYTES).next_multiple_of(READ_BYTES);
    let mut daemon = Daemon::new(
        "restart",
        &Setup {
            durability: "flush",
            cache_bytes: volume_bytes + volume_bytes / 8,
            volume_bytes,
            fuse: false,
            devices: Devices::Files,
            dirty_tracking: "exact",
        },
    );
    daemon.command(
        "format",
        &["--cache", "cache", "--block-size", "4K", "--force"],
    );
    daemon.start();
    let begin = Instant::now();
    fill(&daemon);
    let cached = counter(&daemon, "used_bytes") / BLOCK_BYTES;
    say(&format!(
        "{cached} blocks cached in {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    assert!(cached >= BLOCKS, "{cached} blocks are cached");
    // Read data is recorded with the next commits.
    std::thread::sleep(Duration::from_secs(3));
    daemon.kill();
    let took = daemon.start();
    say(&format!(
        "killed with {cached} blocks cached: the first read was answered {} ms after the start",
        took.as_millis()
    ));
    let before = counter(&daemon, "read_misses");
    let mut client = Client::connect(&daemon.socket(), VOLUME).expect("the daemon answers");
    for draw in 0..SAMPLE {
        let block = draw * 7_919_993 % BLOCKS;
        client
            .read(block * BLOCK_BYTES, BLOCK_BYTES as u32)
            .expect("reads");
    }
    let missed = counter(&daemon, "read_misses") - before;
    assert_eq!(
        missed, 0,
        "of {SAMPLE} blocks that were cached before the kill"
    );
    daemon.stop();
}
