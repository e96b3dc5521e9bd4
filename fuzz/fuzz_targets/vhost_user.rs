//! Any rings of a guest, for the vhost-user-blk target: its other queue is served, and so is the next guest.
#![no_main]

use std::sync::OnceLock;

#[path = "../../crates/frontend/tests/vhost_user/rings.rs"]
mod rings;

/// One target for all inputs: what one leaves behind, a later one meets.
static TARGET: OnceLock<rings::target::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let start = || rings::target::Target::start(forebay_io::Engine::Auto);
    rings::any_rings(TARGET.get_or_init(start), data);
});
