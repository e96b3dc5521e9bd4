//! Any bytes, read as a trace in the format `spc`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Spc));
