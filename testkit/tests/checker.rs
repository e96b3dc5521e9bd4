//! Tests of the checker: correct toy stacks pass, and each planted flaw is caught and replays.

mod toy;

use std::rc::Rc;

use forebay_testkit::case::Case;
use forebay_testkit::crash::{Failure, Target};
use forebay_testkit::depth::Depth;
use forebay_testkit::stack::Promise;
use forebay_testkit::workload::{Mix, Plan};
use toy::{Flaw, Toy};

const DEPTH: Depth = Depth {
    singles: 12,
    subsets: 2,
    deaths: 2,
    stride: 1,
    recoveries: false,
};

fn target(flaw: Option<Flaw>, promise: Promise) -> Target<Toy> {
    Target {
        stack: Rc::new(Toy { flaw, promise }),
        plan: Plan {
            script: &[],
            lanes: 3,
            operations: 12,
            mix: Mix {
                control: 4,
                ..Mix::default()
            },
            largest_bytes: 32 << 10,
        },
        lives: 5,
        // The toy's failures come in `faults`.
        failing: false,
        forks: false,
        label: format!("{flaw:?}"),
        command: "cargo test -p forebay-testkit",
    }
}

fn passes(promise: Promise) {
    let target = target(None, promise);
    let report = target
        .sweep(1, DEPTH)
        .unwrap_or_else(|failure| panic!("{failure}"));
    let outcomes = report.crashes + report.alike;
    assert!(report.points > 50 && outcomes > 500, "{report:?}");
    for seed in 0..100 {
        if let Err(failure) = target.random(seed) {
            panic!("{failure}");
        }
    }
    let report = target
        .faults(1, 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.points > 20, "{report:?}");
}

/// Outcomes that a sweep leaves out continue as the equal ones do.
#[test]
fn outcomes_that_are_alike_go_the_same_way() {
    for promise in [Promise::Flush, Promise::Sync] {
        let target = target(None, promise);
        let report = (target.sweep(1, DEPTH)).unwrap_or_else(|failure| panic!("{failure}"));
        let alike = target.alike(1, DEPTH);
        let alike = alike.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(
            alike > 100 && report.alike >= alike,
            "{alike} of {report:?}"
        );
    }
}

/// A sweep or a seed finds the flaw, and its replay finds the same violation.
fn is_caught(flaw: Flaw, promise: Promise) {
    let target = target(Some(flaw), promise);
    let found = (1..=3)
        .find_map(|seed| target.sweep(seed, DEPTH).err())
        .or_else(|| (0..200).find_map(|seed| target.random(seed).err()))
        .or_else(|| target.faults(1, 1).err());
    let Some(Failure {
        message, replay, ..
    }) = found
    else {
        panic!("{flaw:?} was not caught");
    };
    let case = replay
        .split('\'')
        .nth(1)
        .and_then(|text| text.split(": ").nth(1));
    let case: Case = case
        .expect("a case in the command")
        .parse()
        .expect("a case");
    let repeated = target.replay(case).expect_err("the replay finds it, too");
    assert_eq!(repeated.message, message, "{replay}");
}

#[test]
fn a_correct_stack_passes_with_flush() {
    passes(Promise::Flush);
}

#[test]
fn a_correct_stack_passes_with_sync() {
    passes(Promise::Sync);
}

macro_rules! caught {
    ($($name:ident: $flaw:ident, $promise:ident;)*) => {
        $(#[test]
        fn $name() {
            is_caught(Flaw::$flaw, Promise::$promise);
        })*
    };
}

caught! {
    a_flush_that_does_not_flush: NoFlush, Flush;
    an_acknowledgement_without_durability: NoFlush, Sync;
    fua_that_is_dropped: FuaDropped, Flush;
    an_acknowledgement_before_the_write: AcknowledgesFirst, Flush;
    a_flush_that_joins_an_older_one: JoinsFlush, Flush;
    stale_data_after_a_bypass: StaleAfterBypass, Flush;
    a_discard_that_is_undone: DiscardUndone, Flush;
    merges_without_a_lock: UnlockedMerge, Flush;
    data_at_the_wrong_place: Misplaced, Flush;
    recovery_that_replays_too_much: ReplaysTooMuch, Flush;
    a_boot_id_that_is_not_checked: TrustsOldJournal, Flush;
    a_block_torn_by_a_crash: TearsSectors, Flush;
    a_failed_flush_that_is_retried: RetriesFlush, Flush;
    a_hang: Hangs, Flush;
}
