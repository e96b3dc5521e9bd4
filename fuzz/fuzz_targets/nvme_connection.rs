//! Any conversation with the NVMe/TCP target: every connection ends, nothing is left of it, others are served.
#![no_main]

use std::sync::OnceLock;

#[path = "../../crates/frontend/tests/nvme_tcp_machine/check.rs"]
mod check;

/// One target for all inputs: what one leaves behind, a later one meets.
static TARGET: OnceLock<check::target::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_conversation(TARGET.get_or_init(check::target::Target::start), data);
});
