//! Any bytes, read as a trace in the format `tencent`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Tencent));
