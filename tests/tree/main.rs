//! The bit-tree on simulated devices: every crash point and each failure of a device, loads that
//! crash, units torn between sectors, and bit rot. Orders are left out on purpose, and each
//! omission must be found.

mod process;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_io::sim::{FaultPlan, Keep, OpClass, Outcome, Rng, Stop};
use forebay_mapperx::Adjustment;
use forebay_metadata::order::{SitePart, reached, take_out};
use forebay_metadata::tree::LoadReport;
use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation, print_row};
use process::{Machine, Setup};

/// Random lives that must find the omission of each order.
const SEEDS: u64 = 400;

const LIVES: Lives = Lives {
    // The step in summary.rs.
    pinned: &[4_294_967_308],
    gate: 2000,
    whole: 2000,
    share: 1,
};

/// A crash of a machine.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Power(Keep),
    Process(u64),
}

fn setups() -> Vec<Setup> {
    let setup = Setup {
        adjustment: Adjustment::Paper,
        unit_bytes: 512,
        fua: true,
        volatile_cache: true,
        blocks: 4096,
        levels: 6,
        operations: 14,
    };
    let mut setups = Vec::new();
    for adjustment in [Adjustment::Paper, Adjustment::Priced] {
        setups.extend([
            // Two units of a sector each.
            Setup {
                adjustment,
                ..setup
            },
            // One unit of eight sectors, which tears.
            Setup {
                adjustment,
                unit_bytes: 4096,
                ..setup
            },
            Setup {
                adjustment,
                unit_bytes: 1024,
                fua: false,
                ..setup
            },
            Setup {
                adjustment,
                volatile_cache: false,
                ..setup
            },
            // Every leaf has several blocks.
            Setup {
                adjustment,
                levels: 3,
                ..setup
            },
        ]);
    }
    setups
}

/// Returns a machine with a formatted tree.
fn fresh(setup: Setup, seed: u64) -> Machine {
    let machine = Machine::new(setup, seed);
    match machine.world.run(seed, machine.process().format()) {
        Outcome::Finished(result) => result.expect("nothing fails"),
        other => panic!("{other:?}"),
    }
    machine
}

/// Runs a life. Returns false if the world ended before it.
fn live(machine: &Machine, seed: u64, close: bool) -> Result<bool, String> {
    match machine.world.run(seed, machine.process().live(seed, close)) {
        Outcome::Finished(result) => result.map(|()| true),
        Outcome::Crashed => Ok(false),
        Outcome::Deadlock(why) => Err(format!("it does not end: {why}")),
    }
}

fn go_down(machine: &Machine, crash: Crash) {
    match crash {
        Crash::Power(keep) => machine.world.crash_power(keep),
        Crash::Process(seed) => machine.world.crash_process(seed),
    }
}

/// Opens the tree and checks its content. Returns `None` if the world ended before.
fn open(machine: &Machine) -> Result<Option<(LoadReport, usize)>, String> {
    let process = machine.process();
    let opened = async move {
        process
            .open()
            .await
            .map(|opened| (opened.report, opened.dirty.len()))
    };
    match machine.world.run(7, opened) {
        Outcome::Finished(result) => result.map(Some),
        Outcome::Crashed => Ok(None),
        Outcome::Deadlock(why) => Err(format!("it does not end: {why}")),
    }
}

/// Checks the state after a crash: opens, lives, closes, and opens once more.
fn recover(machine: &Machine, seed: u64) -> Result<(), String> {
    machine.world.set_stop(None);
    live(machine, seed, true).map_err(|error| format!("after the crash: {error}"))?;
    machine.world.crash_power(Keep::None);
    open(machine).map_err(|error| format!("after the life after it: {error}"))?;
    Ok(())
}

/// Returns the crashes to try where a world ended.
fn crashes(machine: &Machine, seed: u64) -> Vec<Crash> {
    let unflushed = machine.world.unflushed();
    let mut keeps = vec![Keep::None, Keep::All, Keep::Disk(0), Keep::Disk(1)];
    keeps.extend((0..3).map(|nth| Keep::Random(seed * 3 + nth)));
    keeps.extend((0..unflushed.min(4)).flat_map(|one| [Keep::Only(one), Keep::AllBut(one)]));
    let powers = keeps.into_iter().map(Crash::Power);
    powers
        .chain([Crash::Process(seed), Crash::Process(seed + 1)])
        .collect()
}

/// Cuts a life off at each of its writes and flushes, and each load after it at each of its own.
/// Returns the number of crashes with a recovery.
fn sweep(setup: Setup, seed: u64, every_load: bool) -> Result<u64, String> {
    let mut count = 0;
    let started = fresh(setup, seed);
    // A first life leaves some content.
    live(&started, seed, false)?;
    for nth in 1.. {
        for stop in [Stop::BeforeIo(nth), Stop::AfterIo(nth)] {
            let cut = started.fork();
            cut.world.set_stop(Some(stop));
            let finished = live(&cut, seed + 1, true)?;
            for crash in crashes(&cut, nth) {
                let within = |error| format!("{stop:?}, {crash:?}: {error}");
                let machine = cut.fork();
                go_down(&machine, crash);
                if every_load {
                    count += sweep_loads(&machine, nth).map_err(within)?;
                }
                recover(&machine, nth).map_err(within)?;
                count += 1;
            }
            if finished {
                return Ok(count);
            }
        }
    }
    unreachable!("a life ends")
}

fn sweep_loads(crashed: &Machine, seed: u64) -> Result<u64, String> {
    for nth in 1.. {
        let machine = crashed.fork();
        machine.world.set_stop(Some(Stop::BeforeIo(nth)));
        if open(&machine)?.is_some() {
            return Ok(nth - 1);
        }
        let keeps = [Keep::None, Keep::Random(seed + nth)].map(Crash::Power);
        for crash in keeps.into_iter().chain([Crash::Process(nth)]) {
            let machine = machine.fork();
            go_down(&machine, crash);
            machine.world.set_stop(None);
            open(&machine).map_err(|error| format!("load cut off at {nth}, {crash:?}: {error}"))?;
        }
    }
    unreachable!("a load ends")
}

/// Runs lives with crashes, failures of devices and bit rot, as `seed` draws them.
fn random(setup: Setup, seed: u64) -> Result<(), String> {
    let rng = Rng::labelled(seed, 1);
    let machine = fresh(setup, seed);
    for life in 0..2 + rng.below(5) {
        let nth = 1 + rng.below([8, 40, 200][rng.index(3)]);
        machine.world.set_stop(match rng.below(5) {
            0 => None,
            1 => Some(Stop::AfterIo(nth)),
            2 => Some(Stop::BeforePoll(nth * 10)),
            _ => Some(Stop::BeforeIo(nth)),
        });
        let failing = rng.chance(1, 4);
        if failing {
            let class = [OpClass::Write, OpClass::Flush, OpClass::Read][rng.index(3)];
            let faults = FaultPlan {
                fail_nth: Some((class, 1 + rng.below(20))),
                ..FaultPlan::default()
            };
            machine.world.disks()[rng.index(2)].set_faults(faults);
        }
        let lived = live(&machine, rng.draw(), rng.chance(1, 4));
        // A load that cannot write its result refuses to open.
        if !(failing && matches!(&lived, Err(error) if error.contains("does not load"))) {
            lived.map_err(|error| format!("life {life}: {error}"))?;
        }
        for disk in machine.world.disks() {
            disk.set_faults(FaultPlan::default());
        }
        let unflushed = machine.world.unflushed();
        let crash = match rng.below(6) {
            // Until power loss, reads may still show data that a failed flush lost. A new process
            // cannot know that.
            0 | 1 if !failing => Crash::Process(rng.draw()),
            2 if unflushed > 0 => Crash::Power(Keep::AllBut(rng.index(unflushed))),
            3 => Crash::Power(Keep::None),
            4 => Crash::Power(Keep::All),
            _ => Crash::Power(Keep::Random(rng.draw())),
        };
        go_down(&machine, crash);
        if rng.chance(1, 3) {
            let extent = setup.extent();
            let unit = rng.below(extent.bytes() / u64::from(setup.unit_bytes));
            let at = extent.offset + unit * u64::from(setup.unit_bytes);
            machine.world.disks()[0].rot(at, u64::from(setup.unit_bytes), 1);
        }
    }
    machine.world.set_stop(None);
    open(&machine).map_err(|error| format!("at the end: {error}"))?;
    Ok(())
}

fn all_seeds(seeds: impl IntoIterator<Item = u64>) -> Result<(), String> {
    let setups = setups();
    for seed in seeds {
        let setup = setups[seed as usize % setups.len()];
        random(setup, seed).map_err(|error| {
            format!(
                "seed {seed}, {setup:?}: {error}\nreplay with: FOREBAY_SEED={seed} cargo test \
                 -p forebay-tests --test tree random_lives_with_failures_and_rot -- --nocapture"
            )
        })?;
    }
    Ok(())
}

#[test]
fn every_crash_point() {
    for setup in setups() {
        let recovered = sweep(setup, 1, false).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
        assert!(recovered > 300, "{setup:?}: only {recovered} crashes");
    }
}

#[test]
fn every_crash_point_of_loads() {
    for setup in setups().into_iter().filter(|setup| setup.unit_bytes != 512) {
        let setup = Setup {
            operations: 5,
            ..setup
        };
        let recovered = sweep(setup, 2, true).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
        assert!(recovered > 300, "{setup:?}: only {recovered} crashes");
    }
}

#[test]
fn random_lives_with_failures_and_rot() {
    let seeds = LIVES.seeds();
    all_seeds(seeds.iter().copied()).unwrap_or_else(|error| panic!("{error}"));
    print_row("lives of the bit-tree", seeds.len() as u64, 0);
}

/// A copy that rots after its acknowledgement must not make the older copy count.
#[test]
fn rot_reads_as_all_dirty_and_never_as_clean() {
    for setup in setups() {
        let machine = fresh(setup, 3);
        live(&machine, 3, false).expect("nothing fails");
        machine.world.crash_power(Keep::None);
        let extent = setup.extent();
        let unit = u64::from(setup.unit_bytes);
        for copy in 0..extent.bytes() / unit {
            let machine = machine.fork();
            machine.world.disks()[0].rot(extent.offset + copy * unit, unit, 1);
            let opened = open(&machine).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
            let (report, _) = opened.expect("nothing stops it");
            assert_eq!(
                report.lost_units + report.repaired_units,
                1,
                "{setup:?}: {report:?}"
            );
        }
        // The same holds for a unit that cannot be read.
        machine.world.disks()[0].set_faults(FaultPlan {
            bad_range: Some(extent.offset..extent.offset + extent.bytes()),
            ..FaultPlan::default()
        });
        let (report, dirty) = open(&machine).expect("it opens").expect("nothing stops it");
        assert_eq!(report.lost_units, extent.units());
        assert_eq!(u64::from(report.unreadable_copies) * unit, extent.bytes());
        assert_eq!(
            dirty,
            machine.cached.borrow().len(),
            "everything counts as dirty"
        );
    }
}

/// After a clean end, only dirty blocks need a write-back.
#[test]
fn a_clean_end_is_exact() {
    for setup in setups().into_iter().filter(|setup| setup.levels == 6) {
        let machine = fresh(setup, 4);
        live(&machine, 4, true).expect("nothing fails");
        machine.world.crash_power(Keep::None);
        let (report, dirty) = open(&machine).expect("it opens").expect("nothing stops it");
        assert_eq!((report.lost_units, report.repaired_units), (0, 0));
        assert!(dirty < machine.cached.borrow().len() / 2 + 12, "{dirty}");
    }
}

/// Returns the sites at which the source of the tree keeps an order.
fn sites() -> BTreeSet<SitePart> {
    all_seeds(0..60).unwrap_or_else(|error| panic!("{error}"));
    reached()
}

/// Returns the find of `seeds` while the order at `site` is left out.
fn find(site: SitePart, seeds: impl IntoIterator<Item = u64>) -> Option<String> {
    take_out(Some(site));
    let outcome = catch_unwind(AssertUnwindSafe(|| all_seeds(seeds)));
    take_out(None);
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(_) => Some("an assertion".to_owned()),
    }
}

/// Each order of the tree is left out in turn.
#[test]
fn each_order_that_is_left_out_is_found() {
    let mut missed = Vec::new();
    let mut found = 0;
    for site in sites() {
        match find(site, 10_000..10_000 + SEEDS) {
            None => missed.push(site),
            Some(error) => {
                found += 1;
                eprintln!("{site:?}: {error}");
            }
        }
    }
    assert!(missed.is_empty(), "nothing found: {missed:?}");
    assert!(found >= 11, "only {found} sites");
}

#[test]
fn the_gate_finds_each_order_in_ten_rotations() {
    for site in sites() {
        assert_found_by_each_rotation(&site, |rotation| find(site, LIVES.of(rotation)));
    }
}
