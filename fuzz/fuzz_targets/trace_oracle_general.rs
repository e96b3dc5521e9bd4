//! Any bytes, read as a trace in the format `oracle-general`.
#![no_main]

forebay_fuzz::reader!(Some(Format::OracleGeneral));
