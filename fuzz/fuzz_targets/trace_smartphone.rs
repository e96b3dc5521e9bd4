//! Any bytes, read as a trace in the format `smartphone`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Smartphone));
