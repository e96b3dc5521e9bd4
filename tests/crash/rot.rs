//! Random lives on devices whose contents rot.

use forebay_cache::plant::{Fault, plant};

use super::stack::Setup;
use super::{PARTS, number, target};

/// One seed in so many of the random ones is drawn here as well.
const SHARE: u64 = 4;

/// A configuration that `seed` draws.
fn setup(seed: u64) -> Setup {
    match seed % 8 {
        0 => Setup::tiny(seed),
        1..5 => Setup::draw(seed),
        _ => Setup::pressed(seed),
    }
}

fn rotting(part: u64) {
    let first = number("FOREBAY_SEED", 0);
    let count = number("FOREBAY_SEEDS", 5000) / SHARE;
    let (mut rotted, mut crashes) = (0, 0);
    let seeds = (first..first + count).filter(|seed| seed % PARTS == part);
    for seed in seeds.clone() {
        match target(setup(seed)).rotting(seed) {
            Ok(report) => {
                rotted += report.points;
                crashes += report.crashes;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    eprintln!("seeds {part} modulo {PARTS}: {rotted} pieces rotted, {crashes} crashes");
    if std::env::var_os("FOREBAY_ROWS").is_some() {
        let seeds = seeds.count();
        eprintln!(
            r#"ROW {{"check": "random seeds with rot", "seeds": {seeds}, "crashes": {crashes}, "rotted": {rotted}}}"#
        );
    }
}

mod seeds {
    #[test]
    fn part_0() {
        super::rotting(0);
    }
    #[test]
    fn part_1() {
        super::rotting(1);
    }
    #[test]
    fn part_2() {
        super::rotting(2);
    }
    #[test]
    fn part_3() {
        super::rotting(3);
    }
}

/// Each way on which nothing is verified, and damage that is not minded, is found within some seeds.
#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::WriteCorruptBack,
        Fault::SkipVerify,
        Fault::TrustDamaged,
    ] {
        let finds = |seed: &u64| {
            plant(Some(fault));
            let found = target(setup(*seed)).rotting(*seed);
            plant(None);
            found.is_err()
        };
        let found = (0..400).find(finds);
        eprintln!("{fault:?}: found by seed {found:?}");
        assert!(found.is_some(), "{fault:?} is not found");
    }
}
