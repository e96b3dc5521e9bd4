//! The `forebay` program and the library face.
//!
//! As a library, Forebay is a [`Stack`] on a reactor of yours: [`Config::parse`] describes devices,
//! a cache and volumes, [`Stack::open`] opens them, and each volume is a
//! [`BlockDevice`](forebay_block::BlockDevice). `examples/in_process.rs` does that and some I/O.

pub mod cli;
pub mod config;
pub mod control;
pub mod metrics;
pub mod page;
#[cfg(test)]
mod reference;
mod secrets;
pub mod serve;
pub mod stack;
pub mod state;
pub mod view;

pub use config::Config;
pub use forebay_block as block;
pub use forebay_io::{Engine, Reactor};
pub use stack::{Stack, Wishes};
