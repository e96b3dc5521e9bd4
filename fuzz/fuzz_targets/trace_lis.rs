//! Any bytes, read as a trace in the format `lis`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Lis));
