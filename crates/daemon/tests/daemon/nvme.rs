//! The daemon's NVMe/TCP exports, seen by the front-end tests' own host.

#[expect(dead_code, reason = "the front-end's tests use the rest of it")]
#[path = "../../../frontend/tests/nvme_tcp/initiator.rs"]
mod initiator;

use std::net::SocketAddr;

use crate::support::{Daemon, Place};
use crate::{block, check_blocks, write_blocks};
use initiator::{Association, Identity, Queue, Style, With, on_blocks};

const NQN: &str = "nqn.2026-11.io.forebay:db";
const EXPORT: &str = r#"
reactors = 2
[[export]]
volume = "db"
nvme-tcp = "127.0.0.1:0"
nqn = "nqn.2026-11.io.forebay:db"
allow_hosts = ["nqn.2014-08.org.nvmexpress:uuid:host"]
"#;
const READ: u8 = 2;
const WRITE: u8 = 1;

fn address(daemon: &Daemon) -> SocketAddr {
    let (_, rest) = daemon
        .listening
        .split_once("NVMe/TCP: nvme-tcp://")
        .expect("it says where");
    let (address, rest) = rest.split_once('/').expect("and what");
    assert!(
        rest.starts_with(&format!("{NQN} is volume \"db\", namespace 1")),
        "{rest}"
    );
    address.parse().expect("an address")
}

fn read(queue: &mut Queue, number: u64) -> Vec<u8> {
    let done = queue.call(on_blocks(READ, number * 8, 8, 0), With::Room(4096));
    assert_eq!(done.status, 0, "block {number}");
    done.data
}

#[test]
fn a_volume_is_the_same_over_nvme_and_nbd_and_after_a_kill() {
    let place = Place::new("nvme", "wb");
    place.configure("wb", EXPORT);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..32);
    let host = Association::new(address(&daemon), Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    for number in 0..32 {
        assert_eq!(read(&mut queue, number), block(number));
    }
    for number in 32..64 {
        let entry = on_blocks(WRITE, number * 8, 8, 0);
        let data = block(number);
        let with = if number % 2 == 0 {
            With::InCapsule(&data)
        } else {
            With::Data(&data)
        };
        assert_eq!(queue.call(entry, with).status, 0);
    }
    check_blocks(&mut nbd, 0..64);
    let status = place.status();
    let counts = status["reactors"].as_array().expect("two");
    let total: u64 = counts
        .iter()
        .filter_map(|one| one["connections"].as_u64())
        .sum();
    assert_eq!(total, 3, "{status}");
    daemon.kill();
    let daemon = place.serve(&[]);
    let host = Association::new(address(&daemon), Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    for number in 0..64 {
        assert_eq!(read(&mut queue, number), block(number));
    }
    daemon.terminate();
}

#[test]
fn a_detached_volume_is_a_namespace_no_more_and_a_stranger_is_named() {
    let place = Place::new("nvme-detach", "wt");
    place.configure("wt", EXPORT);
    let daemon = place.serve(&[]);
    let address = address(&daemon);
    let mut host = Association::new(address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    assert_eq!(host.identify(2, 0).data[..4], [1, 0, 0, 0]);
    place.ok(&["detach", "db"]);
    let done = queue.call(on_blocks(READ, 0, 1, 0), With::Room(512));
    assert_eq!(done.status, 0x0b);
    assert_eq!(host.identify(2, 0).data[..4], [0; 4]);
    let stranger = Identity {
        host: "nqn.2026-11.io.forebay:stranger",
        ..Identity::to(NQN)
    };
    let mut refused = Queue::open(address, Style::default());
    assert_eq!(refused.connect(&stranger, 0, 0xffff).status, 0x184);
    place.wait_for_log("allow_hosts");
    assert!(place.log().contains("forebay:stranger"), "{}", place.log());
    daemon.terminate();
}
