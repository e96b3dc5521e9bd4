//! Any bytes, read as a trace in the format `vscsi-csv`.
#![no_main]

forebay_fuzz::reader!(Some(Format::VscsiCsv));
