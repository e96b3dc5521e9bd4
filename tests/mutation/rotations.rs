//! The gate takes a part of the lives. In each of ten rotations that part alone finds every fault.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_cache::failpoints::{Fault, plant};
use forebay_testkit::crash::{Failure, Report};
use forebay_testkit::rotation::{Rotation, assert_found_by_each_rotation};

use crate::mutations::FAULTS;
use crate::search::on_threads;
use crate::stack::families::{self, DEPTH, target};

/// Returns the first life of the gate that finds `fault`.
fn find(fault: Fault, rotation: Rotation) -> Option<String> {
    let finds = |run: &dyn Fn() -> Result<Report, Failure>| {
        plant(Some(fault));
        let lived = catch_unwind(AssertUnwindSafe(run));
        plant(None);
        !matches!(lived, Ok(Ok(_)))
    };
    let random = families::RANDOM.of(rotation).into_iter().map(|seed| {
        let setup = families::random(seed);
        let is_found = finds(&|| target(setup).random(seed));
        is_found.then(|| format!("{setup}: random {seed}"))
    });
    let aimed = families::aims(rotation).into_iter().map(|(setup, seed)| {
        let is_found = finds(&|| setup.hit(&target(setup), seed));
        is_found.then(|| format!("{setup}: aimed {seed}"))
    });
    let swept = families::sweeps(rotation).into_iter().map(|setup| {
        let is_found = finds(&|| target(setup).sweep(1, DEPTH));
        is_found.then(|| format!("{setup}: sweep"))
    });
    let failed = families::failures(rotation).into_iter().map(|setup| {
        let is_found = finds(&|| target(setup).faults(2, 1));
        is_found.then(|| format!("{setup}: faults"))
    });
    random
        .chain(aimed)
        .chain(swept)
        .chain(failed)
        .flatten()
        .next()
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    crate::hide_findings();
    on_threads(FAULTS.len(), |nth| {
        let fault = FAULTS[nth];
        assert_found_by_each_rotation(&fault, |rotation| find(fault, rotation));
    });
}
