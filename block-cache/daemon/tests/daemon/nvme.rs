//! The daemon's NVMe/TCP exports, seen by the front-end tests' own host.

#[expect(dead_code, reason = "the front-end's tests use the rest of it")]
#[path = "../../../frontend/tests/nvme_tcp/initiator.rs"]
mod initiator;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Daemon, Place, text};
use crate::{block, check_blocks, write_blocks};
use initiator::{Association, Identity, Queue, Style, With, command, on_blocks, words};

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
    let listening = daemon.listening();
    let (_, rest) = listening
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
fn the_identifier_of_a_namespace_names_the_disk_behind_it() {
    let place = Place::new("nvme-uuid", "wt");
    place.configure("wt", EXPORT);
    let uuid = || {
        let daemon = place.serve(&["--adopt", "db"]);
        let mut host = Association::new(address(&daemon), Identity::to(NQN), Style::default());
        // A descriptor of a UUID: its kind, its length, and 16 bytes.
        let page = host.identify(3, 1).data;
        assert_eq!(page[..2], [3, 16]);
        // The identifier of earlier versions is in a field that only this test reads.
        let former = host.identify(0, 1).data[384..408].to_vec();
        assert!(former.starts_with(b"FBFORMER"));
        daemon.terminate();
        (page[4..20].to_vec(), former)
    };
    let (first, former) = uuid();
    assert_eq!(uuid(), (first.clone(), former.clone()), "another start");
    // Another name for the same disk changes nothing, another disk of the same name does.
    let (image, moved) = (place.path("db.img"), place.path("moved.img"));
    std::fs::rename(&image, &moved).expect("same file system");
    std::os::unix::fs::symlink(&moved, &image).expect("linked");
    assert_eq!(uuid(), (first.clone(), former.clone()), "another path");
    std::fs::remove_file(&image).expect("there");
    std::fs::copy(&moved, &image).expect("copied");
    let (second, same) = uuid();
    assert_ne!(second, first, "another file of the same content");
    assert_eq!(same, former);
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

#[test]
fn hosts_with_secrets_prove_themselves_and_the_file_is_nobody_elses() {
    let place = Place::new("nvme-secrets", "wt");
    let (known, unknown) = (
        "nqn.2026-11.io.forebay:known",
        "nqn.2026-11.io.forebay:unknown",
    );
    let generate = |hash: &str| {
        let said = place.ok(&["secret", "generate", "--hash", hash]);
        said.trim_end().to_owned()
    };
    let secret = generate("sha384");
    assert!(
        secret.starts_with("DHHC-1:02:") && secret.ends_with(':'),
        "{}",
        secret.len()
    );
    assert_ne!(secret, generate("sha384"));
    assert!(generate("none").starts_with("DHHC-1:00:"));
    let file = place.path("nvme.secrets");
    let write = |lines: &str, mode: u32| {
        std::fs::write(&file, lines).expect("written");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("set");
    };
    let allowed = "allow_hosts = [\"nqn.2014-08.org.nvmexpress:uuid:host\"]";
    let export = EXPORT.replace(allowed, "secrets = \"nvme.secrets\"");
    place.configure("wt", &export);
    let config = place.path("forebay.toml");
    let line = format!("{known} {secret}");
    for (lines, mode, said) in [
        (line.as_str(), 0o644, "chmod 0600"),
        (line.as_str(), 0o620, "(mode 0620)"),
        ("", 0o600, "no host could connect"),
        (&format!("{line}x"), 0o600, "line 1: invalid secret"),
    ] {
        write(lines, mode);
        let refused = place.refused(&["serve", text(&config)]);
        assert!(
            refused.contains(said) && refused.contains("nvme.secrets"),
            "{refused}"
        );
        assert!(refused.contains("forebay.toml:"), "{refused}");
        assert!(!refused.contains(&secret[10..30]), "{refused}");
    }
    std::fs::remove_file(&file).expect("removed");
    let refused = place.refused(&["serve", text(&config)]);
    assert!(refused.contains("cannot read the secrets in"), "{refused}");
    write(&line, 0o600);
    let daemon = place.serve(&[]);
    let address = address(&daemon);
    let identity = |host| Identity {
        host,
        ..Identity::to(NQN)
    };
    let mut queue = Queue::open(address, Style::default());
    let done = queue.connect(&identity(known), 0, 0xffff);
    assert_eq!(
        (done.status, done.result >> 16),
        (0, 2),
        "it is to prove itself"
    );
    assert_eq!(
        queue.call(command(6, 0, words(&[1])), With::Nothing).status,
        0x191
    );
    // A fetch before any request.
    let fetch = command(0x7f, 6, words(&[0xe901_0100, 4096]));
    let refusal = queue.call(fetch, With::Room(4096)).data;
    assert_eq!(refusal[..8], [0, 0xf1, 0, 0, 0, 0, 1, 7]);
    assert_eq!(queue.closed(), b"");
    place.wait_for_log("it has not authenticated itself");
    assert!(place.log().contains(known), "{}", place.log());
    let mut queue = Queue::open(address, Style::default());
    assert_eq!(queue.connect(&identity(unknown), 0, 0xffff).status, 0x184);
    assert!(!place.log().contains(&secret[10..30]), "{}", place.log());
    daemon.terminate();
}
