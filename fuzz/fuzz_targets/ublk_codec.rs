//! Any bytes, as all that the ublk driver says.
#![no_main]

forebay_fuzz::target!("../../base/wire/tests/ublk_codec/check.rs");
