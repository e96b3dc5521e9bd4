//! Any bytes, read as a trace in the format `block-ids`.
#![no_main]

forebay_fuzz::reader!(Some(Format::BlockIds));
