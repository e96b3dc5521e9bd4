//! The `forebay` program, also usable as a library.
//!
//! A program that uses the library runs a [`Stack`] on its own reactor. [`Config::parse`] describes
//! devices, a cache and volumes, and [`Stack::open`] opens them. Each volume is a
//! [`BlockDevice`](forebay_block::BlockDevice). `examples/in_process.rs` is an example.

pub mod cli;
pub mod config;
pub mod control;
pub mod page;
#[cfg(test)]
mod reference;
mod secrets;
pub mod serve;
pub mod stack;
pub mod state;
pub mod status;
pub mod view;

pub use config::Config;
pub use forebay_block as block;
pub use forebay_io::{Engine, Reactor};
pub use stack::{Stack, Wishes};
