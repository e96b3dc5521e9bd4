//! Any bytes, read as a trace in the format `fiu`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Fiu));
