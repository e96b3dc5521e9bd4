//! Input and output of the commands of every product: values with units, tables, and standard
//! output. The filter of the log and its priorities. The fields of a status with their metrics.

pub mod duration;
pub mod journal;
pub mod log_filter;
pub mod metrics;
pub mod number;
pub mod out;
pub mod record;
pub mod size;
pub mod table;
pub mod wrap;
