//! Random lives on backing devices whose writes fail for a while, and that show what they failed to write until power is
//! lost: they are among the seeds of all random lives. Here, what they find.

use forebay_cache::plant::{Fault, plant};

use super::stack::Setup;
use super::target;

/// A fault is found within some seeds, from one on by which it is known to be; and that finds nothing else.
#[test]
fn a_planted_fault_is_found() {
    let finds = |seed: &u64| {
        plant(Some(Fault::ClaimBehindFailure));
        let found = target(Setup::ailing(*seed)).random(*seed);
        plant(None);
        found.is_err()
    };
    let found = (2100..2500).find(finds);
    let seed = found.expect("found");
    eprintln!("found by seed {seed}");
    if let Err(failure) = target(Setup::ailing(seed)).random(seed) {
        panic!("{failure}");
    }
}

/// What these lives found: clean data read where a client's write had failed was recorded, and came and went behind a power
/// loss; and what left that out once left out what was written over it.
#[test]
fn seeds_that_found_something() {
    for seed in [1077, 1148, 1238, 1312, 1327, 1613, 2198, 2210] {
        if let Err(failure) = target(Setup::ailing(seed)).random(seed) {
            panic!("{failure}");
        }
    }
}
