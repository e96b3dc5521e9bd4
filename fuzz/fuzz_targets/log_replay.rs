//! A log, a superblock or a process journal, damaged as the bytes say, and read.
#![no_main]

forebay_fuzz::target!("../../block-cache/metadata/tests/log_replay/check.rs");
