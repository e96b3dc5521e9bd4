//! Targets that lie at arbitrary places: a seeded substitute for the fuzzer that needs no nightly
//! compiler.

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

/// Number of lying targets, and of the threads that run them.
const TARGETS: u64 = 24;
const THREADS: u64 = 4;

/// Runs the targets of one thread, one after the other on one reactor.
fn conversations(thread: u64) -> Vec<Outcome> {
    let reactor = Reactor::new(Engine::Auto).expect("a reactor");
    let seeds = (1..=TARGETS).filter(|seed| seed / 2 % THREADS == thread);
    let outcomes = seeds.map(|seed| {
        let mut input = drawn(seed * 0x9e37_79b9, 120);
        // Every other target tells the truth until it is connected.
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
fn all_requests_end_whatever_a_target_sends() {
    let (mut connected, mut failed, mut succeeded, mut lies) = (0, 0, 0, 0);
    // Threads, since silent lies take time.
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
    // The lies had an effect.
    assert!(
        connected > 6 && failed > 3 && succeeded > 6 && lies > 24,
        "{connected} were connected to, {succeeded} requests succeeded and {failed} failed, after \
         {lies} lies"
    );
}
