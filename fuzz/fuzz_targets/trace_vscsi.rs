//! Any bytes, read as a trace in the format `vscsi`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Vscsi));
