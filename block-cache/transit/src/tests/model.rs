//! The cache under all policies against the model disk: simulated devices that lose, reorder and
//! fail, with power loss and process death at every point.

use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Result};
use forebay_io::sim::{DiskConfig, Rng, World};
use forebay_testkit::crash::{Report, Target};
use forebay_testkit::depth::Depth;
use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation, print_row};
use forebay_testkit::stack::{Process, Promise, Running, Stack};
use forebay_testkit::workload::{Mix, Plan};

use crate::comparators;
use crate::fault::{Fault, Faults};
use crate::{Policy, Transit, TransitOptions, memory_bytes};

const VOLUME_BYTES: u64 = 48 << 10;

const DEPTH: Depth = Depth {
    singles: 3,
    subsets: 2,
    deaths: 2,
    stride: 1,
    recoveries: false,
};

/// A cache over a disk, and a durable place that records that it was in use, as a daemon has one.
#[derive(Clone, Copy, Debug)]
struct Setup {
    policy: Policy,
    slots: usize,
    /// Draws what the disk is like; zero for a plain one.
    variant: u64,
    fault: Option<Fault>,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.policy, self.slots, self.variant)
    }
}

impl FromStr for Setup {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [policy, slots, variant] = words[..] else {
            return Err(format!("{text:?} is not: policy slots variant"));
        };
        Ok(Self {
            policy: comparators::named(policy).map_err(|error| error.report())?,
            slots: slots.parse().map_err(|_| "no number of slots")?,
            variant: variant.parse().map_err(|_| "no variant")?,
            fault: None,
        })
    }
}

struct Open {
    cache: Rc<Transit>,
    state: Rc<dyn BlockDevice>,
}

impl Setup {
    fn disk(&self) -> DiskConfig {
        let plain = DiskConfig::new("disk", VOLUME_BYTES);
        if self.variant == 0 {
            return plain;
        }
        let rng = Rng::labelled(self.variant, 1);
        DiskConfig {
            volatile_cache: rng.chance(3, 4),
            fua: rng.chance(2, 3),
            latency_us: [(1, 5), (20, 200), (500, 5000)][rng.index(3)],
            ..plain
        }
    }

    fn plan(&self) -> Plan {
        let plain = Plan {
            script: &[],
            lanes: 3,
            operations: 10,
            mix: Mix::default(),
            largest_bytes: 12 << 10,
        };
        if self.variant == 0 {
            return plain;
        }
        let rng = Rng::labelled(self.variant, 2);
        Plan {
            lanes: 1 + rng.index(6),
            operations: [10, 40, 100][rng.index(3)],
            mix: Mix {
                read: [4, 24][rng.index(2)],
                fua: [0, 5, 20][rng.index(3)],
                flush: [1, 10, 30][rng.index(3)],
                discard: [1, 8][rng.index(2)],
                zeroes: [1, 8][rng.index(2)],
                ..Mix::default()
            },
            largest_bytes: [2, 12, 48][rng.index(3)] << 10,
            ..plain
        }
    }
}

impl Stack for Setup {
    type Running = Open;

    fn world(&self, seed: u64) -> World {
        let mut world = World::new(seed);
        world.add_disk(&self.disk());
        world.add_disk(&DiskConfig {
            volatile_cache: false,
            ..DiskConfig::new("state", 4096)
        });
        world
    }

    fn volume_bytes(&self) -> Vec<u64> {
        vec![VOLUME_BYTES]
    }

    fn promise(&self) -> Promise {
        Promise::Flush
    }

    /// Slots hide it where the device refuses to take them in its place
    /// (docs/internals/transit.md).
    fn hides_failed_writes(&self) -> bool {
        true
    }

    async fn format(&self, _process: &Process) -> Result<()> {
        Ok(())
    }

    async fn open(&self, process: &Process) -> Result<Open> {
        let disk: Rc<dyn BlockDevice> = Rc::new(process.disks[0].clone());
        let state: Rc<dyn BlockDevice> = Rc::new(process.disks[1].clone());
        let memory = process.journal.slice(0..memory_bytes(self.slots, 512));
        let marker = Buf::zeroed(512);
        state.read(0, marker.clone()).await?;
        let options = TransitOptions {
            policy: self.policy,
            in_use: marker.slice(0..16).to_vec() == process.boot_id,
            ..TransitOptions::new("t", process.boot_id)
        };
        let faults = self.fault.map(Faults::planted).unwrap_or_default();
        let (cache, _) = Transit::open_with(Rc::clone(&disk), disk, memory, options, faults)?;
        marker.copy_from(0, &process.boot_id);
        state.write_fua(0, marker).await?;
        Ok(Open { cache, state })
    }
}

impl Running for Open {
    fn volumes(&self) -> Vec<Rc<dyn BlockDevice>> {
        let cache: Rc<dyn BlockDevice> = Rc::clone(&self.cache) as Rc<dyn BlockDevice>;
        vec![cache]
    }

    async fn control(&self, _volume: usize, _draw: u64) -> Result<()> {
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.cache.flush().await?;
        self.state.write_fua(0, Buf::zeroed(512)).await
    }
}

fn target(setup: Setup) -> Target<Setup> {
    Target {
        plan: setup.plan(),
        stack: Rc::new(setup),
        lives: 5,
        failing: true,
        forks: false,
        label: setup.to_string(),
        command: "FOREBAY_SIM_TRACE=1 cargo test -p forebay-transit replay -- --nocapture",
    }
}

/// Sweeps and failures of the plain disk.
fn sweep(policy: Policy) {
    for slots in [3, 24] {
        let target = target(Setup {
            policy,
            slots,
            variant: 0,
            fault: None,
        });
        let swept = target.sweep(1, DEPTH);
        let swept = swept.unwrap_or_else(|failure| panic!("{failure}"));
        let failed = target.faults(2, 1);
        let failed = failed.unwrap_or_else(|failure| panic!("{failure}"));
        eprintln!("{}: {swept:?}, {failed:?}", target.label);
        assert!(swept.points > 20 && failed.points > 10, "it ended early");
    }
}

/// Random lives of each policy.
const LIVES: Lives = Lives {
    // Fault::HeldIsForgotten. A read of the device during a FUA write that fails. Zeroes of two
    // concurrent requests.
    pinned: &[683, 1_049_596, 1_065_948, 1_120_576],
    gate: 1000,
    whole: 2000,
    share: 1,
};

/// Returns the cache of the random life that `seed` draws.
fn drawn(policy: Policy, seed: u64, fault: Option<Fault>) -> Setup {
    let rng = Rng::labelled(seed, 3);
    Setup {
        policy,
        slots: [2, 3, 8, 40, 100][rng.index(5)],
        variant: 1 + rng.below(1 << 20),
        fault,
    }
}

fn random(policy: Policy) -> Report {
    let seeds = LIVES.seeds();
    let count = seeds.len() as u64;
    let mut sum = Report::default();
    for seed in seeds {
        match target(drawn(policy, seed, None)).random(seed) {
            Ok(report) => {
                sum.points += report.points;
                sum.crashes += report.crashes;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    eprintln!("{policy}: {sum:?}");
    print_row("lives of a transit cache", count, sum.crashes);
    sum
}

macro_rules! policies {
    ($($name:ident: $policy:expr;)*) => {
        $(mod $name {
            use super::{random, sweep};

            #[test]
            fn every_crash_point_and_failure() {
                sweep($policy);
            }

            #[test]
            fn random_lives() {
                let report = random($policy);
                assert!(report.crashes > 0, "{report:?}");
            }
        })*
    };
}

policies! {
    caiti: crate::Policy::CAITI;
    caiti_without_eviction: crate::comparators::CAITI_WITHOUT_EVICTION;
    caiti_without_bypass: crate::comparators::CAITI_WITHOUT_BYPASS;
    lru: crate::comparators::LRU;
    pmbd: crate::comparators::PMBD;
    pmbd_70: crate::comparators::PMBD_70;
    co_active: crate::comparators::CO_ACTIVE;
}

/// Faults, each with a policy under which lives must find it.
const FAULTS: [(Fault, Policy); 4] = [
    (Fault::BypassOverSlot, Policy::CAITI),
    (Fault::FlushIgnoresEvicting, Policy::CAITI),
    (Fault::FuaFromMemory, Policy::CAITI),
    (Fault::HeldIsForgotten, comparators::CAITI_WITHOUT_EVICTION),
];

/// Returns what `seeds` find while `fault` is planted.
fn find(fault: Fault, policy: Policy, seeds: impl IntoIterator<Item = u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let failure = target(drawn(policy, seed, Some(fault)))
            .random(seed)
            .err()?;
        Some(format!("seed {seed}: {}", failure.message))
    })
}

#[test]
fn planted_faults_are_found() {
    for (fault, policy) in FAULTS {
        let found = find(fault, policy, 0..1000);
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        eprintln!("{fault:?}: {found}");
    }
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    for (fault, policy) in FAULTS {
        assert_found_by_each_rotation(&fault, |rotation| find(fault, policy, LIVES.of(rotation)));
    }
}

/// `FOREBAY_REPLAY='policy slots variant: case'`, as a failure prints it.
#[test]
fn replay() {
    let Ok(text) = std::env::var("FOREBAY_REPLAY") else {
        return;
    };
    let (setup, case) = text.split_once(": ").expect("a setup and a case");
    let target = target(setup.parse().expect("a setup"));
    if let Err(failure) = target.replay(case.parse().expect("a case")) {
        panic!("{failure}");
    }
}
