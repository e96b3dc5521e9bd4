//! A bit-tree on media, damaged as the bytes say, and loaded.
#![no_main]

#[path = "../../block-cache/metadata/tests/tree_load/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
