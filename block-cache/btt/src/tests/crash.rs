//! Power loss at every step: lives without a fault show none, and every planted fault is found.

use std::collections::BTreeSet;
use std::time::Instant;

use forebay_io::sim::{PmemSite, PmemStep};

use super::explorer::{Explorer, Wrong};
use crate::fault::Fault;

/// Minimum number of crash states of a run.
const STATES: u64 = 100_000;
const OPERATIONS: u64 = 10;
/// Number of lives within which a planted fault must be found.
const LIVES: u64 = 60;

/// Flushes and fences of operations on an open table, by their call sites.
fn sites() -> BTreeSet<PmemSite> {
    let mut all = BTreeSet::new();
    for seed in 0..3 {
        let (_, sites) = Explorer::new(seed, Wrong::Nothing)
            .live(OPERATIONS)
            .expect("sound");
        all.extend(sites);
    }
    all
}

/// Returns the life that finds it, and the error.
fn found(wrong: Wrong) -> Option<(u64, String)> {
    (0..LIVES).find_map(|seed| {
        let violation = Explorer::new(seed, wrong).live(OPERATIONS).err()?;
        Some((seed, violation))
    })
}

#[test]
fn every_block_is_wholly_old_or_wholly_new_after_power_loss_at_any_step() {
    let begin = Instant::now();
    let (mut states, mut seed) = (0, 0);
    while states < STATES {
        match Explorer::new(seed, Wrong::Nothing).live(OPERATIONS) {
            Ok((more, _)) => states += more,
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        seed += 1;
    }
    eprintln!(
        "{states} crash states in {seed} lives, {:.1?}",
        begin.elapsed()
    );
}

#[test]
fn every_flush_and_fence_that_is_left_out_is_missed() {
    let sites = sites();
    let of = |step| sites.iter().filter(|site| site.0 == step).count();
    // Three flushes and three fences of a write, one of them shared with the marking of media
    // errors; one of a zeroing.
    assert_eq!(
        (of(PmemStep::Flush), of(PmemStep::Fence)),
        (4, 4),
        "{sites:?}"
    );
    for site in sites {
        let Some((seed, violation)) = found(Wrong::LeftOut(site)) else {
            panic!("{site:?} is not missed in {LIVES} lives");
        };
        eprintln!("{site:?}: seed {seed}: {violation}");
    }
}

#[test]
fn a_map_that_is_changed_before_the_flog_is_found() {
    let (seed, violation) = found(Wrong::Fault(Fault::MapBeforeFlog)).expect("found");
    eprintln!("seed {seed}: {violation}");
}

#[test]
fn a_sequence_number_that_does_not_wait_for_its_entry_is_found() {
    let (seed, violation) = found(Wrong::Fault(Fault::SequenceAtOnce)).expect("found");
    eprintln!("seed {seed}: {violation}");
}
