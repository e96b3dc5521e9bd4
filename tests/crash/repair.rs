//! A repair of rot, cut off at each of its I/Os: nothing gets worse, and a second repair ends with
//! the same result.

use std::rc::Rc;

use forebay_cache::failpoints::{Fault, Part, SitePart, plant, reached, take_out};
use forebay_cache::{LostRange, inspect, repair, verify};
use forebay_io::sim::{Rng, Stop};
use forebay_testkit::depth::Depth;
use forebay_testkit::machine::{Crash, End, Life, Machine};
use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation, print_row};
use forebay_testkit::stack::{Decay, Process};

use super::stack::{CacheStack, Setup};

/// Seed whose life finds the omission of the step in superblock/mend.rs.
const SUPERBLOCK_STEP: u64 = 4_294_977_302;

/// Seed whose life finds `GiveUpUnlogged`.
const GIVEN_UP: u64 = 4_294_967_308;

/// Seed of a repair after a kill. The sound copy of a superblock is in the device's cache only.
const UNFLUSHED_COPY: u64 = 6_562_937_299;

/// Seed of a repair after a kill with an unflushed batch. Power loss takes the batch, and with it
/// the proof that the rotten batch before it was ever durable.
const UNFLUSHED_BATCH: u64 = 2_894_230_187_315;

const LIVES: Lives = Lives {
    pinned: &[SUPERBLOCK_STEP, GIVEN_UP, UNFLUSHED_COPY, UNFLUSHED_BATCH],
    gate: 24,
    whole: 100,
    share: 50,
};

const DEPTH: Depth = Depth {
    singles: 3,
    subsets: 2,
    deaths: 1,
    stride: 1,
    recoveries: false,
};

/// Returns a machine that is not in use, with rot, after lives and crashes that `seed` draws.
fn rotten(stack: &Rc<CacheStack>, setup: Setup, seed: u64) -> Result<Machine<CacheStack>, String> {
    let rng = Rng::labelled(seed, 31);
    let mut machine = Machine::new(stack, rng.draw())?;
    let decay = [Decay::Data, Decay::Metadata][rng.index(2)];
    let life = Life {
        seed: rng.draw(),
        verify: false,
        work: Some(setup.plan()),
        close: decay == Decay::Data || rng.chance(1, 3),
        errors_allowed: false,
    };
    if decay == Decay::Metadata && rng.chance(1, 2) {
        (machine.world).set_stop(Some(Stop::BeforeIo(10 + rng.below(100))));
    }
    let end = machine.live(life)?;
    machine.world.set_stop(None);
    if end == End::Crashed || (decay == Decay::Metadata && rng.chance(1, 2)) {
        machine.crash(Crash::Process(rng.draw()));
    }
    // Several pieces of rot, as repairs meet them.
    for _ in 0..1 + rng.below(3) {
        machine.rot(decay, rng.draw())?;
    }
    stack.excuse();
    Ok(machine)
}

/// Reads everything, with the model's knowledge.
fn read(machine: &Machine<CacheStack>, seed: u64) -> Result<(), String> {
    let life = Life {
        seed,
        verify: true,
        work: None,
        close: seed.is_multiple_of(2),
        errors_allowed: false,
    };
    match machine.live(life)? {
        End::Finished => Ok(()),
        end => Err(format!("reading ended so: {end:?}")),
    }
}

async fn mended(stack: Rc<CacheStack>, process: Process) -> Result<Vec<LostRange>, String> {
    let (devices, options) = (stack.devices(&process), stack.repair_options(&process));
    let report = repair(&devices, &options).await;
    let report = report.map_err(|error| format!("repair: {}", error.report()))?;
    let mut corrupt = report.data.expect("it was asked for").corrupt;
    corrupt.sort_by_key(|range| (range.volume.clone(), range.offset));
    Ok(corrupt)
}

/// Checks that nothing is wrong except corrupt dirty data, which is named.
async fn in_order(stack: Rc<CacheStack>, process: Process) -> Result<(), String> {
    let (devices, options) = (stack.devices(&process), stack.repair_options(&process));
    let journal = options.journal.as_ref();
    let found = inspect(&devices, journal, &options.boot_id).await;
    let found = found.map_err(|error| format!("inspect: {}", error.report()))?;
    let mut wrong = found.problems;
    wrong.extend(found.journal_problem.map(|error| error.report()));
    wrong.extend(found.spare_damage);
    let data = verify(&devices, &options).await;
    let data = data.map_err(|error| format!("verify: {}", error.report()))?;
    if data.forgotten_bytes > 0 {
        wrong.push(format!("{data:?}"));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("a repair leaves damage: {wrong:?}")),
    }
}

/// Cuts a repair of one machine off everywhere. Returns the number of outcomes.
fn sweep(seed: u64) -> Result<u64, String> {
    let setup = match seed % 4 {
        0 => Setup::tiny(seed),
        1 => Setup::pressed(seed),
        _ => Setup::draw(seed),
    };
    let stack = CacheStack::new(setup);
    let machine = rotten(&stack, setup, seed)?;
    let job = |process| mended(Rc::clone(&stack), process);
    let whole = machine.fork();
    let corrupt = whole.run(seed, job)?;
    whole.run(seed, |process| in_order(Rc::clone(&stack), process))?;
    let second = whole.run(seed, job)?;
    if second != corrupt {
        return Err(format!(
            "a second repair finds {second:?}, the first {corrupt:?}"
        ));
    }
    read(&whole, seed)?;
    let unnamed = |process| {
        let repaired = mended(Rc::clone(&stack), process);
        async move { repaired.await.map(|_| ()) }
    };
    machine.cut_off(seed, DEPTH, unnamed, |after| {
        let opened = after.fork();
        read(&opened, seed).map_err(|what| format!("no second repair: {what}"))?;
        let found = after.run(seed, job)?;
        if found != corrupt {
            return Err(format!(
                "the second repair finds {found:?}, an uninterrupted one {corrupt:?}"
            ));
        }
        after.run(seed, |process| in_order(Rc::clone(&stack), process))?;
        read(&after, seed).map_err(|what| format!("second repair: {what}"))
    })
}

#[test]
fn cut_off_anywhere_a_repair_makes_nothing_worse() {
    let seeds = LIVES.seeds();
    let count = seeds.len() as u64;
    let mut outcomes = 0;
    for seed in seeds {
        match sweep(seed) {
            Ok(more) => outcomes += more,
            Err(what) => panic!("seed {seed}: {what}\n{}", replay(seed)),
        }
    }
    eprintln!("{count} repairs, {outcomes} outcomes of being cut off");
    print_row("repairs cut off", count, outcomes);
}

/// Returns the command that replays one seed.
fn replay(seed: u64) -> String {
    format!(
        "replay with: FOREBAY_SEED={seed} cargo test -p forebay-tests --test crash \
         cut_off_anywhere_a_repair_makes_nothing_worse -- --nocapture"
    )
}

/// Returns two steps of a repair. One makes the sound copy of a superblock durable, and one
/// prevents the repair from overwriting this copy.
fn superblock_steps() -> [SitePart; 2] {
    let _ = reached();
    for seed in 0..40 {
        sweep(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    let own = |file: &str| file.ends_with("superblock/repair.rs");
    let sites: Vec<_> = (reached().into_iter())
        .filter(|(file, _, _, part)| own(file) && *part == Part::Step)
        .collect();
    let [durable_first, written_over, _flush] = sites[..] else {
        panic!("{sites:?}");
    };
    [durable_first, written_over]
}

/// Planted omissions in a repair: it overwrites the sound copy of a superblock, and loses valid
/// data with the damage. A repair need not wait for the repaired copy, as docs/internals/repair.md
/// argues.
#[test]
fn a_repair_that_makes_things_worse_is_found() {
    let found = |what: &dyn std::fmt::Debug| {
        let found = (0..200).find(|seed| sweep(*seed).is_err());
        eprintln!("{what:?}: found by seed {found:?}");
        assert!(found.is_some(), "{what:?} is not found missing");
    };
    let [_, step] = superblock_steps();
    take_out(Some(step));
    found(&step);
    take_out(None);
    plant(Some(Fault::GiveUpUnlogged));
    found(&Fault::GiveUpUnlogged);
    plant(None);
}

/// A change of the engine may end the effect of a pinned seed. Another seed is pinned then.
#[test]
fn the_pinned_seeds_find_the_steps_left_out() {
    let seeds = [UNFLUSHED_COPY, SUPERBLOCK_STEP];
    for (step, seed) in superblock_steps().into_iter().zip(seeds) {
        take_out(Some(step));
        let found = sweep(seed);
        take_out(None);
        assert!(found.is_err(), "seed {seed}");
    }
}

#[test]
fn the_pinned_seed_finds_the_given_up_records() {
    plant(Some(Fault::GiveUpUnlogged));
    let found = sweep(GIVEN_UP);
    plant(None);
    assert!(found.is_err(), "seed {GIVEN_UP}");
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    let find = |rotation| {
        let mut seeds = LIVES.of(rotation).into_iter();
        seeds.find(|seed| sweep(*seed).is_err())
    };
    let [_, step] = superblock_steps();
    take_out(Some(step));
    assert_found_by_each_rotation(&step, find);
    take_out(None);
    plant(Some(Fault::GiveUpUnlogged));
    assert_found_by_each_rotation(&Fault::GiveUpUnlogged, find);
    plant(None);
}
