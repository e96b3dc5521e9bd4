//! A bit-tree on media with damage from the input, loaded.
#![no_main]

forebay_fuzz::target!("../../block-cache/metadata/tests/tree_load/check.rs");
