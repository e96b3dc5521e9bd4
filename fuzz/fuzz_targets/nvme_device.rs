//! Any target, for the NVMe/TCP initiator: all that is asked ends, and no memory is touched once its request has.
#![no_main]

use std::rc::Rc;
use std::time::Duration;

use forebay_device::nvme_tcp::Times;
use forebay_io::{Engine, Reactor};

#[path = "../../base/device/tests/nvme_tcp_machine/check.rs"]
mod check;

/// Short, since lies that are silent take all of them.
const TIMES: Times = Times {
    keep_alive: Duration::from_millis(50),
    answer: Duration::from_millis(100),
    patience: Duration::from_millis(300),
    pause: Duration::from_millis(1),
};

thread_local! {
    /// One for all inputs; it goes with the process.
    static REACTOR: &'static Rc<Reactor> =
        Box::leak(Box::new(Reactor::new(Engine::Auto).expect("a reactor")));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    REACTOR.with(|reactor| check::any_target(reactor, TIMES, data));
});
