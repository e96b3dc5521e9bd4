//! The ublk codec on any bytes: a substitute for the fuzzer that needs no nightly compiler.

mod check;

use proptest::prelude::*;

#[test]
fn parameters_that_lack_a_part_are_none() {
    let sound = forebay_wire::ublk::Params::decode([0xff; _]);
    assert!(sound.is_some());
    assert!(forebay_wire::ublk::Params::decode([0; _]).is_none());
}

proptest! {
    #[test]
    fn any_bytes_are_read_and_written_the_same(
        input in prop::collection::vec(any::<u8>(), 0..128),
    ) {
        check::any_input(&input);
    }
}
