//! The `forebay` program and the library face.

pub mod config;
pub mod control;
pub mod metrics;
pub mod page;
pub mod state;
pub mod table;
