//! Random lives on devices whose contents rot.

use forebay_cache::failpoints::{Fault, plant};

use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation};

use super::PARTS;
use super::stack::Setup;
use super::stack::families::target;

const LIVES: Lives = Lives {
    // Fault::TrustDamaged. A fill beside data that rotted, cut off by a crash.
    // Fault::LeaveSpareCopy. Corrupt clean data beside corrupt dirty data. A start that is cut off
    // after it removed damage. A read, slower than a flush, that finds data of before the damage.
    // Marks that the batch of a close repeated.
    pinned: &[
        4_294_977_313,
        1_008_771,
        1_030_381,
        1_030_808,
        1_123_571,
        1_127_622,
        1_283_450,
    ],
    gate: 1200,
    whole: 1250,
    share: 1,
};

/// Returns a configuration that `seed` draws.
fn setup(seed: u64) -> Setup {
    match seed % 8 {
        0 => Setup::tiny(seed),
        1..5 => Setup::draw(seed),
        _ => Setup::pressed(seed),
    }
}

fn rotting(part: u64) {
    let (mut rotted, mut crashes) = (0, 0);
    let mut seeds = LIVES.seeds();
    seeds.retain(|seed| seed % PARTS == part);
    for &seed in &seeds {
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
        let row = serde_json::json!({
            "check": "random seeds with rot",
            "seeds": seeds.len(),
            "crashes": crashes,
            "rotted": rotted,
        });
        eprintln!("ROW {row}");
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

/// Faults: missing verification, and ignored damage.
const FAULTS: [Fault; 3] = [
    Fault::WriteCorruptBack,
    Fault::SkipVerify,
    Fault::TrustDamaged,
];

/// Whether the lives of `seed` find `fault`.
fn finds(fault: Fault, seed: u64) -> bool {
    plant(Some(fault));
    let lived = target(setup(seed)).rotting(seed);
    plant(None);
    lived.is_err()
}

#[test]
fn planted_faults_are_found() {
    for fault in FAULTS {
        let found = (0..400).find(|seed| finds(fault, *seed));
        eprintln!("{fault:?}: found by seed {found:?}");
        assert!(found.is_some(), "{fault:?} is not found");
    }
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    for fault in FAULTS {
        assert_found_by_each_rotation(&fault, |rotation| {
            let mut seeds = LIVES.of(rotation).into_iter();
            seeds.find(|seed| finds(fault, *seed))
        });
    }
}
