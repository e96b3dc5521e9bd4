//! A start that the last volume's sample refuses. The backing devices of the others stay as they
//! were.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use forebay::{Config, Engine, Reactor, Stack, Wishes};
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf};
use forebay_cache::failpoints::{Fault, plant};
use forebay_cache::{Devices, FormatOptions};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::rt;
use forebay_io::sim::Rng;

use crate::world::{BLOCK, BLOCKS, CACHE, CACHE_BYTES, DISKS, Machine, Setup};

/// A file beside the cache file, for the metadata.
const MAP: &str = "map";

fn file(path: &Path, bytes: u64) -> Rc<dyn BlockDevice> {
    let made = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    made.expect("a file").set_len(bytes).expect("room");
    let options = FileDeviceOptions {
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, options).expect("the file opens")
}

/// The configuration of a start.
#[derive(Clone, Copy)]
struct Start {
    cleaning: &'static str,
    durability: &'static str,
    /// Latency of reads of the metadata.
    map_latency: &'static str,
    /// Backing device of the first volume: `a`, the file, or the policy of a transit cache over it.
    backing: &'static str,
    mode: &'static str,
}

const PLAIN: Start = Start {
    cleaning: "nop",
    durability: "flush",
    map_latency: "0ms",
    backing: "a",
    mode: "wb",
};

/// Returns a configuration of two volumes. Reads of the second one's backing device take 20 ms,
/// which gives a cleaner of the first one time.
fn config(machine: &Machine, start: Start) -> Config {
    let Start {
        cleaning,
        durability,
        map_latency,
        backing,
        mode,
    } = start;
    let transit = match backing {
        "a" => String::new(),
        policy => {
            let named = format!(r#"name = "{policy}", policy = "{policy}""#);
            format!(r#"{{ {named}, kind = "transit", on = "a", capacity = "1M" }},"#)
        }
    };
    let text = format!(
        r#"
        server = {{ state = "state", control = "ctl", metrics = "127.0.0.1:0" }}
        device = [
            {{ name = "fast", kind = "file", path = "{CACHE}" }},
            {{ name = "raw", kind = "file", path = "{MAP}" }},
            {{ name = "map", kind = "emulate", on = "raw", read_latency = "{map_latency}" }},
            {{ name = "a", kind = "file", path = "{}" }},
            {transit}
            {{ name = "disk", kind = "file", path = "{}" }},
            {{ name = "b", kind = "emulate", on = "disk", read_latency = "20ms" }},
        ]
        cache.data = "fast"
        cache.metadata = "map"
        cache.journal = "journal"
        cache.journal_size = "1M"
        cache.cleaning = "{cleaning}"
        cache.durability = "{durability}"
        volume = [
            {{ name = "v0", backing = "{backing}", mode = "{mode}" }},
            {{ name = "v1", backing = "b", mode = "wt" }},
        ]
        "#,
        DISKS[0], DISKS[1]
    );
    let path = machine.folder().join("forebay.toml");
    Config::parse(&path, &text).expect("a valid configuration")
}

async fn fill(device: &Rc<dyn BlockDevice>, byte: u8) {
    for block in 0..BLOCKS {
        let data = Buf::copied(&[byte; BLOCK as usize]);
        (device.write(block * BLOCK, data).await).expect("written");
    }
    device.flush().await.expect("flushed");
}

/// Returns a machine whose cache has dirty data of v0 and clean data of v1. The backing device of
/// v1 has other data.
fn prepare(seed: u64) -> Machine {
    let machine = Machine::new(&Rng::labelled(seed, 43), Setup::named_journal());
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    let folder = machine.folder().to_path_buf();
    let (uuid, config) = (machine.uuid, config(&machine, PLAIN));
    reactor.run(async move {
        let devices = Devices {
            data: file(&folder.join(CACHE), CACHE_BYTES),
            metadata: Some(file(&folder.join(MAP), 2 << 20)),
        };
        let options = FormatOptions::new(4 << 10, uuid);
        (forebay_cache::format(&devices, &options).await).expect("formatted");
    });
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move {
        let stack = Stack::open(&config, &Wishes::default()).await;
        let stack = stack.expect("it starts");
        for (volume, byte) in [("v0", 1), ("v1", 2)] {
            let device = stack.volume(volume).expect("there").open();
            fill(&device, byte).await;
        }
        stack.close().await.expect("it stops");
    });
    machine.overwrite(DISKS[1], &[7; (BLOCKS * BLOCK) as usize]);
    machine
}

/// Starts, and writes to v0 as soon as it is served. Returns the report of the refused start, and
/// the result of the write if v0 was served.
fn start(config: Config) -> (String, Option<String>) {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move {
        let stack = match Stack::open(&config, &Wishes::default()).await {
            Ok(stack) => stack,
            Err(error) => return (error.report(), None),
        };
        let device = stack.volume("v0").expect("there").open();
        let written = device.write(0, Buf::copied(&[9; BLOCK as usize])).await;
        let refused = stack.ready().await.expect_err("v1 differs").report();
        // Time for a cleaner that does not wait.
        rt::sleep(std::time::Duration::from_millis(100)).await;
        let _ = stack.close().await;
        let written = match written {
            Ok(()) => "written".to_owned(),
            Err(error) => error.report(),
        };
        (refused, Some(written))
    })
}

#[test]
fn a_start_that_the_last_volume_refuses_writes_nothing_back() {
    for (seed, map_latency) in [(1, "0ms"), (2, "300ms")] {
        for fault in [None, Some(Fault::CleanBeforeAllAttached)] {
            let machine = prepare(seed);
            let before = machine.snapshot();
            plant(fault);
            let (refused, written) = start(config(
                &machine,
                Start {
                    cleaning: "acp",
                    map_latency,
                    ..PLAIN
                },
            ));
            plant(None);
            assert!(refused.contains("differs at byte"), "{refused}");
            let changed = !machine.snapshot().is_same(&before, DISKS[0]);
            assert_eq!(changed, fault.is_some(), "{map_latency}, {fault:?}");
            // With a slow open of the cache, v0 is served first. A write waits for the end of all
            // attaches.
            assert_eq!(written.is_some(), map_latency != "0ms", "{written:?}");
            let failed = written.is_none_or(|written| written.contains("differs at byte"));
            assert!(failed, "the write must fail with the start");
        }
    }
}

/// Writes to v0 and ends without a shutdown, as a killed process.
fn write_and_die(config: Config, byte: u8) {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move {
        let stack = Stack::open(&config, &Wishes::default()).await;
        let stack = stack.expect("it starts");
        stack.ready().await.expect("all is attached");
        let device = stack.volume("v0").expect("there").open();
        for block in 0..BLOCKS {
            let data = Buf::copied(&[byte; BLOCK as usize]);
            (device.write(block * BLOCK, data).await).expect("written");
        }
    });
}

/// Returns the contents of v0, after a clean end.
fn read_and_stop(config: Config) -> Vec<u8> {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move {
        let stack = Stack::open(&config, &Wishes::default()).await;
        let stack = stack.expect("it starts");
        stack.ready().await.expect("all is attached");
        let device = stack.volume("v0").expect("there").open();
        let mut held = Vec::new();
        for block in 0..BLOCKS {
            let buf = Buf::zeroed(BLOCK as usize);
            device.read(block * BLOCK, buf.clone()).await.expect("read");
            held.extend(buf.to_vec());
        }
        stack.close().await.expect("it stops");
        held
    })
}

/// A refused start leaves slots of a killed process above the first volume's backing device as they
/// are. The policy, the mode and the durability do not matter, nor the time at which the second
/// volume is found to differ.
#[test]
fn a_start_that_the_last_volume_refuses_sends_no_slots_on() {
    let mut seed = 10;
    for (backing, mode, durability, map_latency) in [
        ("lru", "wt", "flush", "0ms"),
        ("caiti", "wt", "flush", "0ms"),
        ("caiti", "wb", "sync", "0ms"),
        ("caiti", "wt", "flush", "300ms"),
        ("lru", "pt", "sync", "300ms"),
    ] {
        for fault in [
            None,
            Some(Fault::EvictBeforeAllAttached),
            Some(Fault::DrainRefused),
        ] {
            seed += 1;
            let machine = prepare(seed);
            let sound = vec![2; (BLOCKS * BLOCK) as usize];
            machine.overwrite(DISKS[1], &sound);
            let killed = Start {
                backing: "lru",
                mode: "pt",
                ..PLAIN
            };
            write_and_die(config(&machine, killed), 3);
            machine.overwrite(DISKS[1], &[7; (BLOCKS * BLOCK) as usize]);
            let before = machine.snapshot();
            let later = Start {
                backing,
                mode,
                durability,
                map_latency,
                ..PLAIN
            };
            let what = format!("{backing} {mode} {durability} {map_latency} {fault:?}");
            plant(fault);
            let (refused, _) = start(config(&machine, later));
            plant(None);
            assert!(refused.contains("differs at byte"), "{what}: {refused}");
            let changed = !machine.snapshot().is_same(&before, DISKS[0]);
            assert_eq!(changed, fault.is_some(), "{what}");
            machine.overwrite(DISKS[1], &sound);
            let held = read_and_stop(config(&machine, later));
            assert!(held.iter().all(|byte| *byte == 3), "{what}");
            let sent = machine.snapshot();
            let sent = sent.of(DISKS[0]).expect("it is there");
            assert!(sent.iter().all(|byte| *byte == 3) || mode == "wb", "{what}");
        }
    }
}
