//! Planted faults, each of which the simulation finds.

use std::panic::catch_unwind;

use super::lives::live;
use super::writers::contend;
use crate::fault::{ALL, Fault, Faults};

/// Number of seeds within which a fault is found.
const SEEDS: u64 = 400;

/// Returns the first seed that finds a fault, and the violation.
fn find(fault: Fault) -> Option<(u64, String)> {
    let faults = Faults {
        planted: Some(fault),
    };
    for seed in 0..SEEDS {
        for run in [live, contend] {
            let outcome = catch_unwind(|| run(seed, faults));
            let outcome = outcome.unwrap_or_else(|_| Err("it panicked".to_owned()));
            if let Err(what) = outcome {
                return Some((seed, what));
            }
        }
    }
    None
}

#[test]
fn planted_faults_are_found() {
    let missed = ALL.into_iter().filter(|fault| {
        let found = find(*fault);
        println!("{fault:?}: {found:?}");
        found.is_none()
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
