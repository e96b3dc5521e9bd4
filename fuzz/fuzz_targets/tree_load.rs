//! A bit-tree on media, damaged as the bytes say, and loaded.
#![no_main]

forebay_fuzz::target!("../../block-cache/metadata/tests/tree_load/check.rs");
