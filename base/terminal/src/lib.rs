//! Input and output of the commands of every product: values with units, tables, the filter of the
//! log, and standard output.

pub mod duration;
pub mod log_filter;
pub mod out;
pub mod size;
pub mod table;
