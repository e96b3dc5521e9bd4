//! Limits: descriptors, the time that a command waits, the volumes that a cache knows.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::support::{Place, text};
use super::{block, write_blocks};

/// Much longer than any answer takes.
const ENOUGH: Duration = Duration::from_secs(30);

/// Returns the address after a word in the daemon's output at its start.
fn address(listening: &str, word: &str) -> String {
    let begin = listening.find(word).expect("it says so") + word.len();
    let rest = listening[begin..].chars();
    rest.take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
        .collect()
}

/// Connects a hundred clients that request nothing. The end of a connection tells its client of the
/// refusal.
fn idle<T>(connect: impl Fn() -> std::io::Result<T>) -> Vec<T> {
    (0..100).filter_map(|_| connect().ok()).collect()
}

#[test]
fn control_is_answered_beside_a_hundred_idle_clients_of_any_front_end() {
    let place = Place::new("idle", "wb");
    let more = "[[export]]\nvolume = \"db\"\nnbd = \"127.0.0.1:0\"\n\
                [[export]]\nvolume = \"db\"\nnvme-tcp = \"127.0.0.1:0\"\n\
                nqn = \"nqn.2026-11.io.forebay:db\"\n\
                [[export]]\nvolume = \"db\"\nvhost-user-blk = \"vm.sock\"\n";
    place.configure("wb", more);
    for limit in ["ulimit -n 96", "ulimit -Sn 64"] {
        let daemon = place.serve_after(limit, &[]);
        let said = daemon.listening();
        let (nbd, nvme) = (address(&said, "nbd://"), address(&said, "nvme-tcp://"));
        let http = address(&said, "http://");
        for crowded in [false, true] {
            let unix = |file: &str| UnixStream::connect(place.path(file));
            let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
            if crowded {
                held.push(Box::new(idle(|| unix("nbd.sock"))));
                held.push(Box::new(idle(|| TcpStream::connect(&nbd))));
                held.push(Box::new(idle(|| TcpStream::connect(&nvme))));
                held.push(Box::new(idle(|| unix("vm.sock"))));
                held.push(Box::new(idle(|| TcpStream::connect(&http))));
                held.push(Box::new(idle(|| unix("control.sock"))));
            }
            let begin = Instant::now();
            assert!(place.ok(&["flush"]).contains("wrote"), "{limit}, {crowded}");
            assert_eq!(place.status()["volumes"][0]["name"], "db");
            assert!(daemon.get("/healthz").contains("ok"), "{limit}, {crowded}");
            assert!(begin.elapsed() < ENOUGH, "{limit}, {crowded}");
        }
        // A few lines for hundreds of clients.
        assert!(place.log().lines().count() < 40, "{}", place.log());
        assert!(
            !place.log().contains("Too many open files"),
            "{}",
            place.log()
        );
        daemon.terminate();
    }
}

/// Each volume needs a descriptor for its backing file. The start is refused before a device opens,
/// and `check` reports the same.
#[test]
fn too_few_descriptors_for_the_volumes_are_reported_by_check_and_serve_alike() {
    let place = Place::new("many", "wb");
    let mut more = String::new();
    for number in 0..40 {
        let file = std::fs::File::create(place.path(&format!("more{number}.img")));
        file.expect("made").set_len(1 << 20).expect("sparse");
        more.push_str(&format!(
            "[[device]]\nname = \"on{number}\"\nkind = \"file\"\npath = \"more{number}.img\"\n\
             [[volume]]\nname = \"more{number}\"\nbacking = \"on{number}\"\nmode = \"wb\"\n"
        ));
    }
    place.configure("wb", &more);
    let config = place.path("forebay.toml");
    let refused = |command| {
        let ended = place.run_after("ulimit -n 64", &[command, text(&config)]);
        assert_eq!(ended.status.code(), Some(1), "{command}: {ended:?}");
        String::from_utf8(ended.stderr).expect("text")
    };
    for command in ["check", "serve"] {
        let said = refused(command);
        assert!(
            said.contains("descriptors, and the process may open 64"),
            "{said}"
        );
        assert!(said.contains("help: raise the limit"), "{said}");
    }
    // The number in the message suffices.
    let said = refused("check");
    let needed = said
        .split("needs ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let daemon = place.serve_after(&format!("ulimit -n {}", needed.expect("a number")), &[]);
    assert!(place.ok(&["status"]).contains("more39"));
    assert!(
        !place.log().contains("Too many open files"),
        "{}",
        place.log()
    );
    daemon.terminate();
}

#[test]
fn every_command_times_out_on_a_silent_daemon_and_names_the_awaited_answer() {
    let place = Place::new("stopped", "wb");
    let daemon = place.serve(&[]);
    daemon.signal(libc::SIGSTOP);
    let (config, trace) = (place.path("forebay.toml"), place.path("trace.fbt"));
    let commands: [(&[&str], &str); 11] = [
        (&["status"], "the engine to answer"),
        (&["flush"], "dirty data"),
        (&["flush", "db"], "dirty data"),
        (&["mode", "db", "wt"], "the mode"),
        (&["cleaning", "nop"], "the cleaning policy"),
        (&["detach", "db"], "to be detached"),
        (&["forget", "other"], "forget the volume"),
        (&["grow", "db"], "size"),
        (&["scrub"], "the scrub"),
        (&["trace", "record", text(&trace)], "the engine to answer"),
        (&["check", text(&config)], "the engine to answer"),
    ];
    for (command, waited) in commands {
        let begin = Instant::now();
        let said = place.refused(&[&["--timeout", "500ms"], command].concat());
        assert!(said.contains("does not answer"), "{command:?}: {said}");
        assert!(said.contains(waited), "{command:?}: {said}");
        assert!(said.contains("help: "), "{command:?}: {said}");
        assert!(begin.elapsed() < ENOUGH, "{command:?}");
    }
    // Connecting has a time limit as well, if the daemon accepts no connections any more.
    let held = idle(|| UnixStream::connect(place.path("nbd.sock")));
    daemon.signal(libc::SIGCONT);
    drop(held);
    assert!(place.ok(&["flush"]).contains("wrote"));
    daemon.terminate();
}

#[test]
fn a_flush_that_stands_still_is_given_up_and_goes_on() {
    let place = Place::new("standstill", "wb");
    let stuck = "[[device]]\nname = \"stuck\"\nkind = \"emulate\"\non = \"disk\"\n\
        write_latency = \"20s\"\n\n[cache]";
    place.edit_config(&[
        ("[cache]", stuck),
        ("backing = \"disk\"", "backing = \"stuck\""),
    ]);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..1);
    let said = place.refused(&["--timeout", "3s", "flush"]);
    assert!(
        said.contains("no progress for 3s") && said.contains("continues it"),
        "{said}"
    );
    daemon.kill();
}

#[test]
fn a_volume_is_forgotten_by_a_daemon_and_without_one() {
    let place = Place::new("forget", "wb");
    let config = place.path("forebay.toml");
    let written = std::fs::read_to_string(&config).expect("there");
    let serve_as = |name: &str, blocks: u64| {
        let file = format!("{name}.img");
        let made = std::fs::File::create(place.path(&file)).expect("made");
        made.set_len(64 << 20).expect("sparse");
        let text = written
            .replace("db.img", &file)
            .replace("\"db\"", &format!("{name:?}"));
        std::fs::write(&config, text).expect("written");
        let daemon = place.serve(&[]);
        let socket = place.path("nbd.sock");
        let mut nbd = super::support::nbd::Nbd::connect(&socket, name).expect("answers");
        write_blocks(&mut nbd, 0..blocks);
        drop(nbd);
        daemon
    };
    for name in ["a", "b", "c"] {
        serve_as(name, 4).terminate();
        std::fs::remove_file(place.path(&format!("{name}.img"))).expect("its disk is gone");
    }
    // By a daemon that serves another volume.
    let daemon = serve_as("d", 0);
    let refused = place.refused(&["forget", "a"]);
    assert!(refused.contains("16384 bytes of dirty data"), "{refused}");
    let done = place.ok(&["forget", "a", "--discard-dirty"]);
    assert!(
        done.contains("16 KiB of dirty data DISCARDED") && done.contains("16384 bytes at 0"),
        "{done}"
    );
    let list = std::fs::read_to_string(place.path("state").join("a.abandoned")).expect("a list");
    assert!(list.ends_with("\n0 16384\n"), "{list}");
    assert!(place.refused(&["forget", "d"]).contains("is being served"));
    daemon.kill();
    // After a kill, by the configuration, and by the cache alone.
    let refused = place.refused(&["forget", "b", text(&config)]);
    assert!(refused.contains("16384 bytes of dirty data"), "{refused}");
    let done = place.ok(&["forget", "b", text(&config), "--discard-dirty", "--json"]);
    assert!(done.contains("DISCARDED"), "{done}");
    let (cache, journal) = (place.path("cache"), place.path("journal"));
    let alone = [
        "forget",
        "c",
        "--cache",
        text(&cache),
        "--journal",
        text(&journal),
    ];
    assert!(place.refused(&alone).contains("16384 bytes"));
    let done = place.ok(&[&alone[..], &["--discard-dirty"]].concat());
    assert!(done.contains("16384 bytes at 0"), "{done}");
    let unknown = place.refused(&["forget", "c", text(&config)]);
    assert!(
        unknown.contains("does not know volume") && unknown.contains("name one of its volumes: d"),
        "{unknown}"
    );
    assert!(
        place
            .refused(&["forget", "d"])
            .contains("name the configuration")
    );
    // A volume with the name of a forgotten one starts with the contents of its disk.
    let daemon = serve_as("a", 1);
    let socket = place.path("nbd.sock");
    let mut nbd = super::support::nbd::Nbd::connect(&socket, "a").expect("answers");
    assert_eq!(nbd.read(0, 4096).expect("an answer"), Ok(block(0)));
    assert_eq!(nbd.read(4096, 4096).expect("an answer"), Ok(vec![0; 4096]));
    daemon.terminate();
    assert!(
        place
            .ok(&["forget", "d", text(&config)])
            .contains("nothing of it was dirty")
    );
}

/// Checks each allocation at the start or in service: it is refused beforehand, and named.
#[test]
fn devices_larger_than_memory_are_refused_by_check_and_serve() {
    let place = Place::new("memory", "wb");
    let file = place.path("forebay.toml");
    let config = std::fs::read_to_string(&file).expect("there");
    let said = place.ok(&["check", text(&file)]);
    assert!(said.contains("memory under full load: "), "{said}");
    let device = |more: &str| format!("[[device]]\nname = \"large\"\n{more}\n\n[cache]");
    let memory = device("kind = \"mem\"\nsize = \"900T\"");
    let transit = device("kind = \"transit\"\non = \"disk\"\ncapacity = \"1T\"");
    let cases = [
        (
            config.replacen("[cache]", &memory, 1),
            "memory device \"large\" 900 TiB",
        ),
        (
            config.replacen("[cache]", &transit, 1),
            "transit cache \"large\" 1 TiB",
        ),
        (
            config
                .replacen(
                    "[cache]",
                    &memory.replace("900T\"", "900T\"\nvolatile = true"),
                    1,
                )
                .replacen("data = \"ssd\"", "data = \"large\"", 1),
            "memory device \"large\" 900 TiB",
        ),
    ];
    for (config, what) in cases {
        let config = config.replacen("backing = \"disk\"", &backing(&config), 1);
        std::fs::write(&file, &config).expect("written");
        for command in [["check", text(&file)], ["serve", text(&file)]] {
            let said = place.refused(&command);
            assert!(
                said.contains("of memory, and may have"),
                "{command:?}: {said}"
            );
            assert!(said.contains(what), "{command:?}: {said}");
        }
    }
}

/// Returns the backing device of the volume, so that each device of a configuration has a user.
fn backing(config: &str) -> String {
    let used = config.contains("data = \"large\"") || !config.contains("name = \"large\"");
    format!("backing = \"{}\"", if used { "disk" } else { "large" })
}

/// Runs a command under a limit of address space, in MiB.
fn within(place: &Place, mib: u64, command: &str) -> std::process::Output {
    let line = format!("ulimit -v {}", mib << 10);
    place.run_after(&line, &[command, text(&place.path("forebay.toml"))])
}

/// A limit of address space is known. Too small a limit is refused with the sum, and nothing aborts
/// with a sufficient one.
#[test]
fn a_limit_of_address_space_is_respected() {
    let place = Place::new("address-space", "wb");
    let more = "[[export]]\nvolume = \"db\"\nnvme-tcp = \"127.0.0.1:0\"\n\
        nqn = \"nqn.2026-11.io.forebay:db\"\n\
                [[export]]\nvolume = \"db\"\nvhost-user-blk = \"vm.sock\"\n";
    for (more, what) in [
        ("", "requests of a connection"),
        (more, "requests of virtual machines"),
    ] {
        place.configure("wb", more);
        for mib in [100, 150, 200] {
            for command in ["check", "serve"] {
                let ended = within(&place, mib, command);
                assert_eq!(
                    ended.status.code(),
                    Some(1),
                    "{command}, {mib} MiB: {ended:?}"
                );
                let said = String::from_utf8(ended.stderr).expect("text");
                for part in ["of memory, and may have", "(ulimit -v)", what, "help: "] {
                    assert!(said.contains(part), "{command}, {mib} MiB: {said}");
                }
            }
        }
    }
    place.configure("wb", "");
    // Both accept the same limit, whatever they use themselves.
    for mib in (200..320).step_by(8) {
        let checked = within(&place, mib, "check");
        let said = String::from_utf8(checked.stderr).expect("text");
        match checked.status.success() {
            true => {
                let line = format!("ulimit -v {}", mib << 10);
                place.serve_after(&line, &[]).terminate();
            }
            false => {
                let served = within(&place, mib, "serve");
                let printed = String::from_utf8(served.stderr).expect("text");
                let needs = |said: &str| {
                    let (_, rest) = said.split_once("the daemon needs ").expect("it says so");
                    rest.split(',').next().map(str::to_owned)
                };
                assert_eq!(needs(&said), needs(&printed), "{mib} MiB");
            }
        }
    }
    let least = (200..2000)
        .step_by(10)
        .find(|mib| within(&place, *mib, "check").status.success());
    let least = least.expect("some memory suffices") + 80;
    let printed = String::from_utf8(within(&place, least, "check").stdout).expect("text");
    assert!(
        printed.contains("requests of at most 2 connections"),
        "{printed}"
    );
    let daemon = place.serve_after(&format!("ulimit -v {}", least << 10), &[]);
    place.wait_for_log("the memory suffices for the requests of 2 connections");
    let mut two = [place.connect(), place.connect()];
    let third = super::support::nbd::Nbd::connect(&place.path("nbd.sock"), "db");
    assert!(third.is_err(), "a third connection");
    for round in 0..4 {
        for nbd in &mut two {
            let data = vec![round; 32 << 20];
            assert_eq!(nbd.write(0, &data).expect("an answer"), 0);
            assert_eq!(nbd.read(0, 32 << 20).expect("an answer"), Ok(data));
        }
    }
    daemon.terminate();
}
