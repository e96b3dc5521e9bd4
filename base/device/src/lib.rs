//! Devices that store data on media or at a server, and emulation of slower ones.
//!
//! - [`mod@file`]: a regular file or a raw block device.
//! - [`mem`]: DRAM, completes inline.
//! - [`pmem`]: byte-addressable media, completes inline.
//! - [`emulate`]: declares latency and bandwidth over another device.
//! - [`counted`]: counts the requests to another device.
//! - [`faulted`]: counts the failed requests of another device.
//! - [`nbd`]: an export of an NBD server.
//! - [`nvme_tcp`]: a namespace of an NVMe/TCP target.
//! - [`rbd`]: an image of a Ceph cluster.
//! - [`metered`]: measures the CPU time of another device's own code.
//! - [`signature`]: recognises the content of a device before it is formatted.

pub mod counted;
pub mod emulate;
pub mod faulted;
pub mod file;
pub mod mem;
pub mod metered;
pub mod nbd;
pub mod nvme_tcp;
pub mod pmem;
pub mod rbd;
mod receiver;
mod remote;
pub mod signature;
mod uri_parts;

pub use uri_parts::{percent_decode, percent_encode};
