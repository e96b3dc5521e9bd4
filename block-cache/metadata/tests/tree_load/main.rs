//! The bit-tree's load path on damaged media: a seeded stand-in for the fuzzer that needs no
//! nightly compiler.

mod check;

use proptest::prelude::*;

#[test]
fn sound_media_loads() {
    for how in 0..8 {
        check::any_input(&[how]);
    }
}

#[test]
fn each_sector_may_be_damaged() {
    for how in 0..8 {
        for sector in 0..64 {
            check::any_input(&[how, sector, 0, 100, 3]);
            check::any_input(&[how, sector, 1, 0, 0]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_damage_may_be_done(data in prop::collection::vec(any::<u8>(), 0..80)) {
        check::any_input(&data);
    }
}
