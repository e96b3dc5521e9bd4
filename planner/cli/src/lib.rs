//! Commands that read block I/O traces: `forebay trace`, `simulate` and `mrc`. Each module is one
//! command.
//!
//! The program `forebay` adds `trace record` and `replay`, which need a running cache.

pub mod convert;
pub mod generate;
pub mod input;
mod interrupt;
pub mod mrc;
mod report;
mod row;
pub mod simulate;
mod sizes;
pub mod stats;
