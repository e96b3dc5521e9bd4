//! Any bytes, as messages of the ublk driver.
#![no_main]

forebay_fuzz::target!("../../base/wire/tests/ublk_codec/check.rs");
