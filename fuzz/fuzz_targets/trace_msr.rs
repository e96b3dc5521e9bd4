//! Any bytes, read as a trace in the format `msr`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Msr));
