//! Any bytes, read as a trace in the format `replayer`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Replayer));
