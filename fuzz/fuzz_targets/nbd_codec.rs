//! Any bytes, given to every decoder of the NBD codec.
#![no_main]

forebay_fuzz::target!("../../base/wire/tests/nbd_codec/check.rs");
