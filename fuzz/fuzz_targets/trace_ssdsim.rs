//! Any bytes, read as a trace in the format `ssdsim`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Ssdsim));
