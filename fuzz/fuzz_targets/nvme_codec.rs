//! Any bytes, given to every decoder of the codecs of NVMe and NVMe/TCP.
#![no_main]

forebay_fuzz::target!("../../base/wire/tests/nvme_codec/check.rs");
