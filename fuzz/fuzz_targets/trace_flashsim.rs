//! Any bytes, read as a trace in the format `flashsim`.
#![no_main]

forebay_fuzz::reader!(Some(Format::Flashsim));
