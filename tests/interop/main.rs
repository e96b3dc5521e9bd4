//! The NBD server against real clients and against hostile ones.
//!
//! The server runs in the test's process, on memory that records its requests. In `daemon` it is
//! the `forebay` program with its cache. Tests skip programs that are not installed, and print
//! that.

mod allocation;
mod allocation_daemon;
mod chained;
mod clients;
mod daemon;
mod hostile;
mod programs;
mod protocol;
mod raw;
mod secure;
mod secure_daemon;
mod secure_hostile;
mod server;
mod traces;
