//! `kill -9` under load: no acknowledged write is lost with the process, in either durability.
//!
//! The log of acknowledgements lives here, outside of the daemon. `FOREBAY_KILLS` is the number of
//! kills for each durability (5). `FOREBAY_SEED` replays the requests and the kill times of a run.

mod applications;
mod daemon;
mod ext4;
mod load;
mod log;
mod reclaim;
mod restart;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use forebay_tests::client::Client;
use forebay_tests::stamp::mix;
use serde_json::{Value, json};

use daemon::{Daemon, Devices, Setup, VOLUME};
use load::{Progress, STRIPE_BYTES, Writer};
use log::Mismatch;

const WRITERS: u64 = 4;
/// The load of one round is several times the size of the cache.
const CACHE_BYTES: u64 = 32 << 20;
const VOLUME_BYTES: u64 = 128 << 20;
/// Acknowledged writes that a round needs. Fewer prove little.
const LEAST_ACKNOWLEDGED: u64 = 200;
/// Timeout for that on a busy machine, seconds.
const PATIENCE_S: u64 = 30;

fn number(variable: &str, otherwise: impl FnOnce() -> u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")),
        Err(_) => otherwise(),
    }
}

/// Prints a line past the test harness, which captures the output of tests.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a result for programs: a line `ROW {json}`, if `FOREBAY_ROWS` is set.
fn row(row: &Value) {
    if std::env::var_os("FOREBAY_ROWS").is_some() {
        say(&format!("ROW {row}"));
    }
}

/// Returns the number of kills.
fn kills() -> u64 {
    number("FOREBAY_KILLS", || 5)
}

/// Loads the daemon and kills it after `life`, or later, when enough writes were acknowledged.
fn load_and_kill(daemon: &mut Daemon, writers: &mut [Writer], life: Duration) -> u64 {
    let progress = Progress::default();
    let socket = daemon.socket();
    thread::scope(|scope| {
        for writer in writers {
            let (socket, progress) = (&socket, &progress);
            scope.spawn(move || writer.run(socket, VOLUME, progress));
        }
        thread::sleep(life);
        for _ in 0..PATIENCE_S * 10 {
            if progress.acknowledged.load(Ordering::Relaxed) >= LEAST_ACKNOWLEDGED {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        progress.killed.store(true, Ordering::SeqCst);
        daemon.kill();
    });
    progress.acknowledged.into_inner()
}

/// Reads the whole volume through the daemon and compares it with the logs.
fn verify(daemon: &Daemon, writers: &mut [Writer]) -> Vec<Mismatch> {
    let verify_one = |writer: &mut Writer| {
        let mut client = Client::connect(&daemon.socket(), VOLUME).expect("it serves again");
        let read = |offset| {
            let read = client.read(offset, STRIPE_BYTES as u32);
            read.unwrap_or_else(|error| panic!("read at {offset} after the restart: {error}"))
        };
        writer.verify(read, VOLUME_BYTES)
    };
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(|| verify_one(writer)))
            .collect();
        let finished = running.into_iter().map(|one| one.join());
        finished
            .flat_map(|found| found.expect("every stripe could be read"))
            .collect()
    })
}

/// Compares the backing file itself with the logs.
fn verify_backing(backing: &File, writers: &mut [Writer]) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    for writer in writers {
        let read = |offset| {
            let mut bytes = vec![0; STRIPE_BYTES as usize];
            backing
                .read_exact_at(&mut bytes, offset)
                .expect("a file of the full size");
            bytes
        };
        mismatches.extend(writer.verify(read, VOLUME_BYTES));
    }
    mismatches
}

fn assert_none(mismatches: &[Mismatch], when: &str, seed: u64) {
    let some = &mismatches[..mismatches.len().min(8)];
    let count = mismatches.len();
    assert!(
        mismatches.is_empty(),
        "{when}: {count} sectors are wrong (FOREBAY_SEED={seed}), such as {some:#x?}"
    );
}

fn seed() -> u64 {
    let clock = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
    number("FOREBAY_SEED", || clock.as_nanos() as u64)
}

fn set_up(name: &str, durability: &'static str, transit: bool, seed: u64) -> (Daemon, Vec<Writer>) {
    set_up_tracked(name, durability, transit, "exact", seed)
}

fn set_up_tracked(
    name: &str,
    durability: &'static str,
    transit: bool,
    dirty_tracking: &'static str,
    seed: u64,
) -> (Daemon, Vec<Writer>) {
    let setup = Setup {
        durability,
        cache_bytes: CACHE_BYTES,
        volume_bytes: VOLUME_BYTES,
        fuse: false,
        devices: if transit {
            Devices::Transit
        } else {
            Devices::Files
        },
        dirty_tracking,
    };
    let writer = |index| Writer::new(index, WRITERS, seed);
    (
        Daemon::new(name, &setup),
        (0..WRITERS).map(writer).collect(),
    )
}

fn killed_under_load(durability: &'static str, transit: bool, dirty_tracking: &'static str) {
    let seed = seed();
    let through = match (transit, dirty_tracking) {
        (true, _) => "nbd, transit",
        (false, "abt") => "nbd, bit-tree",
        (false, _) => "nbd",
    };
    say(&format!(
        "{through}, durability {durability}: FOREBAY_SEED={seed}"
    ));
    let (mut daemon, mut writers) = set_up_tracked(
        &format!("kill-{durability}-{transit}-{dirty_tracking}"),
        durability,
        transit,
        dirty_tracking,
        seed,
    );
    daemon.start();
    for round in 1..=kills() {
        let life_ms = 200 + mix(seed ^ (round << 32)) % 1300;
        let life = Duration::from_millis(life_ms);
        let acknowledged = load_and_kill(&mut daemon, &mut writers, life);
        assert!(
            acknowledged >= LEAST_ACKNOWLEDGED,
            "only {acknowledged} writes in {PATIENCE_S} s"
        );
        let restart = daemon.start();
        let mismatches = verify(&daemon, &mut writers);
        say(&format!(
            "{through}, durability {durability}: kill {round} after {life_ms} ms: {acknowledged} \
             acknowledged writes, first answer {} ms after the restart, {} mismatches",
            restart.as_millis(),
            mismatches.len()
        ));
        row(&json!({
            "check": through,
            "durability": durability,
            "kill": round,
            "acknowledged": acknowledged,
            "restart_ms": restart.as_millis() as u64,
            "wrong": mismatches.len(),
        }));
        assert_none(&mismatches, &format!("after kill {round}"), seed);
    }

    // All dirty data reaches the backing device, and a clean stop loses nothing either.
    daemon.control("flush", &[]);
    daemon.stop();
    let backing = File::open(daemon.site.path("backing")).expect("the backing file");
    assert_none(
        &verify_backing(&backing, &mut writers),
        "on the backing file",
        seed,
    );
    daemon.start();
    assert_none(&verify(&daemon, &mut writers), "after a clean stop", seed);
    daemon.stop();
}

#[test]
fn no_acknowledged_write_is_lost_with_durability_sync() {
    killed_under_load("sync", false, "exact");
}

#[test]
fn no_acknowledged_write_is_lost_with_durability_flush() {
    killed_under_load("flush", false, "exact");
}

#[test]
fn no_acknowledged_write_is_lost_with_a_bit_tree() {
    killed_under_load("flush", false, "abt");
}

#[test]
fn no_acknowledged_write_is_lost_through_transit_caches() {
    killed_under_load("flush", true, "exact");
}

/// The process journal holds acknowledged writes that were not flushed. Without it the daemon must
/// not serve as before. With it nothing is lost.
#[test]
fn without_its_process_journal_a_killed_cache_is_not_served() {
    let seed = seed();
    let (mut daemon, mut writers) = set_up("journal", "flush", false, seed);
    daemon.start();
    load_and_kill(&mut daemon, &mut writers, Duration::from_millis(300));
    let (journal, elsewhere) = (daemon.site.path("journal"), daemon.site.path("away"));
    std::fs::rename(&journal, &elsewhere).expect("the journal exists");
    let said = daemon.start_refused();
    assert!(said.contains("journal"), "it names what is missing: {said}");
    std::fs::rename(&elsewhere, &journal).expect("put back");
    daemon.start();
    assert_none(
        &verify(&daemon, &mut writers),
        "with its journal back",
        seed,
    );
    daemon.stop();
}

/// Nothing on media depends on the number of reactors.
#[test]
fn a_cache_opened_with_1_2_and_4_reactors_in_turn_keeps_every_byte() {
    let seed = seed();
    let (mut daemon, mut writers) = set_up("reactors", "flush", false, seed);
    for (round, reactors) in [1, 2, 4, 1].into_iter().enumerate() {
        daemon.set_reactors(reactors);
        daemon.start();
        let when = format!("with {reactors} reactors");
        assert_none(&verify(&daemon, &mut writers), &when, seed);
        load_and_kill(&mut daemon, &mut writers, Duration::from_millis(500));
        daemon.start();
        assert_none(&verify(&daemon, &mut writers), &when, seed);
        // The next start finds a cache that was killed, or one that was closed.
        if round % 2 == 0 {
            daemon.kill();
        } else {
            daemon.stop();
        }
    }
}
