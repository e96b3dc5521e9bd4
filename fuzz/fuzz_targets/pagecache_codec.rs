//! Any bytes, given to the decoder of the page cache's messages.
#![no_main]

#[path = "../../page-cache/pagecache/tests/pagecache_codec/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
