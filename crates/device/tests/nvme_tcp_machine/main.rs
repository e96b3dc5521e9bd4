//! Targets that lie wherever they like: a seeded stand-in for the fuzzer that needs no nightly compiler.

mod check;

use std::time::Duration;

use check::{Outcome, REQUESTS, any_target};
use forebay_device::nvme_tcp::Times;
use forebay_io::{Engine, Reactor};

const TIMES: Times = Times {
    keep_alive: Duration::from_millis(200),
    answer: Duration::from_millis(500),
    patience: Duration::from_secs(1),
    pause: Duration::from_millis(1),
};

/// Bytes of a generator (xorshift).
fn drawn(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn a_target_that_tells_the_truth_is_served_with_authentication_and_without() {
    let reactor = Reactor::new(Engine::Auto).expect("a reactor");
    for first in [0, 1] {
        let honest = Outcome {
            lies: 0,
            connected: true,
            succeeded: REQUESTS,
        };
        assert_eq!(any_target(&reactor, Times::default(), &[first]), honest);
    }
}

#[test]
fn whatever_a_target_says_all_that_is_asked_ends() {
    let reactor = Reactor::new(Engine::Auto).expect("a reactor");
    let (mut connected, mut failed, mut succeeded, mut lies) = (0, 0, 0, 0);
    for seed in 1..=24_u64 {
        let mut input = drawn(seed * 0x9e37_79b9, 120);
        // Every other one tells the truth until it is connected.
        if seed % 2 == 0 {
            input[1..28].fill(0);
        }
        let outcome = any_target(&reactor, TIMES, &input);
        lies += outcome.lies;
        connected += usize::from(outcome.connected);
        succeeded += outcome.succeeded;
        failed += if outcome.connected {
            REQUESTS - outcome.succeeded
        } else {
            0
        };
    }
    // They are about something.
    assert!(
        connected > 6 && failed > 3 && succeeded > 6 && lies > 24,
        "{connected} were connected to, {succeeded} requests succeeded and {failed} failed, after {lies} lies"
    );
}
