//! Any conversation with the NVMe/TCP target: every connection ends, nothing is left of it, others are served, answers are
//! well formed and blocks hold what was written to them.
#![no_main]

#[path = "../../block-cache/frontend/tests/nvme_tcp_machine/check.rs"]
mod check;

thread_local! {
    /// One target for all inputs: what one leaves behind, a later one meets. It goes with the process.
    static TARGET: &'static check::here::Here = Box::leak(Box::new(check::here::Here::start()));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    TARGET.with(|target| check::any_conversation(*target, data));
});
