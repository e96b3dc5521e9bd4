//! Any bytes, given to every decoder of the codecs of NVMe and NVMe/TCP.
#![no_main]

#[path = "../../base/wire/tests/nvme_codec/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::any_input(data);
});
