//! Damaged logs, superblocks and process journals: a seeded stand-in for the fuzzer that needs no
//! nightly compiler.

mod check;

use proptest::prelude::*;

#[test]
fn sound_media_is_read() {
    for how in 0..4 {
        for unit in 0..4 {
            let mut input = vec![how, unit];
            input.extend((0..200_u8).map(|byte| byte.wrapping_mul(37)));
            check::any_input(&input);
        }
    }
}

#[test]
#[should_panic(expected = "record 3")]
fn a_record_that_was_never_written_is_found() {
    check::forged();
}

/// Found by the fuzzer: a log that ends past the largest number, in a superblock with checksums of
/// data.
#[test]
fn a_superblock_may_say_anything() {
    check::any_input(&[140, 131, 14, 0, 10, 42]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_damage_may_be_done(input in prop::collection::vec(any::<u8>(), 0..600)) {
        check::any_input(&input);
    }
}
