//! The NVMe/TCP initiator against any target. Every request ends, and no memory is touched after
//! its request has ended.
#![no_main]

use std::rc::Rc;
use std::time::Duration;

use forebay_device::nvme_tcp::Times;
use forebay_io::{Engine, Reactor};

#[path = "../../base/device/tests/nvme_tcp_machine/check.rs"]
mod check;

/// Short timeouts, since a silent peer uses them up.
const TIMES: Times = Times {
    keep_alive: Duration::from_millis(50),
    answer: Duration::from_millis(100),
    patience: Duration::from_millis(300),
    pause: Duration::from_millis(1),
};

thread_local! {
    /// One reactor for all inputs. The process's end frees it.
    static REACTOR: &'static Rc<Reactor> =
        Box::leak(Box::new(Reactor::new(Engine::Auto).expect("a reactor")));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    REACTOR.with(|reactor| check::any_target(reactor, TIMES, data));
});
