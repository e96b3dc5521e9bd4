//! Any bytes, as objects of a volume in object storage: superblock, log, checkpoint, snapshot.
#![no_main]

forebay_fuzz::target!("../../base/object/tests/object_codec/check.rs");
