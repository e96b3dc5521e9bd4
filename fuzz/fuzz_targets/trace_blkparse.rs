//! Any bytes, read as a trace in the format `blkparse`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Blkparse));
