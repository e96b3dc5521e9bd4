//! Any bytes, as all that the ublk driver says.
#![no_main]

#[path = "../../base/wire/tests/ublk_codec/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
