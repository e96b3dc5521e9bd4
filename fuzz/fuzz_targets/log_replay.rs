//! A log, a superblock or a process journal, damaged as the bytes say, and read.
#![no_main]

#[path = "../../block-cache/metadata/tests/log_replay/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
