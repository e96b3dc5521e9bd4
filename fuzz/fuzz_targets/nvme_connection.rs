//! Any conversation with the NVMe/TCP target.
//!
//! Every connection ends and leaves nothing behind, others are served, answers are well formed, and
//! blocks hold the data written to them.
#![no_main]

#[path = "../../block-cache/frontend/tests/nvme_tcp_machine/check.rs"]
mod check;

thread_local! {
    /// One target for all inputs, so that leftovers of one input meet a later one. The process's
    /// end frees it.
    static TARGET: &'static check::here::Here = Box::leak(Box::new(check::here::Here::start()));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    TARGET.with(|target| check::any_conversation(*target, data));
});
