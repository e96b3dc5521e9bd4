//! Any bytes, compressed ones too, read as a trace whose format is not given.
#![no_main]

#[path = "../../planner/trace/tests/readers/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(None, data);
});
