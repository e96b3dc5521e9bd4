//! Anything that a virtual machine's monitor may say and its guest may put into rings, for the vhost-user-blk target: nothing
//! is left of it, the next guest is served, and blocks hold what was written to them.
#![no_main]

#[path = "../../block-cache/frontend/tests/vhost_user_machine/check.rs"]
mod check;

thread_local! {
    /// One disk for all inputs: what one leaves behind, a later one meets. It goes with the process.
    static HERE: &'static check::here::Here = Box::leak(Box::new(check::here::Here::start()));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    HERE.with(|here| check::any_conversation(here, data));
});
