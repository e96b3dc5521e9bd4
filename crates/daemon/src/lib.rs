//! The `forebay` program and the library face.

pub mod config;
