//! Arbitrary monitors and guests with arbitrary rings: a seeded substitute for the fuzzer that
//! needs no nightly compiler.

mod check;

use std::panic::{AssertUnwindSafe, catch_unwind};

use check::here::Here;
use proptest::prelude::*;

/// Bytes of a generator (xorshift), after a first one that makes rings orderly or not.
fn drawn(seed: u64, first: u8, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = vec![first];
    bytes.extend((0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }));
    bytes
}

/// Returns the number of mappings of a guest's memory.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let guests = maps.lines().filter(|line| line.contains("forebay-guest"));
    guests.count()
}

#[test]
fn any_conversation_ends_and_leaves_nothing() {
    let here = Here::start();
    let mut answered = 0;
    for seed in 1..=3000_u64 {
        let first = [0x1d, 0x3d, 0x1c, 0x3c][seed as usize % 4];
        answered += check::any_conversation(&here, &drawn(seed * 0x9e37_79b9, first, 150));
    }
    // The conversations had an effect.
    assert!(answered > 2000, "{answered} requests have succeeded");
    assert!(mapped() <= 2, "memory of guests is left");
}

#[test]
fn a_block_that_no_request_has_written_is_found() {
    let here = Here::start();
    for block in [3, 63] {
        here.plant(block);
        let talk = || check::any_conversation(&here, &[0x1d]);
        assert!(catch_unwind(AssertUnwindSafe(talk)).is_err(), "{block}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_end_and_leave_nothing(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        thread_local! {
            // It lives until the process ends.
            static HERE: &'static Here = Box::leak(Box::new(Here::start()));
        }
        HERE.with(|here| check::any_conversation(here, &input));
    }
}
