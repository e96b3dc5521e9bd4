//! Any bytes, read as a trace in the format `vscsi-csv-us`.
#![no_main]

forebay_fuzz::reader!(Some(Format::VscsiCsvUs));
