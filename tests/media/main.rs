//! Lives in which media are replaced, copied, rolled back, cut or damaged while Forebay is stopped.
//!
//! A life serves two volumes, changes the media, and restarts. The start may serve if it serves the
//! right data. Otherwise it must be refused. A refused start harms nothing: with the media back
//! in place, everything is there.

mod event;
mod log;
mod refused;
mod session;
mod tools;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_cache::failpoints::{Fault, plant};
use forebay_io::sim::Rng;
use forebay_testkit::rotation::{Lives, Rotation, assert_found_by_each_rotation, print_row};

use event::{Before, Event};
use session::{End, Model, Plan, run};
use world::{CACHE, DISKS, JOURNAL, Machine, STATE, Setup};

const LIVES: Lives = Lives {
    pinned: &[],
    gate: 300,
    whole: 2000,
    share: 2,
};
/// Comparisons that lives must find missing.
const FAULTS: [Fault; 4] = [
    Fault::TrustBacking,
    Fault::TrustState,
    Fault::TrustJournal,
    Fault::OverlookCut,
];

/// The outcome of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// There was nothing to change.
    Skipped,
    Refused,
    Served,
}

/// A life that was right.
#[derive(Clone, Copy, Debug)]
struct Lived {
    event: Event,
    /// A second change of the media, if there was one.
    second: Option<Event>,
    outcome: Outcome,
    /// Whether a sample of clean data distinguishes the present backing device from the former one.
    sampled: bool,
}

fn draw_end(rng: &Rng) -> End {
    match rng.chance(2, 3) {
        true => End::Death,
        false => End::Stop,
    }
}

fn draw_plan(rng: &Rng) -> Plan {
    Plan {
        seed: rng.draw(),
        operations: 20 + rng.below(100),
        end: draw_end(rng),
    }
}

/// Runs Forebay on consistent media.
fn run_whole(
    machine: &Machine,
    plan: Plan,
    model: &mut Model,
    moment: &str,
) -> Result<session::Served, String> {
    let newest = model.clone();
    let config = machine.config(DISKS);
    let served = run(&config, plan, model);
    let served = served.map_err(|report| format!("{moment}: refused: {report}"))?;
    if let Some(failure) = &served.failure {
        return Err(format!("{moment}: {failure}"));
    }
    let verdict = event::Verdict::whole();
    let checked = verdict.check(&served, &newest);
    checked.map_err(|wrong| format!("{moment}: {wrong}"))?;
    Ok(served)
}

/// Returns a machine that has served, and its contents.
fn prepare(rng: &Rng) -> Result<(Machine, Model), String> {
    let setup = Setup::draw(rng);
    let machine = Machine::new(rng, setup);
    tools::format(&machine);
    Ok((machine, Model::new()))
}

/// Lives one life with `event`, or with the one that `seed` draws.
fn live(seed: u64, event: Option<Event>) -> Result<Lived, String> {
    let rng = Rng::labelled(seed, 41);
    let drawn = Event::draw(&rng);
    let is_drawn = event.is_none();
    let event = event.unwrap_or(drawn);
    let (other, mut other_model) = prepare(&rng)?;
    let plan = Plan {
        end: End::Death,
        ..draw_plan(&rng)
    };
    run_whole(&other, plan, &mut other_model, "another machine")?;
    let other_media = other.snapshot();

    let (machine, mut model) = prepare(&rng)?;
    let mut last = draw_plan(&rng);
    let mut served = run_whole(&machine, last, &mut model, "first run")?;
    let (earlier, earlier_contents) = (machine.snapshot(), model.now);
    let runs = rng.below(3);
    for number in 0..runs {
        last = draw_plan(&rng);
        served = run_whole(&machine, last, &mut model, &format!("run {number}"))?;
    }
    let now = machine.snapshot();
    let before = Before {
        end: last.end,
        ran: runs > 0,
        dirty_bytes: served.dirty_bytes,
        model: &model.clone(),
        earlier: &earlier,
        earlier_contents: &earlier_contents,
        now: &now,
        other: &other_media,
    };
    let Some(disks) = event.apply(&machine, &before, &rng) else {
        let (outcome, sampled) = (Outcome::Skipped, false);
        return Ok(Lived {
            event,
            second: None,
            outcome,
            sampled,
        });
    };
    let second = match is_drawn && rng.chance(1, 2) {
        true => event.draw_second(&rng),
        false => None,
    };
    // An event that has nothing to change changes nothing.
    let second = second.filter(|second| second.apply(&machine, &before, &rng).is_some());
    let lived = |outcome| Lived {
        event,
        second,
        outcome,
        sampled: match event {
            // After a crash, or without known checksums, clean data may prove nothing.
            Event::BackingOverwritten(volume) => {
                last.end == End::Stop && served.clean_bytes[volume] > 0 && !machine.setup.checksums
            }
            _ => false,
        },
    };
    let changed = machine.snapshot();
    let contents = DISKS.map(|disk| changed.of(disk).expect("a backing device"));
    let verdict = match second {
        None => event.verdict(&before, contents),
        Some(second) => (event.verdict(&before, contents)).and(second.verdict(&before, contents)),
    };
    let context = |wrong: String| {
        format!(
            "{event:?} and {second:?} after {:?}, {:?}: {wrong}",
            last.end, machine.setup
        )
    };

    if rng.chance(1, 8) {
        tools::try_on_copies(&machine, event, &rng).map_err(context)?;
    }
    let config = machine.config(disks);
    let started = run(&config, draw_plan(&rng), &mut model);
    match started {
        Ok(found) => {
            let known = before.model;
            verdict.check(&found, known).map_err(context)?;
            if verdict.must_refuse {
                return Err(context("it was served".into()));
            }
            Ok(lived(Outcome::Served))
        }
        Err(report) => {
            if !verdict.may_refuse {
                return Err(context(format!("refused: {report}")));
            }
            // The start must not have changed any medium.
            let after = machine.snapshot();
            if let Some(disk) = DISKS
                .into_iter()
                .find(|disk| !after.is_same(&changed, disk))
            {
                return Err(context(format!("a refused start changed {disk}: {report}")));
            }
            if let Some(second) = second {
                second.undo(&machine, &before);
                // The cache was opened before a volume was refused. The journal and the state
                // directory are of a newer opening than the cache device that is put back.
                if second.media().contains(&CACHE) {
                    machine.restore(&now, JOURNAL);
                    machine.restore(&now, STATE);
                }
            }
            event.undo(&machine, &before);
            if event != Event::StateSwapped || machine.path(STATE).exists() {
                let restarted =
                    run_whole(&machine, draw_plan(&rng), &mut model, "with the media back");
                restarted.map_err(|wrong| context(format!("{wrong}\nafter: {report}")))?;
                run_whole(&machine, draw_plan(&rng), &mut model, "the run after")
                    .map_err(context)?;
            }
            Ok(lived(Outcome::Refused))
        }
    }
}

/// The outcomes of many lives.
#[derive(Debug, Default)]
struct Survey {
    /// Lives without a change, refused and served, by event.
    counts: BTreeMap<Event, [u64; 3]>,
    /// Lives with two events.
    doubles: u64,
    /// The violation in a life, and the command that replays it.
    wrong: Vec<String>,
}

impl Survey {
    /// Lives the lives of `seeds` in two threads.
    fn of(seeds: &[u64]) -> Self {
        let half = seeds.len().div_ceil(2).max(1);
        let mut survey = Self::default();
        std::thread::scope(|scope| {
            let live = |seeds: &[u64]| seeds.iter().map(|seed| live_one(*seed)).collect();
            let threads: Vec<_> = (seeds.chunks(half))
                .map(|seeds| scope.spawn(move || -> Vec<_> { live(seeds) }))
                .collect();
            for thread in threads {
                for lived in thread.join().expect("lives do not panic") {
                    survey.add(lived);
                }
            }
        });
        survey
    }

    fn add(&mut self, lived: Result<Lived, String>) {
        match lived {
            Ok(lived) => {
                let counts = self.counts.entry(lived.event).or_default();
                counts[lived.outcome as usize] += 1;
                self.doubles += u64::from(lived.second.is_some());
            }
            Err(wrong) => self.wrong.push(wrong),
        }
    }
}

fn live_one(seed: u64) -> Result<Lived, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, None)));
    let lived = lived.unwrap_or_else(|_| Err("the life panicked".into()));
    lived.map_err(|wrong| {
        format!(
            "{wrong}\nreplay with: FOREBAY_SEED={seed} cargo test -p forebay-tests --test media \
             changed_media_are_refused_or_served_right"
        )
    })
}

#[test]
fn changed_media_are_refused_or_served_right() {
    let seeds = LIVES.seeds();
    let survey = Survey::of(&seeds);
    for (event, [skipped, refused, served]) in &survey.counts {
        eprintln!("{event:?}: {refused} refused, {served} served, {skipped} without a change");
    }
    eprintln!("{} with a second event", survey.doubles);
    let shown = survey.wrong.iter().take(60).cloned().collect::<Vec<_>>();
    let count = survey.wrong.len();
    assert!(
        count == 0,
        "{count} lives were wrong:\n{}",
        shown.join("\n\n")
    );
    print_row("lives with changed media", seeds.len() as u64, 0);
}

/// Runs lives in which a sample shows that a backing device was overwritten. Returns their number,
/// and the number of refused starts among them.
fn overwrite_all(seeds: impl Iterator<Item = u64>) -> (u64, u64) {
    let (mut sampled, mut refused) = (0, 0);
    for seed in seeds {
        let lived = live(seed, Some(Event::BackingOverwritten(0)));
        let lived = lived.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        sampled += u64::from(lived.sampled);
        refused += u64::from(lived.sampled && lived.outcome == Outcome::Refused);
    }
    (sampled, refused)
}

#[test]
fn a_sample_finds_an_overwritten_backing_device() {
    let (sampled, refused) = overwrite_all(0..80);
    eprintln!("{refused} of {sampled} were refused");
    assert!(sampled >= 10, "{sampled} lives are too few");
    // A device that stalls for 50 ms gets no sample.
    assert!(refused * 10 >= sampled * 8, "{refused} of {sampled}");
    plant(Some(Fault::ForgetDifference));
    let (_, refused) = overwrite_all(0..80);
    plant(None);
    assert_eq!(refused, 0, "without the comparison");
}

/// Whether the life of `seed` finds something wrong.
fn finds(seed: u64) -> bool {
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, None)));
    !matches!(lived, Ok(Ok(_)))
}

/// The first life of a rotation that finds a fault.
fn found(fault: Fault, rotation: Rotation) -> Option<u64> {
    plant(Some(fault));
    let seed = LIVES.of(rotation).into_iter().find(|seed| finds(*seed));
    plant(None);
    seed
}

#[test]
fn a_missing_comparison_is_found() {
    for fault in FAULTS {
        let seed = found(fault, Rotation::Number(0));
        eprintln!("{fault:?}: found by {seed:?}");
        assert!(seed.is_some(), "{fault:?} is not found");
    }
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    for fault in FAULTS {
        assert_found_by_each_rotation(&fault, |rotation| found(fault, rotation));
    }
}
