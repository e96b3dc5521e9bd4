//! Any bytes, compressed ones too, read as a trace whose format is not given.
#![no_main]

forebay_fuzz::reader!(None);
