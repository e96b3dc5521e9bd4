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

/// Targets that lie, and the threads on which they do.
const TARGETS: u64 = 24;
const THREADS: u64 = 4;

/// The targets of one thread, one after the other on one reactor.
fn conversations(thread: u64) -> Vec<Outcome> {
    let reactor = Reactor::new(Engine::Auto).expect("a reactor");
    let seeds = (1..=TARGETS).filter(|seed| seed / 2 % THREADS == thread);
    let outcomes = seeds.map(|seed| {
        let mut input = drawn(seed * 0x9e37_79b9, 120);
        // Every other one tells the truth until it is connected.
        if seed % 2 == 0 {
            input[1..28].fill(0);
        }
        any_target(&reactor, TIMES, &input)
    });
    outcomes.collect()
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
    let (mut connected, mut failed, mut succeeded, mut lies) = (0, 0, 0, 0);
    // In threads, since lies that are silent are waited for.
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || conversations(thread)))
            .collect();
        let outcomes = threads.into_iter().map(|it| it.join().expect("all ends"));
        outcomes.collect::<Vec<_>>().concat()
    });
    assert_eq!(outcomes.len() as u64, TARGETS);
    for outcome in outcomes {
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
