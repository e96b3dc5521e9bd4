//! Any bytes, read as a trace in the format `alibaba`.
#![no_main]

#[path = "../../planner/trace/tests/readers/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(Some(forebay_trace::Format::Alibaba), data);
});
