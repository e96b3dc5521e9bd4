//! Any bytes, read as a trace in the format `alibaba`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Alibaba));
