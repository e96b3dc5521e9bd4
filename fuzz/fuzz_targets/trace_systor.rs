//! Any bytes, read as a trace in the format `systor`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Systor));
