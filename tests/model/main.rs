//! Long lives without crashes, against the model disk: many operations in flight, every mode, mode
//! changes, eviction, and clean restarts.

#[path = "../allocator.rs"]
mod allocator;
#[allow(dead_code, reason = "the crash tests use more of it")]
#[path = "../stack/mod.rs"]
mod stack;

mod decisions;

use forebay_cache::{Durability, Mode};
use forebay_io::sim::Rng;
use forebay_testkit::machine::{End, Life, Machine};
use forebay_testkit::workload::{Mix, Plan};
use stack::{CacheStack, Setup};

fn live_long(setup: Setup, control: u64, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let rng = Rng::new(seed);
        let run = || -> Result<(), String> {
            let machine = Machine::new(&CacheStack::new(setup), seed)?;
            for round in 0..3 {
                let end = machine.live(Life {
                    seed: rng.draw(),
                    verify: round > 0,
                    work: Some(Plan {
                        lanes: 6,
                        operations: 200,
                        mix: Mix {
                            control,
                            ..setup.plan().mix
                        },
                        ..setup.plan()
                    }),
                    close: true,
                    errors_allowed: false,
                })?;
                assert_eq!(end, End::Finished);
            }
            Ok(())
        };
        if let Err(violation) = run() {
            panic!("{setup}, seed {seed}: {violation}");
        }
    }
}

fn mode(mode: Mode) {
    for durability in [Durability::Sync, Durability::Flush] {
        for fits in [false, true] {
            let setup = Setup {
                mode,
                durability,
                fits,
                variant: 0,
            };
            live_long(setup, 0, 0..3);
        }
    }
}

#[test]
fn write_back() {
    mode(Mode::WriteBack);
}

#[test]
fn write_through() {
    mode(Mode::WriteThrough);
}

#[test]
fn write_around() {
    mode(Mode::WriteAround);
}

#[test]
fn write_invalidate() {
    mode(Mode::WriteInvalidate);
}

#[test]
fn write_only() {
    mode(Mode::WriteOnly);
}

#[test]
fn pass_through() {
    mode(Mode::PassThrough);
}

#[test]
fn modes_change_under_load() {
    for seed in 0..30 {
        live_long(Setup::draw(seed), 6, seed..seed + 1);
    }
}
