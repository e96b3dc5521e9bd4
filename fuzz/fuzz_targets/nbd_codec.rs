//! Any bytes, given to every decoder of the NBD codec.
#![no_main]

#[path = "../../base/wire/tests/nbd_codec/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
