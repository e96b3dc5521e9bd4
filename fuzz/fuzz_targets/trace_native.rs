//! Any bytes, read as a trace in the format `native`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Native));
