//! Any messages of a virtual machine's monitor and any rings of its guest, for the vhost-user-blk
//! target.
//!
//! Nothing remains of them, the next guest is served, and blocks hold the data written to them.
#![no_main]

#[path = "../../block-cache/frontend/tests/vhost_user_machine/check.rs"]
mod check;

thread_local! {
    /// One disk for all inputs, so that leftovers of one input meet a later one. The process's end
    /// frees it.
    static HERE: &'static check::here::Here = Box::leak(Box::new(check::here::Here::start()));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    HERE.with(|here| check::any_conversation(here, data));
});
