//! Any bytes, read as a trace in the format `fio`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Fio));
