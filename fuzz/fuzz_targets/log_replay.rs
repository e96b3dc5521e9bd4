//! A log, a superblock or a process journal with damage from the input, replayed.
#![no_main]

forebay_fuzz::target!("../../block-cache/metadata/tests/log_replay/check.rs");
